"""A fake `AddPartitionsToTransaction` that returns given errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition


@dataclass
class Coordinator:
    responses: list[ErrorCode] = field(default_factory=lambda: [ErrorCode.none])
    """Errors of the calls in order; the last one is repeated."""
    asked: list[tuple[str, int, int, list[TopicPartition], bool]] = field(default_factory=list)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked.append(
            (transactional_id, producer_id, producer_epoch, list(partitions), verify_only)
        )
        response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        return dict.fromkeys(partitions, response)
