"""Logs on disk: directories, segments, retention, flushing, compaction; most are the defaults of topic configs."""

from __future__ import annotations

from odradek.broker.config.rows import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    DOUBLE,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    PER_BROKER,
    STRING,
    Rows,
    row,
)
from odradek.broker.config.validators import (
    at_least,
    between,
    distinct,
    gzip_level,
    one_of,
)

# A table, to be read as one: the formatter would give every column a line.
# fmt: off
LOGS: Rows = (
    row("num.partitions", INT, "1", MEDIUM, at_least(1), effect=True,
        doc="Partitions of a topic that is created without a number, as the controller has it; of one "
            "created automatically as the asked broker has it, where that sets it."),
    row("log.dir", LIST, "/tmp/kafka-logs", HIGH, distinct(empty=False), effect=True,
        doc="Directories for logs where `log.dirs` is not set."),
    row("log.dirs", LIST, None, HIGH, distinct(empty=False, null=True), effect=True,
        doc="Directories for logs, one for each disk. A new partition goes to the one with the "
            "fewest bytes."),
    row("cordoned.log.dirs", LIST, "", MEDIUM, distinct(null=True), PER_BROKER, effect=True,
        doc="Directories among `log.dirs` that get no new partitions; `*` is all of them."),
    row("log.segment.bytes", INT, "1073741824", HIGH, at_least(1048576), CLUSTER_WIDE, effect=True,
        doc="Size in bytes at which a log rolls to a new segment."),
    row("log.roll.ms", LONG, None, HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="Age in ms at which a log rolls to a new segment though it is not full. Unset: "
            "`log.roll.hours`."),
    row("log.roll.hours", INT, "168", HIGH, at_least(1), effect=True,
        doc="Age in hours at which a log rolls to a new segment; `log.roll.ms` wins over it."),
    row("log.roll.jitter.ms", LONG, None, HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="Most ms taken at random off the age at which a log rolls, so that not all roll at once. "
            "Unset: `log.roll.jitter.hours`."),
    row("log.roll.jitter.hours", INT, "0", HIGH, at_least(0), effect=True,
        doc="Most hours taken at random off the age at which a log rolls; `log.roll.jitter.ms` wins "
            "over it."),
    row("log.retention.ms", LONG, None, HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="Age in ms after which a closed segment is deleted; -1 keeps it for ever. Unset: "
            "`log.retention.minutes`."),
    row("log.retention.minutes", INT, None, HIGH, effect=True,
        doc="Age in minutes after which a closed segment is deleted. Unset: `log.retention.hours`."),
    row("log.retention.hours", INT, "168", HIGH, effect=True,
        doc="Age in hours after which a closed segment is deleted; the last choice after minutes and "
            "ms. Negative keeps it for ever."),
    row("log.retention.bytes", LONG, "-1", HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="Size in bytes a partition may have before its oldest segments are deleted; -1 sets no "
            "limit."),
    row("log.retention.check.interval.ms", LONG, "300000", MEDIUM, at_least(1), effect=True,
        doc="How often logs are looked at for segments to delete, in ms."),
    row("log.cleanup.policy", LIST, "delete", MEDIUM, distinct("compact", "delete"), CLUSTER_WIDE,
        effect=True,
        doc="What becomes of old segments: `delete` drops them by age and size, `compact` keeps the "
            "last value of every key, both do both, and empty keeps everything."),
    row("log.index.size.max.bytes", INT, "10485760", MEDIUM, at_least(4), CLUSTER_WIDE,
        effect=True,
        doc="Most bytes of an offset or time index; a segment whose index is full rolls."),
    row("log.index.interval.bytes", INT, "4096", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="Bytes of records between two entries of the offset index."),
    row("log.flush.interval.messages", LONG, "9223372036854775807", HIGH, at_least(1), CLUSTER_WIDE,
        effect=True,
        doc="Records after which a log is flushed to disk."),
    row("log.segment.delete.delay.ms", LONG, "60000", HIGH, at_least(0), CLUSTER_WIDE, effect=True,
        doc="How long a deleted segment or partition stays on disk under its `.deleted` or `-delete` "
            "name, in ms."),
    row("log.flush.scheduler.interval.ms", LONG, "9223372036854775807", HIGH, effect=True,
        doc="How often logs are looked at for what is to be flushed by age, in ms."),
    row("log.flush.interval.ms", LONG, None, HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="Age in ms after which unflushed records are flushed to disk. Unset: "
            "`log.flush.scheduler.interval.ms`."),
    row("log.flush.offset.checkpoint.interval.ms", INT, "60000", HIGH, at_least(0), effect=True,
        doc="How often the recovery points are written, in ms: what lies before them is not read "
            "again after a crash."),
    row("log.flush.start.offset.checkpoint.interval.ms", INT, "60000", HIGH, at_least(0),
        effect=True,
        doc="How often the start offsets of logs are written, in ms, so that deleted records stay "
            "deleted."),
    row("log.preallocate", BOOLEAN, "false", MEDIUM, mode=CLUSTER_WIDE,
        doc="Reserve a segment's full size on disk when it is created."),
    row("num.recovery.threads.per.data.dir", INT, "2", HIGH, at_least(1), CLUSTER_WIDE,
        effect=True,
        doc="How many logs of one directory are recovered at once at start, and flushed at once at "
            "shutdown."),
    row("auto.create.topics.enable", BOOLEAN, "true", HIGH, effect=True,
        doc="Create a topic when a client asks for the metadata of one that is missing, and allows "
            "it."),
    row("min.insync.replicas", INT, "1", HIGH, at_least(1), CLUSTER_WIDE, effect=True,
        doc="In-sync replicas below which a write with acks=all is refused."),
    row("log.message.timestamp.type", STRING, "CreateTime", MEDIUM, one_of("CreateTime", "LogAppendTime"), CLUSTER_WIDE,
        effect=True,
        doc="Whether a record's timestamp is its creation's or the time it was appended."),
    row("log.message.timestamp.before.max.ms", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="How far before the broker's clock a record's creation time may lie, in ms; ignored with "
            "LogAppendTime."),
    row("log.message.timestamp.after.max.ms", LONG, "3600000", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="How far ahead of the broker's clock a record's creation time may lie, in ms; ignored "
            "with LogAppendTime."),
    row("create.topic.policy.class.name", CLASS, None, LOW,
        doc="Class that may refuse the creation of topics."),
    row("alter.config.policy.class.name", CLASS, None, LOW,
        doc="Class that may refuse changes of configs."),
    row("log.dir.failure.timeout.ms", LONG, "30000", LOW, at_least(1), effect=True,
        doc="How long a failed log directory may stay unknown to the controller before the broker "
            "stops, in ms."),
    row("log.initial.task.delay.ms", LONG, "30000", LOW, at_least(0), internal=True, effect=True,
        doc="Delay in ms before the first round of housekeeping after start. For tests."),
    row("message.max.bytes", INT, "1048588", HIGH, at_least(0), CLUSTER_WIDE, effect=True,
        doc="Largest batch of records accepted, in bytes, after compression."),
    row("compression.type", STRING, "producer", HIGH, one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), CLUSTER_WIDE,
        effect=True,
        doc="Codec records are stored with; `producer` keeps the one they came in."),
    row("compression.gzip.level", INT, "-1", MEDIUM, gzip_level, CLUSTER_WIDE, effect=True,
        doc="gzip's level where records are compressed here with gzip; -1 is the library's own."),
    row("compression.lz4.level", INT, "9", MEDIUM, between(1, 17), CLUSTER_WIDE, effect=True,
        doc="lz4's level where records are compressed here with lz4."),
    row("compression.zstd.level", INT, "3", MEDIUM, between(-131072, 22), CLUSTER_WIDE,
        effect=True,
        doc="zstd's level where records are compressed here with zstd."),
    row("delete.topic.enable", BOOLEAN, "true", HIGH, effect=True,
        doc="Allow topics to be deleted."),
    row("log.cleaner.threads", INT, "1", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="Logs that are compacted at once, each in a worker process of its own."),
    row("log.cleaner.io.max.bytes.per.second", DOUBLE, "1.7976931348623157E308", MEDIUM, mode=CLUSTER_WIDE,
        effect=True,
        doc="Bytes a second that compaction may read and write, all threads together."),
    row("log.cleaner.dedupe.buffer.size", LONG, "134217728", MEDIUM, mode=CLUSTER_WIDE,
        effect=True,
        doc="Memory for compaction's map of keys, in bytes (24 a key), shared by all cleaner threads. More than "
            "1 MiB for each."),
    row("log.cleaner.io.buffer.size", INT, "524288", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="Bytes that compaction reads at a time, shared by all cleaner threads; at least 4 MiB each, and "
            "ten times as much memory."),
    row("log.cleaner.io.buffer.load.factor", DOUBLE, "0.9", MEDIUM, mode=CLUSTER_WIDE,
        effect=True,
        doc="How full compaction's map of keys may get, from 0 to 1."),
    row("log.cleaner.backoff.ms", LONG, "15000", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="How long a cleaner with nothing to do sleeps, in ms; its worker process ends before."),
    row("log.cleaner.min.cleanable.ratio", DOUBLE, "0.5", MEDIUM, between(0, 1), CLUSTER_WIDE,
        effect=True,
        doc="Part of a log that must be uncompacted before it is compacted, from 0 to 1."),
    row("log.cleaner.enable", BOOLEAN, "true", MEDIUM,
        effect=True,
        doc="Compact logs whose cleanup policy says so."),
    row("log.cleaner.delete.retention.ms", LONG, "86400000", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="How long a compacted log keeps the deletion markers of keys and transactions, in ms."),
    row("log.cleaner.min.compaction.lag.ms", LONG, "0", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="Youngest age in ms at which a record may be compacted away."),
    row("log.cleaner.max.compaction.lag.ms", LONG, "9223372036854775807", MEDIUM, at_least(1), CLUSTER_WIDE,
        effect=True,
        doc="Age in ms at which a record must be open to compaction, however little of the log is "
            "dirty."),
)
# fmt: on
