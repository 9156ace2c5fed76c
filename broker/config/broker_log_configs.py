"""Broker configs of logs: directories, segments, retention, flushing and compaction. Most are defaults of topic
configs."""

from __future__ import annotations

from odradek.broker.config.config_key import (
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

# The formatter would put every column on a line of its own.
# fmt: off
LOGS: Rows = (
    row("num.partitions", INT, "1", MEDIUM, at_least(1), effect=True,
        doc="The default number of partitions of a topic. For CreateTopics, the value of the controller is "
            "used; for automatically created topics, the value of the broker if it is set."),
    row("log.dir", LIST, "/tmp/kafka-logs", HIGH, distinct(empty=False), effect=True,
        doc="A comma-separated list of the directories in which log data is stored. Used only if `log.dirs` "
            "is not set."),
    row("log.dirs", LIST, None, HIGH, distinct(empty=False, null=True), effect=True,
        doc="A comma-separated list of the directories in which log data is stored, one per disk. A new "
            "replica is placed in the directory with the fewest bytes. If not set, `log.dir` is used."),
    row("cordoned.log.dirs", LIST, "", MEDIUM, distinct(null=True), PER_BROKER, effect=True,
        doc="A comma-separated list of the log directories that are cordoned: no new replicas are placed in "
            "them. `*` cordons all log directories."),
    row("log.segment.bytes", INT, "1073741824", HIGH, at_least(1048576), CLUSTER_WIDE, effect=True,
        doc="The maximum size of a segment in bytes. When the active segment reaches it, the log rolls to a "
            "new segment."),
    row("log.roll.ms", LONG, None, HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="The maximum time in ms before the log rolls to a new segment, even if the active segment is "
            "not full. If not set, `log.roll.hours` is used."),
    row("log.roll.hours", INT, "168", HIGH, at_least(1), effect=True,
        doc="The maximum time in hours before the log rolls to a new segment, even if the active segment is "
            "not full. Used only if `log.roll.ms` is not set."),
    row("log.roll.jitter.ms", LONG, None, HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="The maximum random time in ms that is subtracted from `log.roll.ms`, so that logs do not all "
            "roll at the same time. If not set, `log.roll.jitter.hours` is used."),
    row("log.roll.jitter.hours", INT, "0", HIGH, at_least(0), effect=True,
        doc="The maximum random time in hours that is subtracted from `log.roll.hours`. Used only if "
            "`log.roll.jitter.ms` is not set."),
    row("log.retention.ms", LONG, None, HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="The time in ms after which a segment is deleted, counted from the latest timestamp of its "
            "records. -1 sets no time limit. If not set, `log.retention.minutes` is used."),
    row("log.retention.minutes", INT, None, HIGH, effect=True,
        doc="The time in minutes after which a segment is deleted. Used only if `log.retention.ms` is not "
            "set. If not set, `log.retention.hours` is used."),
    row("log.retention.hours", INT, "168", HIGH, effect=True,
        doc="The time in hours after which a segment is deleted. Used only if neither `log.retention.ms` "
            "nor `log.retention.minutes` is set. A negative value sets no time limit."),
    row("log.retention.bytes", LONG, "-1", HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="The maximum size of a partition in bytes before its oldest segments are deleted. It applies to "
            "each partition. -1 sets no size limit."),
    row("log.retention.check.interval.ms", LONG, "300000", MEDIUM, at_least(1), effect=True,
        doc="The interval in ms at which the broker checks for segments that are eligible for deletion."),
    row("log.cleanup.policy", LIST, "delete", MEDIUM, distinct("compact", "delete"), CLUSTER_WIDE,
        effect=True,
        doc="The retention policy of old segments. `delete` deletes them when the retention time or size is "
            "exceeded. `compact` compacts the log, which keeps the latest record of each key. Both may be "
            "combined. An empty list keeps all records."),
    row("log.index.size.max.bytes", INT, "10485760", MEDIUM, at_least(4), CLUSTER_WIDE,
        effect=True,
        doc="The maximum size of an offset or time index in bytes. When an index is full, the log rolls to "
            "a new segment."),
    row("log.index.interval.bytes", INT, "4096", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="The minimum number of bytes between two entries of the offset index. A smaller value makes "
            "lookups more exact and the index larger."),
    row("log.flush.interval.messages", LONG, "9223372036854775807", HIGH, at_least(1), CLUSTER_WIDE,
        effect=True,
        doc="The number of records after which the log is flushed to disk. The default leaves flushing to "
            "the operating system."),
    row("log.segment.delete.delay.ms", LONG, "60000", HIGH, at_least(0), CLUSTER_WIDE, effect=True,
        doc="The time in ms before a deleted segment or partition is removed from the file system. Until "
            "then its files have the suffix `.deleted`, and the directory of a deleted partition the suffix "
            "`-delete`."),
    row("log.flush.scheduler.interval.ms", LONG, "9223372036854775807", HIGH, effect=True,
        doc="The interval in ms at which the broker checks for logs that must be flushed to disk."),
    row("log.flush.interval.ms", LONG, None, HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="The maximum time in ms that a record is kept in memory before the log is flushed to disk. If "
            "not set, `log.flush.scheduler.interval.ms` is used."),
    row("log.flush.offset.checkpoint.interval.ms", INT, "60000", HIGH, at_least(0), effect=True,
        doc="The interval in ms at which the recovery points of all logs are checkpointed. After an unclean "
            "shutdown, log recovery starts at the recovery point."),
    row("log.flush.start.offset.checkpoint.interval.ms", INT, "60000", HIGH, at_least(0),
        effect=True,
        doc="The interval in ms at which the log start offsets of all logs are checkpointed, so that "
            "deleted records are not exposed after a restart."),
    row("log.preallocate", BOOLEAN, "false", MEDIUM, mode=CLUSTER_WIDE,
        doc="Whether the file of a new segment is preallocated on disk."),
    row("num.recovery.threads.per.data.dir", INT, "2", HIGH, at_least(1), CLUSTER_WIDE,
        effect=True,
        doc="The number of logs per log directory that are recovered concurrently at startup and flushed "
            "concurrently at shutdown."),
    row("auto.create.topics.enable", BOOLEAN, "true", HIGH, effect=True,
        doc="Whether topics are created automatically by Metadata requests that allow it."),
    row("min.insync.replicas", INT, "1", HIGH, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The minimum number of in-sync replicas for a write with acks=all. With fewer, the write fails "
            "with NOT_ENOUGH_REPLICAS."),
    row("log.message.timestamp.type", STRING, "CreateTime", MEDIUM, one_of("CreateTime", "LogAppendTime"), CLUSTER_WIDE,
        effect=True,
        doc="The timestamp of the records in the log: `CreateTime`, set by the producer, or "
            "`LogAppendTime`, set by the broker when it appends the records."),
    row("log.message.timestamp.before.max.ms", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="The maximum time in ms by which the timestamp of a record may be earlier than the broker's "
            "clock. Records with an earlier timestamp are rejected. Ignored if the timestamp type is "
            "LogAppendTime. The default sets no limit."),
    row("log.message.timestamp.after.max.ms", LONG, "3600000", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="The maximum time in ms by which the timestamp of a record may be later than the broker's "
            "clock. Records with a later timestamp are rejected. Ignored if the timestamp type is "
            "LogAppendTime."),
    row("create.topic.policy.class.name", CLASS, None, LOW,
        doc="The class of the policy that validates the creation of topics. It implements "
            "org.apache.kafka.server.policy.CreateTopicPolicy."),
    row("alter.config.policy.class.name", CLASS, None, LOW,
        doc="The class of the policy that validates changes of configs. It implements "
            "org.apache.kafka.server.policy.AlterConfigPolicy."),
    row("log.dir.failure.timeout.ms", LONG, "30000", LOW, at_least(1), effect=True,
        doc="The time in ms within which the broker must report a failed log directory to the controller. "
            "If it cannot, and the directory has leader replicas, the broker shuts down."),
    row("log.initial.task.delay.ms", LONG, "30000", LOW, at_least(0), internal=True, effect=True,
        doc="The time in ms after startup before the periodic tasks of the logs, such as retention and "
            "flushing, run for the first time. For tests."),
    row("message.max.bytes", INT, "1048588", HIGH, at_least(0), CLUSTER_WIDE, effect=True,
        doc="The maximum size of a record batch in bytes, after compression if compression is enabled. "
            "Larger batches are rejected."),
    row("compression.type", STRING, "producer", HIGH, one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), CLUSTER_WIDE,
        effect=True,
        doc="The final compression type of records: `gzip`, `snappy`, `lz4`, `zstd`, `uncompressed`, or "
            "`producer`, which keeps the compression of the producer."),
    row("compression.gzip.level", INT, "-1", MEDIUM, gzip_level, CLUSTER_WIDE, effect=True,
        doc="The gzip compression level, 1 to 9, if `compression.type` is `gzip`; -1 is the default of the "
            "gzip library."),
    row("compression.lz4.level", INT, "9", MEDIUM, between(1, 17), CLUSTER_WIDE, effect=True,
        doc="The lz4 compression level if `compression.type` is `lz4`."),
    row("compression.zstd.level", INT, "3", MEDIUM, between(-131072, 22), CLUSTER_WIDE,
        effect=True,
        doc="The zstd compression level if `compression.type` is `zstd`."),
    row("delete.topic.enable", BOOLEAN, "true", HIGH, effect=True,
        doc="Whether topics can be deleted."),
    row("log.cleaner.threads", INT, "1", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="The number of logs that are compacted concurrently. Each is compacted in a worker process."),
    row("log.cleaner.io.max.bytes.per.second", DOUBLE, "1.7976931348623157E308", MEDIUM, mode=CLUSTER_WIDE,
        effect=True,
        doc="The maximum number of bytes per second that the log cleaner reads and writes on average, "
            "summed over all cleaner threads."),
    row("log.cleaner.dedupe.buffer.size", LONG, "134217728", MEDIUM, mode=CLUSTER_WIDE,
        effect=True,
        doc="The memory in bytes for the maps of keys and offsets of all cleaner threads. A key takes 24 "
            "bytes. Each thread must have more than 1 MiB."),
    row("log.cleaner.io.buffer.size", INT, "524288", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="The memory in bytes for the I/O buffers of all cleaner threads. A thread reads at least 64 KiB "
            "at once."),
    row("log.cleaner.io.buffer.load.factor", DOUBLE, "0.9", MEDIUM, mode=CLUSTER_WIDE,
        effect=True,
        doc="The load factor of the maps of keys and offsets, 0 to 1: the maximum fraction of a map that is "
            "in use. A higher value cleans more of the log at once and causes more hash collisions."),
    row("log.cleaner.backoff.ms", LONG, "15000", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="The time in ms that a cleaner thread sleeps if there is no log to clean. Its worker process "
            "ends before the sleep."),
    row("log.cleaner.min.cleanable.ratio", DOUBLE, "0.5", MEDIUM, between(0, 1), CLUSTER_WIDE,
        effect=True,
        doc="The minimum ratio of dirty bytes to all bytes of a log, 0 to 1, for the log to be eligible for "
            "compaction. A higher ratio means fewer and more efficient compactions, and more duplicate keys "
            "in the log."),
    row("log.cleaner.enable", BOOLEAN, "true", MEDIUM,
        effect=True,
        doc="Whether the log cleaner runs. Without it, logs with the cleanup policy `compact` are not "
            "compacted and keep growing."),
    row("log.cleaner.delete.retention.ms", LONG, "86400000", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="The time in ms for which tombstones and transaction markers are kept in a compacted log. A "
            "consumer that starts at offset 0 must reach the end of the log within this time to see all "
            "deletions."),
    row("log.cleaner.min.compaction.lag.ms", LONG, "0", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="The minimum time in ms that a record remains uncompacted in the log."),
    row("log.cleaner.max.compaction.lag.ms", LONG, "9223372036854775807", MEDIUM, at_least(1), CLUSTER_WIDE,
        effect=True,
        doc="The maximum time in ms that a record remains ineligible for compaction. The default sets no "
            "limit."),
)
# fmt: on
