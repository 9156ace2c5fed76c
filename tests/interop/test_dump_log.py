"""Kafka's DumpLogSegments with every decoder on the files of a broker.

The broker was stopped cleanly. The assertions check the tool's output; they also hold for the files of Apache
Kafka.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from odradek.cli.main import main
from tests.support.broker_kinds import BROKERS, STARTERS
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import ToolRun, run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, create_topic, poll_until

RECORDS = 400
FIRST_TIMESTAMP = int(time.time() * 1000) - 10_000
TOPIC = "dumped"
GROUP = "dumpers"
DECIDED = "decided"
TRANSACTIONS = 12


@dataclass(frozen=True)
class Left:
    """Directories of the stopped broker, and what was produced to it."""

    broker: BrokerProcess
    directory: Path

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.directory.glob(f"*{suffix}"))


@pytest.fixture(scope="module", params=BROKERS)
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Left:
    directory = tmp_path_factory.mktemp(f"dumped-{request.param}")
    broker = STARTERS[request.param](directory)
    with broker:
        small = {"internal.segment.bytes": "20000", "index.interval.bytes": "1000"}
        create_topic(broker.bootstrap, TOPIC, config=small)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "batch.num.messages": 10,
                "linger.ms": 20,
            }
        )
        for number in range(RECORDS):
            value = f"value-{number}".ljust(150)
            at = FIRST_TIMESTAMP + number
            producer.produce(TOPIC, value, f"key-{number}", partition=0, timestamp=at)
        assert producer.flush(TIMEOUT_S) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([TOPIC])
        poll_until(consumer, RECORDS)
        consumer.commit(asynchronous=False)
        consumer.close()
        decide(broker.bootstrap)
    return Left(broker, broker.partition_directory(TOPIC))


def decide(bootstrap: str) -> None:
    """Transactions of two records each, one after the other; every second one is aborted."""
    create_topic(bootstrap, DECIDED, config={"internal.segment.bytes": "1000"})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": DECIDED})
    producer.init_transactions(TIMEOUT_S)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for _ in range(2):
            producer.produce(DECIDED, f"value-{number}")
        assert producer.flush(TIMEOUT_S) == 0
        if number % 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)


def dump(files: list[Path], *options: str) -> ToolRun:
    assert files
    return run_tool("dump-log", "--files", ",".join(map(str, files)), *options)


def batches(run: ToolRun) -> list[dict[str, str]]:
    """Lines about batches, as dictionaries."""
    pattern = re.compile(r"(\w+): (\S+)")
    return [
        dict(pattern.findall(line))
        for line in run.stdout.splitlines()
        if line.startswith("baseOffset:")
    ]


def test_segments(left: Left) -> None:
    segments = left.files(".log")
    assert len(segments) >= 4
    run = dump(segments, "--deep-iteration", "--print-data-log")
    found = batches(run)
    assert {batch["isvalid"] for batch in found} == {"true"}
    assert {batch["magic"] for batch in found} == {"2"}
    assert {batch["partitionLeaderEpoch"] for batch in found} == {"0"}
    assert {batch["isTransactional"] for batch in found} == {"false"}
    (producer_id,) = {int(batch["producerId"]) for batch in found}
    assert producer_id >= 0
    # batches follow each other without a gap, in offsets and in the producer's sequence
    following = 0
    for batch in found:
        assert int(batch["baseOffset"]) == int(batch["baseSequence"]) == following
        following = int(batch["lastOffset"]) + 1
    assert following == RECORDS
    payloads = re.findall(r"\| offset: (\d+) .* key: key-(\d+) payload: value-(\d+)", run.stdout)
    assert payloads == [(str(n),) * 3 for n in range(RECORDS)]
    starts = [int(line.split()[-1]) for line in run.lines if line.startswith("Log starting offset")]
    assert starts == [int(path.stem) for path in segments]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_indexes(left: Left, suffix: str) -> None:
    indexes = left.files(suffix)
    assert len(indexes) == len(left.files(".log"))
    verified = dump(indexes, "--verify-index-only")
    assert "Mismatches" not in verified.stdout + verified.stderr
    assert "Non-consecutive" not in verified.stdout
    assert "Found timestamp mismatch" not in verified.stdout
    sane = dump(indexes, "--index-sanity-check")
    assert sane.stdout.count("passed sanity check.") == len(indexes)
    entries = dump(indexes).stdout
    pattern = r"offset: \d+ position: \d+" if suffix == ".index" else r"timestamp: \d+ offset: \d+"
    # about one entry per KB of batches, in segments of 20 KB
    assert len(re.findall(pattern, entries)) > 2 * len(indexes)


def test_transactions(left: Left) -> None:
    directory = left.broker.partition_directory(DECIDED)
    files = sorted(directory.glob("*.log"))
    assert len(files) > 2
    run = dump(files, "--deep-iteration")
    found = batches(run)
    assert {batch["isvalid"] for batch in found} == {"true"}
    markers = [batch for batch in found if batch["isControl"] == "true"]
    assert {batch["isTransactional"] for batch in found} == {"true"}
    decided = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", run.stdout)
    assert decided == [("COMMIT", "0"), ("ABORT", "0")] * (TRANSACTIONS // 2)
    ends = [int(batch["baseOffset"]) for batch in markers]
    assert len(ends) == TRANSACTIONS
    aborted = re.findall(
        r"version: 0 producerId: \d+ firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)",
        dump(sorted(directory.glob("*.txnindex"))).stdout,
    )
    firsts = [0, *(end + 1 for end in ends)]
    assert [tuple(map(int, each)) for each in aborted] == [
        (firsts[number], end, end + 1) for number, end in enumerate(ends) if number % 2
    ]
    verified = [str(each) for each in left.broker.log_dirs]
    assert main(["dump", "--verify", "--deep", *verified]) == 0


def test_producer_snapshots(left: Left) -> None:
    run = dump(left.files(".snapshot"))
    states = re.findall(
        r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) "
        r"currentTxnFirstOffset: (\S+) lastTimestamp: (\d+) firstSequence: (\d+) "
        r"lastSequence: (\d+) lastOffset: (\d+)",
        run.stdout,
    )
    assert len(states) == len(left.files(".snapshot"))
    names = [int(path.stem) for path in left.files(".snapshot")]
    assert names[-1] == RECORDS  # written by the clean shutdown
    for name, (_, epoch, _, open_transaction, _, _, sequence, offset) in zip(
        names, states, strict=True
    ):
        assert (epoch, open_transaction) == ("0", "OptionalLong.empty")
        assert int(sequence) == int(offset) == name - 1


def decoded(left: Left, topic: str, decoder: str) -> list[tuple[Any, Any]]:
    """Keys and values of an internal topic's records, as Kafka's tool decodes them."""
    segments = [
        path
        for directory in left.broker.log_dirs
        for path in sorted(directory.glob(f"{topic}-*/*.log"))
        if path.stat().st_size
    ]
    run = dump(segments, decoder, "--print-data-log")
    assert {batch["isvalid"] for batch in batches(run)} == {"true"}
    rows = re.findall(r"key: (\{.*?\}) payload: (\{.*\})$", run.stdout, re.MULTILINE)
    return [(json.loads(key), json.loads(value)) for key, value in rows]


def test_consumer_offsets(left: Left) -> None:
    documents = decoded(left, "__consumer_offsets", "--offsets-decoder")
    commits = {
        (key["data"]["group"], key["data"]["topic"], key["data"]["partition"]): value["data"]
        for key, value in documents
        if key["type"] == "1"
    }
    assert commits[GROUP, TOPIC, 0]["offset"] == RECORDS
    groups = [value["data"] for key, value in documents if key["type"] == "2"]
    # The member has left
    assert (groups[-1]["protocolType"], groups[-1]["members"]) == ("consumer", [])
    members = [member for group in groups for member in group["members"]]
    assert members
    assert all(member["memberId"] for member in members)


def test_transaction_state(left: Left) -> None:
    """Records of a transactional id: Empty, then Ongoing, Prepare and Complete for each transaction."""
    documents = decoded(left, "__transaction_state", "--transaction-log-decoder")
    values = [
        value["data"] for key, value in documents if key["data"]["transactionalId"] == DECIDED
    ]
    commit, abort = [1, 2, 4], [1, 3, 5]  # ongoing, prepared, complete
    assert [value["transactionStatus"] for value in values] == (
        [0] + (commit + abort) * (TRANSACTIONS // 2)
    )
    assert len({value["producerId"] for value in values}) == 1
    assert values[1]["transactionPartitions"] == [{"topic": DECIDED, "partitionIds": [0]}]
    assert not values[-1]["transactionPartitions"]


def test_cluster_metadata(left: Left) -> None:
    metadata = left.broker.log_dirs[0] / "__cluster_metadata-0"
    run = dump(sorted(metadata.glob("*.log")), "--cluster-metadata-decoder")
    found = batches(run)
    assert {batch["isvalid"] for batch in found} == {"true"}
    assert "Could not" not in run.stdout + run.stderr
    records = [
        json.loads(payload)
        for payload in re.findall(r"payload: (\{.*\})\s*$", run.stdout, re.MULTILINE)
    ]
    by_type: dict[str, list[dict[str, object]]] = {}
    for record in records:
        by_type.setdefault(record["type"], []).append(record["data"])
    topics = {row["name"]: row["topicId"] for row in by_type["TOPIC_RECORD"]}
    assert {TOPIC, "__consumer_offsets"} <= set(topics)
    partition = next(row for row in by_type["PARTITION_RECORD"] if row["topicId"] == topics[TOPIC])
    assert (partition["leader"], partition["replicas"], partition["isr"]) == (1, [1], [1])
    assert len(partition["directories"]) == 1  # type: ignore[arg-type]
    configs = {
        row["name"]: row["value"]
        for row in by_type["CONFIG_RECORD"]
        if row["resourceName"] == TOPIC
    }
    assert configs == {"internal.segment.bytes": "20000", "index.interval.bytes": "1000"}
    features = {row["name"]: row["featureLevel"] for row in by_type["FEATURE_LEVEL_RECORD"]}
    assert features["metadata.version"] == 30  # 4.3-IV0
    assert "REGISTER_BROKER_RECORD" in by_type
    # the control batch at the start of the leader's epoch
    assert "LeaderChange" in run.stdout


def test_metadata_snapshots(left: Left) -> None:
    metadata = left.broker.log_dirs[0] / "__cluster_metadata-0"
    snapshots = sorted(metadata.glob("*.checkpoint"))
    if not snapshots:
        pytest.skip("this broker has not written a snapshot of its metadata yet")
    run = dump(snapshots, "--cluster-metadata-decoder")
    assert "SnapshotHeader" in run.stdout
    assert "SnapshotFooter" in run.stdout
