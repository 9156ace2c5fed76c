"""Decodes values with different schemas to common columns, each value by its schema id.

Each value that cannot be decoded has an error. A null value is null without an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from odradek.pipeline.schemas.column_types import BadSchema, cast_to_type, levels, merged_type
from odradek.pipeline.schemas.registry import AVRO, JSON, PROTOBUF, Schema
from odradek.pipeline.schemas.wire_format import PREFIX_BYTES, schema_ids, without_first

LEVELS_MAX = 60
"""Maximum nesting of columns: Arrow passes at most 63 levels to Spark, and the struct of the columns is one."""


class SchemaDecoder(Protocol):
    """Decoder for the values of one schema; it can be pickled."""

    @property
    def kind(self) -> pa.DataType:
        """The columns, as a struct type."""
        ...

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Decode the bytes after the schema ids; return the columns and the errors by index."""
        ...


class ValueDecoder:
    """Decodes values in the wire format. `reader` is a schema id: all values have its columns, and it is Avro's
    reader schema; without it the columns of all schemas are merged. `messages` are the Protobuf messages to
    decode. Raises BadSchema if the schemas are incompatible.
    """

    def __init__(
        self,
        schemas: Sequence[Schema],
        *,
        reader: int | None = None,
        messages: tuple[str, ...] = (),
    ) -> None:
        by_id = {each.id: each for each in schemas}
        if reader is not None and reader not in by_id:
            raise BadSchema(
                f"reader schema {reader} is not one of the schemas to read: {_listed(by_id)}"
            )
        chosen = None if reader is None else by_id[reader]
        self._decoders = {each.id: _decoder_of(each, chosen, messages) for each in by_id.values()}
        if not self._decoders:
            raise BadSchema(
                "there is no schema to decode values with: give subjects of the registry, or ids"
            )
        for schema in by_id.values() if chosen is None else (chosen,):
            if levels(self._decoders[schema.id].kind) > LEVELS_MAX:
                raise _too_deep(schema)
        self.kind: pa.StructType = self._united(self._decoders if reader is None else (reader,))
        if reader is not None:
            for each in self._decoders:
                self._united((reader, each))

    def _united(self, ids: Collection[int]) -> pa.StructType:
        """Return the merged columns of these schemas. Raises BadSchema, with their ids."""
        try:
            return merged_type([self._decoders[id].kind for id in ids])
        except BadSchema as error:
            raise BadSchema(f"schemas {_listed(ids)}: {error}") from None

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the columns, as a struct, and an error for each value; one of them is null, and both are for null
        values.
        """
        ids = schema_ids(values)
        wrong: dict[int, str] = {}
        parts, places = [], []
        for id in np.unique(ids).tolist():
            numbers = np.flatnonzero(ids == id)
            decoder = self._decoders.get(id)
            if decoder is None:
                parts.append(pa.nulls(len(numbers), self.kind))
                has = values.take(pa.array(numbers)).is_valid().to_numpy(zero_copy_only=False)
                wrong.update(dict.fromkeys(numbers[has].tolist(), self._unknown_schema_error(id)))
            else:
                part, message = decoder.decode(
                    without_first(values.take(pa.array(numbers)), PREFIX_BYTES)
                )
                parts.append(cast_to_type(part, self.kind))
                wrong.update(
                    (int(numbers[at]), f"schema {id}: {text}") for at, text in message.items()
                )
            places.append(numbers)
        errors = pa.array(
            [wrong.get(n) for n in range(len(values))]
            if wrong
            else pa.nulls(len(values), pa.string()),
            pa.string(),
        )
        if not parts:
            return pa.nulls(0, self.kind), errors
        if len(parts) == 1:
            return parts[0], errors
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order)), errors

    def _unknown_schema_error(self, id: int) -> str:
        if id < 0:
            return "it does not begin with the magic byte 0 and a schema id"
        return (
            f"schema {id} is not one of {_listed(self._decoders)}: give it with --id, or its"
            " subject"
        )


def _decoder_of(schema: Schema, reader: Schema | None, messages: tuple[str, ...]) -> SchemaDecoder:
    """Create the decoder of a schema. Raises BadSchema, also for schemas that are nested too deeply."""
    try:
        return _new_decoder(schema, reader, messages)
    except RecursionError:
        raise _too_deep(schema) from None
    except pa.ArrowInvalid as error:
        raise BadSchema(f"{schema.name} cannot be converted to columns: {error}") from None


def _too_deep(schema: Schema) -> BadSchema:
    return BadSchema(
        f"{schema.name} is nested more than {LEVELS_MAX} levels deep, which cannot be"
        " converted to columns: give the ids of the schemas to read, or a reader schema with"
        " fewer levels"
    )


def _new_decoder(schema: Schema, reader: Schema | None, messages: tuple[str, ...]) -> SchemaDecoder:
    if schema.kind == AVRO:
        from odradek.pipeline.schemas.avro import AvroDecoder

        return AvroDecoder(schema, reader if reader and reader.kind == AVRO else None)
    if schema.kind == PROTOBUF:
        from odradek.pipeline.schemas.protobuf import ProtobufDecoder

        return ProtobufDecoder(schema, messages)
    if schema.kind == JSON:
        from odradek.pipeline.schemas.json_schema import JsonDecoder

        return JsonDecoder(schema)
    raise BadSchema(f"{schema.name} has the unknown type {schema.kind}")


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
