"""A principal on its way from a broker to the controller, inside an Envelope (KIP-590).

Kafka's DefaultPrincipalData behind its version (int16), as its default principal builder writes it.
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
    """`principal` is Type:name, as in User:alice."""
    kind, _, name = principal.partition(":")
    values = {"type_": kind, "name": name, "token_authenticated": False}
    return _VERSION.pack(VERSION) + compile_writer(_structure())(values)


def decode_principal(data: Buffer) -> str:
    """Type:name. Raises InvalidFrame for what is no principal."""
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
