"""Tests of `odradek dump --remote-log-metadata` (T-50)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from odradek.cli.main import main
from odradek.protocol.records.records import Record, build_batch
from odradek.storage.tiered.metadata_records import encode
from odradek.storage.tiered.metadata_snapshot_file import (
    encode_offsets,
    encode_snapshot,
    encode_topic_id,
)
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
)
from tests.support.remote_segments import FINISHED, FOO_0, becomes, segment, with_copies

COPY = replace(
    segment(2, 0, 100, [(0, 0), (3, 60)], size=1024), max_timestamp_ms=-1, event_timestamp_ms=123
)
EVENTS = (
    COPY,
    becomes(COPY, FINISHED, 456, b"where it is"),
    RemotePartitionDeleteMetadata(FOO_0, 7, 789, PartitionDeleteState.DELETE_PARTITION_MARKED),
)
ID = "RemoteLogSegmentId{topicIdPartition=AAAAAAAAAAAAAAAAAAAAAQ:foo-0, id=AAAAAAAAAAAAAAAAAAAAAg}"
KIP_PARTITION = "topicId:AAAAAAAAAAAAAAAAAAAAAQ,topicName:foo,partition:0"
KIP_ID = f"remote-log-segment-id:{{id:AAAAAAAAAAAAAAAAAAAAAg,{KIP_PARTITION}}}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "__remote_log_metadata-12"
    made.mkdir()
    return made


def write(directory: Path, values: Iterable[bytes | None]) -> Path:
    records = [Record(-1, 1000, None, value) for value in values]
    path = directory / "00000000000000000000.log"
    path.write_bytes(bytes(build_batch(records)))
    return path


def dump(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> list[str]:
    assert main(["dump", "--remote-log-metadata", *map(str, arguments)]) == code
    return capsys.readouterr().out.splitlines()


def test_remote_log_metadata_in_kafka_format(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(directory, map(encode, EVENTS))
    assert dump(capsys, directory) == [
        f"partition: 12, offset: 0, value: RemoteLogSegmentMetadata{{remoteLogSegmentId={ID}, "
        "startOffset=0, endOffset=100, brokerId=1, maxTimestampMs=-1, eventTimestampMs=123, "
        "segmentLeaderEpochs={0=0, 3=60}, segmentSizeInBytes=1024, customMetadata=Optional.empty, "
        "state=COPY_SEGMENT_STARTED, txnIdxEmpty=true}",
        f"partition: 12, offset: 1, value: RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={ID}, "
        "customMetadata=Optional[CustomMetadata{11 bytes}], state=COPY_SEGMENT_FINISHED, "
        "eventTimestampMs=456, brokerId=1}",
        "partition: 12, offset: 2, value: RemotePartitionDeleteMetadata{"
        "topicPartition=AAAAAAAAAAAAAAAAAAAAAQ:foo-0, state=DELETE_PARTITION_MARKED, "
        "eventTimestampMs=789, brokerId=7}",
    ]


def test_remote_log_metadata_in_kip_405_format(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(directory, map(encode, EVENTS))
    assert dump(capsys, "--kip-405", directory) == [
        f"type:RemoteLogSegmentMetadata,event-value:{{{KIP_ID},start-offset:0,end-offset:100,"
        "leader-epoch:1,remote-log-segment-state:COPY_SEGMENT_STARTED}",
        f"type:RemoteLogSegmentMetadataUpdate,event-value:{{{KIP_ID},leader-epoch:1,"
        "remote-log-segment-state:COPY_SEGMENT_FINISHED}",
        f"type:DeletePartitionState,event-value:{{topic-id-partition:{{{KIP_PARTITION}}},epoch:7,"
        "remote-partition-delete-state:DELETE_PARTITION_MARKED}",
    ]


def test_kip_405_properties_select_fields(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(directory, map(encode, EVENTS))
    names = ("partition", "message.offset", "version", "all.event.value.fields")
    chosen = [option for name in names for option in ("--property", f"print.{name}=true")]
    first, _, last = dump(capsys, "--kip-405", *chosen, directory)
    assert first == (
        "partition:12,message-offset:0,type:RemoteLogSegmentMetadata,version:0,event-value:{"
        f"{KIP_ID},start-offset:0,end-offset:100,leader-epoch:1,"
        "remote-log-segment-state:COPY_SEGMENT_STARTED,event-timestamp:123,max-timestamp:-1,"
        "segment-leader-epochs:{0:0,3:60},segment-size-in-bytes:1024,txn-index-empty:true,"
        "custom-metadata:null}"
    )
    assert last.endswith("state:DELETE_PARTITION_MARKED,event-timestamp:789}")


def test_from_and_to(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(directory, (encode(replace(COPY, broker_id=n)) for n in range(5)))
    lines = dump(capsys, "--from", 1, "--to", 2, directory)
    assert [line.split(",")[1] for line in lines] == [" offset: 1", " offset: 2"]


def test_dump_reports_undecodable_records_and_continues(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(directory, [b"\x01\x09\x00", b"garbage", None, encode(COPY)])
    assert main(["dump", "--remote-log-metadata", str(path)]) == 1
    out, errors = capsys.readouterr()
    assert [line[:26] for line in out.splitlines()] == ["partition: 12, offset: 3, "]
    assert [line.split(": ")[1] for line in errors.splitlines()] == [
        f"offset {n}" for n in range(3)
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--remote-log-metadata", "--verify"),
        ("--remote-log-metadata", "--property", "print.partition=true"),
        ("--remote-log-metadata", "--kip-405", "--property", "print.partition=yes"),
        ("--remote-log-metadata", "--kip-405", "--property", "print.nothing=true"),
        ("--kip-405",),
    ],
)
def test_wrong_usage(directory: Path, wrong: tuple[str, ...]) -> None:
    write(directory, [encode(COPY)])
    assert main(["dump", *wrong, str(directory)]) == 2


def test_topic_id_has_kafka_format(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partition = replace(FOO_0, topic_id=UUID("00112233-4455-6677-8899-aabbccddeeff"))
    write(directory, [encode(segment(1, 0, 9, partition=partition))])
    assert "=ABEiM0RVZneImaq7zN3u_w:foo-0," in dump(capsys, directory)[0]


def test_dump_remote_segment_snapshots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """T-47, T-48: the files of the remote log metadata cache."""
    metadata = with_copies(segment(1, 0, 9), segment(2, 10, 19, [(0, 10), (3, 15)]))
    path = tmp_path / "_rlmm_AAAAAAAAAAAAAAAAAAAAAQ-0"
    path.write_bytes(b"".join(encode_snapshot(metadata, 77)))
    (tmp_path / "_rlmm_committed_offsets").write_bytes(encode_offsets({3: 80, 7: 9}))
    (tmp_path / "_rlmm_topic_id").write_bytes(encode_topic_id(UUID(int=1)))
    assert main(["dump", "--json", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_type = {each["type"]: each for each in rows}
    assert by_type["remoteSegments"]["metadataTopicOffset"] == 77
    assert by_type["remoteSegments"]["highestOffsets"] == {"0": 14, "3": 19}
    assert by_type["remoteSegment"]["leaderEpochs"] == {"0": 10, "3": 15}
    assert by_type["remoteMetadataOffset"]["offset"] == 9
    assert by_type["remoteMetadataTopic"]["topicId"] == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert main(["dump", str(tmp_path)]) == 0
    assert "0..9" in capsys.readouterr().out
    assert main(["dump", "--verify", str(tmp_path)]) == 0
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["dump", "--verify", str(tmp_path)]) == 1
