"""A broker that tiers at once, and a topic of which all but the last segment soon is in the store alone."""

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
