"""What every operation has in common: it decides on an image and answers with records.

An operation is a function without I/O: the image and a request's values in, a `ControllerResult` out. Its
records are committed as one batch, all or none; the result goes to who asked once they are. What a
broker's coming and going does to all its partitions may be more than fits a batch: such a plan says
that it is not atomic, and is one whose every beginning is a state to go on from. What is wrong with one
item of a request is that item's answer, what is wrong with a whole request is a `KafkaError` raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.values import value_class

T = TypeVar("T")

MAX_RECORDS: Final = 10_000
"""Records that one request may cause, and partitions it may create (Kafka's limits)."""

MAX_BATCH_RECORDS: Final = 10_000
"""Records in a batch of a plan that may be committed in several (Kafka's limit)."""


@value_class
class ControllerResult(Generic[T]):
    """What an operation decided: the records to commit, and the answer once they are.

    `atomic` is for plans that must be one batch. The records of another are in an order in which they
    may be cut anywhere: should the controller fail after some of them, the next one does the rest.
    """

    records: Sequence[Any]
    result: T
    atomic: bool = True

    def batches(self, max_records: int = MAX_BATCH_RECORDS) -> Iterator[Sequence[Any]]:
        """The records as they are to be appended; nothing if there are none."""
        if self.atomic:
            max_records = max(len(self.records), 1)
        for start in range(0, len(self.records), max_records):
            yield self.records[start : start + max_records]


MutationCharge = Callable[[int], None]
"""Told, before an item is done, how many partitions it makes or deletes (KIP-599). Raises ItemRefused for
one that whoever asks may not have now."""


def no_mutation_quota(partitions: int) -> None:
    """Of whoever has no quota."""


class ItemRefused(KafkaError):
    """Why one item of a request is not done; its text is what the client is told."""


class TooManyRecords(KafkaError):
    """The request would change more than one batch may hold."""

    code = ErrorCode.policy_violation

    def __init__(self) -> None:
        super().__init__("Unable to perform excessively large batch operation.")


def check_size(records: Sequence[Any]) -> None:
    """Raises TooManyRecords."""
    if len(records) > MAX_RECORDS:
        raise TooManyRecords


ConfigValidator = Callable[[int, str, Mapping[str, str], Mapping[str, str]], None]
"""(resource type, resource name, all configs it would have, those it has now): raises KafkaError."""
