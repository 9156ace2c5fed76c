"""Random records applied to the SQLite state and to the in-memory model, which must stay equal (D-16).

    python -m tests.storage.diskless.compare_states --seeds 0-199

SQLite runs in a child process, which is killed with SIGKILL at random moments, often during a transaction. While it is
dead, its files may be removed, truncated, changed by some bits, or replaced by older copies, together or one of them.
The next process opens the database and applies the log from its applied offset. Records do not need to make sense:
batches with wrong offsets, unknown partitions, files that another coordinator owns, commits that are repeated.

Deleted batches are removed in steps of random sizes, and files are compared when none are left.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessCommittedPartition,
    DisklessCommittedTopic,
    DisklessFileCommittedRecord,
    DisklessFileOwnershipRecord,
    DisklessFileRemovedRecord,
    DisklessPartitionCreatedRecord,
    DisklessRecordsDeletedRecord,
    DisklessTopicDeletedRecord,
)
from odradek.seams.real_files import RealFiles
from odradek.storage.diskless import sqlite_state
from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.sqlite_check import StateIdentity
from odradek.storage.diskless.sqlite_state import database_path, open_state
from odradek.storage.diskless.state import LogEntry

COORDINATOR: Final = 3
IDENTITY: Final = StateIdentity("cluster", UUID(int=1), COORDINATOR)
TOPICS: Final = [UUID(int=n << 64) for n in range(1, 5)]
EXPIRATION_MS: Final = 5_000
WEIGHTS: Final = (60, 16, 6, 14, 5, 0.7)
"""Frequencies of the kinds of records, in the order of `RandomLog.entry`."""
CROWDED_WEIGHTS: Final = (20, 30, 3, 60, 5, 0.7)
FILES_MAX: Final = 150
"""Files from which on more are removed than added."""
STEPS_MAX: Final = 100
"""Steps of one message to the process of SQLite."""
FAULTS: Final = (
    "remove",
    "truncate",
    "flip",
    "older copy",
    "older database",
    "older log",
)

Query = tuple[str, tuple[Any, ...], dict[str, Any]]


class Step(NamedTuple):
    """Entries to apply, the sizes of the steps in which deleted batches are removed, and queries.

    With more than one size, all deleted batches are removed.
    """

    entries: Sequence[LogEntry]
    through_offset: int
    removals: Sequence[int]
    queries: Sequence[Query]


class RandomLog:
    """Records of a coordinator with growing offsets. `model` is their state."""

    def __init__(self, random: Random, model: MemoryDisklessState) -> None:
        self.random = random
        self.model = model
        self.now_ms = 1_000_000
        self.offset = 0
        self.weights = WEIGHTS
        self.keys: list[str] = []

    def entry(self) -> LogEntry:
        """Append one record, and apply it to the model."""
        random = self.random
        self.now_ms += random.choice((0, 1, 1, 10, 100, -50))
        self.offset += random.choice((1, 1, 1, 1, 2, 3))
        kinds = (
            self._commit,
            self._delete_records,
            self._own,
            self._remove,
            self._create,
            self._delete_topic,
        )
        if self.offset % 20 == 0:
            self.weights = CROWDED_WEIGHTS if self.model.counts().files > FILES_MAX else WEIGHTS
        (kind,) = random.choices(kinds, self.weights)
        entry = LogEntry(self.offset, self.now_ms, kind())
        self.model.apply([entry], entry.offset)
        return entry

    def partition(self) -> tuple[UUID, int]:
        return self.random.choice(TOPICS), self.random.randrange(3)

    def key(self) -> str:
        """A known key, or one that was never used."""
        return self.random.choice(self.keys[-40:]) if self.keys else "none"

    def _commit(self) -> Any:
        random = self.random
        if self.keys and random.random() < 0.06:
            key = self.key()
        else:
            key = f"diskless/{self.now_ms:013d}-{random.randrange(4)}-{UUID(int=random.getrandbits(120))}"
            if random.random() < 0.05:
                key = f"unusual key ☃ {random.randrange(10**6)}"
            self.keys.append(key)
        topics: dict[UUID, dict[int, list[DisklessCommittedBatch]]] = {}
        heads: dict[tuple[UUID, int], int] = {}
        count = random.choice((0, 1, 1, 2, 3, 5, 8, 80 if random.random() < 0.03 else 4))
        for number in range(count):
            topic_id, index = self.partition()
            if (topic_id, index) not in heads:
                known = self.model.partition(topic_id, index)
                heads[topic_id, index] = known.high_watermark if known else random.randrange(9)
            base = heads[topic_id, index]
            if random.random() < 0.05:
                base = max(0, base + random.choice((-9, -1, 1, 9, 1 << 40)))
            last = base + random.choice((0, 0, 1, 9, 99, -1 if random.random() < 0.2 else 3))
            heads[topic_id, index] = max(base, last + 1)
            batch = self._batch(base, last, number)
            topics.setdefault(topic_id, {}).setdefault(index, []).append(batch)
        return DisklessFileCommittedRecord(
            object_key=key,
            object_format=1,
            file_size=random.randrange(1 << 23),
            uploader_broker_id=random.randrange(4),
            owner_ids=self._owners(),
            topics=tuple(
                DisklessCommittedTopic(
                    topic_id=topic_id,
                    partitions=tuple(
                        DisklessCommittedPartition(partition_index=index, batches=tuple(batches))
                        for index, batches in partitions.items()
                    ),
                )
                for topic_id, partitions in topics.items()
            ),
        )

    def _owners(self) -> tuple[int, ...]:
        owners = self.random.sample(range(5), self.random.choice((0, 1, 2, 3)))
        return tuple(owners) if self.random.random() < 0.5 else (COORDINATOR, *owners)

    def _batch(self, base: int, last: int, number: int) -> DisklessCommittedBatch:
        random = self.random
        producer_id = random.choice((-1, 1, 2, 3, 1 << 50))
        sequence = random.randrange(1 << 31) if producer_id >= 0 else -1
        return DisklessCommittedBatch(
            magic=2,
            byte_offset=random.choice((number * 1000, 0, (1 << 31) - 1)),
            byte_size=random.choice((61, 100, 5000, 0, (1 << 31) - 1)),
            assigned_base_offset=base,
            assigned_last_offset=last,
            log_append_timestamp=self.now_ms,
            batch_max_timestamp=random.choice(
                (-1, self.now_ms, random.randrange(10**6, 2 * 10**6))
            ),
            timestamp_type=random.choice((0, 0, 1)),
            producer_id=producer_id,
            producer_epoch=random.choice((0, 0, 0, 1)) if producer_id >= 0 else -1,
            base_sequence=sequence,
            last_sequence=sequence,
        )

    def _delete_records(self) -> Any:
        topic_id, index = self.partition()
        known = self.model.partition(topic_id, index)
        start, end = (known.log_start_offset, known.high_watermark) if known else (0, 9)
        offset = self.random.choice((self.random.randint(start, end), end, start - 1, end + 5, -1))
        return DisklessRecordsDeletedRecord(
            topic_id=topic_id, partition_index=index, new_log_start_offset=offset
        )

    def _own(self) -> Any:
        key = self.key() if self.random.random() < 0.8 else f"other {self.random.randrange(99)}"
        self.keys.append(key)
        return DisklessFileOwnershipRecord(
            object_key=key, object_format=1, file_size=77, owner_ids=self._owners()
        )

    def _remove(self) -> Any:
        key = self.key()
        unused = [*self.model.unused_files(), *self.model.unused_files(is_owner=False)]
        if unused and self.random.random() < 0.8:
            key = self.random.choice(unused).object_key
        return DisklessFileRemovedRecord(object_key=key)

    def _create(self) -> Any:
        topic_id, index = self.partition()
        return DisklessPartitionCreatedRecord(
            topic_id=topic_id, name=f"topic-{topic_id.int >> 64}", partition_index=index
        )

    def _delete_topic(self) -> Any:
        return DisklessTopicDeletedRecord(topic_id=self.random.choice(TOPICS))

    def some_queries(self) -> list[Query]:
        """Queries of one partition and of one file, without those that deleted batches affect."""
        random, (topic_id, index) = self.random, self.partition()
        known = self.model.partition(topic_id, index)
        end = known.high_watermark if known else 3
        offset = random.randint(-1, end)
        limits = {
            "max_batches": random.choice((-1, 0, 1, 3)),
            "max_bytes": random.choice((0, 61, 6000, 1 << 40)),
        }
        time_ms = random.choice((self.now_ms, random.randrange(10**6, 2 * 10**6)))
        return [
            ("partition", (topic_id, index), {}),
            ("producer", (topic_id, index, random.choice((1, 2, 3, 1 << 50))), {}),
            ("find_batches", (topic_id, index, offset), limits),
            ("first_batch_from_timestamp", (topic_id, index, time_ms), {}),
            ("batch_with_largest_timestamp", (topic_id, index), {}),
            ("expired_before", (topic_id, index, time_ms), {}),
            ("oversized_before", (topic_id, index, random.choice((-1, 0, 99, 10**4, 1 << 40))), {}),
            ("file_batches", (self.key(),), {}),
        ]

    def all_queries(self) -> list[Query]:
        """Queries of everything; no deleted batches are left."""
        everything = {"max_batches": 0, "max_bytes": 1 << 62}
        found: list[Query] = [("partitions", (), {}), ("partitions", (TOPICS[0],), {})]
        for topic_id in TOPICS:
            for index in range(3):
                found.append(("find_batches", (topic_id, index, 0), everything))
                found.extend(
                    ("producer", (topic_id, index, producer_id), {})
                    for producer_id in (1, 2, 3, 1 << 50)
                )
        after = self.key()
        return [
            *found,
            ("unused_files", (), {}),
            ("unused_files", (), {"is_owner": False}),
            ("unused_files", (after, 3), {}),
            ("files", (), {"limit": 1 << 30}),
            ("files", (after, 5), {}),
            ("file", (after,), {}),
            ("oldest_file_ms", (), {}),
            ("counts", (), {}),
        ]


def results(state: Any, queries: Sequence[Query]) -> list[Any]:
    """Results of queries, without the sizes of the state."""
    found = [getattr(state, name)(*values, **keywords) for name, values, keywords in queries]
    return [
        replace(result, state_bytes=0) if query[0] == "counts" else result
        for query, result in zip(queries, found, strict=True)
    ]


# --- the process of SQLite ---


def serve(directory: str, removed_per_apply: int, connection: Connection) -> None:
    """Open the state, send its applied offset, and execute steps until the process is killed."""
    logging.disable(logging.WARNING)
    sqlite_state.REMOVED_PER_APPLY = removed_per_apply  # type: ignore[misc]
    sqlite_state.CHECKPOINT_PAGES = 100  # type: ignore[misc]
    path = database_path(Path(directory), COORDINATOR)
    state = open_state(RealFiles(), path, IDENTITY, producer_expiration_ms=EXPIRATION_MS)
    connection.send(state.applied_offset)
    while True:
        found = []
        for entries, through_offset, removals, queries in connection.recv():
            state.apply(entries, through_offset)
            for max_batches in removals:
                state.remove_deleted_batches(max_batches)
            while len(removals) > 1 and state.remove_deleted_batches(removals[0]):
                pass
            found.append((state.applied_offset, results(state, queries)))
        connection.send(found)


class SqliteProcess:
    """Process that has the state open."""

    def __init__(self, directory: Path, removed_per_apply: int) -> None:
        self.connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=serve, args=(str(directory), removed_per_apply, other), daemon=True
        )
        self._process.start()
        other.close()
        self.applied_offset: int = self.connection.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


class Comparison:
    """One seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self.directory = directory
        self.copies = directory / "copies"
        self.copies.mkdir()
        self.database = directory / "database"
        self.database.mkdir()
        self.model = MemoryDisklessState(COORDINATOR, producer_expiration_ms=EXPIRATION_MS)
        self.log = RandomLog(self.random, self.model)
        self.entries: list[LogEntry] = []
        self.removed_per_apply = self.random.choice((0, 1, 5, 500))
        self.process = SqliteProcess(self.database, self.removed_per_apply)
        self.steps: list[Step] = []
        self.expected: list[list[Any]] = []
        self.sent: list[Step] = []
        self.sent_expected: list[list[Any]] = []
        self.kills = self.rebuilds = 0

    def run(self, operations: int) -> None:
        random = self.random
        while len(self.entries) < operations:
            chance = random.random()
            if chance < 0.012:
                self.kill_during_steps()
            else:
                added, through_offset = self.append()
                if chance < 0.03:
                    removals, queries = (random.choice((1, 7)),) * 2, self.log.all_queries()
                else:
                    removals, queries = (random.choice((0, 1, 3)),), self.log.some_queries()
                self.add_step(added, through_offset, removals, queries)
                if chance > 0.99:
                    self.check_steps()
                    self.copy()
        self.check_steps()
        self.restart()
        self.process.kill()

    def append(self) -> tuple[list[LogEntry], int]:
        """Append some records to the log, and maybe a control record."""
        random = self.random
        added = [self.log.entry() for _ in range(random.choice((1, 1, 2, 3, 8)))]
        self.entries += added
        self.log.offset = through_offset = added[-1].offset + random.choice((0, 0, 0, 2))
        self.model.apply([], through_offset)
        return added, through_offset

    def kill_during_steps(self) -> None:
        """Kill the process at a random time during some steps.

        Its state is then that of the model after one of them, unless its files are damaged.
        """
        self.check_steps()
        queries = self.log.all_queries()
        expected = {self.model.applied_offset: results(self.model, queries)}
        steps = []
        for _ in range(self.random.choice((1, 3, 10))):
            added, through_offset = self.append()
            steps.append(Step(added, through_offset, (), ()))
            expected[through_offset] = results(self.model, queries)
        self.send(steps)
        time.sleep(self.random.random() * 0.001 * len(steps))
        self.restart(queries, expected)

    def add_step(
        self,
        entries: Sequence[LogEntry],
        through_offset: int,
        removals: Sequence[int],
        queries: Sequence[Query],
    ) -> None:
        """Remember the results of the model after a step; SQLite executes it together with others."""
        self.steps.append(Step(entries, through_offset, removals, queries))
        self.expected.append(results(self.model, queries))
        if len(self.steps) >= STEPS_MAX:
            self.send_steps()

    def send(self, steps: Sequence[Step]) -> None:
        try:
            self.process.connection.send(steps)
        except BrokenPipeError:
            raise AssertionError("the process of SQLite has failed") from None

    def send_steps(self) -> None:
        """Let SQLite execute the steps, and compare the results of those before."""
        self.receive()
        if not self.steps:
            return
        self.send(self.steps)
        self.sent, self.sent_expected = self.steps, self.expected
        self.steps, self.expected = [], []

    def check_steps(self) -> None:
        """Let SQLite execute the steps, and compare the results after each."""
        self.send_steps()
        self.receive()

    def receive(self) -> None:
        if not self.sent:
            return
        try:
            found = self.process.connection.recv()
        except (EOFError, ConnectionResetError):
            raise AssertionError("the process of SQLite has failed") from None
        for step, expected, (applied_offset, result) in zip(
            self.sent, self.sent_expected, found, strict=True
        ):
            assert applied_offset == step.through_offset
            for query, of_model, of_sqlite in zip(step.queries, expected, result, strict=True):
                assert of_sqlite == of_model, f"{query}\nSQLite: {of_sqlite}\nmodel: {of_model}"
        self.sent, self.sent_expected = [], []

    def copy(self) -> None:
        """Copy the files of the idle process."""
        shutil.rmtree(self.copies)
        shutil.copytree(self.database, self.copies)

    def restart(
        self, queries: Sequence[Query] = (), expected: Mapping[int, list[Any]] | None = None
    ) -> None:
        """Kill the process, damage its files, start another one, and compare everything.

        `expected` has the results of `queries` at the possible applied offsets of undamaged files.
        """
        self.process.kill()
        self.kills += 1
        fault = self.random.choice(FAULTS) if self.random.random() < 0.25 else "none"
        self.damage(fault)
        try:
            self.process = SqliteProcess(self.database, self.removed_per_apply)
        except EOFError:
            raise AssertionError(f"the state was not opened after the fault {fault!r}") from None
        applied_offset = self.process.applied_offset
        self.rebuilds += applied_offset < 0
        assert applied_offset <= self.model.applied_offset, fault
        if fault == "none" and expected:
            assert applied_offset in expected, (applied_offset, list(expected))
            self.steps.append(Step([], applied_offset, (5, 5), queries))
            self.expected.append(expected[applied_offset])
        left = [entry for entry in self.entries if entry.offset > applied_offset]
        size = self.random.choice((1000, 100))
        for first in range(0, len(left), size):
            part = left[first : first + size]
            self.add_step(part, part[-1].offset, (), ())
        try:
            self.add_step([], self.model.applied_offset, (5, 5), self.log.all_queries())
            self.check_steps()
        except AssertionError as error:
            raise AssertionError(
                f"after the fault {fault!r} at {applied_offset}: {error}"
            ) from None

    def damage(self, fault: str) -> None:
        random = self.random
        files = sorted(path for path in self.database.iterdir() if not path.name.endswith("-shm"))
        copied = sorted(self.copies.iterdir())
        victim = random.choice(files)
        match fault:
            case "remove":
                for path in files if random.random() < 0.5 else [victim]:
                    path.unlink()
            case "truncate":
                with victim.open("r+b") as file:
                    file.truncate(random.randrange(victim.stat().st_size + 1))
            case "flip":
                data = bytearray(victim.read_bytes())
                for _ in range(random.choice((1, 1, 3, 30)) if data else 0):
                    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                victim.write_bytes(data)
            case "older copy" if copied:
                for path in [*self.database.iterdir()]:
                    path.unlink()
                for path in copied:
                    shutil.copy(path, self.database)
            case "older database" | "older log":
                suffix = ".db" if fault == "older database" else ".db-wal"
                for path in copied:
                    if path.name.endswith(suffix):
                        shutil.copy(path, self.database)


def compare(seed: int, operations: int) -> tuple[int, int]:
    """Run one seed; returns the numbers of kills and of rebuilds from the first record. Raises AssertionError."""
    with tempfile.TemporaryDirectory() as directory:
        comparison = Comparison(seed, Path(directory))
        try:
            comparison.run(operations)
        finally:
            comparison.process.kill()
        return comparison.kills, comparison.rebuilds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="0-9", help="first and last seed, such as 0-199")
    parser.add_argument("--operations", type=int, default=10_000)
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    failed = 0
    for seed in range(int(first), int(last or first) + 1):
        started = time.monotonic()
        try:
            kills, rebuilds = compare(seed, arguments.operations)
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: DIFFERENT: {error}", flush=True)
        else:
            seconds = time.monotonic() - started
            print(
                f"seed {seed}: equal, {kills} kills, {rebuilds} rebuilds, {seconds:.1f} s",
                flush=True,
            )
    print(f"{failed} seeds failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
