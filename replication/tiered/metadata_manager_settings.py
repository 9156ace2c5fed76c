"""Settings of the topic-based RemoteLogMetadataManager (T-05 to T-08).

The manager gets properties: `remote.log.metadata.*`, and those under `remote.log.metadata.manager.impl.prefix` without the
prefix. `remote.log.metadata.common.client.*` configures its clients; `remote.log.metadata.producer.*`, `.consumer.*` and
`.admin.*` override it. Only the clients' properties in the tables below have an effect. The manager logs the names of others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from odradek.client.consumer import ReaderOptions
from odradek.client.producer import ProducerOptions
from odradek.protocol.records import compression
from odradek.replication.tiered.metadata_topic import MetadataTopic
from odradek.seams.values import value_class

log = logging.getLogger("odradek.tiered")

PREFIX: Final = "remote.log.metadata."
COMMON: Final = f"{PREFIX}common.client."
PRODUCER: Final = f"{PREFIX}producer."
CONSUMER: Final = f"{PREFIX}consumer."
ADMIN: Final = f"{PREFIX}admin."

BOOTSTRAP: Final = "bootstrap.servers"
REQUEST_TIMEOUT: Final = "request.timeout.ms"
OBEYED: Final[Mapping[str, frozenset[str]]] = {
    PRODUCER: frozenset(
        {BOOTSTRAP, REQUEST_TIMEOUT, "delivery.timeout.ms", "batch.size", "compression.type"}
    ),
    CONSUMER: frozenset(
        {BOOTSTRAP, REQUEST_TIMEOUT, "fetch.max.bytes", "max.partition.fetch.bytes", "check.crcs"}
    ),
    ADMIN: frozenset({BOOTSTRAP, REQUEST_TIMEOUT}),
}
"""Client properties with an effect. Others are fixed as in Kafka: acks=all, idempotence, earliest offset, no groups."""

FETCH_BYTES: Final = 32 << 10
"""Default fetch size: several hundred records, so that decoding them does not block the event loop."""


@value_class
class MetadataManagerSettings:
    """Settings of the manager; times are in seconds."""

    topic: MetadataTopic = MetadataTopic()
    bootstrap: str = ""
    """Bootstrap servers of the cluster that has the topic ("host:port[,…]")."""
    node_id: int = -1
    consume_wait_s: float = 120.0
    """Timeout for reading a published record on this node."""
    retry_interval_s: float = 0.1
    retry_max_s: float = 120.0
    """How long the manager tries to find or create the topic."""
    request_timeout_s: float = 30.0
    producer: ProducerOptions = ProducerOptions()
    consumer: ReaderOptions = ReaderOptions(max_bytes=FETCH_BYTES, partition_bytes=FETCH_BYTES)

    def client_id(self, of: str) -> str:
        """Client id as in Kafka, for "producer", "consumer" or "admin"."""
        return f"__remote_log_metadata_client_{self.node_id}_{of}"


def read_settings(
    properties: Mapping[str, str], *, node_id: int, bootstrap: str
) -> MetadataManagerSettings:
    """Parse the properties; `bootstrap` is the address of this node's listener for the topic (T-06).

    Raises ValueError with the name of the invalid property.
    """
    wanted = _Properties(properties)
    producer, consumer, admin = (wanted.of_client(kind) for kind in (PRODUCER, CONSUMER, ADMIN))
    request_timeout = admin.number(REQUEST_TIMEOUT, 30_000, 1) / 1000
    retention = wanted.number(f"{PREFIX}topic.retention.ms", -1, -1)
    if retention == 0:
        raise ValueError(
            f"{PREFIX}topic.retention.ms is 0; it must be -1 (unlimited) or greater than 0"
        )
    return MetadataManagerSettings(
        MetadataTopic(
            partitions=wanted.number(f"{PREFIX}topic.num.partitions", 50, 1),
            replication_factor=wanted.number(f"{PREFIX}topic.replication.factor", 3, 1),
            retention_ms=retention,
            min_in_sync=wanted.number(f"{PREFIX}topic.min.isr", 2, 1),
        ),
        bootstrap=admin.text(BOOTSTRAP, bootstrap),
        node_id=node_id,
        consume_wait_s=wanted.number(f"{PREFIX}consume.wait.ms", 120_000, 0) / 1000,
        retry_interval_s=wanted.number(f"{PREFIX}initialization.retry.interval.ms", 100, 0) / 1000,
        retry_max_s=wanted.number(f"{PREFIX}initialization.retry.max.timeout.ms", 120_000, 0)
        / 1000,
        request_timeout_s=request_timeout,
        producer=_producer_options(producer),
        consumer=_reader_options(consumer),
    )


def _producer_options(given: _Properties) -> ProducerOptions:
    codec = given.text("compression.type", "none")
    if codec not in compression.NAMES:
        known = ", ".join(compression.NAMES)
        raise ValueError(f"{given.prefix}compression.type is {codec!r}, not one of {known}")
    return ProducerOptions(
        acks=-1,
        idempotent=True,
        compression=compression.NAMES.index(codec),
        batch_bytes=given.number("batch.size", 16384, 0),
        request_timeout_s=given.number(REQUEST_TIMEOUT, 30_000, 1) / 1000,
        delivery_timeout_s=given.number("delivery.timeout.ms", 120_000, 1) / 1000,
    )


def _reader_options(given: _Properties) -> ReaderOptions:
    return ReaderOptions(
        max_bytes=given.number("fetch.max.bytes", FETCH_BYTES, 1),
        partition_bytes=given.number("max.partition.fetch.bytes", FETCH_BYTES, 1),
        check_crcs=given.text("check.crcs", "true") == "true",
    )


class _Properties:
    """Properties with a common prefix."""

    def __init__(self, found: Mapping[str, str], prefix: str = "") -> None:
        self._found = found
        self.prefix = prefix

    def of_client(self, kind: str) -> _Properties:
        """Properties of a client: the common ones, overridden by its own (T-07)."""
        found: dict[str, str] = {}
        for prefix in (COMMON, kind):
            for name, value in self._found.items():
                if name.startswith(prefix):
                    found[name.removeprefix(prefix)] = value
                    if not _is_obeyed(prefix, name.removeprefix(prefix)):
                        log.warning("property %s is ignored", name)
        return _Properties(found, kind)

    def text(self, name: str, default: str) -> str:
        return self._found.get(name, default)

    def number(self, name: str, default: int, least: int) -> int:
        text = self._found.get(name)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{self.prefix}{name} is {text!r}, not a whole number") from None
        if number < least:
            raise ValueError(f"{self.prefix}{name} is {number}, less than {least}")
        return number


def _is_obeyed(prefix: str, name: str) -> bool:
    if prefix == COMMON:
        return any(name in names for names in OBEYED.values())
    return name in OBEYED[prefix]
