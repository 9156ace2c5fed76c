"""Result of a controller operation: records and response (Kafka's `ControllerResult`).

An operation is a function without I/O from an image and a request to a ControllerResult. Atomic
records are committed as one batch; a non-atomic result is valid after any prefix. Errors of one
item are part of the response; errors of the whole request are raised as KafkaError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.values import value_class

T = TypeVar("T")

MAX_RECORDS: Final = 10_000
"""Maximum records of a request, and partitions that it creates (as in Kafka)."""

MAX_BATCH_RECORDS: Final = 10_000
"""Maximum records per batch of a non-atomic result (as in Kafka)."""


@value_class
class ControllerResult(Generic[T]):
    """Records to commit, and the response afterwards.

    Records of a non-atomic result may be split anywhere: after a failover the new controller does
    the rest.
    """

    records: Sequence[Any]
    result: T
    atomic: bool = True

    def batches(self, max_records: int = MAX_BATCH_RECORDS) -> Iterator[Sequence[Any]]:
        """The records in the batches to append."""
        if self.atomic:
            max_records = max(len(self.records), 1)
        for start in range(0, len(self.records), max_records):
            yield self.records[start : start + max_records]


MutationCharge = Callable[[int], None]
"""Called with the partitions to create or delete, before the item is decided (KIP-599). Raises
ItemRefused if the quota is exceeded."""


def no_mutation_quota(partitions: int) -> None:
    """Charge of clients without a quota."""


class ItemRefused(KafkaError):
    """Error of one item of a request; the client gets its text."""


class TooManyRecords(KafkaError):
    """The request exceeds the records of one batch."""

    code = ErrorCode.policy_violation

    def __init__(self) -> None:
        super().__init__("Unable to perform excessively large batch operation.")


def check_size(records: Sequence[Any]) -> None:
    """Raise TooManyRecords above the limit."""
    if len(records) > MAX_RECORDS:
        raise TooManyRecords


ConfigValidator = Callable[[int, str, Mapping[str, str], Mapping[str, str]], None]
"""(resource type, name, new configs, current configs); raises KafkaError."""
