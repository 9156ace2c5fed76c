"""Tests of `odradek dump`: tables and JSON of the files of a broker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from odradek.cli.main import main
from odradek.protocol.records.compression import GZIP, LZ4, NONE
from odradek.protocol.records.control import ControlType, end_marker, kraft_control_batch
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.schemas import serde
from odradek.protocol.schemas.control_records import SnapshotFooterRecord, SnapshotHeaderRecord
from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessCommittedPartition,
    DisklessCommittedTopic,
    DisklessFileCommittedRecord,
    DisklessFileRemovedRecord,
    DisklessPartitionCreatedRecord,
)
from odradek.protocol.schemas.group_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from odradek.protocol.schemas.metadata_records import TopicRecord
from odradek.protocol.schemas.transaction_records import TransactionLogKey, TransactionLogValue
from odradek.storage.log.producer_snapshots import encode_snapshot
from odradek.storage.log.producer_state import BatchMetadata, ProducerEntry

T0 = 1_700_000_000_000
BASE = "00000000000000000000"


def records(count: int, first: int = 0) -> list[Record]:
    return [
        Record(-1, T0 + first + at, f"key {first + at}".encode(), b"value") for at in range(count)
    ]


def write(directory: Path, name: str, *parts: bytes | bytearray) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(b"".join(parts))
    return path


class Dump:
    """Runs the command and captures its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.errors = ""

    def text(self, *arguments: object, code: int = 0) -> str:
        assert main(["dump", *map(str, arguments)]) == code
        out, self.errors = self._capsys.readouterr()
        return out

    def rows(self, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self.text("--json", *arguments, code=code).splitlines()
        ]

    def of(self, kind: str, *arguments: object) -> list[dict[str, Any]]:
        return [row for row in self.rows(*arguments) if row["type"] == kind]


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Dump:
    return Dump(capsys)


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_dump_prints_batches_as_table(dump: Dump, tmp_path: Path) -> None:
    path = write(
        tmp_path / "flights-0",
        f"{BASE}.log",
        build_batch(records(3), leader_epoch=2),
        build_batch(
            records(2, 3),
            base_offset=3,
            compression=LZ4,
            producer_id=7,
            producer_epoch=1,
            base_sequence=4,
            transactional=True,
        ),
        end_marker(
            commit=True,
            producer_id=7,
            producer_epoch=1,
            coordinator_epoch=9,
            timestamp_ms=T0 + 5,
            base_offset=5,
        ),
    )
    heading, titles, *rows = cells(dump.text(path))
    assert heading == [f"{path}:", "segment,", str(path.stat().st_size), "bytes"]
    assert titles[:3] == ["offsets", "records", "position"]
    assert [row[0] for row in rows] == ["0..2", "3..4", "5..5"]
    assert rows[0][4:] == ["2", "none", "2023-11-14T22:13:20.002Z", "-", "-"]
    assert rows[1][5:] == ["lz4", "2023-11-14T22:13:20.004Z", "7/1:4", "txn"]
    assert rows[2][-1] == "txn,control"


def test_json_has_every_batch_field_with_kafka_names(dump: Dump, tmp_path: Path) -> None:
    batch = build_batch(records(3), producer_id=7, producer_epoch=1, base_sequence=4)
    path = write(tmp_path, f"{BASE}.log", batch)
    file, row = dump.rows(path)
    assert file == {
        "type": "file",
        "file": str(path),
        "fileType": "segment",
        "sizeBytes": len(batch),
    }
    crc = row.pop("crc")
    assert crc == int.from_bytes(batch[17:21], "big")
    assert row == {
        "type": "batch",
        "file": str(path),
        "baseOffset": 0,
        "lastOffset": 2,
        "count": 3,
        "position": 0,
        "sizeInBytes": len(batch),
        "partitionLeaderEpoch": -1,
        "magic": 2,
        "isValid": True,
        "compressCodec": "none",
        "timestampType": "CreateTime",
        "baseTimestamp": T0,
        "maxTimestamp": T0 + 2,
        "producerId": 7,
        "producerEpoch": 1,
        "baseSequence": 4,
        "lastSequence": 6,
        "isTransactional": False,
        "isControl": False,
        "deleteHorizonMs": None,
    }


@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4])
def test_records_with_keys_values_and_headers(dump: Dump, tmp_path: Path, codec: int) -> None:
    path = write(
        tmp_path,
        f"{BASE}.log",
        build_batch(
            [
                Record(-1, T0, b"k", b"v", (("h", b"1"), ("none", None))),
                Record(-1, T0, None, None),
                Record(-1, T0, b"\xff\x00", b"two\nlines"),
            ],
            compression=codec,
        ),
    )
    first, second, third = dump.of("record", "--records", path)
    assert first["key"] == "k"
    assert first["headers"] == [{"key": "h", "value": "1"}, {"key": "none", "value": None}]
    assert (second["key"], second["value"], second["keySize"]) == (None, None, -1)
    assert third["keyBase64"] == "/wA="
    assert "key" not in third
    text = dump.text("--records", path).splitlines()
    assert text[-3] == "    | 0  2023-11-14T22:13:20.000Z  key: k  value: v  headers: h=1 none=null"
    assert text[-2].endswith("key: null  value: null")
    assert text[-1].endswith(r'key: base64:/wA=  value: "two\nlines"')


def test_dump_header_key_that_is_not_utf8(dump: Dump, tmp_path: Path) -> None:
    record = Record(-1, T0, None, None, (("caf\udce9", b"\xff"),))
    path = write(tmp_path, f"{BASE}.log", build_batch([record]))
    (row,) = dump.of("record", "--records", path)
    assert row["headers"] == [{"keyBase64": "Y2Fm6Q==", "valueBase64": "/w=="}]
    assert "headers: base64:Y2Fm6Q===base64:/w==" in dump.text("--records", path)


def test_dump_deep_prints_sizes_only(dump: Dump, tmp_path: Path) -> None:
    path = write(tmp_path, f"{BASE}.log", build_batch(records(2), base_sequence=5, producer_id=1))
    rows = dump.of("record", "--deep", path)
    assert [(row["offset"], row["keySize"], row["sequence"]) for row in rows] == [
        (0, 5, 5),
        (1, 5, 6),
    ]
    assert "key" not in rows[0]
    assert "key: 5 bytes  value: 5 bytes" in dump.text("--deep", path)


def test_dump_filters_batches_and_records_by_offset(dump: Dump, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"{BASE}.log",
        *(build_batch(records(10, at), base_offset=at) for at in range(0, 50, 10)),
    )
    rows = dump.rows("--deep", "--from", 18, "--to", 21, path)[1:]
    assert [row["baseOffset"] for row in rows if row["type"] == "batch"] == [10, 20]
    assert [row["offset"] for row in rows if row["type"] == "record"] == [18, 19, 20, 21]


def test_dump_selects_decoder_by_topic(dump: Dump, tmp_path: Path) -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    value = OffsetCommitValue(offset=17, metadata="m", commit_timestamp=T0, topic_id=UUID(int=1))
    batch = build_batch(
        [
            Record(
                -1, T0, serde.encode_coordinator_key(key), serde.encode_coordinator_value(value)
            ),
            Record(-1, T0, serde.encode_coordinator_key(GroupMetadataKey(group="g")), None),
            Record(-1, T0, b"\x00\x63?", b"what is this"),
            Record(-1, T0, None, b"no key"),
        ]
    )
    path = write(tmp_path / "__consumer_offsets-12", f"{BASE}.log", batch)
    commit, tombstone, unknown, keyless = dump.of("record", "--records", path)
    assert commit["key"] == {"type": "1", "data": {"group": "g", "topic": "t", "partition": 3}}
    assert commit["value"] == {
        "version": "4",
        "data": {
            "offset": 17,
            "leaderEpoch": -1,
            "metadata": "m",
            "commitTimestamp": T0,
            "topicId": "AAAAAAAAAAAAAAAAAAAAAQ",
        },
    }
    assert tombstone["key"]["type"] == "2"
    assert tombstone["value"] is None
    assert "type 99" in unknown["decodeError"]
    assert unknown["value"] == "what is this"
    assert "the record has no key" in keyless["decodeError"]
    raw = dump.of("record", "--records", "--decode", "none", path)
    assert "keyBase64" in raw[0] or isinstance(raw[0]["key"], str)


def test_dump_decodes_subscriptions_of_members(dump: Dump, tmp_path: Path) -> None:
    from odradek.protocol.schemas.group_records import GroupMetadataValue, MemberMetadata

    subscription = b"\x00\x00" + b"\x00\x00\x00\x01" + b"\x00\x07flights" + b"\xff\xff\xff\xff"
    member = MemberMetadata(member_id="m", subscription=subscription, assignment=b"garbage")
    value = GroupMetadataValue(protocol_type="consumer", members=(member,))
    record = Record(
        -1,
        T0,
        serde.encode_coordinator_key(GroupMetadataKey(group="g")),
        serde.encode_coordinator_value(value),
    )
    path = write(tmp_path / "__consumer_offsets-0", f"{BASE}.log", build_batch([record]))
    (row,) = dump.of("record", "--records", path)
    (shown,) = row["value"]["data"]["members"]
    assert shown["subscription"]["topics"] == ["flights"]
    assert shown["assignment"] == "Z2FyYmFnZQ=="


def test_transactions_and_metadata_are_decoded(dump: Dump, tmp_path: Path) -> None:
    key = serde.encode_coordinator_key(TransactionLogKey(transactional_id="tx"))
    value = serde.encode_coordinator_value(TransactionLogValue(producer_id=4))
    states = write(
        tmp_path / "__transaction_state-1", f"{BASE}.log", build_batch([Record(-1, T0, key, value)])
    )
    (row,) = dump.of("record", "--records", states)
    assert row["key"] == {"type": "0", "data": {"transactionalId": "tx"}}
    assert row["value"]["data"]["producerId"] == 4

    topic = serde.encode_metadata_record(TopicRecord(name="flights", topic_id=UUID(int=2)))
    metadata = write(
        tmp_path / "__cluster_metadata-0",
        f"{BASE}.log",
        build_batch([Record(-1, T0, None, topic)]),
    )
    (row,) = dump.of("record", "--records", metadata)
    assert row["value"] == {
        "type": "TOPIC_RECORD",
        "version": 0,
        "data": {"name": "flights", "topicId": "AAAAAAAAAAAAAAAAAAAAAg"},
    }


def test_diskless_metadata_is_decoded(dump: Dump, tmp_path: Path) -> None:
    """D-12: the KIP's names of types and fields; a tombstone and an unknown record are reported."""
    topic_id = UUID(int=2)
    batch = DisklessCommittedBatch(
        magic=2, byte_offset=7, byte_size=90, assigned_base_offset=5, assigned_last_offset=6
    )
    partition = DisklessCommittedPartition(partition_index=1, batches=(batch,))
    topic = DisklessCommittedTopic(topic_id=topic_id, partitions=(partition,))
    written = [
        DisklessPartitionCreatedRecord(topic_id=topic_id, name="flights", partition_index=1),
        DisklessFileCommittedRecord(object_key="key", owner_ids=(3, 0), topics=(topic,)),
        DisklessFileRemovedRecord(object_key="key"),
    ]
    values = [*(serde.encode_diskless_record(each) for each in written), b"\1\x63\0", None]
    path = write(
        tmp_path / "__diskless_metadata-3",
        f"{BASE}.log",
        build_batch([Record(-1, T0, None, value) for value in values]),
    )
    created, committed, removed, unknown, empty = dump.of("record", "--records", path)
    assert created["value"] == {
        "type": "DISKLESS_PARTITION_CREATED_RECORD",
        "version": 0,
        "data": {"topicId": "AAAAAAAAAAAAAAAAAAAAAg", "name": "flights", "partitionIndex": 1},
    }
    assert committed["value"]["type"] == "DISKLESS_FILE_COMMITTED_RECORD"
    assert committed["value"]["data"]["ownerIds"] == [3, 0]
    (shown,) = committed["value"]["data"]["topics"][0]["partitions"][0]["batches"]
    assert (shown["byteOffset"], shown["byteSize"], shown["assignedLastOffset"]) == (7, 90, 6)
    assert removed["value"]["data"] == {"objectKey": "key"}
    assert "99" in unknown["decodeError"]
    assert "the record has no value" in empty["decodeError"]
    assert dump.of("record", "--records", "--decode", "diskless", path)[0] == created


def test_dump_metadata_snapshot(dump: Dump, tmp_path: Path) -> None:
    path = write_raft_snapshot(tmp_path)
    rows = dump.of("record", "--records", path)
    assert [row.get("controlType") for row in rows] == ["SNAPSHOT_HEADER", None, "SNAPSHOT_FOOTER"]
    assert rows[0]["value"] == {"version": 0, "lastContainedLogTimestamp": T0}
    assert rows[1]["value"]["type"] == "TOPIC_RECORD"


def write_raft_snapshot(directory: Path, *, whole: bool = True) -> Path:
    header = SnapshotHeaderRecord(last_contained_log_timestamp=T0)
    parts: list[bytes | bytearray] = [
        kraft_control_batch(
            [(ControlType.SNAPSHOT_HEADER, header)],
            timestamp_ms=T0,
            base_offset=0,
            leader_epoch=1,
        ),
        build_batch(
            [Record(-1, T0, None, serde.encode_metadata_record(TopicRecord(name="flights")))],
            base_offset=1,
        ),
    ]
    if whole:
        footer = [(ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord())]
        parts.append(kraft_control_batch(footer, timestamp_ms=T0, base_offset=2, leader_epoch=1))
    return write(directory, "00000000000000000042-0000000001.checkpoint", *parts)


def test_indexes(dump: Dump, tmp_path: Path) -> None:
    offsets = write(
        tmp_path, "00000000000000000100.index", _ints(5, 4100), _ints(9, 8300), bytes(80)
    )
    assert [(row["offset"], row["position"]) for row in dump.of("offsetIndexEntry", offsets)] == [
        (105, 4100),
        (109, 8300),
    ]
    times = write(tmp_path, "00000000000000000100.timeindex", _long(T0), _ints(5), bytes(24))
    assert dump.of("timeIndexEntry", times)[0]["offset"] == 105
    assert "2023-11-14T22:13:20.000Z" in dump.text(times)
    aborted = write(
        tmp_path, "00000000000000000100.txnindex", b"\x00\x00", *map(_long, (7, 100, 104, 105))
    )
    (row,) = dump.of("abortedTransaction", aborted)
    assert (row["producerId"], row["firstOffset"], row["lastOffset"]) == (7, 100, 104)
    empty = write(tmp_path, "00000000000000000200.index")
    assert dump.text(empty).splitlines()[1] == "  empty"


def _ints(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "big") for value in values)


def _long(value: int) -> bytes:
    return value.to_bytes(8, "big")


def test_producer_snapshots(dump: Dump, tmp_path: Path) -> None:
    entries = [
        ProducerEntry(7, 1, 3, T0, 40, [BatchMetadata(9, 44, 4, T0)]),
        ProducerEntry(8, 0, -1, T0, -1, []),
    ]
    path = write(tmp_path, "00000000000000000045.snapshot", encode_snapshot(entries))
    one, two = dump.of("producer", path)
    assert one["firstSequence"] == 5
    assert one["currentTxnFirstOffset"] == 40
    assert (two["lastSequence"], two["lastOffset"]) == (-1, -1)


@pytest.mark.parametrize(
    ("name", "content", "kind", "fields"),
    [
        ("leader-epoch-checkpoint", b"0\n1\n3 100\n", "epoch", {"epoch": 3, "startOffset": 100}),
        (
            "recovery-point-offset-checkpoint",
            b"0\n1\nflights 2 17\n",
            "checkpoint",
            {"topic": "flights", "partition": 2, "offset": 17},
        ),
        (
            "meta.properties",
            b"version=1\ncluster.id=c\nnode.id=4\n",
            "metaProperties",
            {"version": 1, "cluster.id": "c", "node.id": 4},
        ),
        (
            "partition.metadata",
            b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg",
            "partitionMetadata",
            {"version": 0, "topicId": "AAAAAAAAAAAAAAAAAAAAAg"},
        ),
        (
            ".kafka_cleanshutdown",
            b'{"version":0,"brokerEpoch":5}',
            "cleanShutdown",
            {"brokerEpoch": 5},
        ),
        (
            "quorum-state",
            b'{"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}',
            "quorumState",
            {"leaderId": 1, "leaderEpoch": 3, "data_version": 1},
        ),
    ],
)
def test_small_files(
    dump: Dump, tmp_path: Path, name: str, content: bytes, kind: str, fields: dict[str, Any]
) -> None:
    path = write(tmp_path, name, content)
    (row,) = dump.of(kind, path)
    assert fields.items() <= row.items()
    assert str(next(iter(fields.values()))) in dump.text(path)


def test_dump_walks_directories_by_partition(dump: Dump, tmp_path: Path) -> None:
    for partition in (10, 9):
        write(tmp_path / f"flights-{partition}", f"{BASE}.log", build_batch(records(1)))
        write(tmp_path / f"flights-{partition}", f"{BASE}.log.deleted", build_batch(records(1)))
    write(tmp_path, "meta.properties", b"version=1\ncluster.id=c\nnode.id=4\n")
    write(tmp_path, "something.else", b"?")
    shown = [Path(row["file"]).relative_to(tmp_path) for row in dump.of("file", tmp_path)]
    assert list(map(str, shown)) == [
        "meta.properties",
        f"flights-9/{BASE}.log",
        f"flights-9/{BASE}.log.deleted",
        f"flights-10/{BASE}.log",
        f"flights-10/{BASE}.log.deleted",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "PATH"),
        (["/nowhere/at/all"], "/nowhere/at/all does not exist"),
        (["{0}/notes.txt"], "does not have the name of a broker's file"),
        (["{0}/empty"], "contains no files of a broker"),
        (["--verify", "--records", "{0}"], "cannot be used with --records"),
        (["--from", "5", "--to", "4", "{0}"], "--from 5 is greater than --to 4"),
        (["--from", "-5", "{0}"], "must not be negative"),
        (["--decode", "avro", "{0}"], "avro"),
    ],
)
def test_dump_wrong_usage(
    dump: Dump, tmp_path: Path, arguments: Sequence[str], message: str
) -> None:
    write(tmp_path, "notes.txt", b"")
    (tmp_path / "empty").mkdir()
    dump.text(*(each.format(tmp_path) for each in arguments), code=2)
    assert message in dump.errors


def test_dump_of_corrupt_file_shows_valid_part_and_fails(dump: Dump, tmp_path: Path) -> None:
    good = build_batch(records(2))
    bad = bytearray(build_batch(records(2), base_offset=2))
    bad[-1] ^= 1
    path = write(tmp_path, f"{BASE}.log", good, bad, build_batch(records(9), base_offset=4)[:-3])
    text = dump.text("--records", path, code=1)
    assert "CORRUPT" in text
    assert f"PROBLEM: the last batch is truncated: {len(build_batch(records(9))) - 3} of" in text
    kinds = [row["type"] for row in dump.rows(path, code=1)]
    assert kinds == ["file", "batch", "batch", "problem", "problem"]
