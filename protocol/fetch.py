"""Fetch responses, versions 4 to 18, written by hand: headers as bytes, records as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from odradek.seams.files import Buffer, FileSlice

Part = Buffer | FileSlice


@dataclass(slots=True, kw_only=True)
class FetchedPartition:
    """A partition's part of the answer; `records` are sent as they are, whole batches or cut."""

    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of each; None where the reader is not read_committed."""
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None
    """(epoch, end offset), tag 0 from version 12."""
    current_leader: tuple[int, int] | None = None
    """(leader id, leader epoch), tag 1 from version 12."""
    snapshot_id: tuple[int, int] | None = None
    """(end offset, epoch), tag 2 from version 12."""
    records: Sequence[Part] = ()


@dataclass(slots=True, kw_only=True)
class FetchedTopic:
    name: str
    topic_id: UUID | None
    partitions: Sequence[FetchedPartition]


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = None


def write_fetch_response(
    version: int,
    *,
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    topics: Sequence[FetchedTopic] = (),
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Part]:
    """The body of a Fetch response as parts: encoded fields, and the records handed in."""
    raise NotImplementedError
