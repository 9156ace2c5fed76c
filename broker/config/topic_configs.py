"""Topic configs; each defaults to the broker configs named as its synonyms."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    MEDIUM,
    STRING,
    Rows,
    Scope,
    row,
)
from odradek.broker.config.validators import (
    at_least,
    between,
    distinct,
    gzip_level,
    one_of,
    throttled_replicas,
)

# The formatter would put every column on a line of its own.
# fmt: off
TOPIC_ROWS: Rows = (
    row("segment.bytes", INT, "1073741824", MEDIUM, at_least(1048576),
        scope=Scope.TOPIC, synonyms=("log.segment.bytes",), effect=True,
        doc="The maximum size of a segment in bytes. When the active segment reaches it, the log rolls to a "
            "new segment."),
    row("segment.ms", LONG, "604800000", MEDIUM, at_least(1),
        scope=Scope.TOPIC, synonyms=("log.roll.ms", "log.roll.hours",), effect=True,
        doc="The maximum time in ms before the log rolls to a new segment, even if the active segment is "
            "not full."),
    row("segment.jitter.ms", LONG, "0", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours",), effect=True,
        doc="The maximum random time in ms that is subtracted from `segment.ms`, so that logs do not all "
            "roll at the same time."),
    row("segment.index.bytes", INT, "10485760", MEDIUM, at_least(4),
        scope=Scope.TOPIC, synonyms=("log.index.size.max.bytes",), effect=True,
        doc="The maximum size of an offset or time index in bytes. When an index is full, the log rolls to "
            "a new segment."),
    row("flush.messages", LONG, "9223372036854775807", MEDIUM, at_least(1),
        scope=Scope.TOPIC, synonyms=("log.flush.interval.messages",), effect=True,
        doc="The number of records after which the log is flushed to disk. The default leaves flushing to "
            "the operating system."),
    row("flush.ms", LONG, "9223372036854775807", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms",), effect=True,
        doc="The maximum time in ms that a record is kept in memory before the log is flushed to disk. The "
            "default leaves flushing to the operating system."),
    row("retention.bytes", LONG, "-1", MEDIUM,
        scope=Scope.TOPIC, synonyms=("log.retention.bytes",), effect=True,
        doc="The maximum size of a partition in bytes before its oldest segments are deleted. It applies to "
            "each partition. -1 sets no size limit."),
    row("retention.ms", LONG, "604800000", MEDIUM, at_least(-1),
        scope=Scope.TOPIC, synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours",), effect=True,
        doc="The time in ms after which a segment is deleted, counted from the latest timestamp of its "
            "records. -1 sets no time limit."),
    row("max.message.bytes", INT, "1048588", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("message.max.bytes",), effect=True,
        doc="The maximum size of a record batch in bytes, after compression if compression is enabled. "
            "Larger batches are rejected."),
    row("index.interval.bytes", INT, "4096", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.index.interval.bytes",), effect=True,
        doc="The minimum number of bytes between two entries of the offset index. A smaller value makes "
            "lookups more exact and the index larger."),
    row("delete.retention.ms", LONG, "86400000", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.cleaner.delete.retention.ms",), effect=True,
        doc="The time in ms for which tombstones and transaction markers are kept in a compacted log. A "
            "consumer that starts at offset 0 must reach the end of the log within this time to see all "
            "deletions."),
    row("min.compaction.lag.ms", LONG, "0", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.cleaner.min.compaction.lag.ms",), effect=True,
        doc="The minimum time in ms that a record remains uncompacted in the log. It must not exceed "
            "`max.compaction.lag.ms`."),
    row("max.compaction.lag.ms", LONG, "9223372036854775807", MEDIUM, at_least(1),
        scope=Scope.TOPIC, synonyms=("log.cleaner.max.compaction.lag.ms",), effect=True,
        doc="The maximum time in ms that a record remains ineligible for compaction. The default sets no "
            "limit."),
    row("file.delete.delay.ms", LONG, "60000", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.segment.delete.delay.ms",), effect=True,
        doc="The time in ms before a deleted segment or partition is removed from the file system. Until "
            "then its files have the suffix `.deleted`, and the directory of a deleted partition the suffix "
            "`-delete`."),
    row("min.cleanable.dirty.ratio", DOUBLE, "0.5", MEDIUM, between(0, 1),
        scope=Scope.TOPIC, synonyms=("log.cleaner.min.cleanable.ratio",), effect=True,
        doc="The minimum ratio of dirty bytes to all bytes of a log, 0 to 1, for the log to be eligible for "
            "compaction. A higher ratio means fewer and more efficient compactions, and more duplicate keys "
            "in the log."),
    row("cleanup.policy", LIST, "delete", MEDIUM, distinct("compact", "delete"),
        scope=Scope.TOPIC, synonyms=("log.cleanup.policy",), effect=True,
        doc="The retention policy of old segments. `delete` deletes them when the retention time or size is "
            "exceeded. `compact` compacts the log, which keeps the latest record of each key. Both may be "
            "combined. An empty list keeps all records."),
    row("unclean.leader.election.enable", BOOLEAN, "false", MEDIUM,
        scope=Scope.TOPIC, synonyms=("unclean.leader.election.enable",), effect=True,
        doc="Whether a replica outside the ISR may be elected leader as a last resort. Records that it "
            "lacks are lost."),
    row("min.insync.replicas", INT, "1", MEDIUM, at_least(1),
        scope=Scope.TOPIC, synonyms=("min.insync.replicas",), effect=True,
        doc="The minimum number of in-sync replicas for a write with acks=all. With fewer, the write fails "
            "with NOT_ENOUGH_REPLICAS."),
    row("compression.type", STRING, "producer", MEDIUM, one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        scope=Scope.TOPIC, synonyms=("compression.type",), effect=True,
        doc="The final compression type of records: `gzip`, `snappy`, `lz4`, `zstd`, `uncompressed`, or "
            "`producer`, which keeps the compression of the producer."),
    row("compression.gzip.level", INT, "-1", MEDIUM, gzip_level,
        scope=Scope.TOPIC, synonyms=("compression.gzip.level",), effect=True,
        doc="The gzip compression level, 1 to 9, if `compression.type` is `gzip`; -1 is the default of the "
            "gzip library."),
    row("compression.lz4.level", INT, "9", MEDIUM, between(1, 17),
        scope=Scope.TOPIC, synonyms=("compression.lz4.level",), effect=True,
        doc="The lz4 compression level if `compression.type` is `lz4`."),
    row("compression.zstd.level", INT, "3", MEDIUM, between(-131072, 22),
        scope=Scope.TOPIC, synonyms=("compression.zstd.level",), effect=True,
        doc="The zstd compression level if `compression.type` is `zstd`."),
    row("preallocate", BOOLEAN, "false", MEDIUM,
        scope=Scope.TOPIC, synonyms=("log.preallocate",),
        doc="Whether the file of a new segment is preallocated on disk."),
    row("message.timestamp.type", STRING, "CreateTime", MEDIUM, one_of("CreateTime", "LogAppendTime"),
        scope=Scope.TOPIC, synonyms=("log.message.timestamp.type",), effect=True,
        doc="The timestamp of the records in the log: `CreateTime`, set by the producer, or "
            "`LogAppendTime`, set by the broker when it appends the records."),
    row("message.timestamp.before.max.ms", LONG, "9223372036854775807", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.message.timestamp.before.max.ms",), effect=True,
        doc="The maximum time in ms by which the timestamp of a record may be earlier than the broker's "
            "clock. Records with an earlier timestamp are rejected. Ignored if the timestamp type is "
            "LogAppendTime. The default sets no limit."),
    row("message.timestamp.after.max.ms", LONG, "3600000", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.message.timestamp.after.max.ms",), effect=True,
        doc="The maximum time in ms by which the timestamp of a record may be later than the broker's "
            "clock. Records with a later timestamp are rejected. Ignored if the timestamp type is "
            "LogAppendTime."),
    row("leader.replication.throttled.replicas", LIST, "", MEDIUM, throttled_replicas,
        scope=Scope.TOPIC, effect=True,
        doc="The replicas whose replication is throttled on the leader, as a comma-separated list of "
            "partition:broker pairs, or `*` for all replicas of the topic."),
    row("follower.replication.throttled.replicas", LIST, "", MEDIUM, throttled_replicas,
        scope=Scope.TOPIC, effect=True,
        doc="The replicas whose replication is throttled on the follower, as a comma-separated list of "
            "partition:broker pairs, or `*` for all replicas of the topic."),
    row("remote.storage.enable", BOOLEAN, "false", MEDIUM, scope=Scope.TOPIC, effect=True,
        doc="Whether tiered storage is enabled for the topic: inactive segments are copied to the remote "
            "tier. It requires `remote.log.storage.system.enable` on the brokers and a `cleanup.policy` "
            "without `compact`."),
    row("local.retention.ms", LONG, "-2", MEDIUM, at_least(-2),
        scope=Scope.TOPIC, synonyms=("log.local.retention.ms",), effect=True,
        doc="The time in ms after which a segment that was copied to the remote tier is deleted from the "
            "local disk. -2 uses `retention.ms`, which it must not exceed; -1 sets no time limit."),
    row("local.retention.bytes", LONG, "-2", MEDIUM, at_least(-2),
        scope=Scope.TOPIC, synonyms=("log.local.retention.bytes",), effect=True,
        doc="The maximum size of a partition on the local disk in bytes before segments that were copied to "
            "the remote tier are deleted from it. -2 uses `retention.bytes`, which it must not exceed; -1 "
            "sets no size limit."),
    row("remote.log.copy.disable", BOOLEAN, "false", MEDIUM, scope=Scope.TOPIC, effect=True,
        doc="Whether the copying of segments to the remote tier is disabled. Segments in the remote tier "
            "remain readable and expire by retention."),
    row("remote.log.delete.on.disable", BOOLEAN, "false", MEDIUM, scope=Scope.TOPIC, effect=True,
        doc="Whether the data in the remote tier is deleted when `remote.storage.enable` is set to false. "
            "Tiered storage can be disabled only if this is true."),
    row("remote.log.disable.policy", STRING, None, MEDIUM, scope=Scope.TOPIC,
        internal=True, effect=True,
        doc="What happens to the data in the remote tier when `remote.storage.enable` is set to false "
            "(KIP-950): `retain` keeps it readable until it expires by retention, `delete` deletes it. It is "
            "removed when tiered storage is enabled again. Apache Kafka does not have it."),
    row("diskless.enable", BOOLEAN, "false", MEDIUM, scope=Scope.TOPIC, internal=True, effect=True,
        doc="Whether the topic is diskless: its records are only in the object store, and any broker serves it "
            "(KIP-1150). It is fixed when the topic is created. It requires `diskless.storage.system.enable` on the "
            "nodes, and excludes `cleanup.policy=compact` and `remote.storage.enable=true`. Apache Kafka does not "
            "have it."),
    row("internal.segment.bytes", INT, None, MEDIUM, scope=Scope.TOPIC, internal=True, effect=True,
        doc="The maximum size of a segment in bytes; it may be below the minimum of `segment.bytes`. For "
            "tests."),
)
# fmt: on
