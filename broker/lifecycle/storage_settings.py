"""Settings of the storage layer, taken from the broker configs."""

from __future__ import annotations

from odradek.broker.config.server_config import ServerConfig
from odradek.replication.raft.metadata_log import MetadataLogSettings
from odradek.storage.compaction.cleaner_settings import CleanerSettings
from odradek.storage.log_registry.services import LogManagerIntervals
from odradek.storage.moving.mover import MoverSettings


def intervals(config: ServerConfig) -> LogManagerIntervals:
    return LogManagerIntervals(
        initial_delay_ms=config.get_int("log.initial.task.delay.ms"),
        retention_check_ms=config.get_int("log.retention.check.interval.ms"),
        flush_check_ms=config.get_int("log.flush.scheduler.interval.ms"),
        recovery_point_ms=config.get_int("log.flush.offset.checkpoint.interval.ms"),
        log_start_ms=config.get_int("log.flush.start.offset.checkpoint.interval.ms"),
        high_watermark_ms=config.get_int("replica.high.watermark.checkpoint.interval.ms"),
        producer_id_check_ms=config.get_int("producer.id.expiration.check.interval.ms"),
        producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
        recovery_threads_per_directory=config.get_int("num.recovery.threads.per.data.dir"),
    )


def mover(config: ServerConfig) -> MoverSettings:
    """Settings of moves between log directories, by KIP-113's and Kafka's config names (J-06, J-07)."""
    threads = config.optional_int("num.replica.move.threads")
    if threads is None:
        threads = config.optional_int("num.replica.alter.log.dirs.threads")
    return MoverSettings(
        threads,
        min(
            config.get_int("intra.broker.throttled.rate"),
            config.get_int("replica.alter.log.dirs.io.max.bytes.per.second"),
        ),
    )


def cleaner(config: ServerConfig) -> CleanerSettings:
    return CleanerSettings(
        enable=config.get_bool("log.cleaner.enable"),
        threads=config.get_int("log.cleaner.threads"),
        io_max_bytes_per_second=config.get_float("log.cleaner.io.max.bytes.per.second"),
        dedupe_buffer_size=config.get_int("log.cleaner.dedupe.buffer.size"),
        io_buffer_size=config.get_int("log.cleaner.io.buffer.size"),
        io_buffer_load_factor=config.get_float("log.cleaner.io.buffer.load.factor"),
        backoff_ms=config.get_int("log.cleaner.backoff.ms"),
    )


def metadata_log(config: ServerConfig) -> MetadataLogSettings:
    return MetadataLogSettings(
        segment_bytes=config.optional_int("internal.metadata.log.segment.bytes")
        or config.get_int("metadata.log.segment.bytes"),
        segment_ms=config.get_int("metadata.log.segment.ms"),
        snapshot_bytes=config.get_int("metadata.log.max.record.bytes.between.snapshots"),
        snapshot_interval_ms=config.get_int("metadata.log.max.snapshot.interval.ms"),
        retention_bytes=config.get_int("metadata.max.retention.bytes"),
        retention_ms=config.get_int("metadata.max.retention.ms"),
    )
