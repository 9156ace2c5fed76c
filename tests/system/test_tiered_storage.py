"""Part E of the requirements: Apache Kafka's own tests of tiered storage, with real processes.

Scenarios 1 to 15 and 17, with Kafka's numbers. `tests/system/tiered.py`
describes how a segment contains one record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewPartitions

from odradek.testing import Cluster
from tests.support.anomalies import assert_none
from tests.support.kafka_tools import run_tool
from tests.support.waiting import deadline
from tests.system import cluster_state
from tests.system.cluster_state import TIMEOUT_S
from tests.system.clusters import KINDS
from tests.system.directories import move, places
from tests.system.group_consumer import Watcher
from tests.system.load import LOADS, read_partitions
from tests.system.tiered import (
    EARLIEST,
    EARLIEST_LOCAL,
    INDEXES,
    LATEST,
    LATEST_TIERED,
    Tiered,
    tiered_cluster,
)

pytestmark = [pytest.mark.slow, pytest.mark.interop]
FIRST, SECOND = 1, 2
"""Two of the three brokers."""


@pytest.fixture(scope="module", params=KINDS)
def tiers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tiered]:
    with tiered_cluster(request.param, tmp_path_factory.mktemp("remote")) as running:
        yield running


def test_scenario_1_offload_and_consume_from_leader(tiers: Tiered) -> None:
    """Remote records are read from the store, with no more reads than necessary; also after a restart."""
    tiers.create("one-a", [FIRST])
    tiers.produce("one-a", "0", "1", "2")
    tiers.wait_until_tiered("one-a", 0, 1, local=2)
    tiers.create("one-b", [FIRST], batches=2)
    tiers.produce("one-b", *"01234")
    tiers.wait_until_tiered("one-b", 0, 2, local=4)
    tiers.cluster.restart(FIRST)
    with tiers.reads("one-a") as reads:
        assert tiers.consume("one-a", 1) == [(1, "1"), (2, "2")]
    assert reads.segments == {1}
    with tiers.reads("one-b") as reads:
        assert tiers.consume("one-b", 1) == [(number, str(number)) for number in range(1, 5)]
    assert reads.segments == {0, 2}
    assert tiers.consume_by_java("one-a", 0, 3) == ["0", "1", "2"]
    assert tiers.consume_by_java("one-b", 1, 4) == ["1", "2", "3", "4"]


def test_scenario_2_copying_is_disabled_and_enabled(tiers: Tiered) -> None:
    """X-01 in Kafka's form: with remote.log.copy.disable both tiers are read and nothing is copied."""
    topic = "two"
    tiers.create(topic, [FIRST, SECOND])
    tiers.produce(topic, "0", "1", "2")
    tiers.wait_until_tiered(topic, 0, 1, local=2)
    no_copies = {
        "remote_log_copy_disable": "true",
        "local_retention_bytes": "-2",
        "local_retention_ms": "-2",
    }
    tiers.configure(topic, **no_copies)
    with tiers.reads(topic) as reads:
        assert tiers.consume(topic, 0) == [(0, "0"), (1, "1"), (2, "2")]
    assert reads.segments == {0, 1}
    tiers.configure(topic, remote_log_copy_disable="false", local_retention_bytes="1")
    tiers.produce(topic, "3")
    tiers.wait_until_tiered(topic, 0, 1, 2, local=3)
    tiers.configure(topic, **no_copies)
    with tiers.reads(topic) as reads:
        assert tiers.consume(topic, 0) == [(number, str(number)) for number in range(4)]
    assert 2 in reads.segments  # earlier segments may have been kept
    tiers.delete_records(topic, 1)
    tiers.wait_for_remote(topic, 1, 2)
    tiers.produce(topic, "4", "5")
    assert tiers.remote(topic) == [1, 2]
    assert tiers.offset(topic, EARLIEST_LOCAL)[1] == 3
    tiers.configure(topic, remote_storage_enable="false", remote_log_delete_on_disable="true")
    tiers.wait_for_remote(topic)
    tiers.wait_for_offset(topic, EARLIEST, 3)
    assert tiers.consume(topic, 3) == [(3, "3"), (4, "4"), (5, "5")]
    with pytest.raises(AssertionError, match="out of range"):
        tiers.consume(topic, 1)


TEXTS = {
    "local": "When `remote.log.copy.disable` is set to true, the `local.retention.{0}` and `retention.{0}` must be set"
    " to the identical value because there will be no more logs copied to the remote storage.",
    "bare": "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data"
    " and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to"
    " disable remote storage and delete all remote data, please set"
    " `remote.storage.enable=false,remote.log.delete.on.disable=true`.",
}


def test_disablement_by_kafka_configs(tiers: Tiered) -> None:
    """X-01, X-05 in Kafka's form by its own tool: the errors, each step for one of two topics, and enabling again."""
    topic, other = "two-by-tool", "two-other"
    for each in (topic, other):
        tiers.create(each, [FIRST, SECOND])
        tiers.produce(each, "0", "1", "2")
        tiers.wait_until_tiered(each, 0, 1, local=2)

    def alter(*configs: str) -> str:
        run = run_tool(
            "configs", "--bootstrap-server", tiers.cluster.bootstrap, "--entity-type", "topics",
            "--entity-name", topic, "--alter", "--add-config", ",".join(configs), check=False,
        )  # fmt: skip
        return run.stdout + run.stderr

    no_copies = "remote.log.copy.disable=true"
    assert TEXTS["local"].format("bytes") in alter(no_copies)
    inherited = "local.retention.bytes=-2"
    assert TEXTS["local"].format("ms") in alter(no_copies, inherited, "local.retention.ms=100")
    assert TEXTS["bare"] in alter("remote.storage.enable=false")
    assert TEXTS["bare"] in alter("remote.storage.enable=false", no_copies)
    assert "Completed" in alter(no_copies, inherited)
    tiers.produce(topic, "3")
    assert tiers.consume(topic, 0) == [(number, str(number)) for number in range(4)]
    assert tiers.remote(topic) == [0, 1]
    assert "Completed" in alter("remote.storage.enable=false", "remote.log.delete.on.disable=true")
    tiers.wait_for_remote(topic)
    tiers.wait_for_offset(topic, EARLIEST, 2)
    again = (
        "remote.storage.enable=true",
        "remote.log.copy.disable=false",
        "local.retention.bytes=1",
    )
    assert "Completed" in alter(*again)
    tiers.produce(topic, "4")
    tiers.wait_until_tiered(topic, 2, 3, local=4)
    assert tiers.consume(topic, 2) == [(2, "2"), (3, "3"), (4, "4")]
    tiers.produce(other, "3")
    tiers.wait_until_tiered(other, 0, 1, 2, local=3)


def test_scenario_3_enable_remote_log_on_topic(tiers: Tiered) -> None:
    """Existing segments are copied too (T-56)."""
    topic = "three"
    tiers.create(topic, [FIRST, SECOND], [SECOND, FIRST], enabled=False)
    for partition in (0, 1):
        tiers.produce(topic, "0", "1", "2", partition=partition)
        assert tiers.offset(topic, EARLIEST_LOCAL, partition)[1] == 0
        assert tiers.remote(topic, partition) == []
    tiers.configure(topic, remote_storage_enable="true")
    for partition in (0, 1):
        tiers.produce(topic, "3", "4", partition=partition)
        tiers.wait_until_tiered(topic, 0, 1, 2, 3, local=4, partition=partition)
    for partition in (0, 1):
        with tiers.reads(topic, partition) as reads:
            assert tiers.consume(topic, 0, partition=partition) == [
                (number, str(number)) for number in range(5)
            ]
        assert reads.segments == {0, 1, 2, 3}


def test_scenario_4_alter_log_dir(tiers: Tiered, tmp_path: Path) -> None:
    """A replica that moved to another directory leads and continues to copy (T-57: JBOD is supported)."""
    topic, cluster = "four", tiers.cluster
    tiers.create(topic, [SECOND, FIRST])
    tiers.produce(topic, "0", "1", "2")
    tiers.wait_until_tiered(topic, 0, 1, local=2)
    here = places(cluster, topic)[0, FIRST]
    there = next(each for each in cluster.log_directories(FIRST) if each != here)
    move(cluster, tmp_path, topic, {0: [(SECOND, "any"), (FIRST, there)]})
    tiers.lead(topic, FIRST)
    tiers.produce(topic, "3")
    tiers.wait_until_tiered(topic, 0, 1, 2, local=3)
    with tiers.reads(topic) as reads:
        assert tiers.consume(topic, 0) == [(number, str(number)) for number in range(4)]
    assert reads.segments == {0, 1, 2}


def test_scenario_5_list_offsets(tiers: Tiered) -> None:
    """T-39 and Kafka's further timestamps: -4, -5 and timestamps from both tiers, as (epoch, offset)."""
    topic, t = "five", int(time.time() * 1000) - 60_000
    tiers.create(topic, [FIRST, SECOND], batches=2)
    tiers.produce(topic, "0", "1", "2", timestamps=[t, t + 1, t + 2])
    tiers.wait_until_tiered(topic, 0, local=2)
    tiers.lead(topic, SECOND)
    tiers.produce(topic, "3", "4", "5", timestamps=[t + 3, t + 4, t + 5])
    tiers.wait_until_tiered(topic, 0, 2, local=4)
    epoch = tiers.offset(topic, LATEST)[0]
    assert epoch > 0
    assert tiers.offset(topic, EARLIEST) == (0, 0)
    assert tiers.offset(topic, EARLIEST_LOCAL) == (epoch, 4)
    assert tiers.offset(topic, LATEST_TIERED) == (epoch, 3)
    assert tiers.offset(topic, LATEST) == (epoch, 6)
    assert tiers.offsets_by_tool(topic, "earliest-local") == {0: 4}
    assert tiers.offsets_by_tool(topic, "latest-tiered") == {0: 3}
    assert tiers.offsets_by_tool(topic, "earliest") == {0: 0}
    for at, expected in (
        (t + 6, (-1, -1)),
        (t + 5, (epoch, 5)),
        (t + 4, (epoch, 4)),
        (t - 1, (0, 0)),
        (t, (0, 0)),
        (t + 1, (0, 1)),
        (t + 3, (epoch, 3)),
    ):
        assert tiers.offset(topic, at) == expected, at - t
    tiers.delete_records(topic, 3)
    tiers.wait_for_remote(topic, 2)
    assert tiers.offset(topic, EARLIEST) == (epoch, 3)
    assert tiers.offset(topic, EARLIEST_LOCAL) == (epoch, 4)
    tiers.delete_records(topic, 4)
    tiers.wait_for_remote(topic)
    assert tiers.offset(topic, EARLIEST) == (epoch, 4)
    assert tiers.offset(topic, EARLIEST_LOCAL) == (epoch, 4)
    assert tiers.offset(topic, LATEST_TIERED) == (-1, 3)
    assert tiers.offset(topic, LATEST) == (epoch, 6)


def test_scenario_6_segments_below_log_start_are_deleted(tiers: Tiered) -> None:
    """T-37; the first epoch is that of the first record, also under the next leader."""
    topic = "six"
    tiers.create(topic, [FIRST, SECOND], batches=2)
    tiers.produce(topic, *"01234")
    tiers.wait_until_tiered(topic, 0, 2, local=4)
    tiers.delete_records(topic, 3)
    tiers.wait_for_remote(topic, 2)
    assert tiers.offset(topic, EARLIEST) == (0, 3)
    with tiers.reads(topic) as reads:
        assert tiers.consume(topic, 3) == [(3, "3"), (4, "4")]
    assert reads.segments == {2}
    tiers.lead(topic, SECOND)
    tiers.produce(topic, *"56789")
    tiers.wait_until_tiered(topic, 2, 4, 6, local=8)
    tiers.delete_records(topic, 7)
    tiers.wait_for_remote(topic, 6)
    with tiers.reads(topic) as reads:
        assert tiers.consume(topic, 7) == [(7, "7"), (8, "8"), (9, "9")]
    assert reads.segments == {6}
    epoch, start = tiers.offset(topic, EARLIEST)
    assert start == 7
    assert epoch > 0


@pytest.mark.parametrize("config", ["retention_bytes", "retention_ms"])
def test_scenario_7_segments_expire_by_size_and_time(tiers: Tiered, config: str) -> None:
    """T-15, T-36, S-03: segments beyond the retention time or size are deleted from remote storage, oldest
    first.
    """
    topic, now = f"seven-{config.replace('_', '-')}", int(time.time() * 1000)
    tiers.create(topic, [FIRST])
    in_an_hour = now + 3_600_000  # otherwise the active segment expires too
    tiers.produce(topic, *"0123", timestamps=[now, now, now, in_an_hour])
    tiers.wait_until_tiered(topic, 0, 1, 2, local=3)
    tiers.configure(topic, **{config: "1", f"local_{config}": "1"})
    tiers.wait_for_remote(topic)
    tiers.wait_for_offset(topic, EARLIEST, 3)
    assert tiers.offset(topic, EARLIEST) == (0, 3)
    assert tiers.consume(topic, 3) == [(3, "3")]
    with pytest.raises(AssertionError, match="out of range"):
        tiers.consume(topic, 0)


def test_scenario_8_delete_topic(tiers: Tiered) -> None:
    """T-51 and T-52: all segments are deleted. A topic that is recreated with the same name meanwhile is
    independent.
    """
    topic = "eight"
    tiers.create(topic, [FIRST, SECOND], [SECOND, FIRST])
    for partition in (0, 1):
        tiers.produce(topic, "0", "1", "2", partition=partition)
        tiers.wait_until_tiered(topic, 0, 1, local=2, partition=partition)
    old = [tiers.remote_directory(topic, partition) for partition in (0, 1)]
    tiers.admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until_gone(tiers.cluster, topic)
    tiers.create(topic, [FIRST, SECOND])
    tiers.produce(topic, "again", "more")
    with deadline(TIMEOUT_S, "all segments of the deleted topic to be deleted") as check:
        while any(each is not None and each.exists() and any(each.iterdir()) for each in old):
            check(0.1)
    assert tiers.consume(topic, 0) == [(0, "again"), (1, "more")]
    new = [each for each in tiers.root.glob(f"{topic}-0-*") if each not in old]
    with deadline(TIMEOUT_S, "the new topic's segment to be copied") as check:
        while not (new := [each for each in tiers.root.glob(f"{topic}-0-*") if each not in old]):
            check(0.1)
    assert len(new) == 1


def wait_until_gone(cluster: Cluster, topic: str) -> None:
    with deadline(TIMEOUT_S, f"{topic} to be gone") as check:
        while any(
            cluster_state.partition(cluster, topic, broker=broker) is not None
            for broker in cluster.brokers
        ):
            check(0.1)


CHECKPOINTS = (
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    ".kafka_cleanshutdown",
)


def test_scenario_9_fetch_from_leader_with_corrupted_checkpoint(tiers: Tiered) -> None:
    """A leader that lost its high watermark and recovery point continues to copy."""
    topic, cluster = "nine", tiers.cluster
    tiers.create(topic, [FIRST, SECOND])
    tiers.produce(topic, "0", "1", "2")
    tiers.wait_until_tiered(topic, 0, 1, local=2)
    assert len(tiers.consume(topic, 0)) == 3
    cluster.stop(SECOND)
    cluster.stop(FIRST)
    for directory in cluster.log_directories(FIRST):
        for name in CHECKPOINTS:
            (Path(directory) / name).unlink(missing_ok=True)
    cluster.restart(FIRST, wait=False)
    tiers.wait_for_leader(topic, FIRST)
    cluster.restart(SECOND, wait=False)
    cluster.wait_ready(cluster.brokers)
    tiers.produce(topic, "3", "4")
    tiers.wait_until_tiered(topic, 0, 1, 2, 3, local=4)
    with tiers.reads(topic) as reads:
        assert tiers.consume(topic, 0) == [(number, str(number)) for number in range(5)]
    assert reads.segments == {0, 1, 2, 3}


@pytest.fixture
def tiny_index_cache(tiers: Tiered) -> Iterator[None]:
    name = "remote.log.index.file.cache.total.size.bytes"
    tiers.configure_brokers(name, "1")
    yield
    tiers.configure_brokers(name, str(1 << 30))


@pytest.mark.usefixtures("tiny_index_cache")
def test_scenario_10_offload_and_consume_committed(tiers: Tiered) -> None:
    """T-35: read_committed across both tiers fetches at most two indexes per segment."""
    topic = "ten"
    tiers.create(topic, [FIRST])
    tiers.produce(topic, *"0123456")
    tiers.wait_until_tiered(topic, *range(6), local=6)
    with tiers.reads(topic) as reads:
        found = tiers.consume(topic, 0, committed=True)
    assert found == [(number, str(number)) for number in range(7)]
    assert reads.segments == set(range(6))
    for kind in INDEXES:
        assert reads.count(kind) <= 12, kind


def test_aborted_transactions_are_skipped_in_both_tiers(tiers: Tiered) -> None:
    """T-35: the copied transaction indexes are used."""
    topic = "ten-aborted"
    tiers.create(topic, [FIRST], batches=3)
    producer = Producer(
        {"bootstrap.servers": tiers.cluster.bootstrap, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(TIMEOUT_S)
    for number in range(8):
        producer.begin_transaction()
        producer.produce(topic, f"{number}", partition=0)
        producer.flush(TIMEOUT_S)
        if number % 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    with deadline(TIMEOUT_S, "most segments to be in the remote tier") as check:
        while tiers.offset(topic, EARLIEST_LOCAL)[1] < 12:
            check(0.1)
    values = [value for _, value in tiers.consume(topic, 0, committed=True)]
    assert values == ["0", "2", "4", "6"]
    assert [value for _, value in tiers.consume(topic, 0)] == list("01234567")


def test_scenario_11_partitions_expand(tiers: Tiered) -> None:
    topic = "eleven-expand"
    tiers.create(topic, [FIRST, SECOND])
    tiers.produce(topic, "0", "1", "2")
    tiers.wait_until_tiered(topic, 0, 1, local=2)
    rows = [[FIRST, SECOND], [SECOND, FIRST]]
    for future in tiers.admin.create_partitions([NewPartitions(topic, 3, rows)]).values():
        future.result(TIMEOUT_S)
    cluster_state.wait_until_in_sync(tiers.cluster, topic, 2, 3)
    assert len(tiers.consume(topic, 0)) == 3
    for partition in (1, 2):
        tiers.produce(topic, "0", "1", "2", partition=partition)
        tiers.wait_until_tiered(topic, 0, 1, local=2, partition=partition)
    tiers.produce(topic, "3", "4", "5")
    tiers.wait_until_tiered(topic, 0, 1, 2, 3, 4, local=5)
    assert tiers.consume(topic, 0) == [(number, str(number)) for number in range(6)]
    assert len(tiers.consume(topic, 0, partition=1)) == 3
    with tiers.reads(topic, 2) as reads:
        assert tiers.consume(topic, 1, partition=2) == [(1, "1"), (2, "2")]
    assert reads.segments == {1}


@pytest.mark.parametrize("replicas", [[FIRST, SECOND], [SECOND]], ids=["expand", "move"])
def test_scenario_11_reassign_replica(tiers: Tiered, replicas: list[int]) -> None:
    """A new replica gets its auxiliary state from the remote tier, leads, and continues to copy."""
    topic = f"eleven-{len(replicas)}"
    tiers.create(topic, [FIRST])
    tiers.produce(topic, "0", "1", "2")
    tiers.wait_until_tiered(topic, 0, 1, local=2)
    cluster_state.reassign(tiers.cluster, topic, {0: replicas})
    cluster_state.wait_until_reassigned(tiers.cluster, topic, {0: replicas})
    tiers.lead(topic, SECOND)
    tiers.produce(topic, "3")
    tiers.wait_until_tiered(topic, 0, 1, 2, local=3)
    with tiers.reads(topic) as reads:
        assert tiers.consume(topic, 0) == [(number, str(number)) for number in range(4)]
    assert reads.segments == {0, 1, 2}
    assert tiers.offset(topic, EARLIEST)[1] == 0


def test_scenario_11_reassign_replica_shrink(tiers: Tiered) -> None:
    topic = "eleven-shrink"
    tiers.create(topic, [FIRST, SECOND], [SECOND, FIRST])
    for partition in (0, 1):
        tiers.produce(topic, "0", "1", "2", partition=partition)
        tiers.wait_until_tiered(topic, 0, 1, local=2, partition=partition)
    target = {0: [SECOND], 1: [FIRST]}
    cluster_state.reassign(tiers.cluster, topic, target)
    cluster_state.wait_until_reassigned(tiers.cluster, topic, target)
    for partition, (leader,) in target.items():
        tiers.wait_for_leader(topic, leader, partition)
        tiers.produce(topic, "3", partition=partition)
        tiers.wait_until_tiered(topic, 0, 1, 2, local=3, partition=partition)
        assert len(tiers.consume(topic, 0, partition=partition)) == 4


def test_scenario_12_roll_and_offload_active_segment(tiers: Tiered) -> None:
    """An active segment that exceeds local retention is rolled and copied."""
    topic = "twelve"
    tiers.create(topic, [FIRST], config={"local.retention.ms": "1"})
    tiers.produce(topic, *"0123")
    tiers.wait_until_tiered(topic, 0, 1, 2, 3, local=4)
    with tiers.reads(topic) as reads:
        assert tiers.consume(topic, 0) == [(number, str(number)) for number in range(4)]
    assert reads.segments == {0, 1, 2, 3}


def test_scenario_12_transactions_with_a_tiered_topic(tiers: Tiered) -> None:
    """Committed and aborted transactions over several partitions, with a consumer group, while the leader
    changes.
    """
    topic, partitions = "twelve-transactions", 2
    tiers.create(topic, [FIRST, SECOND], [SECOND, FIRST], batches=8)
    load = LOADS["transactional"](tiers.cluster.bootstrap, topic, partitions)
    with load, Watcher(tiers.cluster.bootstrap, topic) as watcher:
        load.wait_for_progress(30)
        tiers.lead(topic, SECOND)
        load.wait_for_progress(30)
        load.finish()
        rows = read_partitions(tiers.cluster.bootstrap, topic, partitions)
        assert_none(load.ledger.anomalies(rows))
        watcher.wait_for(rows)
        assert_none(watcher.anomalies(rows))
    for partition in range(partitions):
        assert tiers.remote(topic, partition)


def test_scenario_13_new_follower_of_tiered_log(tiers: Tiered) -> None:
    """T-42, T-58: the follower starts at the leader's local log start offset, with the epochs from remote
    storage.
    """
    topic = "thirteen"
    tiers.create(topic, [FIRST], batches=5)
    tiers.produce(topic, *"012345678")
    tiers.wait_until_tiered(topic, 0, local=5)
    join(tiers, topic, SECOND)
    assert tiers.local_segments(SECOND, topic) == [5]
    tiers.lead(topic, SECOND)
    assert tiers.offset(topic, EARLIEST) == (0, 0)
    assert tiers.offset(topic, EARLIEST_LOCAL)[1] == 5
    assert tiers.offset(topic, LATEST)[1] == 9
    assert tiers.consume(topic, 0) == [(number, str(number)) for number in range(9)]


def test_scenario_14_new_follower_after_delete_records(tiers: Tiered) -> None:
    topic = "fourteen"
    tiers.create(topic, [FIRST], batches=7)
    values = [str(number) for number in range(11)]
    tiers.produce(topic, *values)
    tiers.wait_until_tiered(topic, 0, local=7)
    tiers.delete_records(topic, 5)
    join(tiers, topic, SECOND)
    assert tiers.local_segments(SECOND, topic) == [7]
    tiers.lead(topic, SECOND)
    assert tiers.offset(topic, EARLIEST) == (0, 5)
    assert tiers.offset(topic, EARLIEST_LOCAL)[1] == 7
    assert tiers.offset(topic, LATEST)[1] == 11
    assert [value for _, value in tiers.consume(topic, 5)] == values[5:]


def test_scenario_14_returning_follower_is_out_of_range(tiers: Tiered) -> None:
    """The follower's log ends before the leader's log start offset, which is before the leader's local log
    start offset (T-59).
    """
    topic = "fourteen-away"
    tiers.create(topic, [FIRST, SECOND], batches=7)
    values = [str(number) for number in range(18)]
    tiers.produce(topic, *values[:3])
    cluster_state.wait_for_in_sync(tiers.cluster, topic, {FIRST, SECOND}, broker=FIRST)
    tiers.cluster.stop(SECOND)
    try:
        tiers.produce(topic, *values[3:])
        tiers.wait_until_tiered(topic, 0, 7, local=14)
        tiers.delete_records(topic, 5)
    finally:
        tiers.cluster.restart(SECOND)
    cluster_state.wait_for_in_sync(tiers.cluster, topic, {FIRST, SECOND}, broker=FIRST)
    assert tiers.local_segments(SECOND, topic) == [14]
    tiers.lead(topic, SECOND)
    assert tiers.offset(topic, EARLIEST)[1] == 5
    assert [value for _, value in tiers.consume(topic, 5)] == values[5:]


def join(tiers: Tiered, topic: str, broker: int) -> None:
    """Add the broker to the replicas."""
    replicas = {0: [tiers.leader(topic), broker]}
    cluster_state.reassign(tiers.cluster, topic, replicas)
    cluster_state.wait_until_reassigned(tiers.cluster, topic, replicas)


def test_scenario_15_unavailable_remote_storage_loses_no_records(
    tiers: Tiered,
) -> None:
    """T-30, T-12: no local segment is deleted before it is copied; afterwards each segment is in remote
    storage once.
    """
    topic, root = "fifteen", tiers.root
    tiers.create(topic, [FIRST, SECOND])
    tiers.produce(topic, "0", "1")
    tiers.wait_until_tiered(topic, 0, local=1)
    away = root.with_name("away")
    root.rename(away)
    root.write_text("a file where the directory was")
    try:
        tiers.produce(topic, "2", "3", "4")
        time.sleep(3)  # several failed runs of the copy task
        assert tiers.offset(topic, EARLIEST_LOCAL)[1] == 1
        assert tiers.consume(topic, 1) == [(number, str(number)) for number in range(1, 5)]
    finally:
        root.unlink()
        away.rename(root)
    tiers.produce(topic, "5")
    tiers.wait_until_tiered(topic, 0, 1, 2, 3, 4, local=5)
    assert tiers.consume(topic, 0) == [(number, str(number)) for number in range(6)]


@pytest.mark.parametrize(
    "config",
    [
        {"retention.ms": "200", "local.retention.ms": "1000"},
        {"retention.bytes": "512", "local.retention.bytes": "1024"},
        {"cleanup.policy": "compact"},
        {
            "remote.log.copy.disable": "true",
            "local.retention.ms": "100",
            "retention.ms": "1000",
            "local.retention.bytes": "-2",
        },
        {
            "remote.log.copy.disable": "true",
            "local.retention.bytes": "100",
            "retention.bytes": "1000",
            "local.retention.ms": "-2",
        },
    ],
)
def test_scenario_17_invalid_configs_are_refused(tiers: Tiered, config: dict[str, str]) -> None:
    """T-15, T-16: topics with invalid configs are not created."""
    with pytest.raises(KafkaException) as caught:
        tiers.create("seventeen-bad", [FIRST], config=config)
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_scenario_17_invalid_alterations_are_refused(tiers: Tiered) -> None:
    topic = "seventeen"
    tiers.create(topic, [FIRST])
    for settings in (
        {"remote_storage_enable": "false"},
        {"remote_log_copy_disable": "true"},  # local.retention.bytes differs from retention.bytes
        {"cleanup_policy": "compact"},
        {"retention_bytes": "0"},
    ):
        with pytest.raises(KafkaException) as caught:
            tiers.configure(topic, **settings)
        assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG, settings
