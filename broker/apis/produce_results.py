"""Results of a Produce request: one for each partition, and the response that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from odradek.protocol.errors import KafkaError
from odradek.protocol.leader_tags import NodeEndpoint
from odradek.protocol.produce_response_writer import ProducedPartition
from odradek.replication.partition.partition import Partition


@dataclass(slots=True)
class ProducePartitionResult(ProducedPartition):
    """Result of one partition, and what acknowledging it requires."""

    last_offset: int = -1
    partition: Partition | None = None
    """Partition of the appended batch; None if it was refused or is a committed duplicate."""
    leader_epoch: int = -1
    """Leader epoch of the append."""

    def fail(self, error: KafkaError) -> ProducePartitionResult:
        """Set the error and its message."""
        self.error_code = error.code
        self.error_message = error.message or None
        self.record_errors = getattr(error, "record_errors", ())
        self.partition = None
        return self


Topics = Sequence[tuple[str | None, UUID | None, Sequence[ProducePartitionResult]]]
"""Topics by name or id, as in the request."""


@dataclass(slots=True)
class ProduceResponse:
    """Values of a Produce response, for the encoder."""

    topics: Topics
    endpoints: Sequence[NodeEndpoint] = ()
    """Endpoints of the leaders of partitions that other brokers lead."""
    throttle_time_ms: int = 0
