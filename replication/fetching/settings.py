"""What a follower is told by the broker's configs."""

from __future__ import annotations

from odradek.seams.values import value_class


@value_class
class FetchingSettings:
    """The names are Kafka's configs, so are the defaults; times in ms, sizes in bytes."""

    fetchers: int = 1
    """num.replica.fetchers: for each leader's broker"""
    fetch_max_bytes: int = 1 << 20
    """replica.fetch.max.bytes, of a partition"""
    response_max_bytes: int = 10 << 20
    """replica.fetch.response.max.bytes"""
    min_bytes: int = 1
    """replica.fetch.min.bytes"""
    wait_max_ms: int = 500
    """replica.fetch.wait.max.ms"""
    back_off_ms: int = 1000
    """replica.fetch.backoff.ms"""
    socket_timeout_ms: int = 30_000
    """replica.socket.timeout.ms"""
