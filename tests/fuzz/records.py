"""Generator of records of internal topics: valid ones of every type and version, and mutations of them.

A seed determines all records. Names, ids and numbers come from small sets, so that records refer to each other, and
from extremes: names that are paths, of 10 kB, with NUL, numbers at the limits of their types.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from odradek.protocol.schemas import serde

NAMES = (
    "g",
    "g-1",
    "g-2",
    "g-3",
    "g-4",
    "t",
    "orders",
    "m-1",
    "range",
    "consumer",
    "",
    "../x",
    "a/b",
    "\0",
    ".",
    "é" * 9,
)
LONG_NAMES = ("a" * 249, "a" * 10_000)
UUIDS = tuple(UUID(int=number) for number in (0, 1, 2, 3, 2**128 - 1))
BYTES = (b"", b"\0\0", b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff", b"\xff" * 40)
BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
KeyAndValue = tuple[bytes | None, bytes | None]


class RecordGenerator:
    """Generates (key, value) pairs; `names` and `uuids` of the node under test are used, too."""

    def __init__(
        self, seed: int, names: Sequence[str] = (), uuids: Sequence[UUID] = (), share: float = 0.5
    ) -> None:
        """`share` is the part of the records that is mutated."""
        self.source = random.Random(seed)
        self._names = (*NAMES, *names, *names)
        self._uuids = (*UUIDS, *uuids, *uuids)
        self._share = share
        self._earlier: list[KeyAndValue] = []

    # Valid records

    def value_of(self, record_type: type[Any]) -> Any:
        """A record or struct with random fields."""
        return record_type(
            **{
                field.name: self._field(field.metadata)
                for field in dataclasses.fields(record_type)
                if self.source.random() < 0.9
            }
        )

    def _field(self, metadata: Mapping[str, Any]) -> Any:
        source, kind = self.source, metadata["kafka_type"]
        if metadata["nullable"] and source.random() < 0.2:
            return None
        if kind == "struct":
            return self.value_of(metadata["of"])
        if kind == "[]struct":
            return tuple(self.value_of(metadata["of"]) for _ in range(source.randrange(4)))
        if kind.startswith("[]"):
            return tuple(self._primitive(kind[2:]) for _ in range(source.randrange(4)))
        return self._primitive(kind)

    def _primitive(self, kind: str) -> Any:
        source = self.source
        if kind in BITS:
            low = 0 if kind.startswith("u") else -(1 << (BITS[kind] - 1))
            high = (1 << BITS[kind]) - 1 + low
            few = (0, 0, 1, 1, 2, 3, 5, 7, 100)
            return source.choice((*few, *few, max(low, -1), low, high, source.randint(low, high)))
        if kind == "string":
            return (
                source.choice(LONG_NAMES) if source.random() < 0.01 else source.choice(self._names)
            )
        if kind == "bytes":
            return source.choice((*BYTES, source.randbytes(source.randrange(60))))
        if kind == "uuid":
            return source.choice(self._uuids)
        if kind == "bool":
            return source.random() < 0.5
        assert kind == "float64", kind
        return source.choice((0.0, -1.0, 1e308, float("inf"), float("nan"), 1000.0))

    def framed(self, types: Sequence[type[Any]]) -> KeyAndValue:
        """A record of a metadata topic: no key, and a framed value."""
        record_type = self.source.choice(types)
        version = self.source.choice(record_type.__versions__)
        value = self.value_of(record_type)
        if record_type.__name__ == "RemoteLogSegmentMetadataRecord":
            write = serde.encode_remote_log_record
        else:
            write = serde.encode_metadata_record
        return None, _encoded(lambda: write(value, version))

    def keyed(self, types: Sequence[type[Any]]) -> KeyAndValue:
        """A record of a coordinator's topic; one in six is a tombstone."""
        number = self.source.randrange(len(types) // 2) * 2
        key_type, value_type = types[number : number + 2]
        key = _encoded(lambda: serde.encode_coordinator_key(self.value_of(key_type)))
        if self.source.random() < 1 / 6:
            return key, None
        version = self.source.choice(value_type.__versions__)
        value = self.value_of(value_type)
        return key, _encoded(lambda: serde.encode_coordinator_value(value, version))

    # Mutations

    def records(self, family: str) -> Iterator[KeyAndValue]:
        """Records of a kind of `serde.all_record_types`; there is no last one."""
        types = serde.all_record_types()[family]
        make = self.keyed if family in ("group", "transaction") else self.framed
        while True:
            chosen = self.source.random()
            if self._earlier and chosen < 0.05:  # a duplicate, or out of order
                key, value = self.source.choice(self._earlier)
            else:
                key, value = make(types)
            if chosen > 1 - self._share:
                key, value = self._mutated(key, value)
            self._earlier = [*self._earlier[-200:], (key, value)]
            yield key, value

    def _mutated(self, key: bytes | None, value: bytes | None) -> KeyAndValue:
        source = self.source
        match source.randrange(7):
            case 0 if key:
                return self._changed(key), value
            case 1 if self._earlier:  # the value of another key
                return key, source.choice(self._earlier)[1]
            case 2:
                return key, None
            case 3:
                return key, source.randbytes(source.randrange(80))
            case 4 if key:
                return source.randbytes(source.randrange(40)), value
        return key, None if value is None else self._changed(value)

    def _changed(self, data: bytes) -> bytes:
        source, changed = self.source, bytearray(data)
        for _ in range(source.randrange(1, 5)):
            if not changed:
                break
            at = source.randrange(len(changed))
            match source.randrange(6):
                case 0:
                    del changed[at:]
                case 1:
                    changed[at] ^= 1 << source.randrange(8)
                case 2:
                    changed[at : at + 4] = source.choice(
                        (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 4)
                    )
                case 3:
                    changed[:2] = source.randbytes(2)  # type or version
                case 4:
                    changed[at:at] = source.randbytes(source.randrange(9))
                case _:
                    changed[at] = source.randrange(256)
        return bytes(changed)


def _encoded(encode: Any) -> bytes:
    """The bytes, or nothing for a record that its version cannot express, such as a null field."""
    try:
        return bytes(encode())
    except (serde.StringTooLong, TypeError, ValueError, AttributeError, OverflowError):
        return b""
