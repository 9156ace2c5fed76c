"""Bugs put into tiered storage on purpose, to see that the simulated cluster with a store finds them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from odradek.broker.tiered.segment_work import SegmentWork
from odradek.seams.files import Buffer
from odradek.storage.log import expiry as local_expiry
from odradek.storage.tiered import expiry
from odradek.storage.tiered.manifest import StoredObject
from odradek.storage.tiered.object_names import segment_key
from odradek.storage.tiered.object_store import ObjectStoreStorage, _Counted


def let_go_of_what_was_not_copied(patch: pytest.MonkeyPatch) -> None:
    """The disk's segments do not wait for their copies."""
    honest = local_expiry.find_expired

    def find(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("safe_to") is not None:
            kwargs["safe_to"] = 1 << 62
        return honest(*args, **kwargs)

    patch.setattr(local_expiry, "find_expired", find)


def leave_what_others_began(patch: pytest.MonkeyPatch) -> None:
    """Copies that are not finished stay."""
    patch.setattr(SegmentWork, "is_dangling", lambda work, segment: False)


def take_the_store_at_its_word(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether what was put is there."""

    def put(self: ObjectStoreStorage, copy: Any, suffix: str, pieces: Iterable[Buffer]) -> None:
        counted = _Counted(pieces)
        self._objects.put(segment_key(copy.metadata, suffix), counted)
        copy.objects[suffix] = StoredObject(counted.size, counted.crc32c)

    patch.setattr(ObjectStoreStorage, "_put", put)


def count_sizes_twice(patch: pytest.MonkeyPatch) -> None:
    """What is in the tier is counted once more, as after a change of leaders in Kafka once."""
    honest = expiry._Decision.__init__

    def begin(self: Any, retained: Any) -> None:
        honest(self, retained)
        if retained.retention_bytes >= 0:
            self._excess += retained.remote_bytes

    patch.setattr(expiry._Decision, "__init__", begin)


PLANTED = [
    let_go_of_what_was_not_copied,
    leave_what_others_began,
    take_the_store_at_its_word,
    count_sizes_twice,
]
