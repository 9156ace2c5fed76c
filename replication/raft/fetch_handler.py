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
    RaftRequest,
    RaftResponse,
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

    async def handle_request(self, request: RaftRequest) -> RaftResponse:
        response = await self._driver.handle_request(request)
        if isinstance(request, FetchRequest) and isinstance(response, FetchResponse):
            return await self._fetched(request, response)
        if isinstance(request, FetchSnapshotRequest) and isinstance(
            response, FetchSnapshotResponse
        ):
            return await self._read_snapshot_bytes(request, response)
        return response

    async def _fetched(self, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        until = trio.current_time() + request.max_wait_ms / 1000
        while not _is_complete(response):
            records = await self._read(request)
            late = trio.current_time() >= until
            if records or late or response.high_watermark > request.high_watermark:
                if self._driver.raft_client.epoch == response.epoch:
                    return replace(response, records=records)
            elif not self._has_advanced(request, response):
                with trio.move_on_at(until):
                    while not self._has_advanced(request, response):
                        await self._driver.wait_for_progress()
            retried = await self._driver.handle_request(request, again=True)
            assert isinstance(retried, FetchResponse)
            response = retried
        return response

    def _has_advanced(self, request: FetchRequest, response: FetchResponse) -> bool:
        leadership = self._driver.raft_client.leadership
        return (
            leadership is None
            or leadership.epoch != response.epoch
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

    async def _read_snapshot_bytes(
        self, request: FetchSnapshotRequest, response: FetchSnapshotResponse
    ) -> FetchSnapshotResponse:
        if response.error is not ErrorCode.none:
            return response
        max_bytes = min(request.max_bytes, self._settings.fetch_snapshot_max_bytes)
        try:
            data = await self._blocking(
                self._log.snapshots.read_chunk, request.snapshot_id, request.position, max_bytes
            )
        except FileNotFoundError:  # deleted; there is a newer snapshot
            return replace(
                response, error=ErrorCode.snapshot_not_found, snapshot_id=None, size=0, position=0
            )
        return replace(response, data=data)


def _is_complete(response: FetchResponse) -> bool:
    """Whether the response carries no records: an error, a diverging epoch or a snapshot id."""
    return (
        response.error is not ErrorCode.none
        or response.diverging is not None
        or response.snapshot_id is not None
    )
