"""What a topic can set for itself; each falls back on the broker configs named as its synonyms."""

from __future__ import annotations

from odradek.broker.config.rows import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    MEDIUM,
    STRING,
    row,
)
from odradek.broker.config.table import Scope
from odradek.broker.config.validators import (
    at_least,
    between,
    distinct,
    gzip_level,
    one_of,
    throttled_replicas,
)

# A table, to be read as one: the formatter would give every column a line.
# fmt: off
TOPIC_ROWS = (
    row("segment.bytes", INT, "1073741824", MEDIUM, at_least(1048576),
        scope=Scope.TOPIC, synonyms=("log.segment.bytes",), effect=True,
        doc="Size in bytes at which the log rolls to a new segment."),
    row("segment.ms", LONG, "604800000", MEDIUM, at_least(1),
        scope=Scope.TOPIC, synonyms=("log.roll.ms", "log.roll.hours",), effect=True,
        doc="Age in ms at which the log rolls to a new segment though it is not full."),
    row("segment.jitter.ms", LONG, "0", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours",), effect=True,
        doc="Most ms taken at random off `segment.ms`, so that not all logs roll at once."),
    row("segment.index.bytes", INT, "10485760", MEDIUM, at_least(4),
        scope=Scope.TOPIC, synonyms=("log.index.size.max.bytes",), effect=True,
        doc="Most bytes of an offset or time index; a segment whose index is full rolls."),
    row("flush.messages", LONG, "9223372036854775807", MEDIUM, at_least(1),
        scope=Scope.TOPIC, synonyms=("log.flush.interval.messages",), effect=True,
        doc="Records after which the log is flushed to disk."),
    row("flush.ms", LONG, "9223372036854775807", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms",), effect=True,
        doc="Age in ms after which unflushed records are flushed to disk."),
    row("retention.bytes", LONG, "-1", MEDIUM,
        scope=Scope.TOPIC, synonyms=("log.retention.bytes",), effect=True,
        doc="Size in bytes a partition may have before its oldest segments are deleted; -1 sets no "
            "limit."),
    row("retention.ms", LONG, "604800000", MEDIUM, at_least(-1),
        scope=Scope.TOPIC, synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours",), effect=True,
        doc="Age in ms after which a closed segment is deleted; -1 keeps it for ever."),
    row("max.message.bytes", INT, "1048588", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("message.max.bytes",), effect=True,
        doc="Largest batch of records accepted, in bytes, after compression."),
    row("index.interval.bytes", INT, "4096", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.index.interval.bytes",), effect=True,
        doc="Bytes of records between two entries of the offset index."),
    row("delete.retention.ms", LONG, "86400000", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.cleaner.delete.retention.ms",),
        doc="How long a compacted log keeps deletion markers, in ms."),
    row("min.compaction.lag.ms", LONG, "0", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.cleaner.min.compaction.lag.ms",),
        doc="Youngest age in ms at which a record may be compacted away; at most "
            "`max.compaction.lag.ms`."),
    row("max.compaction.lag.ms", LONG, "9223372036854775807", MEDIUM, at_least(1),
        scope=Scope.TOPIC, synonyms=("log.cleaner.max.compaction.lag.ms",),
        doc="Age in ms at which a record must be open to compaction."),
    row("file.delete.delay.ms", LONG, "60000", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.segment.delete.delay.ms",), effect=True,
        doc="How long a deleted segment or partition stays on disk under its `.deleted` or `-delete` "
            "name, in ms."),
    row("min.cleanable.dirty.ratio", DOUBLE, "0.5", MEDIUM, between(0, 1),
        scope=Scope.TOPIC, synonyms=("log.cleaner.min.cleanable.ratio",),
        doc="Part of the log that must be uncompacted before it is compacted, from 0 to 1."),
    row("cleanup.policy", LIST, "delete", MEDIUM, distinct("compact", "delete"),
        scope=Scope.TOPIC, synonyms=("log.cleanup.policy",), effect=True,
        doc="What becomes of old segments: `delete` drops them by age and size, `compact` keeps the "
            "last value of every key, both do both, and empty keeps everything."),
    row("unclean.leader.election.enable", BOOLEAN, "false", MEDIUM,
        scope=Scope.TOPIC, synonyms=("unclean.leader.election.enable",),
        doc="Let a replica outside the in-sync set lead when there is no other, at the price of "
            "records."),
    row("min.insync.replicas", INT, "1", MEDIUM, at_least(1),
        scope=Scope.TOPIC, synonyms=("min.insync.replicas",), effect=True,
        doc="In-sync replicas below which a write with acks=all is refused."),
    row("compression.type", STRING, "producer", MEDIUM, one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        scope=Scope.TOPIC, synonyms=("compression.type",), effect=True,
        doc="Codec records are stored with; `producer` keeps the one they came in."),
    row("compression.gzip.level", INT, "-1", MEDIUM, gzip_level,
        scope=Scope.TOPIC, synonyms=("compression.gzip.level",), effect=True,
        doc="gzip's level where records are compressed here with gzip; -1 is the library's own."),
    row("compression.lz4.level", INT, "9", MEDIUM, between(1, 17),
        scope=Scope.TOPIC, synonyms=("compression.lz4.level",), effect=True,
        doc="lz4's level where records are compressed here with lz4."),
    row("compression.zstd.level", INT, "3", MEDIUM, between(-131072, 22),
        scope=Scope.TOPIC, synonyms=("compression.zstd.level",), effect=True,
        doc="zstd's level where records are compressed here with zstd."),
    row("preallocate", BOOLEAN, "false", MEDIUM,
        scope=Scope.TOPIC, synonyms=("log.preallocate",), effect=True,
        doc="Reserve a segment's full size on disk when it is created."),
    row("message.timestamp.type", STRING, "CreateTime", MEDIUM, one_of("CreateTime", "LogAppendTime"),
        scope=Scope.TOPIC, synonyms=("log.message.timestamp.type",), effect=True,
        doc="Whether a record's timestamp is its creation's or the time it was appended."),
    row("message.timestamp.before.max.ms", LONG, "9223372036854775807", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.message.timestamp.before.max.ms",), effect=True,
        doc="How far before the broker's clock a record's creation time may lie, in ms; ignored with "
            "LogAppendTime."),
    row("message.timestamp.after.max.ms", LONG, "3600000", MEDIUM, at_least(0),
        scope=Scope.TOPIC, synonyms=("log.message.timestamp.after.max.ms",), effect=True,
        doc="How far ahead of the broker's clock a record's creation time may lie, in ms; ignored "
            "with LogAppendTime."),
    row("leader.replication.throttled.replicas", LIST, "", MEDIUM, throttled_replicas,
        scope=Scope.TOPIC,
        doc="Replicas whose sending is throttled, as partition:broker pairs, or `*` for all."),
    row("follower.replication.throttled.replicas", LIST, "", MEDIUM, throttled_replicas,
        scope=Scope.TOPIC,
        doc="Replicas whose fetching is throttled, as partition:broker pairs, or `*` for all."),
    row("remote.storage.enable", BOOLEAN, "false", MEDIUM, scope=Scope.TOPIC,
        doc="Tier this topic: copy closed segments to the remote store. Needs "
            "`remote.log.storage.system.enable`, and a cleanup policy without compaction."),
    row("local.retention.ms", LONG, "-2", MEDIUM, at_least(-2),
        scope=Scope.TOPIC, synonyms=("log.local.retention.ms",),
        doc="Age in ms after which a copied segment is deleted locally; -1 never, -2 as "
            "`retention.ms`, which it must not exceed."),
    row("local.retention.bytes", LONG, "-2", MEDIUM, at_least(-2),
        scope=Scope.TOPIC, synonyms=("log.local.retention.bytes",),
        doc="Local bytes of a partition beyond which copied segments are deleted; -1 no limit, -2 as "
            "`retention.bytes`, which it must not exceed."),
    row("remote.log.copy.disable", BOOLEAN, "false", MEDIUM, scope=Scope.TOPIC,
        doc="Copy no more segments, and leave what is in the remote store to retention: the topic is "
            "read-only there."),
    row("remote.log.delete.on.disable", BOOLEAN, "false", MEDIUM, scope=Scope.TOPIC,
        doc="Delete the remote data when `remote.storage.enable` is turned off, which must be said to "
            "turn it off."),
    row("internal.segment.bytes", INT, None, MEDIUM, scope=Scope.TOPIC, internal=True, effect=True,
        doc="Segment size in bytes, below the minimum of `segment.bytes`. For tests."),
)
# fmt: on
