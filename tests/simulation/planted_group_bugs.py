"""Bugs put into the group coordinators on purpose, to see that the simulated cluster's group finds them."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.broker.groups import record_serde as records
from odradek.broker.groups.consumer import reconciliation
from odradek.broker.groups.coordinator_shard import GroupCoordinatorShard
from odradek.broker.groups.group_log import GroupLoader
from odradek.protocol.errors import ErrorCode


def forget_offsets_of_the_last_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Whoever coordinates next loads groups, and none of their offsets."""
    honest = GroupLoader.replay

    def replay(
        self: GroupLoader, key: bytes, value: bytes | None, offset: int, producer: int
    ) -> None:
        if not records.is_offset_key(key):
            honest(self, key, value, offset, producer)

    patch.setattr(GroupLoader, "replay", replay)


def take_commits_of_whoever_comes(patch: pytest.MonkeyPatch) -> None:
    """Members that were taken for dead commit what is others' by now."""
    patch.setattr(GroupCoordinatorShard, "_check_commit", lambda *_: ErrorCode.none)


def hand_on_what_nobody_let_go_of(patch: pytest.MonkeyPatch) -> None:
    """A member gets what its last owner reads still."""
    honest = reconciliation._reconcile_with_target

    def advance(member: Any, target: Any, owned: Any, subscribed: Any, _: Any, *rest: Any) -> Any:
        return honest(member, target, owned, subscribed, lambda topic: frozenset(), *rest)

    patch.setattr(reconciliation, "_reconcile_with_target", advance)


PLANTED = (
    forget_offsets_of_the_last_coordinator,
    take_commits_of_whoever_comes,
    hand_on_what_nobody_let_go_of,
)
