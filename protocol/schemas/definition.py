"""Definition of the schemas of stored records.

A record is a dataclass (`@record`) whose fields have their wire type and versions as metadata, with kio's keys where kio
has them (`kafka_type`, `tag`). Unlike in kio, one class represents all versions; the codec is compiled per class and
version. Every field has Kafka's default.

A record extends StoredRecord, and the key of a coordinator record extends RecordKey. Records and structs with the same
first fields extend a common class. A struct in a record has the versions of the record.
"""

from __future__ import annotations

from dataclasses import MISSING, field
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform
from uuid import UUID

from odradek.seams.values import bare_dataclass, compared_by_fields

NEVER: Final = 1 << 15
ZERO_UUID: Final = UUID(int=0)
T = TypeVar("T")


class StoredRecord:
    """Base of all records: version 0, which is flexible, unless a record specifies other versions."""

    __slots__ = ()
    __api_key__: ClassVar[int]
    """API key of a metadata record, or type of a coordinator record. Control records have none."""
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    """First flexible version; NEVER if there is none."""


class RecordKey(StoredRecord):
    """Base of the keys of coordinator records, which are not flexible."""

    __slots__ = ()
    __flexible_from__: ClassVar[int] = NEVER


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class of records or structs: a dataclass with slots, keyword arguments and value semantics.

    It costs as little at start as `value_class`.
    """
    return compared_by_fields(bare_dataclass(cls, kw_only=True))


def wire(
    kafka_type: str,
    default: Any = MISSING,
    *,
    since: int = 0,
    until: int = NEVER,
    tag: int | None = None,
    nullable: bool = False,
) -> Any:
    """A field of a primitive type (`int32`, `string`, `uuid`, …) or of an array of one (`[]int32`).

    It exists from version `since` to `until`, both inclusive. With a `tag` it is a tagged field, which is
    written only if it differs from its default.
    """
    if default is MISSING:
        default = () if kafka_type.startswith("[]") else _ZERO[kafka_type]
    return field(default=default, metadata=_metadata(kafka_type, since, until, tag, nullable))


def struct(
    of: type[Any],
    default: Any = MISSING,
    *,
    since: int = 0,
    tag: int | None = None,
    nullable: bool = False,
) -> Any:
    """A field of a struct type. Its default is a struct of defaults, as in Kafka."""
    metadata = _metadata("struct", since, NEVER, tag, nullable, of)
    return field(default=of() if default is MISSING else default, metadata=metadata)


def structs(
    of: type[Any],
    default: Any = (),
    *,
    since: int = 0,
    tag: int | None = None,
    nullable: bool = False,
) -> Any:
    """A field that is an array of structs."""
    return field(default=default, metadata=_metadata("[]struct", since, NEVER, tag, nullable, of))


_ZERO: dict[str, Any] = {
    "int8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "uint32": 0,
    "int64": 0,
    "float64": 0.0,
    "bool": False,
    "string": "",
    "bytes": b"",
    "uuid": ZERO_UUID,
}


def _metadata(
    kafka_type: str,
    since: int,
    until: int,
    tag: int | None,
    nullable: bool,
    of: type[Any] | None = None,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "kafka_type": kafka_type,
        "since": since,
        "until": until,
        "nullable": nullable,
        "of": of,
    }
    if tag is not None:
        metadata["tag"] = tag
    return metadata
