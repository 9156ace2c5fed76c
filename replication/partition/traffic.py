"""What went in and out of a partition, where somebody is told: plain counts, which are added up
when metrics are asked for."""

from __future__ import annotations

COUNTED = (
    "messages_in",
    "bytes_in",
    "bytes_out",
    "bytes_rejected",
    "produces",
    "failed_produces",
    "fetches",
    "failed_fetches",
    "replicated_bytes_in",
    "replicated_bytes_out",
)


class Traffic:
    """Of one partition since it was opened, or of many.

    Bytes are those of batches. `produces` and `fetches` count partitions, not requests, as Kafka has
    it; what followers fetch is in neither `fetches` nor `bytes_out`.
    """

    __slots__ = COUNTED

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0
        self.produces = 0
        self.failed_produces = 0
        self.fetches = 0
        self.failed_fetches = 0
        self.replicated_bytes_in = 0
        self.replicated_bytes_out = 0

    def appended(self, messages: int, size_bytes: int) -> None:
        """A batch was."""
        self.produces += 1
        self.messages_in += messages
        self.bytes_in += size_bytes

    def refused(self, rejected_bytes: int) -> None:
        """A batch was; `rejected_bytes` of it, if it was too large."""
        self.produces += 1
        self.failed_produces += 1
        self.bytes_rejected += rejected_bytes

    def add(self, other: Traffic) -> None:
        """Count what `other` has counted, too."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
