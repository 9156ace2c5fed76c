"""Serves Fetch and FetchSnapshot requests of the metadata log (KIP-595, KIP-630).

The state machine validates the offset; the records are added here. A fetch without new records
waits until the log or the high watermark advances, the leadership is lost, or its max wait time is
over. Unflushed records are sent too, because a follower's disk may be faster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Request,
    Response,
)
from odradek.seams.files import WouldBlock

if TYPE_CHECKING:
    from odradek.replication.raft.metadata_log import MetadataLog
    from odradek.replication.raft.metadata_log_writer import Blocking
    from odradek.replication.raft.quorum_state import QuorumSettings
    from odradek.replication.raft.raft_client_driver import RaftClientDriver


class FetchHandler:
    """Adds records or snapshot bytes to the responses of the state machine."""

    def __init__(
        self,
        driver: RaftClientDriver,
        metadata_log: MetadataLog,
        settings: QuorumSettings,
        blocking: Blocking,
    ) -> None:
        self._driver = driver
        self._log = metadata_log
        self._settings = settings
        self._blocking = blocking

    async def respond(self, request: Request) -> Response:
        respond = await self._driver.ask(request)
        if isinstance(request, FetchRequest) and isinstance(respond, FetchResponse):
            return await self._fetched(request, respond)
        if isinstance(request, FetchSnapshotRequest) and isinstance(respond, FetchSnapshotResponse):
            return await self._piece(request, respond)
        return respond

    async def _fetched(self, request: FetchRequest, respond: FetchResponse) -> FetchResponse:
        until = trio.current_time() + request.max_wait_ms / 1000
        while not _says_all(respond):
            records = await self._read(request)
            late = trio.current_time() >= until
            if records or late or respond.high_watermark > request.high_watermark:
                if self._driver.quorum.epoch == respond.epoch:
                    return replace(respond, records=records)
            elif not self._is_news(request, respond):
                with trio.move_on_at(until):
                    while not self._is_news(request, respond):
                        await self._driver.progress()
            told = await self._driver.ask(request, again=True)
            assert isinstance(told, FetchResponse)
            respond = told
        return respond

    def _is_news(self, request: FetchRequest, respond: FetchResponse) -> bool:
        leadership = self._driver.quorum.leadership
        return (
            leadership is None
            or leadership.epoch != respond.epoch
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
        self, request: FetchSnapshotRequest, respond: FetchSnapshotResponse
    ) -> FetchSnapshotResponse:
        if respond.error is not ErrorCode.none:
            return respond
        max_bytes = min(request.max_bytes, self._settings.fetch_snapshot_max_bytes)
        try:
            data = await self._blocking(
                self._log.snapshots.read_piece, request.snapshot_id, request.position, max_bytes
            )
        except FileNotFoundError:  # pruned meanwhile; there is a newer one
            return replace(
                respond, error=ErrorCode.snapshot_not_found, snapshot_id=None, size=0, position=0
            )
        return replace(respond, data=data)


def _says_all(respond: FetchResponse) -> bool:
    """Whether the response carries no records: an error, a diverging epoch or a snapshot id."""
    return (
        respond.error is not ErrorCode.none
        or respond.diverging is not None
        or respond.snapshot_id is not None
    )
