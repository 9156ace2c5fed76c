"""Reads and writes requests and responses with kio's schemas and Odradek's codec.

A schema is loaded when it is first used, one module per API, version and direction, and the reader or writer that is
compiled from it is kept. Handlers return nested dicts with the field names of the newest version, and with the names
of old versions where they differ. The writer of a version uses the fields that the version has. `check_names` lets
tests find names that no version has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, cast

from odradek.protocol.apis import APIS, DISKLESS_APIS, PRIVATE_APIS
from odradek.protocol.codec.reading import MAX_ELEMENTS, compile_reader, compile_steps_reader
from odradek.protocol.codec.structure import (
    FieldPlan,
    Structure,
    kio_structure,
    record_structure,
    with_tagged_field,
)
from odradek.protocol.codec.writing import Encoded as Encoded
from odradek.protocol.codec.writing import Repeated as Repeated
from odradek.protocol.codec.writing import compile_item_writer, compile_steps_writer, compile_writer
from odradek.protocol.schemas.definition import StoredRecord

REQUEST_ELEMENTS_MAX = 1 << 17
"""Limit of the elements in all arrays of a request, equal to the limit of partitions in Produce and Fetch.

An element may cost its handler 25 µs on the loop and 1 kB of memory.
"""

RACK_OF_CLIENT = FieldPlan("rack", "string", None, nullable=True, tag=21_640)
"""Private tagged field of a Metadata request (`preferred_brokers.py`)."""
_METADATA = 3

_Read = Callable[[memoryview, int], Any]
_Write = Callable[[Any], bytes]
_readers: dict[tuple[int, int, str], _Read] = {}
_writers: dict[tuple[int, int, str], _Write] = {}
_steps_readers: dict[tuple[int, int], Callable[[memoryview, int], Generator[None, None, Any]]] = {}
_steps_writers: dict[tuple[int, int], Callable[[Any], Generator[None, None, bytes] | None]] = {}
_item_writers: dict[tuple[int, int, tuple[str, ...]], Callable[[Any], bytes]] = {}
_names_are_checked = False


def check_names() -> None:
    """Make writers raise KeyError for names that no version of a message has.

    Only tests use it, because it loads the schemas of all versions (20 ms for those of Metadata).
    """
    global _names_are_checked
    _names_are_checked = True


def read_request(api_key: int, version: int, view: memoryview, offset: int = 0) -> Any:
    """Read a request as kio's entity of that version. Raises InvalidFrame if it is malformed.

    Bytes after the request are ignored, as in Kafka: librdkafka sends some after Metadata requests. The `records`
    of an entity are slices of `view`, which differs from kio.
    """
    return _reader(api_key, version, "request")(view, offset)


def read_request_in_steps(
    api_key: int, version: int, view: memoryview, offset: int = 0
) -> Generator[None, None, Any]:
    """Read a long request as `read_request` does, in a generator that yields after every few array elements."""
    read = _steps_readers.get((api_key, version))
    if read is None:
        read = compile_steps_reader(
            _request_structure(api_key, version), elements_max=REQUEST_ELEMENTS_MAX
        )
        _steps_readers[api_key, version] = read
    return read(view, offset)


def read_response(api_key: int, version: int, view: memoryview, offset: int = 0) -> Any:
    """Read a response as kio's entity of that version. Raises InvalidFrame if it is malformed.

    An unknown error code is read as UNKNOWN_SERVER_ERROR. `records` are slices of `view`.
    """
    return _reader(api_key, version, "response")(view, offset)


def write_request(api_key: int, version: int, values: Mapping[str, Any] | Any) -> bytes:
    """Write the body of a request from nested dicts or from kio's entity."""
    return _writer(api_key, version, "request")(values)


def write_response(api_key: int, version: int, values: Mapping[str, Any] | Any) -> bytes:
    """Write the body of a response from nested dicts or from kio's entity."""
    return _writer(api_key, version, "response")(values)


def write_response_in_steps(
    api_key: int, version: int, values: Any
) -> Generator[None, None, bytes] | None:
    """A generator that writes a long response and yields after every few items; None for a short response."""
    write = _steps_writers.get((api_key, version))
    if write is None:
        structure = _structure_of(load(api_key, version, "response"))
        write = _steps_writers[api_key, version] = compile_steps_writer(structure)
    return write(values)


def response_item_writer(api_key: int, version: int, *path: str) -> Callable[[Any], bytes]:
    """Returns a function that encodes one item of an array of a response; the array is then an `Encoded`."""
    write = _item_writers.get((api_key, version, path))
    if write is None:
        structure = _structure_of(load(api_key, version, "response"))
        write = _item_writers[api_key, version, path] = compile_item_writer(structure, path)
    return write


def field(entity: Any, name: str, default: Any = None) -> Any:
    """Value of a field, or `default` if the version of the entity lacks the field."""
    return getattr(entity, name, default)


def load(api_key: int, version: int, direction: str) -> type[Any]:
    """Import the class of a message: kio's, or that of a private API. `direction` is "request" or "response"."""
    if (private := PRIVATE_APIS.get(api_key)) is not None:
        schemas = "diskless_apis" if api_key in DISKLESS_APIS else "private_apis"
        module = import_module(f"odradek.protocol.schemas.{schemas}")
        return cast(type[Any], getattr(module, private.title + direction.title()))
    name = APIS[api_key].name
    module = import_module(f"kio.schema.{name}.v{version}.{direction}")
    return cast(type[Any], getattr(module, APIS[api_key].title + direction.title()))


def warm(api_key: int, version: int) -> None:
    """Load and compile the reader of the request and the writer of the response of this version."""
    _reader(api_key, version, "request")
    _writer(api_key, version, "response")


def _reader(api_key: int, version: int, direction: str) -> _Read:
    read = _readers.get((api_key, version, direction))
    if read is None:
        read = compile_reader(
            _request_structure(api_key, version)
            if direction == "request"
            else structure_of(api_key, version, direction),
            exact=False,
            elements_max=REQUEST_ELEMENTS_MAX if direction == "request" else MAX_ELEMENTS,
        )
        _readers[api_key, version, direction] = read
    return read


def _writer(api_key: int, version: int, direction: str) -> _Write:
    write = _writers.get((api_key, version, direction))
    if write is None:
        write = compile_writer(structure_of(api_key, version, direction))
        _writers[api_key, version, direction] = write
    return write


def structure_of(api_key: int, version: int, direction: str) -> Structure:
    """The structure of a message of Apache Kafka. `direction` is "request" or "response"."""
    return _structure_of(load(api_key, version, direction))


def _request_structure(api_key: int, version: int) -> Structure:
    """The structure of a request that is read, with private tagged fields."""
    structure = structure_of(api_key, version, "request")
    if api_key == _METADATA and structure.flexible:
        return with_tagged_field(structure, RACK_OF_CLIENT)
    return structure


def _structure_of(entity_type: type[Any]) -> Structure:
    if issubclass(entity_type, StoredRecord):
        return record_structure(entity_type, version=0)
    return kio_structure(entity_type, _unknown_names)


def _unknown_names(entity_type: type[Any], names: set[str]) -> set[str]:
    """The names that are not a field in any version of a message or of a struct within it.

    Returns none if `check_names` was not called. Loads the modules of other versions, newest first, until every name
    is found. Handlers use the names of the newest version, so one module is nearly always enough.
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
