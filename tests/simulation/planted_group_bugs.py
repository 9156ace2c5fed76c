"""Planted bugs of the group coordinator, which the simulator must find."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.broker.groups import record_serde as records
from odradek.broker.groups.consumer import reconciliation
from odradek.broker.groups.coordinator_shard import GroupCoordinatorShard
from odradek.broker.groups.group_log import GroupLoader
from odradek.protocol.errors import ErrorCode


def skip_loading_of_committed_offsets(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator loads groups without their committed offsets."""
    honest = GroupLoader.replay

    def replay(
        self: GroupLoader, key: bytes, value: bytes | None, offset: int, producer: int
    ) -> None:
        if not records.is_offset_key(key):
            honest(self, key, value, offset, producer)

    patch.setattr(GroupLoader, "replay", replay)


def skip_fencing_of_offset_commits(patch: pytest.MonkeyPatch) -> None:
    """Fenced members can commit offsets of partitions that other members own."""
    patch.setattr(GroupCoordinatorShard, "_check_commit", lambda *_: ErrorCode.none)


def assign_partitions_before_revocation(patch: pytest.MonkeyPatch) -> None:
    """A partition is assigned before its previous owner has revoked it."""
    honest = reconciliation._reconcile_with_target

    def advance(member: Any, target: Any, owned: Any, subscribed: Any, _: Any, *rest: Any) -> Any:
        return honest(member, target, owned, subscribed, lambda topic: frozenset(), *rest)

    patch.setattr(reconciliation, "_reconcile_with_target", advance)


PLANTED = (
    skip_loading_of_committed_offsets,
    skip_fencing_of_offset_commits,
    assign_partitions_before_revocation,
)
