"""Checks of diskless topics: the coordinators' states, and the objects in the store (KIP-1164).

During the run: all replicas of a coordinator have the same state at the same offset; no object with live batches in a
committed state is deleted, none before its grace period is over, and none is committed after its deletion.

After recovery: every replica has applied all records; every live batch is in its object; each file has an owner that will
delete it. Then records are deleted, all clocks advance, and the store has exactly the objects with live batches, the
log start offsets are the expected ones, and the records after them are readable. After the topics are deleted, no object
is left.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol
from uuid import UUID

import trio

from odradek.broker.diskless.coordinator import DisklessCoordinator
from odradek.broker.diskless.file_workers import FILE_AGE_MS
from odradek.broker.diskless.memory_state_store import database_path, stored_state
from odradek.broker.node import Node
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import Batch
from odradek.replication.controller.image import TopicImage
from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.object_key import PREFIX
from odradek.storage.diskless.state import FileBatch, FileStatus
from odradek.testing.simulation.cluster import SimulatedCluster, SimulatedNode, host
from odradek.testing.simulation.faults import CLOCK_JUMP_MS
from odradek.testing.simulation.history import Anomaly, ReadRecord
from odradek.testing.virtual_object_store import VirtualBucket

STEP_S = 0.05
TIMEOUT_S = 150.0
"""A scan for orphans that failed during the faults is repeated after up to two minutes."""
GRACE_CONFIG = "diskless.file.deletion.grace.period.ms"


class DisklessAdministrator(Protocol):
    """Sends the requests that the checks need."""

    async def configure(self, configs: Mapping[str, str]) -> None:
        """Set configs of the topic."""
        ...

    async def delete_records(self, before: Mapping[int, int]) -> None: ...

    async def delete_topics(self, names: Sequence[str]) -> None: ...

    async def read_again(self, starts: Mapping[int, int]) -> list[ReadRecord]:
        """Read all records again; partitions begin at `starts`."""
        ...


class DisklessChecks:
    def __init__(
        self,
        cluster: SimulatedCluster,
        bucket: VirtualBucket,
        topics: Sequence[str],
        *,
        seed: int,
        configs: Mapping[str, str],
    ) -> None:
        """Create the checks of `topics`; clients write to the first one."""
        self.anomalies: list[Anomaly] = []
        self._cluster = cluster
        self._bucket = bucket
        self._topics = topics
        self._grace_ms = int(configs[GRACE_CONFIG])
        self._chance = random.Random(f"diskless {seed}")
        self._committed: dict[int, MemoryDisklessState] = {}
        """By coordinator: the state with the most records that any replica has had."""
        self._known: dict[tuple[int, int], object] = {}
        """Content of the states by coordinator and applied offset."""
        self._compared: dict[tuple[int, int], bytes] = {}
        """The last state that was compared, by node and coordinator."""
        self._deleted: set[str] = set()
        cluster.on_state_stored = self._stored
        bucket.on_remove = self._removed

    def _add_anomaly(self, kind: str, text: str) -> None:
        self.anomalies.append(Anomaly(kind, text))

    # During the run

    async def run(self) -> None:
        """Compare the states until cancelled."""
        while True:
            self.step()
            await trio.sleep(STEP_S)

    def step(self) -> None:
        for node, _, coordinator in self._replicas():
            self._compare(node, coordinator)

    def _compare(self, node: SimulatedNode, coordinator: DisklessCoordinator) -> None:
        stored = _stored_content(node, coordinator)
        which = (node.number, coordinator.coordinator_id)
        if stored is None or self._compared.get(which) is stored:
            return
        self._compared[which] = stored
        state = stored_state(coordinator.coordinator_id, stored)
        key = coordinator.coordinator_id, state.applied_offset
        content = state.content()
        if self._known.setdefault(key, content) != content:
            self._add_anomaly(
                "different states",
                f"{coordinator.name} on {host(node.number)} at offset {state.applied_offset}",
            )

    def _replicas(self) -> Iterator[tuple[SimulatedNode, Node, DisklessCoordinator]]:
        """The replicas on running nodes whose states are open."""
        for node, broker in self._cluster.running():
            diskless = broker.services.diskless
            if diskless is not None:
                for coordinator in diskless.coordinators:
                    if coordinator.has_state:
                        yield node, broker, coordinator

    def _stored(self, path: str, content: bytes) -> None:
        """A replica has applied records; only committed ones are."""
        coordinator_id = int(path.rpartition("-")[2].removesuffix(".db"))
        state = stored_state(coordinator_id, content)
        known = self._committed.get(coordinator_id)
        if known is not None and known.applied_offset > state.applied_offset:
            return
        self._committed[coordinator_id] = state
        for key in self._deleted:
            if (file := state.file(key)) is not None and file.live_batches:
                self._add_anomaly("live object deleted", f"{key} was committed after its deletion")

    def _removed(self, key: str) -> None:
        """An object is deleted."""
        self._deleted.add(key)
        now_ms = max(node.clock.wall_ms() for node in self._cluster)
        for coordinator_id, state in self._committed.items():
            file = state.file(key)
            if file is None:
                continue
            if file.live_batches:
                self._add_anomaly(
                    "live object deleted", f"{key} has batches of coordinator {coordinator_id}"
                )
            elif (
                file.status(coordinator_id) is FileStatus.DELETING
                and now_ms - file.unused_since_ms < self._grace_ms
            ):
                self._add_anomaly(
                    "deleted too early",
                    f"{key} {now_ms - file.unused_since_ms} ms after its last batch, not {self._grace_ms} ms",
                )

    # After recovery

    def check_log_starts(
        self,
        log_starts: Mapping[int, int],
        acknowledged: Mapping[int, int],
        requested: Mapping[int, int],
    ) -> None:
        """Check that only the requests to delete records have moved the log start offsets."""
        for index, start in log_starts.items():
            low, high = acknowledged.get(index, 0), requested.get(index, 0)
            if not low <= start <= high:
                self._add_anomaly(
                    "wrong log start offset",
                    f"partition {index} starts at {start}, and deletions were requested below {high},"
                    f" of which those below {low} were acknowledged",
                )

    async def final(
        self,
        committed: list[ReadRecord],
        log_starts: Mapping[int, int],
        clients: DisklessAdministrator,
    ) -> None:
        """Run all checks; `committed` are the records of the first topic. The topics are deleted at the end."""
        if not await self._until(self._describe_unapplied, "not applied"):
            return
        self._check_all(log_starts)
        if self.anomalies:
            return
        starts = await self._delete_some(clients, log_starts)
        self._advance_clocks()
        if not await self._until(lambda: self._describe_unused(starts), "unused objects"):
            return
        self._check_all(starts)
        again = Counter(await clients.read_again(starts))
        wanted = Counter(each for each in committed if each.offset >= starts[each.partition])
        if missing := wanted - again:
            self._add_anomaly("lost in the object store", f"{list(missing)}")
        if more := again - wanted:
            self._add_anomaly("duplicated in the object store", f"{list(more)}")
        names = [topic.name for topic in self._existing()]
        await clients.delete_topics(names)
        self._advance_clocks()
        await self._until(self._describe_remaining, "not deleted")

    def _advance_clocks(self) -> None:
        """Advance all clocks until every file is old enough, whichever clock gave it its time."""
        for node in self._cluster:
            node.clock.skew_ms += 2 * FILE_AGE_MS + 4 * CLOCK_JUMP_MS + self._grace_ms

    async def _until(self, describe: Callable[[], str | None], kind: str) -> bool:
        """Wait until `describe` returns None; a timeout is an anomaly, and returns False."""
        until = trio.current_time() + TIMEOUT_S
        while (why := describe()) is not None:
            if trio.current_time() > until:
                self._add_anomaly(kind, f"in {TIMEOUT_S:g} s: {why}")
                return False
            await trio.sleep(STEP_S)
        return True

    def _existing(self) -> list[TopicImage]:
        image = self._cluster.running()[0][1].metadata.image
        return [image.topics_by_name[each] for each in self._topics if each in image.topics_by_name]

    def _describe_unapplied(self) -> str | None:
        """Describe a replica that has not applied all records of the leader, or a file that is handed over."""
        ends: dict[int, set[int]] = {}
        count = 0
        for _, _, coordinator in self._replicas():
            offsets = ends.setdefault(coordinator.coordinator_id, set())
            offsets |= {coordinator.applied_offset, coordinator.log.end_offset - 1}
            count += 1
        different = {each: offsets for each, offsets in ends.items() if len(offsets) > 1}
        if different:
            return f"applied offsets by coordinator: {different}"
        return None if count else "there is no replica"

    def _check_all(self, log_starts: Mapping[int, int]) -> None:
        """Check all states and the objects of all live batches."""
        self.step()
        keys = {key for state in self._committed.values() for key in _keys(state)}
        for key in sorted(keys):
            live = [
                batch for state in self._committed.values() for batch in state.file_batches(key)
            ]
            if live:
                self._check_object(key, live)
        for topic in self._existing():
            for index, partition in topic.partitions.items():
                state = self._committed[partition.diskless_coordinator]
                start = log_starts[index] if topic.name == self._topics[0] else None
                self._check_offsets(topic.id, index, state, start)

    def _check_object(self, key: str, live: Sequence[FileBatch]) -> None:
        data = self._bucket.objects.get(key)
        if data is None:
            self._add_anomaly("object missing", f"{key} with {live}")
            return
        for each in live:
            start, end = each.batch.byte_offset, each.batch.byte_offset + each.batch.byte_size
            try:
                batch = Batch(memoryview(data)[start:end])
                batch.check()
                is_expected = (
                    batch.size == end - start
                    and batch.last_offset - batch.base_offset
                    == each.batch.last_offset - each.batch.base_offset
                )
            except CorruptBatch:
                is_expected = False
            if not is_expected:
                self._add_anomaly("wrong bytes", f"{key} at {start}: {each}")

    def _describe_owner(self, key: str) -> str | None:
        """Describe a file without an owner, or whose owner follows a coordinator with live batches."""
        files = {each: state.file(key) for each, state in self._committed.items()}
        known = {each: file for each, file in files.items() if file is not None}
        owner_ids = next(iter(known.values())).owner_ids
        owners = [owner_ids.index(each) for each, file in known.items() if file.is_owner]
        live = [owner_ids.index(each) for each, file in known.items() if file.live_batches]
        if owners and min(live) >= max(owners):
            return None
        return f"{key} of {owner_ids} is owned by {owners}, and needed by {live}"

    def _check_offsets(
        self, topic_id: UUID, index: int, state: MemoryDisklessState, start: int | None
    ) -> None:
        """Check that the live batches are contiguous from the log start offset to the high watermark."""
        partition = state.partition(topic_id, index)
        if partition is None:
            self._add_anomaly("partition missing", f"{topic_id}-{index}")
            return
        if start is not None and partition.log_start_offset != start:
            self._add_anomaly(
                "wrong log start offset",
                f"partition {index} starts at {partition.log_start_offset}, not at {start}",
            )
        offset = partition.log_start_offset
        for batch in state.find_batches(topic_id, index, 0, max_batches=0, max_bytes=1 << 62):
            if not batch.base_offset <= offset <= batch.last_offset:
                self._add_anomaly("gap", f"{partition} has {batch} at {offset}")
            offset = batch.last_offset + 1
        if offset != partition.high_watermark:
            self._add_anomaly("gap", f"{partition} has batches up to {offset}")

    # Deletion

    async def _delete_some(
        self, clients: DisklessAdministrator, log_starts: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Delete records of the first topic in one of three ways; return the expected log start offsets."""
        (topic,) = [each for each in self._existing() if each.name == self._topics[0]]
        ends, sizes = {}, {}
        for index, image in topic.partitions.items():
            state = self._committed[image.diskless_coordinator]
            batches = state.find_batches(topic.id, index, 0, max_batches=0, max_bytes=1 << 62)
            ends[index] = batches[-1].last_offset + 1 if batches else log_starts[index]
            sizes[index] = [(each.last_offset + 1, each.byte_size) for each in batches]

        async def by_offset() -> Mapping[int, int]:
            starts = {
                index: self._chance.randint(log_starts[index], end) for index, end in ends.items()
            }
            await clients.delete_records(starts)
            return starts

        async def by_time() -> Mapping[int, int]:
            await clients.configure({"retention.ms": "1"})
            return ends

        async def by_size() -> Mapping[int, int]:
            """Delete the oldest batches while the others have at least `retention.bytes`."""
            kept_bytes = self._chance.randint(
                1, max(sum(size for _, size in each) for each in sizes.values()) + 1
            )
            await clients.configure({"retention.bytes": str(kept_bytes)})
            starts = dict(log_starts)
            for index, batches in sizes.items():
                left = sum(size for _, size in batches)
                for end, size in batches:
                    left -= size
                    if left < kept_bytes:
                        break
                    starts[index] = end
            return starts

        ways: Sequence[Callable[[], Awaitable[Mapping[int, int]]]] = (by_offset, by_time, by_size)
        starts = await self._chance.choice(ways)()
        self._cluster.trace.add(f"expected log start offsets: {dict(starts)}")
        return starts

    def _describe_unused(self, starts: Mapping[int, int]) -> str | None:
        """Describe log start offsets and objects that are not the expected ones."""
        if (why := self._describe_unapplied()) is not None:
            return why
        (topic,) = [each for each in self._existing() if each.name == self._topics[0]]
        for index, image in topic.partitions.items():
            partition = self._committed[image.diskless_coordinator].partition(topic.id, index)
            if partition is None or partition.log_start_offset != starts[index]:
                return f"{partition} does not start at {starts[index]}"
        return self._describe_objects()

    def _describe_objects(self) -> str | None:
        needed: set[str] = set()
        tracked: set[str] = set()
        for state in self._committed.values():
            for file in state.files(limit=1 << 30):
                tracked.add(file.object_key)
                if file.live_batches:
                    needed.add(file.object_key)
        objects = {key for key in self._bucket.objects if key.startswith(f"{PREFIX}/")}
        # Orphans are deleted when no coordinator has older files
        if more := sorted((objects & tracked) - needed if needed else objects):
            files = [state.file(more[0]) for state in self._committed.values()]
            return f"objects without live batches: {more}; the first one is {files}"
        if unused := sorted(tracked - needed):
            return f"files without live batches: {unused}"
        return next((why for key in sorted(needed) if (why := self._describe_owner(key))), None)

    def _describe_remaining(self) -> str | None:
        """Describe what remains after the deletion of all topics."""
        if (why := self._describe_unapplied()) is not None:
            return why
        for coordinator_id, state in self._committed.items():
            if partitions := state.partitions():
                return f"coordinator {coordinator_id} has {partitions}"
        return self._describe_objects()


def _stored_content(node: SimulatedNode, coordinator: DisklessCoordinator) -> bytes | None:
    path = database_path(coordinator.coordinator_id, coordinator.directory)
    return node.disk.databases.load(path)


def _keys(state: MemoryDisklessState) -> list[str]:
    return [file.object_key for file in state.files(limit=1 << 30)]
