"""Values in Protobuf as typed columns: protoc compiles what the registry has, ptars makes columns of the bytes.

A schema is a file that may have several messages, and a value says which of them it is. Those of the messages
at the top that are in use become columns side by side, put together by name as those of several schemas are.

Fields without presence are what proto3 says of them: zero, empty or false, never null. An enum is its name.
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

from odradek.pipeline.schemas.columns import BadSchema, fitted, in_parts, relaxed, united
from odradek.pipeline.schemas.registry import Schema
from odradek.pipeline.schemas.wire import by_message

COMPILE_SECONDS = 60.0


class ProtobufDecoder:
    """Of the values of one schema. `messages`: names of those to make columns for; without them it is the
    first. It goes to the tasks as what protoc made of the file."""

    def __init__(self, schema: Schema, messages: tuple[str, ...] = ()) -> None:
        self._id = schema.id
        self._file_name = _file_name(schema)
        self._compiled = _compiled(schema, self._file_name)
        tops = list(self._file.message_types_by_name)
        if not tops:
            raise BadSchema(f"{schema.name} has no message")
        wanted = messages or (tops[0],)
        self._paths = {}
        for path, descriptor in _paths(self._file):
            if descriptor.full_name in wanted or descriptor.name in wanted:
                self._paths[path] = descriptor.full_name
        if not self._paths:
            raise BadSchema(
                f"{schema.name} has no message {', '.join(wanted)}, but {', '.join(tops)}"
            )
        self.kind = united([relaxed(self._kind(path)) for path in self._paths])

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Columns, as a struct; and by number those that are no such values, which are null, with why."""
        wrong: dict[int, str] = {}
        parts, places = [pa.nulls(0, self.kind)], [np.zeros(0, np.int64)]
        for path, numbers, messages in by_message(payloads):
            if path in self._paths:
                part, said = in_parts(messages, partial(self._columns, path), self.kind)
                wrong.update({int(numbers[at]): text for at, text in said.items()})
            else:
                part = pa.nulls(len(numbers), self.kind)
                wrong.update(dict.fromkeys(numbers.tolist(), self._stranger(path)))
            parts.append(part)
            places.append(numbers)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order)), wrong

    def _stranger(self, path: tuple[int, ...] | None) -> str:
        if path is None:
            return "no path of numbers leads to its message"
        known = dict(_paths(self._file))
        if path not in known:
            return f"the schema has no message at {list(path)}"
        return f"it is a {known[path].full_name}, and no columns are made for these"

    def _columns(self, path: tuple[int, ...], messages: pa.Array) -> pa.Array:
        batch = self._handlers[path].array_to_record_batch(messages)
        return fitted(batch.to_struct_array(), self.kind)

    def _kind(self, path: tuple[int, ...]) -> pa.DataType:
        return pa.struct(list(self._handlers[path].schema()))

    # What can't be pickled

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
    """All messages of a file, nested ones too, by where they are in it. Those that protoc makes of maps do
    not count: they are not in the file."""
    found = []

    def walk(messages: Any, path: tuple[int, ...]) -> None:
        for number, each in enumerate(m for m in messages if not m.GetOptions().map_entry):
            found.append(((*path, number), each))
            walk(each.nested_types, (*path, number))

    walk(file.message_types_by_name.values(), ())
    return found


def _file_name(schema: Schema) -> str:
    """For its own text: one that no file has which it imports."""
    name, taken = "schema.proto", dict(schema.references)
    while name in taken:
        name = f"_{name}"
    return name


def _compiled(schema: Schema, file_name: str) -> bytes:
    """By protoc, in a process of its own: it says on stderr what it does not like. A FileDescriptorSet."""
    with TemporaryDirectory(prefix="odradek-proto-") as name:
        directory = Path(name).resolve()
        for path, text in [*schema.references, (file_name, schema.text)]:
            try:
                place = (directory / path).resolve()
                place.relative_to(directory)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
            except (OSError, ValueError):
                text = f"{schema.name} imports {path!r}, which is no name of a schema"
                raise BadSchema(text) from None
        made = directory / "made.binpb"
        try:
            done = subprocess.run(
                [sys.executable, "-m", "grpc_tools.protoc", f"-I{directory}", "--include_imports",
                 f"--descriptor_set_out={made}", file_name],
                capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BadSchema(f"{schema.name}: protoc takes over {COMPILE_SECONDS:g} s") from None
        if "No module named" in done.stderr:
            raise ModuleNotFoundError("grpc_tools", name="grpc_tools")
        if done.returncode != 0:
            said = [
                line
                for line in done.stderr.splitlines()
                if ".proto:" in line and "WARNING" not in line and "parser.cc" not in line
            ]
            text = "; ".join(said or [done.stderr]).replace(f"{directory}/", "")
            raise BadSchema(f"{schema.name}: {text}")
        return made.read_bytes()
