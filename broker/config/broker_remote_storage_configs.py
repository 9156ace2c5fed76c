"""Broker configs of tiered storage (KIP-405): copies, local retention, reads."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LONG,
    LOW,
    MEDIUM,
    STRING,
    Rows,
    row,
)
from odradek.broker.config.validators import (
    at_least,
    between,
    not_empty,
)

# The formatter would put every column on a line of its own.
# fmt: off
REMOTE: Rows = (
    row("remote.log.storage.system.enable", BOOLEAN, "false", MEDIUM, effect=True,
        doc="Whether tiered storage is enabled on this node. Topics enable it with `remote.storage.enable`."),
    row("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", MEDIUM, not_empty, effect=True,
        doc="The prefix of the configs that are passed to the RemoteStorageManager."),
    row("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", MEDIUM, not_empty, effect=True,
        doc="The prefix of the configs that are passed to the RemoteLogMetadataManager."),
    row("remote.log.storage.manager.class.name", STRING, None, MEDIUM, not_empty, effect=True,
        doc="The class of the RemoteStorageManager. Required if tiered storage is enabled."),
    row("remote.log.storage.manager.class.path", STRING, None, MEDIUM,
        doc="The class path from which the RemoteStorageManager is loaded."),
    row("remote.log.metadata.manager.class.name", STRING, "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", MEDIUM, not_empty, effect=True,
        doc="The class of the RemoteLogMetadataManager. The default stores the metadata in the topic "
            "`__remote_log_metadata`."),
    row("remote.log.metadata.manager.class.path", STRING, None, MEDIUM,
        doc="The class path from which the RemoteLogMetadataManager is loaded."),
    row("remote.log.metadata.manager.listener.name", STRING, None, MEDIUM, not_empty, effect=True,
        doc="The name of the broker's listener to which the clients of the RemoteLogMetadataManager "
            "connect."),
    row("remote.log.metadata.custom.metadata.max.bytes", INT, "128", LOW, at_least(0), effect=True,
        doc="The maximum size in bytes of the custom metadata that the RemoteStorageManager returns for a "
            "segment. If it is larger, the copy is deleted and the copy task of the partition stops."),
    row("remote.log.index.file.cache.total.size.bytes", LONG, "1073741824", LOW, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The maximum size in bytes of the indexes that were fetched from the remote tier and are cached "
            "on the local disk."),
    row("remote.log.index.file.cache.total.size.mb", LONG, None, LOW, internal=True, effect=True,
        doc="KIP-405's name for `remote.log.index.file.cache.total.size.bytes`; the value is in MiB. "
            "Ignored if that config is set."),
    row("odradek.remote.log.retain.on.disable", BOOLEAN, "false", LOW, internal=True, effect=True,
        doc="Whether `remote.storage.enable=false` without a policy retains the data in the remote tier, as in "
            "KIP-950. Otherwise it is an error, as in Kafka. The active controller uses its own value."),
    row("remote.log.index.file.cache.ttl.ms", LONG, "900000", LOW, at_least(-1), internal=True, effect=True,
        doc="The time in ms without use after which an index is evicted from the cache. -1 disables it. For "
            "tests."),
    row("remote.log.manager.thread.pool.size", INT, "2", MEDIUM, at_least(1), effect=True,
        doc="The earlier name of `remote.log.manager.follower.thread.pool.size`."),
    row("remote.log.manager.copier.thread.pool.size", INT, "10", MEDIUM, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The maximum number of segments that are copied to the remote tier concurrently."),
    row("remote.log.manager.expiration.thread.pool.size", INT, "10", MEDIUM, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The maximum number of expiration tasks that run concurrently. An expiration task deletes the "
            "expired segments of one partition from the remote tier."),
    row("remote.log.manager.follower.thread.pool.size", INT, "2", MEDIUM, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The maximum number of follower tasks that run concurrently. A follower task looks up the "
            "highest copied offset of one partition."),
    row("remote.log.manager.task.interval.ms", LONG, "30000", LOW, at_least(1), effect=True,
        doc="The interval in ms at which the copy, expiration and follower tasks of a partition run."),
    row("remote.log.manager.task.retry.backoff.ms", LONG, "500", LOW, at_least(1), internal=True, effect=True,
        doc="The initial time in ms before a failed task is retried. For tests."),
    row("remote.log.manager.task.retry.backoff.max.ms", LONG, "30000", LOW, at_least(1),
        internal=True, effect=True,
        doc="The maximum time in ms before a failed task is retried. For tests."),
    row("remote.log.manager.task.retry.jitter", DOUBLE, "0.2", LOW, between(0, 0.5), internal=True, effect=True,
        doc="The maximum random fraction of the retry backoff that is added or subtracted, 0 to 0.5. For "
            "tests."),
    row("remote.partition.remover.task.interval.ms", LONG, "3600000", LOW, at_least(1), internal=True, effect=True,
        doc="The interval in ms at which the remote segments of deleted partitions are deleted."),
    row("remote.log.reader.threads", INT, "10", MEDIUM, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The maximum number of reads from the remote tier that run concurrently."),
    row("remote.log.reader.max.pending.tasks", INT, "100", MEDIUM, at_least(1), effect=True,
        doc="The maximum number of reads in the queue of the reader threads. If it is full, fetches fail "
            "with an error."),
    row("log.local.retention.ms", LONG, "-2", MEDIUM, at_least(-2), CLUSTER_WIDE, effect=True,
        doc="The time in ms after which a segment that was copied to the remote tier is deleted from the "
            "local disk. -2 uses `log.retention.ms`; -1 sets no time limit."),
    row("log.local.retention.bytes", LONG, "-2", MEDIUM, at_least(-2), CLUSTER_WIDE, effect=True,
        doc="The maximum size of a partition on the local disk in bytes before segments that were copied to "
            "the remote tier are deleted from it. -2 uses `log.retention.bytes`; -1 sets no size limit."),
    row("remote.log.manager.copy.max.bytes.per.second", LONG, "9223372036854775807", MEDIUM, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The maximum rate in bytes per second at which the broker copies to the remote tier, over all "
            "partitions."),
    row("remote.log.manager.copy.quota.window.num", INT, "11", MEDIUM, at_least(1), effect=True,
        doc="The number of samples that are kept in memory for the copy quota of the remote tier."),
    row("remote.log.manager.copy.quota.window.size.seconds", INT, "1", MEDIUM, at_least(1), effect=True,
        doc="The time span of one sample for the copy quota of the remote tier, in seconds."),
    row("remote.log.manager.fetch.max.bytes.per.second", LONG, "9223372036854775807", MEDIUM, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The maximum rate in bytes per second at which the broker fetches from the remote tier, over "
            "all partitions."),
    row("remote.log.manager.fetch.quota.window.num", INT, "11", MEDIUM, at_least(1), effect=True,
        doc="The number of samples that are kept in memory for the fetch quota of the remote tier."),
    row("remote.log.manager.fetch.quota.window.size.seconds", INT, "1", MEDIUM, at_least(1), effect=True,
        doc="The time span of one sample for the fetch quota of the remote tier, in seconds."),
    row("remote.fetch.max.wait.ms", INT, "500", MEDIUM, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The maximum time in ms that a Fetch request waits for reads from the remote tier."),
    row("remote.list.offsets.request.timeout.ms", LONG, "30000", MEDIUM, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The maximum time in ms that a ListOffsets request waits for reads from the remote tier."),
)
# fmt: on
