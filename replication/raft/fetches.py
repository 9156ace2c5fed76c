"""What the leader's log and snapshots hold for those who fetch them (KIP-595, KIP-630).

The state machine says where a replica may read on; the bytes are put in here. A fetch that finds
nothing new is held until the log grows, more is committed, this node leads no more, or its time is up.
Records are sent as soon as they are in the log: a follower's disk may be quicker than this one's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.messages import (
    Answer,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
    Request,
)
from odradek.seams.files import WouldBlock

if TYPE_CHECKING:
    from odradek.replication.raft.driver import QuorumDriver
    from odradek.replication.raft.log_changes import Blocking
    from odradek.replication.raft.metadata_log import MetadataLog
    from odradek.replication.raft.roles import QuorumSettings


class Fetches:
    """See the module."""

    def __init__(
        self,
        driver: QuorumDriver,
        metadata_log: MetadataLog,
        settings: QuorumSettings,
        blocking: Blocking,
    ) -> None:
        self._driver = driver
        self._log = metadata_log
        self._settings = settings
        self._blocking = blocking

    async def answer(self, request: Request) -> Answer:
        answer = await self._driver.ask(request)
        if isinstance(request, FetchRequest) and isinstance(answer, FetchAnswer):
            return await self._fetched(request, answer)
        if isinstance(request, FetchSnapshotRequest) and isinstance(answer, FetchSnapshotAnswer):
            return await self._piece(request, answer)
        return answer

    async def _fetched(self, request: FetchRequest, answer: FetchAnswer) -> FetchAnswer:
        until = trio.current_time() + request.max_wait_ms / 1000
        while not _says_all(answer):
            records = await self._read(request)
            late = trio.current_time() >= until
            if records or late or answer.high_watermark > request.high_watermark:
                if self._driver.quorum.epoch == answer.epoch:
                    return replace(answer, records=records)
            elif not self._is_news(request, answer):
                with trio.move_on_at(until):
                    while not self._is_news(request, answer):
                        await self._driver.progress()
            told = await self._driver.ask(request, again=True)
            assert isinstance(told, FetchAnswer)
            answer = told
        return answer

    def _is_news(self, request: FetchRequest, answer: FetchAnswer) -> bool:
        leadership = self._driver.quorum.leadership
        return (
            leadership is None
            or leadership.epoch != answer.epoch
            or self._log.end_offset > request.fetch_offset
            or leadership.high_watermark > request.high_watermark
            or self._driver.failure is not None
        )

    async def _read(self, request: FetchRequest) -> bytes:
        max_bytes = min(request.max_bytes, self._settings.fetch_max_bytes)
        try:
            return self._log.read(request.fetch_offset, max_bytes, nowait=True)
        except WouldBlock:
            found: bytes = await self._blocking(self._log.read, request.fetch_offset, max_bytes)
            return found

    async def _piece(
        self, request: FetchSnapshotRequest, answer: FetchSnapshotAnswer
    ) -> FetchSnapshotAnswer:
        if answer.error is not ErrorCode.none:
            return answer
        max_bytes = min(request.max_bytes, self._settings.fetch_snapshot_max_bytes)
        try:
            data = await self._blocking(
                self._log.snapshots.read_piece, request.snapshot_id, request.position, max_bytes
            )
        except FileNotFoundError:  # pruned meanwhile; there is a newer one
            return replace(
                answer, error=ErrorCode.snapshot_not_found, snapshot_id=None, size=0, position=0
            )
        return replace(answer, data=data)


def _says_all(answer: FetchAnswer) -> bool:
    """It has no place for records."""
    return (
        answer.error is not ErrorCode.none
        or answer.diverging is not None
        or answer.snapshot_id is not None
    )
