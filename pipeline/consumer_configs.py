"""What Kafka's consumer (4.3) may be told, and what of it means something here.

Spark's source hands its `kafka.*` on to such a consumer. What cannot change which records are read is passed over,
so that a query moves as it is: how brokers are asked, and of what there is none here, as groups and metrics. What
says how one logs in is refused, as brokers are spoken to in PLAINTEXT; and so is what would change what is read.
"""

from __future__ import annotations

PASSED_OVER = frozenset(
    (
        "allow.auto.create.topics",  # who reads makes none
        "auto.commit.interval.ms",
        "check.crcs",  # they are
        "client.dns.lookup",
        "client.id",
        "client.rack",  # a replica elsewhere has the same
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
    "auto.offset.reset": "startingOffsets says where to begin",
    "enable.auto.commit": "brokers are told of no offsets",
    "key.deserializer": "keys are bytes, to be cast in the query",
    "value.deserializer": "values are bytes, to be cast in the query, or valueFormat=json",
    "interceptor.classes": "what is read is what is there",
    "config.providers": "values are what they say",
    "exclude.internal.topics": "a subscribePattern means no internal topics, subscribe names them",
    "security.protocol": "brokers are spoken to in PLAINTEXT",
    "security.providers": "brokers are spoken to in PLAINTEXT",
}
"""And why. Spark's source refuses the first five, too: who sets them expects something else."""

AS_IT_IS = {"security.protocol": "PLAINTEXT", "exclude.internal.topics": "true"}
"""What those may be told all the same."""

_OF_LOGGING_IN = ("sasl.", "ssl.")


def is_passed_over(name: str, value: str) -> bool:
    """Of a config by its name in Kafka."""
    return name in PASSED_OVER or AS_IT_IS.get(name) == value


def why_refused(name: str) -> str | None:
    """None where there is no config of the name."""
    if name.startswith(_OF_LOGGING_IN):
        return REFUSED["security.protocol"]
    return REFUSED.get(name)
