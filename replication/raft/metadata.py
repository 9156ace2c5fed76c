"""The cluster's state, kept: a quorum's log underneath, an image above it.

SKELETON of signatures, being filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from odradek.replication.controller.image import MetadataDelta, MetadataImage
from odradek.replication.controller.operations import Plan
from odradek.seams import Seams
from odradek.seams.files import Path

T = TypeVar("T")
Listener = Callable[[MetadataDelta], None]


class Metadata:
    """See the module. `directory` is the metadata log directory (`__cluster_metadata-0` goes in it).

    `image` is committed state only. All listeners hear of every commit, in order, synchronously,
    after `image` has moved and before `perform` or `commit` returns.
    """

    image: MetadataImage
    node_id: int
    leader_id: int
    leader_epoch: int

    def __init__(
        self,
        seams: Seams,
        directory: Path,
        *,
        node_id: int,
        cluster_id: str,
        directory_id: UUID,
        controller_listeners: Sequence[tuple[str, str, int]] = (),
        snapshot_bytes_max: int = 20 * 1024 * 1024,
        snapshot_interval_ms: int = 3_600_000,
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Recover log and image, become leader, write what a new cluster begins with."""
        raise NotImplementedError

    async def perform(self, operation: Callable[[MetadataImage], Plan[T]]) -> T:
        """Decide on the newest state, commit what was decided, and return the result.

        Operations are decided one after the other, each seeing what those before it decided;
        flushes are shared by all that arrive together. Not cancelled half way: once appended, this
        waits until the records are committed. Raises what the operation raises (nothing is
        committed then), LogFailed if the log is offline.
        """
        raise NotImplementedError

    async def commit(self, records: Sequence[Any]) -> int:
        """Commit records decided elsewhere, as one batch; the offset of the last one."""
        raise NotImplementedError

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call back at every commit from now on; returns the way to unsubscribe."""
        raise NotImplementedError

    async def close(self) -> None:
        """Flush and close. The log directory's clean-shutdown mark is not this one's business."""
        raise NotImplementedError
