"""Random operations on a coordinator against a naive sequential model (KIP-1164, D-07, D-17, D-18).

The same operations run with pending operations applied at once, at random times, and as late as possible. The
records and the results must be those of the model in each case.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol.schemas.diskless_apis import DisklessCommitBatch, DisklessCommitFileRequest
from odradek.storage.diskless.object_key import parse_object_key
from odradek.storage.diskless.sqlite_check import StateIdentity
from odradek.storage.diskless.sqlite_state import SqliteDisklessState
from odradek.storage.diskless.state import DisklessState
from tests.replication.diskless.coordinator_harness import (
    COORDINATOR,
    EXPIRATION_MS,
    WINDOW_MS,
    CoordinatorHarness,
    commit_batch,
    commit_request,
    file_key,
)
from tests.replication.diskless.naive_coordinator import NaiveCoordinator

OPERATIONS = 150
PARTITIONS = 3
Applying = Callable[[CoordinatorHarness, random.Random], None]


def apply_at_once(coordinator: CoordinatorHarness, source: random.Random) -> None:
    coordinator.apply()


def apply_at_random(coordinator: CoordinatorHarness, source: random.Random) -> None:
    coordinator.apply(source.randrange(len(coordinator.pending) + 1))


def apply_late(coordinator: CoordinatorHarness, source: random.Random) -> None:
    if len(coordinator.pending) > 40:
        coordinator.apply(20)


APPLYING = [apply_at_once, apply_at_random, apply_late]


class RandomRun:
    """One run of a seed: the machine and the model do the same."""

    def __init__(
        self, seed: int, applying: Applying, heads_max: int, state: DisklessState | None = None
    ) -> None:
        self.source = random.Random(seed)
        self.coordinator = CoordinatorHarness(state, heads_max=heads_max)
        self.model = NaiveCoordinator(COORDINATOR, WINDOW_MS, EXPIRATION_MS)
        applied = random.Random(seed + 1)
        self.apply = lambda: applying(self.coordinator, applied)
        self.coordinator.while_reading = self.apply
        self.topics = [UUID(int=each) for each in (1, 2, 3)]
        self.commits: list[DisklessCommitFileRequest] = []
        self.sequences: dict[Any, tuple[int, int]] = {}
        """Epoch and next sequence of each producer and partition, as the producer sees them."""
        self.results: list[Any] = []

    def run(self) -> None:
        actions = [
            (self.commit_new_file, 10),
            (self.commit_again, 3),
            (self.create, 3),
            (self.delete_records, 2),
            (self.delete_topic, 0.3),
            (self.take_ownership, 0.5),
            (self.remove_file, 1),
            (self.elect_leader, 0.2),
        ]
        for _ in range(OPERATIONS):
            now = self.source.choice([0, 0, 1, 50, 2000, 2000, WINDOW_MS // 2])
            self.coordinator.now_ms += EXPIRATION_MS if self.source.random() < 0.01 else now
            (action,) = self.source.choices(
                [each for each, _ in actions], [weight for _, weight in actions]
            )
            action()
            self.apply()
        self.check_state()

    def check(self, found: Any, expected: Any) -> None:
        self.results.append(found)
        assert found == expected

    def partition(self) -> tuple[UUID, int]:
        return self.source.choice(self.topics), self.source.randrange(PARTITIONS)

    def new_batch(self, byte_offset: int) -> DisklessCommitBatch:
        source = self.source
        topic_id, index = self.partition()
        records = source.choice([1, 1, 2, 5])
        producer_id = source.choice([-1, -1, 100, 101])
        timestamp_type = source.randrange(2)
        if producer_id < 0:
            return commit_batch(
                topic_id, index, byte_offset, records=records, timestamp_type=timestamp_type
            )
        key = (topic_id, index, producer_id)
        epoch, sequence = self.sequences.get(key, (0, source.choice([0, 0, 0, 0, 7])))
        kind = source.random()
        if kind < 0.05:
            epoch, sequence = epoch + 1, source.choice([0, 0, 0, 3])
        elif kind < 0.10:
            epoch = max(0, epoch - 1)
        elif kind < 0.15:
            sequence = (sequence + 1) & 0x7FFFFFFF
        elif kind < 0.35:
            sequence, records = max(0, sequence - source.randrange(1, 8)), 1
        if kind >= 0.35 or kind < 0.05:
            self.sequences[key] = epoch, (sequence + records) & 0x7FFFFFFF
        return commit_batch(
            topic_id, index, byte_offset, records=records, producer=(producer_id, epoch, sequence)
        )

    def commit_new_file(self) -> None:
        age = self.source.choice([0, 0, 0, 100, WINDOW_MS, WINDOW_MS + 1])
        key = file_key(len(self.commits), self.coordinator.now_ms - age)
        owners = self.source.choice([(COORDINATOR,), (COORDINATOR, 1), (1, COORDINATOR)])
        batches = [self.new_batch(10 * each) for each in range(self.source.randrange(6))]
        self.commits.append(commit_request(key, *batches, owner_ids=owners))
        self.commit(self.commits[-1])

    def commit_again(self) -> None:
        if self.commits:
            self.commit(self.source.choice(self.commits[-5:]))

    def commit(self, request: DisklessCommitFileRequest) -> None:
        uploaded_ms, _ = parse_object_key(request.object_key)
        expected = self.model.commit(request, uploaded_ms, self.coordinator.now_ms)
        found = [
            (
                each.error_code.name,
                each.assigned_base_offset,
                each.log_append_time,
                each.log_start_offset,
                each.is_duplicate,
            )
            for each in self.coordinator.commit(request)
        ]
        self.check(found, expected)

    def create(self) -> None:
        position = self.source.randrange(len(self.topics))
        indexes = self.source.sample(range(PARTITIONS), self.source.randrange(1, PARTITIONS + 1))
        found = self.coordinator.create(self.topics[position], *indexes)
        self.model.create(self.topics[position], indexes)
        self.check(found.error_code.name, "none")

    def delete_records(self) -> None:
        topic_id, index = self.partition()
        offset = self.source.choice([-2, -1, 0, 1, 3, 8, 20, 50])
        found = self.coordinator.delete_records(topic_id, index, offset)
        expected = self.model.delete_records(topic_id, index, offset)
        self.check((found.error_code.name, found.low_watermark), expected)

    def delete_topic(self) -> None:
        position = self.source.randrange(len(self.topics))
        topic_id = self.topics[position]
        found = self.coordinator.delete_topic(topic_id)
        self.check(found.error_code.name, self.model.delete_topic(topic_id))
        if self.source.random() < 0.8:  # a topic that is created again has another id
            self.topics[position] = UUID(int=topic_id.int + 10)
        else:
            self.commits.clear()

    def take_ownership(self) -> None:
        if self.commits:
            request = self.source.choice(self.commits)
            found = self.coordinator.take_ownership(request.object_key, request.owner_ids)
            self.model.take_ownership(request.object_key)
            self.check(found.error_code.name, "none")

    def remove_file(self) -> None:
        if self.commits:
            self.coordinator.apply()  # workers act on the applied state
            self.coordinator.remove_deleted_batches()
            key = self.source.choice(self.commits).object_key
            uploaded_ms, _ = parse_object_key(key)
            expected = self.model.remove_file(key, uploaded_ms, self.coordinator.now_ms)
            self.check(self.coordinator.remove_file(key), expected)

    def elect_leader(self) -> None:
        self.coordinator.become_leader()

    def check_state(self) -> None:
        self.coordinator.apply()
        self.coordinator.remove_deleted_batches()
        state = self.coordinator.state
        partitions = {
            (each.topic_id, each.index): (each.log_start_offset, each.high_watermark)
            for each in state.partitions()
        }
        files = {each.object_key: (each.is_owner, each.live_batches) for each in state.files()}
        assert (partitions, files) == self.model.summary()


@pytest.mark.parametrize("seed", range(60))
def test_results_are_those_of_the_model(seed: int) -> None:
    """D-17, D-18: the results do not depend on when pending operations are applied."""
    runs = []
    for applying in APPLYING:
        for heads_max in (0, 1000):
            run = RandomRun(seed, applying, heads_max)
            run.run()
            runs.append(run)
    first = runs[0]
    assert all(run.coordinator.records == first.coordinator.records for run in runs)
    assert all(run.results == first.results for run in runs)


@pytest.mark.parametrize("seed", range(8))
def test_results_are_the_same_with_a_database(seed: int, tmp_path: Path) -> None:
    """D-16, D-17: SQLite instead of the state in memory."""
    identity = StateIdentity("cluster", UUID(int=5), COORDINATOR)
    state = SqliteDisklessState(
        tmp_path / "state.db", identity, producer_expiration_ms=EXPIRATION_MS
    )
    run = RandomRun(seed, apply_at_random, 0, state)
    run.run()
    state.close()
    in_memory = RandomRun(seed, apply_at_once, 1000)
    in_memory.run()
    assert run.results == in_memory.results
