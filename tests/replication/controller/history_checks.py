"""Checks of metadata images after random histories of a cluster."""

from __future__ import annotations

from odradek.protocol.schemas.serde import decode_metadata_record, encode_metadata_record
from odradek.replication.controller.features import (
    record_version,
)
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_builder import ImageBuilder
from odradek.replication.controller.image_records import snapshot_records


def rebuilt(image: MetadataImage) -> MetadataImage:
    """Return the image that a node loads from the snapshot of this image."""
    draft = ImageBuilder(MetadataImage())
    for record in snapshot_records(image):
        encoded = encode_metadata_record(record, record_version(record, image.features))
        draft.apply(decode_metadata_record(encoded))
    return draft.finish(image.offset, image.epoch, image.timestamp_ms).image


def check_epochs(before: MetadataImage, after: MetadataImage) -> None:
    for topic_id, topic in before.topics_by_id.items():
        later = after.topics_by_id.get(topic_id)
        if later is None:
            continue
        for index, old in topic.partitions.items():
            new = later.partitions[index]
            assert new.partition_epoch >= old.partition_epoch
            assert new.leader_epoch >= old.leader_epoch
            if new.leader != old.leader:
                assert new.leader_epoch > old.leader_epoch
