"""Encoding of the principal in an Envelope request from a broker to the active controller (KIP-590).

The format is that of Kafka's default principal builder: a version (int16), then DefaultPrincipalData.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any

from odradek.protocol.codec.reading import compile_reader
from odradek.protocol.codec.structure import Structure, kio_structure
from odradek.protocol.codec.writing import compile_writer
from odradek.protocol.errors import InvalidFrame
from odradek.seams.files import Buffer

VERSION = 0
_VERSION = Struct(">h")


def encode_principal(principal: str) -> bytes:
    """Encode a principal of the form Type:name, such as User:alice."""
    kind, _, name = principal.partition(":")
    values = {"type_": kind, "name": name, "token_authenticated": False}
    return _VERSION.pack(VERSION) + compile_writer(_structure())(values)


def decode_principal(data: Buffer) -> str:
    """Decode a principal to Type:name. Raises InvalidFrame if it is malformed."""
    if len(data) < _VERSION.size:
        raise InvalidFrame(f"a principal of {len(data)} bytes")
    (version,) = _VERSION.unpack_from(data)
    if version != VERSION:
        raise InvalidFrame(f"a principal of version {version}")
    found = compile_reader(_structure(), exact=True)(memoryview(data), _VERSION.size)
    return f"{found.type_}:{found.name}"


@cache
def _structure() -> Structure:
    from kio.schema.default_principal_data.v0.data import DefaultPrincipalData

    def unknown(_: type[Any], names: set[str]) -> set[str]:
        return names

    return kio_structure(DefaultPrincipalData, unknown)
