"""What every operation has in common: it decides on an image and answers with records.

SKELETON of signatures, being filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from odradek.protocol.errors import ErrorCode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """What an operation decided: the records to commit, and the answer once they are."""

    records: Sequence[Any]
    result: T


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why one item of a request was refused; `code.none` with message None is success."""

    code: ErrorCode = ErrorCode.none
    message: str | None = None


ConfigValidator = Callable[[int, str, Mapping[str, str], Mapping[str, str]], None]
"""(resource type, resource name, all configs it would have, those it has now): raises KafkaError."""
