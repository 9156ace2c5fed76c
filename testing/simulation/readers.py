"""The readers of a run: those that read during it, and the one that reads everything at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

import trio

from odradek.client.consumer import (
    EARLIEST,
    LATEST,
    ConsumedRecord,
    IsolationLevel,
    Reader,
    ReaderOptions,
    list_offsets,
)
from odradek.client.errors import ClientError
from odradek.client.group_admin import committed_offsets
from odradek.client.metadata import Cluster
from odradek.protocol.errors import KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.testing.simulation.history import ClientHistory, ReadRecord

PAUSE_S = 0.1


class Readers:
    """Readers of one topic; they add to the history. `poll_s` is the maximum wait of a poll."""

    def __init__(
        self, history: ClientHistory, topic: str, partitions: int, *, poll_s: float
    ) -> None:
        self._history = history
        self._start = {TopicPartition(topic, index): 0 for index in range(partitions)}
        self._poll_s = poll_s
        self.ends: dict[TopicPartition, int] = {}
        """The log end offsets that readers read up to, once they are known."""

    async def read_along(
        self, cluster: Cluster, name: str, *, options: ReaderOptions | None = None
    ) -> None:
        """Read all committed records from the first offset to the end that `read_final` finds."""
        seen = self._history.polled.setdefault(name, [])
        reader = self._reader(cluster, options or ReaderOptions(IsolationLevel.READ_COMMITTED))
        while not self._has_all(reader.positions):
            seen += await self._poll(cluster, reader)

    async def read_final(
        self, cluster: Cluster, groups: Iterable[str], *, timeout_s: float = 0.0
    ) -> None:
        """Read all committed records, the partitions still open after `timeout_s`, and group
        offsets."""
        history, until = self._history, trio.current_time() + timeout_s
        while True:
            _, ends = await self._read_all(cluster, IsolationLevel.READ_UNCOMMITTED)
            history.final, committed = await self._read_all(cluster, IsolationLevel.READ_COMMITTED)
            history.open_partitions = [
                where.partition for where, end in ends.items() if committed[where] != end
            ]
            if not history.open_partitions or trio.current_time() >= until:
                break
            await trio.sleep(PAUSE_S)
        self.ends = committed
        for group in groups:
            await self._read_group(cluster, group)

    async def log_starts(self, cluster: Cluster) -> dict[int, int]:
        """The log start offset of each partition."""
        found = await list_offsets(cluster, dict.fromkeys(self._start, EARLIEST))
        return {where.partition: start.offset for where, start in found.items()}

    async def log_ends(self, cluster: Cluster) -> dict[int, int]:
        """The end offset of each partition."""
        found = await list_offsets(cluster, dict.fromkeys(self._start, LATEST))
        return {where.partition: end.offset for where, end in found.items()}

    async def read_again(self, cluster: Cluster, starts: Mapping[int, int]) -> list[ReadRecord]:
        """Read all committed records again; partitions begin at `starts`, or at 0."""
        start = {where: starts.get(where.partition, 0) for where in self._start}
        found, _ = await self._read_all(cluster, IsolationLevel.READ_COMMITTED, start)
        return found

    async def _read_all(
        self,
        cluster: Cluster,
        isolation: IsolationLevel,
        start: Mapping[TopicPartition, int] | None = None,
    ) -> tuple[list[ReadRecord], dict[TopicPartition, int]]:
        """Return all records, and the end offset of each partition."""
        reader = Reader(cluster, ReaderOptions(isolation))
        reader.assign(self._start if start is None else dict(start))
        found = await self._poll(cluster, reader)
        while not await self._is_at_end(reader):
            found += await self._poll(cluster, reader)
        return found, reader.positions

    async def _read_group(self, cluster: Cluster, group: str) -> None:
        """Read the group's committed offset of partition 0."""
        try:
            found = await cluster.retrying(partial(committed_offsets, cluster, group))
        except ClientError:  # still pending
            self._history.stuck.add(group)
            return
        if found:
            self._history.group_offsets[group] = found[next(iter(self._start))].offset

    def _has_all(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Whether all end offsets are reached; the history checks the records.

        Markers may have been appended meanwhile.
        """
        return bool(self.ends) and all(positions[where] >= end for where, end in self.ends.items())

    def _reader(self, cluster: Cluster, options: ReaderOptions) -> Reader:
        reader = Reader(cluster, options)
        reader.assign(self._start)
        return reader

    async def _is_at_end(self, reader: Reader) -> bool:
        try:
            return await reader.at_end()
        except (KafkaError, ClientError):
            return False

    async def _poll(self, cluster: Cluster, reader: Reader) -> list[ReadRecord]:
        """Poll, and continue at the log start offset after a deletion of records."""
        records: list[ConsumedRecord] = []
        try:
            records = await reader.poll(self._poll_s)
        except (KafkaError, ClientError):
            await trio.sleep(PAUSE_S)
        if reader.out_of_range:
            with suppress(KafkaError, ClientError):
                await seek_to_log_start(cluster, reader)
        return to_read_records(records)


async def seek_to_log_start(cluster: Cluster, reader: Reader) -> None:
    """Change positions that are out of range to the log start offset, if it is larger."""
    gone = [error.where for error in reader.out_of_range]
    starts = await list_offsets(cluster, dict.fromkeys(gone, EARLIEST))
    for where, start in starts.items():
        if start.offset > reader.positions[where]:
            reader.seek(where, start.offset)


def to_read_records(records: Iterable[ConsumedRecord]) -> list[ReadRecord]:
    """Convert records, without the padding of their values."""
    return [
        ReadRecord(each.partition, each.offset, (each.value or b"").rstrip()) for each in records
    ]
