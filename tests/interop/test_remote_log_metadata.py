"""Kafka's tools decode the events of Odradek's remote log metadata, and `odradek dump` prints them as
Kafka's tool does.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from odradek.cli.dump_files import identify
from odradek.cli.dump_remote_log_metadata import as_kafka, lines
from odradek.cli.main import main
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.real_files import RealFiles
from odradek.storage.tiered.metadata_records import encode
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
)
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import create_topic, produce
from tests.support.odradek_process import start_odradek
from tests.support.remote_segments import (
    DELETED,
    DELETING,
    FINISHED,
    FOO_0,
    becomes,
    segment,
)
from tests.support.waiting import deadline

TOPIC = "tiered"
COPY = segment(2, 0, 100, [(0, 0), (3, 60)], size=1024)
EVENTS = (
    COPY,
    segment(3, 101, 2**40, [(3, -1)], size=2**31 - 1, txn_index_empty=False),
    becomes(COPY, FINISHED, 456, b"location"),
    becomes(COPY, DELETING, 457),
    becomes(COPY, DELETED, 458),
    *(RemotePartitionDeleteMetadata(FOO_0, 7, 789, state) for state in PartitionDeleteState),
)


def test_kafka_dump_log_prints_same_events_as_odradek(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """T-50: a segment, its states and the deletion of its partition."""
    directory = tmp_path / "__remote_log_metadata-12"
    directory.mkdir()
    path = directory / "00000000000000000000.log"
    path.write_bytes(bytes(build_batch([Record(-1, 1000, None, encode(each)) for each in EVENTS])))
    run = run_tool("dump-log", "--files", str(path), "--remote-log-metadata-decoder")
    payloads = re.findall(r"payload: (.*)$", run.stdout, re.MULTILINE)
    assert main(["dump", "--remote-log-metadata", str(path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("value: ", 1)[1] for line in printed] == payloads
    assert len(payloads) == len(EVENTS)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The log directory and the store of a broker that copied at least ten segments and was stopped.

    The broker publishes COPY_SEGMENT_FINISHED after the manifest is in the store, and a stop in between
    leaves the segment without this event. Therefore the fixture waits for the events, not for the manifests.
    """
    directory = tmp_path_factory.mktemp("tiered")
    store = directory / "tier"
    quick = {"remote.log.manager.task.interval.ms": "200"}
    tiered = ["--tiered", str(store)]
    with start_odradek(directory / "broker", config=quick, arguments=tiered) as broker:
        small = {"remote.storage.enable": "true", "internal.segment.bytes": "20000"}
        create_topic(broker.bootstrap, TOPIC, config=small)
        for number in range(20):
            produce(broker.bootstrap, TOPIC, [bytes([number]) * 1000] * 10)
        with deadline(30, "ten segments to be copied") as check:
            while finished_copies(broker.log_dirs[0]) < 10:
                check(0.1)
    return broker.log_dirs[0], store


def metadata_logs(log_dir: Path) -> list[Path]:
    return sorted(log_dir.glob("__remote_log_metadata-*/*.log"))


def finished_copies(log_dir: Path) -> int:
    """Number of COPY_SEGMENT_FINISHED events in the metadata topic."""
    files = RealFiles()
    return sum(
        "state=COPY_SEGMENT_FINISHED" in str(line)
        for path in metadata_logs(log_dir)
        if (found := identify(path)) is not None
        for line in lines(files, found, as_kafka)
    )


def test_kafka_dump_log_decodes_events_of_broker(
    stopped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """T-44 to T-46: every event in every partition of the topic."""
    logs = metadata_logs(stopped[0])
    run = run_tool("dump-log", "--files", ",".join(map(str, logs)), "--remote-log-metadata-decoder")
    payloads = re.findall(r"payload: (.*)$", run.stdout, re.MULTILINE)
    assert main(["dump", "--remote-log-metadata", *map(str, logs)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("value: ", 1)[1] for line in printed] == payloads
    states = Counter(re.findall(r"state=(\w+)", "".join(payloads)))
    assert states["COPY_SEGMENT_FINISHED"] >= 10


def test_remote_segments_of_broker_are_verified(
    stopped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--without-metadata", "--url", str(stopped[1])]
    assert main(["remote", "verify", *where]) == 0
    assert " 0 problems, 0 segments missing or incomplete, 0 garbage" in capsys.readouterr().out
