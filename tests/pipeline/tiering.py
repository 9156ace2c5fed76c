"""A broker that tiers immediately, and a topic all but the active segment of which are soon only in the store."""

QUICK = {
    "remote.log.manager.task.interval.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "0",
}
TIERED = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "20000",
    "local.retention.bytes": "1",
}
