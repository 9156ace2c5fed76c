"""Diskless partitions in metadata records, images and snapshots (KIP-1164, D-14)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.serde import decode_metadata_record, encode_metadata_record
from odradek.protocol.schemas.topic_records import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from odradek.protocol.topics import DISKLESS_METADATA
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.image_records import snapshot_records
from odradek.replication.controller.topics import delete_topics

TOPIC_ID, METADATA_ID = UUID(int=1 << 100), UUID(int=2 << 100)


def diskless(index: int, coordinator: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=TOPIC_ID,
        leader_epoch=0,
        partition_epoch=0,
        diskless_coordinator=coordinator,
    )


def image_with(*records: object) -> MetadataImage:
    return apply_records(MetadataImage(), records, offset=len(records)).image


def events() -> MetadataImage:
    """A diskless topic of two partitions, and `__diskless_metadata`."""
    return image_with(
        TopicRecord(name=DISKLESS_METADATA, topic_id=METADATA_ID),
        PartitionRecord(
            partition_id=0,
            topic_id=METADATA_ID,
            replicas=(1,),
            isr=(1,),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(UUID(int=1001),),
        ),
        TopicRecord(name="events", topic_id=TOPIC_ID),
        diskless(0, 0),
        diskless(1, 7),
    )


def test_coordinator_is_kept_in_records_images_and_snapshots_d14() -> None:
    before = events()
    topic = before.topics_by_name["events"]
    assert [each.diskless_coordinator for each in topic.partitions.values()] == [0, 7]
    assert topic.is_diskless
    assert all(each.is_diskless for each in topic.partitions.values())
    assert before.diskless_topics == {TOPIC_ID: "events"}
    encoded = [encode_metadata_record(each) for each in snapshot_records(before)]
    again = image_with(*map(decode_metadata_record, encoded))
    assert replace(again, offset=before.offset) == before


def test_tag_is_after_fields_of_kafka() -> None:
    """Tag 21640 is the varint 88 a9 01; its value is an int32."""
    plain = encode_metadata_record(diskless(1, -1))
    tagged = encode_metadata_record(diskless(1, 7))
    assert plain[-1:] == b"\0"
    assert tagged == plain[:-1] + bytes([1]) + bytes.fromhex("88a90104") + (7).to_bytes(4, "big")


def test_classic_partition_is_not_diskless() -> None:
    classic = events().topics_by_name[DISKLESS_METADATA]
    assert not classic.is_diskless
    assert not classic.partitions[0].is_diskless
    offline = replace(classic.partitions[0], leader=-1)
    assert offline.is_offline
    assert not events().topics_by_name["events"].partitions[0].is_offline


def test_partition_change_keeps_coordinator_d14() -> None:
    change = PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=-1)
    after = apply_records(events(), [change], offset=9).image
    assert after.topics_by_name["events"].partitions[1].diskless_coordinator == 7


def test_deleted_topic_is_removed_from_diskless_topics() -> None:
    after = apply_records(events(), [RemoveTopicRecord(topic_id=TOPIC_ID)], offset=9).image
    assert not after.diskless_topics


def test_diskless_metadata_cannot_be_deleted_while_diskless_topics_exist() -> None:
    result = delete_topics(events(), [DISKLESS_METADATA])
    (response,) = result.result
    assert not result.records
    assert response.error_code == ErrorCode.topic_deletion_disabled
    assert response.error_message is not None
    assert "events" in response.error_message


def test_diskless_metadata_is_deleted_together_with_last_diskless_topic() -> None:
    result = delete_topics(events(), [DISKLESS_METADATA, "events"])
    assert [each.topic_id for each in result.records] == [METADATA_ID, TOPIC_ID]
    assert all(each.error_code == ErrorCode.none for each in result.result)
