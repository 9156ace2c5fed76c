"""Kafka consumer configs (4.3) as options of the source: which are ignored and which are refused.

Spark's Kafka source passes `kafka.*` options to a Kafka consumer. Configs that cannot change which records are read
are ignored, so that existing queries work unchanged: configs of fetching, consumer groups and metrics. Refused are
configs of authentication and encryption, because connections to brokers are PLAINTEXT, and configs that would
change which records are read.
"""

from __future__ import annotations

IGNORED = frozenset(
    (
        "allow.auto.create.topics",  # reading never creates topics
        "auto.commit.interval.ms",
        "check.crcs",  # CRCs are always checked
        "client.dns.lookup",
        "client.id",
        "client.rack",  # all replicas have the same records
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.throw.on.fetch.stable.offset.unsupported",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    )
)

REFUSED = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "no offsets are committed",
    "key.deserializer": "keys are binary; cast them in the query",
    "value.deserializer": "values are binary; cast them in the query, or use valueFormat=json",
    "interceptor.classes": "interceptors are not supported",
    "config.providers": "config providers are not supported",
    "exclude.internal.topics": "subscribePattern never matches internal topics; name them with subscribe",
    "security.protocol": "only PLAINTEXT is supported",
    "security.providers": "only PLAINTEXT is supported",
}
"""Refused configs by name, with the reason. Spark's Kafka source refuses the first five, too."""

ACCEPTED_VALUES = {"security.protocol": "PLAINTEXT", "exclude.internal.topics": "true"}
"""Values with which refused configs are accepted."""

_SECURITY_PREFIXES = ("sasl.", "ssl.")


def is_ignored_config(name: str, value: str) -> bool:
    """Return whether a Kafka config is ignored. `name` has no "kafka." prefix."""
    return name in IGNORED or ACCEPTED_VALUES.get(name) == value


def refusal_reason(name: str) -> str | None:
    """Return why a Kafka config is refused; None if no config has that name."""
    if name.startswith(_SECURITY_PREFIXES):
        return REFUSED["security.protocol"]
    return REFUSED.get(name)
