"""Requests and responses: kio's schemas, read and written by our codec.

Schemas load on first use, one module per API, version and direction; what is compiled from them is
kept. Handlers answer with plain nested dicts in the field names of the newest version (plus old
names where old versions differ): each version takes from them what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

E = TypeVar("E")


def read_request(api_key: int, version: int, view: memoryview, offset: int = 0) -> Any:
    """A request as kio's entity of that version; InvalidFrame for anything malformed or left over."""
    raise NotImplementedError


def read_response(api_key: int, version: int, view: memoryview, offset: int = 0) -> Any:
    """A response as kio's entity of that version; InvalidFrame for anything malformed or left over."""
    raise NotImplementedError


def write_request(api_key: int, version: int, values: Mapping[str, Any] | Any) -> bytes:
    """The body of a request, from nested dicts or kio's entity."""
    raise NotImplementedError


def write_response(api_key: int, version: int, values: Mapping[str, Any] | Any) -> bytes:
    """The body of a response, from nested dicts or kio's entity."""
    raise NotImplementedError


def field(entity: Any, name: str, default: Any = None) -> Any:
    """An attribute that older versions of a message lack."""
    return getattr(entity, name, default)


def build(entity_type: type[E], values: Mapping[str, Any]) -> E:
    """kio's entity from nested dicts.

    Missing keys take the schema's defaults. Keys that this version lacks are dropped if any version
    of the message has them; a key that none has is a bug of the caller's (KeyError). Durations are
    ints in ms or timedeltas, error codes ints or ErrorCodes, the zero UUID is None or UUID(int=0).
    """
    raise NotImplementedError
