"""Runs operations of the active controller and commits their records.

An operation reads the newest image, which includes appended, uncommitted records, and returns the
records to append. Operations run one after the other; concurrent commits share a flush. An appended
commit is not cancelled. If the node loses its epoch first, the outcome is unknown and the caller gets
NOT_CONTROLLER.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import trio

from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import record_version
from odradek.replication.controller.image import MetadataImage
from odradek.replication.raft.controller_claim import ControllerClaim
from odradek.replication.raft.errors import NotController
from odradek.replication.raft.metadata_batch_loader import MetadataBatchLoader, MetadataTransaction
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.metadata_state import MetadataState
from odradek.replication.raft.raft_client_driver import RaftClientDriver
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors

T = TypeVar("T")


class MetadataCommitter:
    """Appends and commits records; only works while this node is the active controller."""

    def __init__(
        self, state: MetadataState, metadata_log: MetadataLog, claim: ControllerClaim
    ) -> None:
        self.state = state
        self.claim = claim
        self._log = metadata_log

    async def perform(self, operation: Callable[[MetadataImage], ControllerResult[T]]) -> T:
        """Run an operation on the newest image, commit its records, and return its result.

        Operations run one after the other and share flushes. Once the records are appended, this
        waits for the commit even if cancelled. Raises what the operation raises (nothing is
        committed then), BatchTooLarge, NotController, LogFailed, and DiskFull or NoDescriptors,
        after which this leader resigns if there is another voter. NotController may also mean that
        the epoch was lost before the commit: its records may or may not be committed. A non-atomic
        result may be committed in part.
        """
        self.check_active()
        plan = operation(self.state.newest)
        try:
            for records in plan.batches():
                self.append(records)
        except (DiskFull, NoDescriptors) as error:
            self._driver().resign_after_write_error(error)
            raise
        await self.wait_until_committed(self.state.newest.offset + 1)
        return plan.result

    async def commit(self, records: Sequence[Any]) -> int:
        """Commit the given records; returns the last offset."""
        return await self.perform(
            lambda image: ControllerResult(records, image.offset + len(records))
        )

    def check_online(self) -> None:
        if self.state.failure is not None:
            raise LogFailed(f"the metadata log is offline: {self.state.failure}")

    def check_active(self) -> None:
        self.check_online()
        if not self.claim.is_active:
            raise NotController("this node is not the active controller")

    def append(
        self, records: Sequence[Any], transactions: MetadataTransaction | None = None
    ) -> None:
        """Apply and append records as one batch, or raise and change nothing.

        They are applied first, so that records that contradict the image are never written.
        """
        newest, epoch = self.state.newest, self._driver().raft_client.epoch
        replay = MetadataBatchLoader(newest, keep_records=True, transactions=transactions)
        for record in records:
            replay.apply(record)
        values = [
            encode_metadata_record(record, record_version(record, newest.features))
            for record in records
        ]
        try:
            last, size = self._log.append(values, epoch)
        except LogFailed as error:
            self._driver().fail(error)
            raise
        replay.offset, replay.epoch = last, epoch
        replay.timestamp_ms = self._log.appended_ms
        self.state.appended(replay.finish(), size)

    async def wait_until_committed(self, offset: int) -> None:
        """Wait until the high watermark reaches `offset`; flush if no flush is running."""
        driver = self._driver()
        if driver.high_watermark >= offset:
            return
        commit = self.state.wait_for(offset)
        with trio.CancelScope(shield=True):
            await driver.flush(offset)
            await commit.over.wait()
        if commit.error is not None:
            raise commit.error

    def _driver(self) -> RaftClientDriver:
        assert self.claim.driver is not None, "the active controller has started"
        return self.claim.driver
