"""Configuration of the transaction coordinator."""

from __future__ import annotations

from odradek.broker.coordination.internal_topics import IntegerConfigs
from odradek.seams.values import value_class


@value_class
class TransactionConfig:
    """Kafka's configs of these names; durations in ms, sizes in bytes."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    """Interval between checks for timed-out transactions."""
    expiry_interval_ms: int = 3_600_000
    """Interval between checks for expired transactional ids."""
    load_buffer_bytes: int = 5 * 1024 * 1024
    append_timeout_ms: int = 30_000
    """Maximum time until a record is committed."""
    marker_retry_ms: int = 100
    """Delay before a failed marker is sent again; it grows with each attempt."""

    @classmethod
    def from_configs(cls, configs: IntegerConfigs) -> TransactionConfig:
        return cls(
            max_timeout_ms=configs.get_int("transaction.max.timeout.ms"),
            id_expiration_ms=configs.get_int("transactional.id.expiration.ms"),
            abort_interval_ms=configs.get_int(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms"
            ),
            expiry_interval_ms=configs.get_int(
                "transaction.remove.expired.transaction.cleanup.interval.ms"
            ),
            load_buffer_bytes=configs.get_int("transaction.state.log.load.buffer.size"),
            append_timeout_ms=configs.get_int("request.timeout.ms"),
        )
