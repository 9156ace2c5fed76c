"""Requests and responses: kio's schemas, read and written by our codec.

Schemas load on first use, one module per API, version and direction; what is compiled from them is
kept. Handlers answer with plain nested dicts in the field names of the newest version (plus old
names where old versions differ): each version takes from them what it has. Names that no version has
are found by tests (`check_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, cast

from odradek.protocol.apis import APIS
from odradek.protocol.codec.reading import MAX_ELEMENTS, compile_reader
from odradek.protocol.codec.structure import Structure, kio_structure
from odradek.protocol.codec.writing import Encoded as Encoded
from odradek.protocol.codec.writing import Repeated as Repeated
from odradek.protocol.codec.writing import compile_item_writer, compile_writer

REQUEST_ELEMENTS_MAX = 1 << 17
"""Of all arrays of a request: each of them may be 25 µs of its handler's and a kB of memory, while others
wait for the loop. As many as Produce and Fetch have partitions, and far from what anyone needs."""

_Read = Callable[[memoryview, int], Any]
_Write = Callable[[Any], bytes]
_readers: dict[tuple[int, int, str], _Read] = {}
_writers: dict[tuple[int, int, str], _Write] = {}
_item_writers: dict[tuple[int, int, tuple[str, ...]], Callable[[Any], bytes]] = {}
_names_are_checked = False


def check_names() -> None:
    """From now on writers raise KeyError for names that no version of a message has.

    For tests: it takes the schemas of other versions, and loading those of Metadata would be 20 ms of
    every start.
    """
    global _names_are_checked
    _names_are_checked = True


def read_request(api_key: int, version: int, view: memoryview, offset: int = 0) -> Any:
    """A request as kio's entity of that version; InvalidFrame for anything malformed.

    Bytes left over are passed over, as in Kafka: librdkafka sends some after Metadata requests.
    Unlike kio's, an entity's `records` are slices of `view`.
    """
    return _reader(api_key, version, "request")(view, offset)


def read_response(api_key: int, version: int, view: memoryview, offset: int = 0) -> Any:
    """A response as kio's entity of that version; InvalidFrame for anything malformed.

    An error code that we don't know reads as UNKNOWN_SERVER_ERROR; `records` are slices of `view`.
    """
    return _reader(api_key, version, "response")(view, offset)


def write_request(api_key: int, version: int, values: Mapping[str, Any] | Any) -> bytes:
    """The body of a request, from nested dicts or kio's entity."""
    return _writer(api_key, version, "request")(values)


def write_response(api_key: int, version: int, values: Mapping[str, Any] | Any) -> bytes:
    """The body of a response, from nested dicts or kio's entity."""
    return _writer(api_key, version, "response")(values)


def response_item_writer(api_key: int, version: int, *path: str) -> Callable[[Any], bytes]:
    """Writes an item of one of a response's arrays, which is then an `Encoded`."""
    write = _item_writers.get((api_key, version, path))
    if write is None:
        structure = _structure_of(load(api_key, version, "response"))
        write = _item_writers[api_key, version, path] = compile_item_writer(structure, path)
    return write


def field(entity: Any, name: str, default: Any = None) -> Any:
    """An attribute that older versions of a message lack."""
    return getattr(entity, name, default)


def load(api_key: int, version: int, direction: str) -> type[Any]:
    """kio's class of a message; `direction` is "request" or "response"."""
    name = APIS[api_key].name
    module = import_module(f"kio.schema.{name}.v{version}.{direction}")
    return cast(type[Any], getattr(module, APIS[api_key].title + direction.title()))


def warm(api_key: int, version: int) -> None:
    """Load and compile what one request of this version and its answer need."""
    _reader(api_key, version, "request")
    _writer(api_key, version, "response")


def _reader(api_key: int, version: int, direction: str) -> _Read:
    read = _readers.get((api_key, version, direction))
    if read is None:
        read = compile_reader(
            _structure_of(load(api_key, version, direction)),
            exact=False,
            elements_max=REQUEST_ELEMENTS_MAX if direction == "request" else MAX_ELEMENTS,
        )
        _readers[api_key, version, direction] = read
    return read


def _writer(api_key: int, version: int, direction: str) -> _Write:
    write = _writers.get((api_key, version, direction))
    if write is None:
        write = compile_writer(_structure_of(load(api_key, version, direction)))
        _writers[api_key, version, direction] = write
    return write


def _structure_of(entity_type: type[Any]) -> Structure:
    return kio_structure(entity_type, _unknown_names)


def _unknown_names(entity_type: type[Any], names: set[str]) -> set[str]:
    """Which of these names no version of a message (or of a struct within it) has as a field's; none,
    where names are not checked.

    Reads the other versions' modules, newest first, until none is left: a handler's names are the
    newest version's, so that one is nearly always enough.
    """
    if not _names_are_checked:
        return set()
    package, _, rest = entity_type.__module__.rpartition(".v")
    direction = rest.partition(".")[2]
    api = next(api for api in APIS.values() if api.name == package.rpartition(".")[2])
    for version in reversed(api.versions):
        module = import_module(f"{package}.v{version}.{direction}")
        same = getattr(module, entity_type.__name__, None)
        if same is not None:
            names = names - {field.name for field in fields(same)}
        if not names:
            break
    return names
