"""Settings of the log cleaner (`log.cleaner.*`)."""

from __future__ import annotations

import sys

from odradek.seams.values import value_class

PAGE_BYTES_MIN = 64 << 10
"""Smaller pages would need many calls of the system."""


@value_class
class CleanerSettings:
    """Kafka's `log.cleaner.*` configs and their defaults."""

    enable: bool = True
    threads: int = 1
    """Number of concurrent passes. Each runs in its own worker process with its part of the memory."""
    io_max_bytes_per_second: float = sys.float_info.max
    """Limit of bytes read and written per second by all passes together."""
    dedupe_buffer_size: int = 128 << 20
    io_buffer_size: int = 512 << 10
    io_buffer_load_factor: float = 0.9
    """Maximum load factor of the offset map, from 0 to 1."""
    backoff_ms: int = 15_000

    @property
    def map_bytes(self) -> int:
        return self.dedupe_buffer_size // max(1, self.threads)

    @property
    def page_bytes(self) -> int:
        return max(self.io_buffer_size // max(1, self.threads), PAGE_BYTES_MIN)
