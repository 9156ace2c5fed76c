"""Tests of `odradek remote` with a store in a directory, and the metadata topic of a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
import trio

from odradek.bench.s3_server import S3Server
from odradek.client.admin import NewTopic, create_topics, delete_records
from odradek.client.metadata import open_cluster, parse_bootstrap
from odradek.client.producer import open_producer
from odradek.protocol.topics import TopicPartition
from odradek.seams.entropy import SeededEntropy
from odradek.seams.object_store import open_objects
from odradek.seams.objects import Objects
from odradek.seams.real import real_seams
from odradek.storage.tiered.metadata_records import encode, metadata_partition
from odradek.storage.tiered.object_names import (
    NO_LEADER,
    partition_directory,
    segment_key,
    summary_key,
)
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.partition_summary import PartitionSummaryBuilder, decode
from odradek.storage.tiered.remote_storage_manager import LogSegmentData
from odradek.storage.tiered.segment_metadata import (
    RemoteEvent,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from tests.cli.command_line import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.remote_segments import (
    DELETED,
    DELETING,
    FINISHED,
    FOO_0,
    becomes,
    segment,
)

LOG = b"the log " * 1000
METADATA_TOPIC = "__remote_log_metadata"
PLACES = 3
DENIED = "Check the credentials in --option, --config or the environment, and their permissions"


def in_the_store(directory: Path, *copies: RemoteLogSegmentMetadata) -> None:
    copied_to(open_objects(f"file://{directory}"), *copies)


def copied_to(objects: Objects, *copies: RemoteLogSegmentMetadata) -> None:
    storage = ObjectStoreStorage(objects, SeededEntropy(random.Random(3)), cluster_id="c")
    for each in copies:
        storage.copy_segment(each, LogSegmentData(LOG, b"o" * 8, b"i" * 12, None, b"p", b"e"))


def copy(number: int) -> RemoteLogSegmentMetadata:
    return segment(number, 10 * number, 10 * number + 9, size=len(LOG))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = tmp_path / "the store"
    made.mkdir()
    return made


def key(of: RemoteLogSegmentMetadata) -> str:
    return segment_key(of, "")


# By the manifests alone


def test_list_partitions_of_store(offline: CommandLine, store: Path) -> None:
    in_the_store(store, copy(1), copy(2), segment(3, 30, 39, partition=FOO_0, size=len(LOG)))
    listed = offline("remote", "list", "--without-metadata", "--url", str(store), "--json").json
    (row,) = listed["partitions"]
    assert (row["topic"], row["partition"], row["segments"], row["objects"]) == ("foo", 0, 3, 18)
    assert row["logBytes"] == 3 * len(LOG)
    words = offline(
        "remote", "list", "--without-metadata", "--url", f"file://{store}".replace(" ", "%20")
    ).words
    assert words[1][:5] == ["foo", "0", "AAAAAAAAAAAAAAAAAAAAAQ", "3", "18"]
    segments = offline(
        "remote", "list", "--without-metadata", "--url", str(store), "--segments"
    ).words
    assert [row[2] for row in segments[1:]] == ["10..", "20..", "30.."]
    assert {row[-1] for row in segments[1:]} == {"whole"}


def test_verify_reads_every_byte(offline: CommandLine, store: Path) -> None:
    in_the_store(store, copy(1), copy(2))
    where = ("--without-metadata", "--url", str(store))
    assert "read and verified: 0 problems" in offline("remote", "verify", *where).lines[-1]
    damaged = store / segment_key(copy(2), ".log")
    damaged.write_bytes(LOG.replace(b"log", b"lob", 1))
    ran = offline("remote", "verify", *where, code=1)
    assert ran.lines[0] == f"{segment_key(copy(2), '.log')}: its CRC-32C is wrong"
    assert offline("remote", "verify", "--quick", *where).code == 0
    shown = offline("remote", "verify", *where, "--json", code=1).json
    assert (shown["segments"], len(shown["problems"]), shown["findings"]) == (2, 1, [])


def test_gc_lists_then_removes_garbage(offline: CommandLine, store: Path) -> None:
    in_the_store(store, copy(1), copy(2), copy(3))
    for number in (2, 3):  # copies that failed, or deletions: without a manifest
        (store / segment_key(copy(number), ".manifest")).unlink()
    collect = ("remote", "gc", "--without-metadata", "--url", str(store))
    young = offline(*collect).lines
    assert young[-1].startswith("0 segments of garbage")
    assert [line.split(":")[0] for line in young[:-1]] == [key(copy(2)), key(copy(3))]
    before = sorted(store.rglob("*"))
    shown = offline(*collect, "--older-than", "0.001", "--json").json
    assert (shown["executed"], shown["garbage"]["segments"], shown["garbage"]["objects"]) == (
        False,
        2,
        10,
    )
    assert sorted(store.rglob("*")) == before
    done = offline(*collect, "--older-than", "0.001", "--execute").lines
    assert done[-1].startswith("2 segments of garbage, 10 objects")
    assert done[-1].endswith("removed")
    assert len(list((store / partition_directory(FOO_0)).iterdir())) == 6
    assert offline("remote", "verify", "--without-metadata", "--url", str(store)).code == 0


def test_partitions_are_summarized_and_summaries_verified(
    offline: CommandLine, store: Path
) -> None:
    copies = [copy(number) for number in range(1, 4)]
    others = TopicIdPartition(UUID(int=3), "others", 1)
    in_the_store(store, *copies, segment(9, 0, 9, partition=others, size=len(LOG)))
    of_a_leader = store / summary_key(others, 0)
    of_a_leader.write_bytes(PartitionSummaryBuilder().encode())
    where = ("--without-metadata", "--url", str(store))
    ran = offline("remote", "summarize", *where)
    assert decode(of_a_leader.read_bytes()) == PartitionSummaryBuilder().taken()
    assert ran.lines == [
        "3 segments of 1 partitions summarized; 1 partitions have a summary written by their leader"
    ]
    assert offline("remote", "summarize", *where, "--json").json["segments"] == 3
    made = store / summary_key(FOO_0, NO_LEADER)
    found = list(decode(made.read_bytes()).segments(FOO_0))
    assert [each.id for each in found] == [each.id for each in copies]
    listed = offline("remote", "list", *where, "--json").json
    assert [row["objects"] for row in listed["partitions"]] == [19, 7]
    assert listed["stray"] == []
    assert offline("remote", "verify", *where).code == 0
    of_a_leader.write_bytes(b"ODSU, but not whole")
    ran = offline("remote", "verify", *where, code=1)
    assert (
        ran.lines[0] == f"{summary_key(others, 0)}: invalid partition summary: invalid magic or CRC"
    )
    for each in (store / segment_key(copy(2), ".manifest"), made):
        each.write_bytes(b"{}")
    ran = offline("remote", "summarize", *where, code=1)
    assert ran.lines[0].startswith(f"{FOO_0} has no summary: ")


def test_gc_keeps_foreign_objects(offline: CommandLine, store: Path) -> None:
    in_the_store(store, copy(1))
    (store / "mine.txt").write_text("mine")
    collect = ("remote", "gc", "--without-metadata", "--url", str(store), "--older-than", "0.001")
    ran = offline(*collect, "--execute")
    assert ran.lines[0] == "mine.txt: not an object of a segment: not removed"
    assert (store / "mine.txt").read_text() == "mine"


def test_store_from_server_properties(offline: CommandLine, store: Path, tmp_path: Path) -> None:
    in_the_store(store / "kafka-tiered-storage", copy(1))
    properties = tmp_path / "server.properties"
    properties.write_text(
        "remote.log.storage.manager.class.name="
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage\n"
        f"rsm.config.dir={store}\n"
    )
    for where in (("--config", str(properties)), ("--url", str(store))):
        listed = offline("remote", "list", "--without-metadata", *where, "--json").json
        assert [row["segments"] for row in listed["partitions"]] == [1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list"], "--url"),
        (["list", "--url", "/nowhere/at/all"], "does not exist"),
        (["list", "--url", "ftp://host"], "ftp"),
        (["list", "--url", "s3://bucket", "--option", "nonsense=1"], "nonsense"),
        ([], "remote --help"),
    ],
)
def test_wrong_usage(offline: CommandLine, words: Sequence[str], message: str) -> None:
    extra = ["--without-metadata"] if words else []
    assert message in offline("remote", *words, *extra, code=2).stderr


def test_verify_and_gc_in_a_bucket(offline: CommandLine, s3_server: S3Server) -> None:
    url = s3_server.new_store()
    objects = open_objects(url, s3_server.options)
    copied_to(objects, copy(1), copy(2), copy(3))
    for number in (2, 3):
        objects.delete(segment_key(copy(number), ".manifest"))
    options = [
        word for option in s3_server.options.items() for word in ("--option", "=".join(option))
    ]
    where = ["--without-metadata", "--url", url, *options, "--older-than", "0.001"]
    assert "2 garbage" in offline("remote", "verify", *where, code=1).lines[-1]
    assert "removed" in offline("remote", "gc", "--execute", *where).lines[-1]
    assert len(objects.list("")) == 6
    assert "0 garbage" in offline("remote", "verify", *where).lines[-1]
    wrong = ["--option", "aws_secret_access_key=wrong"]
    for command in ("list", "verify", "gc"):
        ran = offline("remote", command, *where, *wrong, code=1)
        assert ran.stderr.startswith("odradek: the store ")
        assert "SignatureDoesNotMatch" in ran.stderr
        assert ran.stderr.splitlines()[1:] == [DENIED]
    where[2] = "s3://no-such-bucket"
    assert "NoSuchBucket" in offline("remote", "verify", *where, code=1).stderr
    where[2] = url
    s3_server.kill()
    try:
        ran = offline("remote", "list", *where, code=1)
        assert ran.stderr.startswith("odradek: the store ")
        assert "Traceback" not in ran.stderr
    finally:
        s3_server.start()


# By the metadata


@dataclass(frozen=True)
class Tiered:
    broker: BrokerProcess

    def publish(self, *events: RemoteEvent) -> None:
        self.put(*((place_of(each.partition), encode(each)) for each in events))

    def put(self, *values: tuple[int, bytes]) -> list[int]:
        """Produce records to partitions of the metadata topic; returns their offsets."""

        async def main() -> list[int]:
            seams = real_seams()
            addresses = parse_bootstrap(self.broker.bootstrap)
            async with open_cluster(seams.network, addresses, timeout_s=10) as cluster:
                async with open_producer(cluster, seams.clock, seams.entropy) as producer:
                    return [
                        await producer.send(METADATA_TOPIC, value, partition=place)
                        for place, value in values
                    ]

        return trio.run(main)

    def cut(self, place: int) -> None:
        """Delete all records of a partition of the metadata topic."""

        async def main() -> None:
            addresses = parse_bootstrap(self.broker.bootstrap)
            async with open_cluster(real_seams().network, addresses, timeout_s=10) as cluster:
                await delete_records(cluster, {TopicPartition(METADATA_TOPIC, place): -1})

        trio.run(main)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_odradek(tmp_path_factory.mktemp("remote-broker")) as broker:

        async def main() -> None:
            seams = real_seams()
            addresses = parse_bootstrap(broker.bootstrap)
            async with open_cluster(seams.network, addresses, timeout_s=10) as cluster:
                await create_topics(cluster, [NewTopic(METADATA_TOPIC, PLACES)])

        trio.run(main)
        yield broker


@pytest.fixture
def tiered(broker: BrokerProcess) -> Tiered:
    return Tiered(broker)


@pytest.fixture
def odradek_with_metadata(
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> CommandLine:
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", broker.bootstrap)
    return CommandLine(monkeypatch, capsysbinary)


def of_topic(topic: str, number: int) -> RemoteLogSegmentMetadata:
    partition = TopicIdPartition(UUID(int=hash_of(topic)), topic, 0)
    return segment(number, 10 * number, 10 * number + 9, size=len(LOG), partition=partition)


def place_of(partition: TopicIdPartition) -> int:
    """Partition of the metadata topic with the metadata of this partition."""
    return metadata_partition(partition, PLACES)


def topic_at(place: int, *but: str) -> str:
    """Name of a topic whose metadata is in this partition."""
    return next(
        name
        for name in (f"topic{number}" for number in range(100))
        if name not in but and place_of(of_topic(name, 0).partition) == place
    )


def hash_of(topic: str) -> int:
    return int.from_bytes(topic.encode().ljust(16, b"."), "big")


def test_list_segments_shows_status(
    odradek_with_metadata: CommandLine, tiered: Tiered, store: Path
) -> None:
    copies = [of_topic("stands", number) for number in range(6)]
    whole, missing, copying, deleting, gone, unheard = copies
    in_the_store(store, whole, copying, deleting, gone, unheard)
    tiered.publish(whole, becomes(whole, FINISHED), missing, becomes(missing, FINISHED), copying)
    tiered.publish(deleting, becomes(deleting, FINISHED), becomes(deleting, DELETING))
    tiered.publish(gone, becomes(gone, DELETING), becomes(gone, DELETED))
    where = ("--url", str(store), "--topic", "stands")
    shown = odradek_with_metadata("remote", "list", "--segments", *where, "--json").json["segments"]
    assert {row["startOffset"] // 10: row["status"] for row in shown} == {
        0: "whole", 1: "missing", 2: "copying", 3: "deleting", 4: "young", 5: "young",
    }  # fmt: skip
    (row,) = odradek_with_metadata("remote", "list", *where, "--json").json["partitions"]
    assert row["notWhole"] == {"missing": 1, "copying": 1, "deleting": 1, "young": 2}
    verified = odradek_with_metadata("remote", "verify", *where, code=1)
    assert "1 segments missing or incomplete" in verified.lines[-1]


def test_gc_removes_only_segments_without_metadata(
    odradek_with_metadata: CommandLine, tiered: Tiered, store: Path
) -> None:
    whole, copying, gone = (of_topic("collected", number) for number in range(3))
    foreign = of_topic("elsewhere", 9)
    in_the_store(store, whole, copying, gone, foreign)
    tiered.publish(whole, becomes(whole, FINISHED), copying)
    tiered.publish(gone, becomes(gone, DELETING), becomes(gone, DELETED))
    where = ("--url", str(store), "--older-than", "0.001")
    assert odradek_with_metadata("remote", "verify", *where, "-t", "collected", code=1)
    ran = odradek_with_metadata("remote", "gc", *where, "--execute")
    assert ran.lines[-1].startswith("1 segments of garbage, 6 objects")
    left = {name.name.split("-", 1)[0] for name in store.rglob("*.log")}
    assert left == {f"{number * 10:020}" for number in (0, 1, 9)}
    verified = odradek_with_metadata("remote", "verify", *where, "-t", "collected")
    assert "0 garbage" in verified.lines[-1]


def test_gc_skips_segments_of_unreadable_metadata(
    odradek_with_metadata: CommandLine, tiered: Tiered, store: Path
) -> None:
    """Unknown segments of partitions in the same metadata partition are kept, until --pass-over
    excludes the record."""
    unclear_topic, clear = topic_at(0), topic_at(1)
    whole, perhaps_garbage = (of_topic(unclear_topic, number) for number in range(2))
    other, garbage = (of_topic(clear, number) for number in range(2))
    in_the_store(store, whole, perhaps_garbage, other, garbage)
    tiered.publish(whole, becomes(whole, FINISHED), other, becomes(other, FINISHED))
    (offset,) = tiered.put((0, b"by mistake"))
    where = ("--url", str(store), "--older-than", "0.001", "-t", unclear_topic, "-t", clear)
    named = f"{METADATA_TOPIC}-0 at offset {offset} cannot be read: "

    listed = odradek_with_metadata("remote", "list", *where, "--json").json["partitions"]
    not_whole = {row["topic"]: row["notWhole"] for row in listed}
    assert not_whole == {unclear_topic: {"unclear": 1}, clear: {"dangling": 1}}
    verified = odradek_with_metadata("remote", "verify", *where, code=1)
    assert verified.lines[-1].endswith("1 garbage, 1 unclear")
    assert named in verified.stderr
    ran = odradek_with_metadata("remote", "gc", *where, "--execute", code=1)
    assert ran.lines[-1].startswith("1 segments of garbage, 6 objects")
    assert ran.stderr.startswith("odradek: 1 segments are not removed")
    assert named in ran.stderr
    assert "b'by mistake'" in ran.stderr
    assert "--pass-over" in ran.stderr
    assert len(list(store.rglob("*.log"))) == 3

    assert odradek_with_metadata("remote", "gc", *where, "--pass-over", f"0:{offset + 1}", code=2)
    passed_over = (*where, "--pass-over", f"0:{offset}")
    assert "not removed" in odradek_with_metadata("remote", "gc", *passed_over).lines[-1]
    done = odradek_with_metadata("remote", "gc", *passed_over, "--execute")
    assert done.lines[-1].startswith("1 segments of garbage, 6 objects")
    assert len(list(store.rglob("*.log"))) == 2
    ran = odradek_with_metadata("remote", "gc", *where)
    assert named in ran.stderr


def test_gc_keeps_segments_of_truncated_metadata_partition(
    odradek_with_metadata: CommandLine, tiered: Tiered, store: Path
) -> None:
    """Brokers have the segments in their snapshots; a later event makes the partition known to the command."""
    cut, clear = topic_at(2), topic_at(1, topic_at(1))
    early, late = (of_topic(cut, number) for number in range(2))
    other, garbage = (of_topic(clear, number) for number in range(2))
    in_the_store(store, early, late, other, garbage)
    tiered.publish(early, becomes(early, FINISHED), other, becomes(other, FINISHED))
    tiered.cut(2)
    tiered.publish(late, becomes(late, FINISHED))
    where = ("--url", str(store), "--older-than", "0.001", "-t", cut, "-t", clear)
    ran = odradek_with_metadata("remote", "gc", *where, "--execute", code=1)
    assert f"{METADATA_TOPIC}-2 starts at offset" in ran.stderr
    assert len(list(store.rglob("*.log"))) == 3


def test_list_needs_metadata_topic_or_without_metadata(odradek: CommandLine, store: Path) -> None:
    (store / "kafka-tiered-storage").mkdir()
    ran = odradek("remote", "list", "--url", str(store), code=1)
    assert "--without-metadata" in ran.stderr
