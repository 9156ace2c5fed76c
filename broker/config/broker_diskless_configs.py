"""Broker configs of diskless topics (KIP-1150, KIP-1163, KIP-1164). Apache Kafka does not have them.

The names are those of KIP-1164 where it has one. The options of a kind of object store, such as its
region, are properties with the prefix `diskless.storage.` and have no rows (`storage/diskless/store_settings.py`).
"""

from __future__ import annotations

from odradek.broker.config.config_key import (
    BOOLEAN,
    INT,
    LONG,
    LOW,
    MEDIUM,
    STRING,
    Rows,
    row,
)
from odradek.broker.config.validators import at_least

# The formatter would put every column on a line of its own.
# fmt: off
DISKLESS: Rows = (
    row("diskless.storage.system.enable", BOOLEAN, "false", MEDIUM, internal=True, effect=True,
        doc="Whether diskless topics can be created and used (KIP-1150). It must be the same on all nodes. "
            "Topics are diskless if they are created with `diskless.enable=true`."),
    row("diskless.storage.url", STRING, None, MEDIUM, internal=True, effect=True,
        doc="The object store of diskless topics, the same for all brokers: a directory or its `file://` URL, "
            "`s3://bucket/prefix`, `gs://bucket` or `az://container`. Required if diskless topics are enabled."),
    row("log.diskless.enable", BOOLEAN, "false", MEDIUM, internal=True, effect=True,
        doc="Whether topics that are created without `diskless.enable` become diskless. Internal topics, and "
            "topics with `cleanup.policy=compact` or `remote.storage.enable=true`, do not. The active controller "
            "uses its own value."),
    row("diskless.append.commit.interval.ms", INT, "250", MEDIUM, at_least(1), internal=True, effect=True,
        doc="The maximum time in ms that a broker buffers records of diskless topics before it uploads them."),
    row("diskless.append.buffer.max.bytes", INT, "8388608", MEDIUM, at_least(1024), internal=True, effect=True,
        doc="The size in bytes of buffered records at which a broker uploads them before the interval is over."),
    row("diskless.fetch.poll.interval.ms", INT, "50", LOW, at_least(1), internal=True, effect=True,
        doc="The interval in ms at which a waiting Fetch request asks the coordinators on other brokers for new "
            "batches. Coordinators on the same broker notify it."),
    row("diskless.object.cache.max.bytes", LONG, "268435456", MEDIUM, at_least(0), internal=True, effect=True,
        doc="The maximum size in bytes of the cache of recently written and read objects of diskless topics."),
    row("diskless.metadata.topic.num.partitions", INT, "12", MEDIUM, at_least(1), internal=True, effect=True,
        doc="The number of partitions of `__diskless_metadata` when it is created, which is the number of "
            "coordinators of diskless topics. The active controller uses its own value."),
    row("diskless.metadata.topic.replication.factor", INT, "3", MEDIUM, at_least(1), internal=True, effect=True,
        doc="The replication factor of `__diskless_metadata`. Diskless topics cannot be created before the "
            "cluster has this number of brokers. The active controller uses its own value."),
    row("diskless.metadata.snapshot.interval.records", LONG, "100000", LOW, at_least(1), internal=True, effect=True,
        doc="The number of records in `__diskless_metadata` after which a coordinator writes a snapshot of its state."),
    row("diskless.metadata.snapshot.interval.bytes", LONG, "104857600", LOW, at_least(1), internal=True, effect=True,
        doc="The size in bytes of the records in `__diskless_metadata` after which a coordinator writes a snapshot "
            "of its state."),
    row("diskless.file.deletion.grace.period.ms", LONG, "60000", LOW, at_least(0), internal=True, effect=True,
        doc="The time in ms before an object without live batches is deleted, so that running reads of it can finish."),
    row("diskless.coordinator.orphan.scan.interval.ms", LONG, "86400000", LOW, at_least(1), internal=True, effect=True,
        doc="The interval in ms at which the object store is searched for objects that no coordinator knows."),
    row("diskless.coordinator.orphan.scan.grace.period.ms", LONG, "86400000", LOW, at_least(0), internal=True, effect=True,
        doc="The minimum age in ms of an object that no coordinator knows before it is deleted. Lower values "
            "than 20 minutes mean 20 minutes, because a younger object may still be committed."),
)
# fmt: on
