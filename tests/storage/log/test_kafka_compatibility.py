"""Apache Kafka on log directories of Odradek: its DumpLogSegments, and its log recovery, whose
indexes, epochs, transactions and producers must be equal byte for byte."""

from __future__ import annotations

import dataclasses
import random
import re
import shutil
import time
from pathlib import Path as RealPath

import pytest

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from odradek.seams.real_files import RealFiles
from odradek.storage.log.partition_log import (
    AppendOrigin,
    LogEnvironment,
    PartitionLog,
    RecoveryOptions,
)
from odradek.storage.log.producer_snapshots import decode_snapshot
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED
from odradek.testing.virtual_clock import VirtualClock
from tests.support.kafka_dist import KafkaUnavailable, kafka_dist
from tests.support.kafka_tools import run_tool
from tests.support.partition_logs import (
    FOREVER,
    TOPIC_ID,
    batch,
    idempotent,
    marker,
    offsets_in,
)

pytestmark = pytest.mark.interop

SEGMENT_BYTES, INTERVAL_BYTES = 4000, 300
CONFIG = dataclasses.replace(
    FOREVER, internal_segment_bytes=SEGMENT_BYTES, index_interval_bytes=INTERVAL_BYTES
)
NOW_MS = time.time_ns() // 1_000_000  # Kafka's log uses the machine's clock to expire producers


def opened(directory: RealPath, *, clean: bool, recovery_point: int = 0) -> PartitionLog:
    return PartitionLog.open(
        LogEnvironment(RealFiles(), VirtualClock(epoch_ms=NOW_MS)),
        Path(str(directory)),
        TopicPartition("t", 0),
        CONFIG,
        topic_id=TOPIC_ID,
        recovery=RecoveryOptions(clean=clean, recovery_point=recovery_point),
    )


def lived(directory: RealPath, seed: int) -> PartitionLog:
    """A log with producers, transactions, epochs, truncations, and both kinds of restarts."""
    rng = random.Random(seed)
    log = opened(directory, clean=False)
    sequences = dict.fromkeys(range(1, 7), 0)
    in_transaction: set[int] = set()
    epoch = 0
    for _ in range(400):
        epoch += rng.random() < 0.03
        more = {
            "size": rng.randint(0, 150),
            "timestamps": NOW_MS + rng.randint(-5000, 5000),
            "compression": rng.randint(0, 4),
        }
        count = rng.randint(1, 5)
        producer = rng.randint(0, 6)
        if producer == 0:
            data, origin = batch(count, **more), AppendOrigin.CLIENT
        elif producer in in_transaction and rng.random() < 0.4:
            in_transaction.remove(producer)
            data = marker(producer, commit=rng.random() < 0.5, timestamp=NOW_MS)
            origin = AppendOrigin.COORDINATOR
        else:
            transactional = producer > 3
            if transactional:
                in_transaction.add(producer)
            data = idempotent(
                producer, sequences[producer], count, transactional=transactional, **more
            )
            sequences[producer] += count
            origin = AppendOrigin.CLIENT
        log.append_as_leader(
            data, leader_epoch=epoch, now_ms=NOW_MS, origin=origin, guard=VERIFICATION_DISABLED
        )
        if rng.random() < 0.02:
            log.flush()
        if rng.random() < 0.02:
            clean = rng.random() < 0.5
            log.close(clean)
            log = opened(directory, clean=clean, recovery_point=log.recovery_point)
        if rng.random() < 0.02:
            log.truncate_to(max(0, log.end_offset - rng.randint(0, 60)))
            in_transaction = {
                entry.producer_id
                for entry in log.producers.active.values()
                if entry.transaction_start >= 0
            }
            for number in sequences:
                entry = log.producers.get(number)
                sequences[number] = 0 if entry is None else entry.last_sequence + 1
    return log


@pytest.fixture(scope="module", params=[1, 2, 3])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealPath:
    try:
        kafka_dist()
    except KafkaUnavailable as unavailable:
        pytest.fail(str(unavailable), pytrace=False)
    where = tmp_path_factory.mktemp("logs") / "t-0"
    log = lived(where, request.param)
    assert len(log.segments) > 10
    log.close(True)
    return where


def of_kind(directory: RealPath, suffix: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob(f"*{suffix}"))}


def dumped(directory: RealPath, suffix: str, *options: str) -> str:
    files = ",".join(str(path) for path in sorted(directory.glob(f"*{suffix}")))
    return run_tool("dump-log", "--files", files, *options).stdout


def test_kafka_dump_log_reads_every_record(directory: RealPath) -> None:
    out = dumped(directory, ".log", "--deep-iteration", "--print-data-log")
    assert "isvalid: true" in out
    assert "isvalid: false" not in out
    assert "nvalid" not in out.replace("isvalid", "").replace("invalid bytes: 0", "")
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", out, re.MULTILINE)]
    log = opened(directory, clean=True)
    assert offsets == offsets_in(log)
    log.close(True)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_kafka_dump_log_accepts_indexes(directory: RealPath, suffix: str) -> None:
    sane = dumped(directory, suffix, "--index-sanity-check")
    assert sane.count("passed sanity check") == len(of_kind(directory, suffix))
    verified = dumped(directory, suffix, "--verify-index-only")
    for complaint in ("Mismatches", "Misaligned", "not found", "out of order", "Could not"):
        assert complaint.lower() not in verified.lower(), verified


def test_kafka_dump_log_reads_snapshots_and_transaction_indexes(directory: RealPath) -> None:
    assert "producerId: 1 " in dumped(directory, ".snapshot")
    if of_kind(directory, ".txnindex"):
        assert "lastStableOffset" in dumped(directory, ".txnindex")


def kafka_opens(directory: RealPath, *how: str) -> str:
    sizes = (str(SEGMENT_BYTES), str(INTERVAL_BYTES))
    return run_tool("recover-log", str(directory), *sizes, *how).stdout


def test_kafka_log_recovery_builds_same_files(directory: RealPath, tmp_path: RealPath) -> None:
    """Kafka gets only the data files and builds all others."""
    theirs = tmp_path / "t-0"
    theirs.mkdir()
    for name, data in of_kind(directory, ".log").items():
        (theirs / name).write_bytes(data)
    output = kafka_opens(theirs)
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        own_files = of_kind(directory, suffix)
        # An empty transaction index may be missing.
        found = {
            name: data
            for name, data in of_kind(theirs, suffix).items()
            if data or name in own_files
        }
        assert found == own_files, suffix
    name = "leader-epoch-checkpoint"
    assert (theirs / name).read_bytes() == (directory / name).read_bytes()
    last = sorted(of_kind(directory, ".snapshot"))[-1]
    assert states(theirs / last) == states(directory / last)
    assert f"end {int(last.split('.')[0])}\n" in output


def states(snapshot: RealPath) -> dict[int, tuple[object, ...]]:
    return {
        entry.producer_id: (
            entry.epoch,
            entry.coordinator_epoch,
            entry.last_timestamp,
            entry.transaction_start,
            tuple(entry.batches),
        )
        for entry in decode_snapshot(snapshot.read_bytes())
    }


def test_cleanly_closed_log_is_opened_by_kafka_and_back(
    directory: RealPath, tmp_path: RealPath
) -> None:
    theirs = tmp_path / "t-0"
    shutil.copytree(directory, theirs)
    output = kafka_opens(theirs, "clean")
    log = opened(theirs, clean=True)
    assert f"end {log.end_offset}\n" in output
    assert f"producers {len(log.producers.active)}\n" in output
    epochs = ", ".join(
        f"EpochEntry[epoch={entry.epoch}, startOffset={entry.start_offset}]"
        for entry in log.epochs.entries
    )
    assert f"epochs [{epochs}]" in output
    before = of_kind(directory, ".log")
    assert of_kind(theirs, ".log") == before
    log.close(True)


def test_log_recovery_equals_kafka_log_recovery(directory: RealPath, tmp_path: RealPath) -> None:
    """Both recover the same torn directory."""
    own_files, theirs = tmp_path / "own_files" / "t-0", tmp_path / "theirs" / "t-0"
    shutil.copytree(directory, own_files)
    victim = sorted(own_files.glob("*.log"))[-3]
    data = victim.read_bytes()
    victim.write_bytes(data[: len(data) * 2 // 3])
    for path in own_files.glob("*.snapshot"):
        path.unlink()
    shutil.copytree(own_files, theirs)
    log = opened(own_files, clean=False)
    end = log.end_offset
    log.close(True)
    assert f"end {end}\n" in kafka_opens(theirs)
    for suffix in (".log", ".index", ".timeindex"):
        assert of_kind(own_files, suffix) == of_kind(theirs, suffix), suffix
    name = f"{end:020d}.snapshot"
    assert states(own_files / name) == states(theirs / name)
