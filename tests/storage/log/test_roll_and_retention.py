"""Rolling of segments, retention, and parsing of configs, as functions without I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.storage.log.config import LogConfig
from odradek.storage.log.retention import find_expired
from odradek.storage.log.roll import RollLimits, roll_limits, should_roll

CONFIG = LogConfig(segment_bytes=1000, segment_ms=100, segment_index_bytes=80)


@dataclass
class Active:
    base_offset: int = 50
    size: int = 500
    created_ms: int = 1000
    roll_jitter_ms: int = 0
    offset_entries: int = 0
    time_entries: int = 0
    first_timestamp: int = 5000
    index_interval_bytes: int = 50

    def first_batch_timestamp(self) -> int:
        return self.first_timestamp


def rolls(active: Active, config: LogConfig = CONFIG, **changes: int) -> bool:
    what = {"append_bytes": 100, "last_offset": 60, "max_timestamp": 5000, "now_ms": 1000}
    return should_roll(active, config, **{**what, **changes})


@pytest.mark.parametrize(
    ("active", "changes", "wanted"),
    [
        (Active(), {}, False),
        (Active(), {"append_bytes": 500}, False),
        (Active(), {"append_bytes": 501}, True),
        (Active(), {"max_timestamp": 5100}, False),
        (Active(), {"max_timestamp": 5101}, True),
        (Active(roll_jitter_ms=30), {"max_timestamp": 5071}, True),
        (Active(), {"now_ms": 9999}, False),  # timestamps count, not the clock
        (Active(first_timestamp=-1), {"now_ms": 1100}, False),
        (Active(first_timestamp=-1), {"now_ms": 1101}, True),
        (Active(size=0), {"max_timestamp": 9999}, False),
        (Active(offset_entries=9), {}, False),
        (Active(offset_entries=10), {}, True),
        (Active(time_entries=4), {}, False),
        (Active(time_entries=5), {}, True),  # one entry is kept for the roll
        (Active(), {"last_offset": 50 + 2**31 - 1}, False),
        (Active(), {"last_offset": 50 + 2**31}, True),
    ],
)
def test_should_roll_by_size_time_indexes_and_offsets(
    active: Active, changes: dict[str, int], wanted: bool
) -> None:
    assert rolls(active, **changes) == wanted


@given(
    sizes=st.lists(st.integers(1, 120), max_size=40),
    timestamps=st.lists(st.integers(4990, 5120), min_size=40, max_size=40),
    first_timestamp=st.sampled_from([-1, 5000]),
    index_bytes=st.integers(16, 200),
    interval=st.integers(0, 100),
)
def test_append_within_roll_limits_does_not_roll(
    sizes: list[int], timestamps: list[int], first_timestamp: int, index_bytes: int, interval: int
) -> None:
    """The limits are checked while appends fill a segment and its indexes."""
    config = replace(CONFIG, segment_index_bytes=index_bytes)
    active = Active(size=0, first_timestamp=first_timestamp, index_interval_bytes=interval)
    indexed_at = 0
    limits = RollLimits()
    for size, timestamp in zip(sizes, timestamps, strict=False):
        rolled = rolls(active, config, append_bytes=size, max_timestamp=timestamp, now_ms=1090)
        if active.size + size <= limits.position and timestamp <= limits.max_timestamp:
            assert not rolled
        elif rolled:
            return
        else:
            limits = roll_limits(active, config)
        if active.size - indexed_at > interval:
            active.offset_entries += 1
            active.time_entries += 1
            indexed_at = active.size
        active.size += size


def test_roll_limits_allow_appends() -> None:
    assert roll_limits(Active(), CONFIG)[2:] == (500 + 4 * 50, 5100, 50 + 2**31 - 1)
    assert roll_limits(Active(index_interval_bytes=4096), CONFIG).position == 1000


def test_segment_of_compacted_topic_rolls_within_max_compaction_lag() -> None:
    compacted = replace(CONFIG, cleanup_policy=("compact",), max_compaction_lag_ms=10)
    assert rolls(Active(), compacted, max_timestamp=5011)
    assert not rolls(Active(), compacted, max_timestamp=5010)


def test_internal_segment_bytes_overrides_segment_bytes() -> None:
    assert rolls(Active(), replace(CONFIG, internal_segment_bytes=599))


@dataclass
class Old:
    base_offset: int
    size: int = 100
    max_timestamp: int = 0
    created_ms: int = 0


SEGMENTS = [Old(0, max_timestamp=10), Old(10, max_timestamp=20), Old(20, max_timestamp=30)]
NOTHING = LogConfig(retention_ms=-1)


def expired(
    config: LogConfig,
    segments: list[Old] | None = None,
    *,
    start: int = 0,
    high_watermark: int = 30,
    now_ms: int = 100,
) -> int:
    return find_expired(
        SEGMENTS if segments is None else segments,
        config,
        log_start_offset=start,
        high_watermark=high_watermark,
        end_offset=30,
        now_ms=now_ms,
    ).count


def by_ms(retention_ms: int) -> LogConfig:
    return LogConfig(retention_ms=retention_ms)


def by_bytes(retention_bytes: int) -> LogConfig:
    return LogConfig(retention_ms=-1, retention_bytes=retention_bytes)


def test_no_segment_expires_without_limits() -> None:
    assert expired(NOTHING) == 0


@pytest.mark.parametrize(("ms", "count"), [(90, 0), (89, 1), (80, 1), (79, 2), (69, 3), (0, 3)])
def test_segments_expire_by_retention_ms(ms: int, count: int) -> None:
    assert expired(by_ms(ms)) == count


@pytest.mark.parametrize(
    ("size", "count"), [(300, 0), (201, 0), (200, 1), (101, 1), (100, 2), (0, 3)]
)
def test_segments_expire_by_retention_bytes(size: int, count: int) -> None:
    assert expired(by_bytes(size)) == count


def test_no_segment_past_high_watermark_expires() -> None:
    assert expired(by_ms(0), high_watermark=20) == 2
    assert expired(by_ms(0), high_watermark=19) == 1
    assert expired(by_bytes(0), high_watermark=9) == 0


def test_empty_active_segment_does_not_expire() -> None:
    rolled = [*SEGMENTS[:2], Old(30, size=0, max_timestamp=-1)]
    assert expired(by_ms(0), rolled) == 2
    assert expired(NOTHING, rolled, start=30) == 2


def test_segment_within_retention_keeps_following_segments() -> None:
    assert expired(by_ms(50), [Old(0, max_timestamp=99), Old(10, max_timestamp=1), Old(20)]) == 0


def test_age_without_timestamps_is_measured_from_discovery() -> None:
    nameless = [Old(0, max_timestamp=-1, created_ms=40), Old(10, max_timestamp=-1, created_ms=60)]
    assert expired(by_ms(50), nameless) == 1


@pytest.mark.parametrize(("start", "count"), [(0, 0), (9, 0), (10, 1), (20, 2), (29, 2), (30, 3)])
def test_segments_below_log_start_offset_expire(start: int, count: int) -> None:
    compacted = LogConfig(cleanup_policy=("compact",), retention_ms=0)
    assert expired(compacted, start=start) == count
    assert expired(NOTHING, start=start) == count


def test_retention_reasons_are_combined() -> None:
    both = LogConfig(retention_ms=79, retention_bytes=200)
    assert expired(both) == 2
    assert expired(both, start=10) == 2


def test_log_config_is_parsed_from_kafka_config_values() -> None:
    config = LogConfig.from_topic_configs(
        {
            "cleanup.policy": "compact, delete",
            "segment.bytes": "1048576",
            "internal.segment.bytes": "100",
            "min.cleanable.dirty.ratio": "0.25",
            "preallocate": "TRUE",
            "compression.type": "zstd",
            "confluent.something": "else",
        }
    )
    assert config.cleanup_policy == ("compact", "delete")
    assert config.compact
    assert config.delete
    assert (config.segment_bytes, config.max_segment_bytes) == (1048576, 100)
    assert config.min_cleanable_dirty_ratio == 0.25
    assert config.preallocate
    assert config.compression_type == "zstd"
    assert config.retention_ms == 604_800_000
    again = LogConfig.from_topic_configs({"retention.ms": "-1"}, base=config)
    assert (again.retention_ms, again.compression_type) == (-1, "zstd")
    assert not LogConfig.from_topic_configs({"cleanup.policy": ""}).delete
