"""Decodes Protobuf values to typed columns: protoc compiles the schema, ptars decodes the values.

A schema is a file with one or more messages, and each value names its message. The columns of the top-level
messages in use are merged by name, like those of several schemas.

Fields without presence have proto3's defaults: zero, empty or false, never null. An enum is its name.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from odradek.pipeline.schemas.column_types import (
    BadSchema,
    cast_to_type,
    decode_in_parts,
    merged_type,
    nullable_type,
)
from odradek.pipeline.schemas.registry import Schema
from odradek.pipeline.schemas.wire_format import by_message

COMPILE_SECONDS = 60.0


class ProtobufDecoder:
    """Decodes the values of one schema. `messages` are the names of the messages with columns; by default the first
    one. It is pickled with protoc's output.
    """

    def __init__(self, schema: Schema, messages: tuple[str, ...] = ()) -> None:
        self._id = schema.id
        self._file_name = _file_name(schema)
        self._compiled = _compiled(schema, self._file_name)
        tops = list(self._file.message_types_by_name)
        if not tops:
            raise BadSchema(f"{schema.name} has no message type")
        wanted = messages or (tops[0],)
        self._paths = {}
        for path, descriptor in _paths(self._file):
            if descriptor.full_name in wanted or descriptor.name in wanted:
                self._paths[path] = descriptor.full_name
        if not self._paths:
            raise BadSchema(
                f"{schema.name} has no message type {', '.join(wanted)}, but {', '.join(tops)}"
            )
        self.kind = merged_type([nullable_type(self._kind(path)) for path in self._paths])

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the columns, as a struct, and the errors of invalid values by index; these are null."""
        wrong: dict[int, str] = {}
        parts, places = [pa.nulls(0, self.kind)], [np.zeros(0, np.int64)]
        for path, numbers, messages in by_message(payloads):
            if path in self._paths:
                part, errors = decode_in_parts(messages, partial(self._columns, path), self.kind)
                wrong.update({int(numbers[at]): text for at, text in errors.items()})
            else:
                part = pa.nulls(len(numbers), self.kind)
                wrong.update(dict.fromkeys(numbers.tolist(), self._unknown_message_error(path)))
            parts.append(part)
            places.append(numbers)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order)), wrong

    def _unknown_message_error(self, path: tuple[int, ...] | None) -> str:
        if path is None:
            return "its message indexes are invalid"
        known = dict(_paths(self._file))
        if path not in known:
            return f"the schema has no message type at {list(path)}"
        return f"it is a {known[path].full_name}, which is not one of the message types to read"

    def _columns(self, path: tuple[int, ...], messages: pa.Array) -> pa.Array:
        batch = self._handlers[path].array_to_record_batch(messages)
        return cast_to_type(batch.to_struct_array(), self.kind)

    def _kind(self, path: tuple[int, ...]) -> pa.DataType:
        return pa.struct(list(self._handlers[path].schema()))

    # Not pickled

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in self.__dict__.items() if name not in ("_file", "_handlers")}

    @cached_property
    def _file(self) -> Any:
        from google.protobuf import descriptor_pb2, descriptor_pool

        pool = descriptor_pool.DescriptorPool()
        for each in descriptor_pb2.FileDescriptorSet.FromString(self._compiled).file:
            pool.Add(each)
        return pool.FindFileByName(self._file_name)

    @cached_property
    def _handlers(self) -> dict[tuple[int, ...], Any]:
        from ptars import HandlerPool, PtarsConfig

        config = PtarsConfig(
            timestamp_unit="us", time_unit="us", duration_unit="us", enum_repr="string"
        )
        pool = HandlerPool([self._file], config=config)
        found = dict(_paths(self._file))
        return {path: pool.get_for_message(found[path]) for path in self._paths}


def _paths(file: Any) -> list[tuple[tuple[int, ...], Any]]:
    """Return all messages of a file, including nested ones, with their index paths. Messages that protoc generates
    for maps do not count.
    """
    found = []

    def walk(messages: Any, path: tuple[int, ...]) -> None:
        for number, each in enumerate(m for m in messages if not m.GetOptions().map_entry):
            found.append(((*path, number), each))
            walk(each.nested_types, (*path, number))

    walk(file.message_types_by_name.values(), ())
    return found


def _file_name(schema: Schema) -> str:
    """Return a file name for the schema's text that none of its imports has."""
    name, taken = "schema.proto", dict(schema.references)
    while name in taken:
        name = f"_{name}"
    return name


def _compiled(schema: Schema, file_name: str) -> bytes:
    """Compile a schema to a FileDescriptorSet with protoc, in a subprocess, because protoc writes its errors to
    stderr.
    """
    with TemporaryDirectory(prefix="odradek-proto-") as name:
        directory = Path(name).resolve()
        for path, text in [*schema.references, (file_name, schema.text)]:
            try:
                place = (directory / path).resolve()
                place.relative_to(directory)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
            except (OSError, ValueError):
                text = f"{schema.name} imports {path!r}, which is not a valid schema name"
                raise BadSchema(text) from None
        made = directory / "made.binpb"
        try:
            done = subprocess.run(
                [sys.executable, "-m", "grpc_tools.protoc", f"-I{directory}", "--include_imports",
                 f"--descriptor_set_out={made}", file_name],
                capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BadSchema(
                f"{schema.name}: protoc did not finish within {COMPILE_SECONDS:g} s"
            ) from None
        if "No module named" in done.stderr:
            raise ModuleNotFoundError("grpc_tools", name="grpc_tools")
        if done.returncode != 0:
            errors = [
                line
                for line in done.stderr.splitlines()
                if ".proto:" in line and "WARNING" not in line and "parser.cc" not in line
            ]
            text = "; ".join(errors or [done.stderr]).replace(f"{directory}/", "")
            raise BadSchema(f"{schema.name}: {text}")
        return made.read_bytes()
