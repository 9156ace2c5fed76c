"""What consumers of the classic protocol say to each other through the coordinator, which reads along.

Subscriptions go into JoinGroup's metadata, assignments into SyncGroup's: a version (int16) and a
body that is not flexible. Members may be newer than we are: of a version that we do not know, what
the newest one that we know has is read, and what follows is passed over.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any, ClassVar, TypeVar, cast

from odradek.protocol.codec.reading import compile_reader
from odradek.protocol.codec.structure import record_structure
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.schemas import serde
from odradek.protocol.schemas.definition import NEVER, record, structs, wire
from odradek.seams.files import Buffer

S = TypeVar("S")
_INT16 = Struct(">h")


@record
class TopicPartitions:
    topic: str = wire("string")
    partitions: tuple[int, ...] = wire("[]int32")


@record
class ConsumerProtocolSubscription:
    """What a member wants, and what it owned in which generation."""

    __versions__: ClassVar[range] = range(4)
    __flexible_from__: ClassVar[int] = NEVER
    topics: tuple[str, ...] = wire("[]string")
    user_data: bytes | None = wire("bytes", None, nullable=True)
    owned_partitions: tuple[TopicPartitions, ...] = structs(TopicPartitions, since=1)
    generation_id: int = wire("int32", -1, since=2)
    rack_id: str | None = wire("string", None, since=3, nullable=True)


@record
class ConsumerProtocolAssignment:
    """What a member gets."""

    __versions__: ClassVar[range] = range(4)
    __flexible_from__: ClassVar[int] = NEVER
    assigned_partitions: tuple[TopicPartitions, ...] = structs(TopicPartitions)
    user_data: bytes | None = wire("bytes", None, nullable=True)


def read_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """Raises InvalidFrame for what is no subscription."""
    return _read(ConsumerProtocolSubscription, data)


def read_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """Raises InvalidFrame for what is no assignment; no bytes at all are an empty one."""
    if not len(data):
        return ConsumerProtocolAssignment()
    return _read(ConsumerProtocolAssignment, data)


def version_of(data: Buffer) -> int:
    """The version that a subscription or an assignment is written in. Raises InvalidFrame."""
    if len(data) < _INT16.size:
        raise InvalidFrame("no version")
    (version,) = _INT16.unpack_from(data)
    if version < 0:
        raise InvalidFrame(f"version {version}")
    return int(version)


def write(value: ConsumerProtocolSubscription | ConsumerProtocolAssignment, version: int) -> bytes:
    """In this version, or in the newest that we know if that is older."""
    version = min(version, value.__versions__[-1])
    return _INT16.pack(version) + serde.encode(value, version)


def _read(kind: type[S], data: Buffer) -> S:
    versions: range = kind.__versions__  # type: ignore[attr-defined]
    version = min(version_of(data), versions[-1])
    return cast(S, _reader(cast(Any, kind), version)(memoryview(data), _INT16.size))


@cache
def _reader(kind: type[Any], version: int) -> Any:
    return compile_reader(record_structure(kind, version), exact=False)
