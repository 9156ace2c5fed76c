"""Subscriptions and assignments of consumers in classic groups, which the group coordinator also reads.

A subscription is the metadata in JoinGroup, and an assignment is in SyncGroup: a version (int16), then a body that is
not flexible. A client may use a newer version than Odradek knows. Then the body is read in the newest known
version, and the bytes after it are ignored.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any, ClassVar, TypeVar, cast

from odradek.protocol.codec.reading import compile_reader
from odradek.protocol.codec.structure import record_structure
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.schemas import serde
from odradek.protocol.schemas.definition import NEVER, StoredRecord, record, structs, wire
from odradek.seams.files import Buffer

S = TypeVar("S", bound=StoredRecord)
_INT16 = Struct(">h")


@record
class TopicPartitions:
    topic: str = wire("string")
    partitions: tuple[int, ...] = wire("[]int32")


@record
class ConsumerProtocolSubscription(StoredRecord):
    """Subscription of a member: its topics, and its owned partitions with their generation."""

    __versions__: ClassVar[range] = range(4)
    __flexible_from__: ClassVar[int] = NEVER
    topics: tuple[str, ...] = wire("[]string")
    user_data: bytes | None = wire("bytes", None, nullable=True)
    owned_partitions: tuple[TopicPartitions, ...] = structs(TopicPartitions, since=1)
    generation_id: int = wire("int32", -1, since=2)
    rack_id: str | None = wire("string", None, since=3, nullable=True)


@record
class ConsumerProtocolAssignment(StoredRecord):
    """Assignment of partitions to a member."""

    __versions__: ClassVar[range] = range(4)
    __flexible_from__: ClassVar[int] = NEVER
    assigned_partitions: tuple[TopicPartitions, ...] = structs(TopicPartitions)
    user_data: bytes | None = wire("bytes", None, nullable=True)


def read_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """Read a subscription. Raises InvalidFrame if it is malformed."""
    return _read(ConsumerProtocolSubscription, data)


def read_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """Read an assignment, which is empty for no bytes. Raises InvalidFrame if it is malformed."""
    if not len(data):
        return ConsumerProtocolAssignment()
    return _read(ConsumerProtocolAssignment, data)


def version_of(data: Buffer) -> int:
    """Read the version of a subscription or an assignment. Raises InvalidFrame if it is malformed."""
    if len(data) < _INT16.size:
        raise InvalidFrame("no version")
    (version,) = _INT16.unpack_from(data)
    if version < 0:
        raise InvalidFrame(f"version {version}")
    return int(version)


def write(value: ConsumerProtocolSubscription | ConsumerProtocolAssignment, version: int) -> bytes:
    """Encode a value in this version, or in the newest known version if that is older."""
    version = min(version, value.__versions__[-1])
    return _INT16.pack(version) + serde.encode(value, version)


def _read(kind: type[S], data: Buffer) -> S:
    version = min(version_of(data), kind.__versions__[-1])
    return cast(S, _reader(cast(Any, kind), version)(memoryview(data), _INT16.size))


@cache
def _reader(kind: type[Any], version: int) -> Any:
    return compile_reader(record_structure(kind, version), exact=False)
