"""Values with schema ids: columns as the formats' own libraries decode them."""

from __future__ import annotations

import json
import pickle
import struct
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from odradek.pipeline.decoding.record_selection import INT64_MAX  # noqa: E402
from odradek.pipeline.jobs.decode import Decoding  # noqa: E402
from odradek.pipeline.schemas.avro import AvroDecoder  # noqa: E402
from odradek.pipeline.schemas.column_types import BadSchema  # noqa: E402
from odradek.pipeline.schemas.registry import AVRO, JSON, PROTOBUF, Schema  # noqa: E402
from odradek.pipeline.schemas.value_decoder import LEVELS_MAX, ValueDecoder  # noqa: E402
from tests.pipeline.avro_records import FLIGHT, written  # noqa: E402

WHOLE = {
    "type": "record",
    "name": "Whole",
    "fields": [
        *FLIGHT["fields"],  # type: ignore[misc]
        {"name": "raw", "type": "bytes"},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "second", "type": "Leg"},
    ],
}


def avro(id: int, schema: Any, *references: tuple[str, str]) -> Schema:
    return Schema(id, AVRO, json.dumps(schema), references)


def record(schema: str, *fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": schema, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def rows(decoder: ValueDecoder, *values: bytes | None) -> list[Any]:
    """Decode in a task's way, with a pickled decoder."""
    decoder = pickle.loads(pickle.dumps(decoder))
    decoded, errors = decoder.decode(pa.array(values, pa.binary()))
    decoded.validate(full=True)
    assert decoded.type == decoder.kind
    assert len(decoded) == len(errors) == len(values)
    return [
        value if error is None else error
        for value, error in zip(
            decoded.to_pylist(maps_as_pydicts="strict"), errors.to_pylist(), strict=True
        )
    ]


def flights() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "carrier": st.text(max_size=5),
            "delay": st.none() | st.floats(allow_nan=False),
            "tags": st.lists(st.text(max_size=3), max_size=3),
            "counts": st.dictionaries(
                st.text(max_size=2), st.integers(-(2**31), 2**31 - 1), max_size=3
            ),
            "kind": st.sampled_from("AB"),
            "at": st.datetimes(timezones=st.just(__import__("datetime").UTC)).map(
                lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
            ),
            "leg": st.fixed_dictionaries({"km": st.floats(width=32, allow_nan=False)}),
        }
    )


quick = settings(deadline=None, max_examples=40)


@quick
@given(st.lists(flights(), min_size=1, max_size=4))
def test_avro_values_with_either_library(values: list[dict[str, Any]]) -> None:
    more = {"raw": b"\0\xff", "four": b"abcd", "price": Decimal("-12.34"), "second": {"km": 2.0}}
    whole = [{**value, **more} for value in values]
    decoder = ValueDecoder([avro(7, FLIGHT), avro(300, WHOLE)])
    found = rows(
        decoder,
        *(written(7, FLIGHT, value) for value in values),
        *(written(300, WHOLE, value) for value in whole),
    )
    assert found == [{**value, **dict.fromkeys(more)} for value in values] + whole


@quick
@given(st.lists(flights(), min_size=1, max_size=3), st.data())
def test_pyruhvro_and_fastavro_agree(values: list[dict[str, Any]], data: st.DataObject) -> None:
    """Also for values with changed bytes."""
    payloads = []
    for value in values:
        payload = bytearray(written(7, FLIGHT, value)[5:])
        if data.draw(st.booleans()):
            payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
        behind = data.draw(st.just(b"") | st.binary(max_size=3))
        payloads.append(bytes(payload[: data.draw(st.integers(0, len(payload)))]) + behind)
    both = AvroDecoder(avro(7, FLIGHT)), AvroDecoder(avro(7, FLIGHT))
    assert both[0]._is_supported_by_pyruhvro
    both[1]._is_supported_by_pyruhvro = False
    (quick, message), (sure, _) = (each.decode(pa.array(payloads, pa.binary())) for each in both)
    assert quick.equals(sure) or str(quick) == str(sure), message


@pytest.mark.parametrize("more", [[], [field("raw", "bytes")]], ids=["quick", "sure"])
@pytest.mark.parametrize("name", ["timestamp-millis", "local-timestamp-millis"])
def test_timestamp_beyond_the_column_is_an_error(name: str, more: list[Any]) -> None:
    """Spark's timestamps have microseconds."""
    schema = record("R", field("at", {"type": "long", "logicalType": name}), *more)
    plain = record("R", field("at", "long"), *more)
    most = INT64_MAX // 1000
    times = [0, most, most + 1, -most, -most - 1, INT64_MAX, -INT64_MAX - 1, 5]
    decoder = ValueDecoder([avro(1, schema)])
    values = [written(1, plain, {"at": at, "raw": b""}) for at in times]
    columns, errors = decoder.decode(pa.array(values, pa.binary()))
    micros = columns.field("at").cast(pa.int64()).to_pylist()
    assert micros == [0, most * 1000, None, -most * 1000, None, None, None, 5000]
    invalid = [n for n, error in enumerate(errors.to_pylist()) if error is not None]
    assert invalid == [2, 4, 5, 6]
    assert "schema 1: " in errors[2].as_py()


@pytest.mark.parametrize("wide", ["float", "double"])
def test_promoted_number_is_rounded_to_the_nearest(wide: str) -> None:
    """As Avro promotes numbers."""
    one, other = record("R", field("a", "long")), record("R", field("a", wide))
    decoder = ValueDecoder([avro(1, one), avro(2, other)])
    found = rows(decoder, written(1, one, {"a": 2**60 + 1}), written(2, other, {"a": 1.5}))
    assert found == [{"a": 2.0**60}, {"a": 1.5}]


def test_columns_of_versions_are_merged_by_name() -> None:
    first = record("R", field("a", "int"), field("gone", "string"))
    second = record("R", field("a", "long"), field("b", ["null", "string"], default=None))
    decoder = ValueDecoder([avro(1, first), avro(2, second)])
    assert decoder.kind == pa.struct([("a", pa.int64()), ("gone", pa.string()), ("b", pa.string())])
    one, two = written(1, first, {"a": 5, "gone": "x"}), written(2, second, {"a": 2**40, "b": "y"})
    assert rows(decoder, two, one, None, two) == [
        {"a": 2**40, "gone": None, "b": "y"},
        {"a": 5, "gone": "x", "b": None},
        None,
        {"a": 2**40, "gone": None, "b": "y"},
    ]


def test_reader_schema_has_its_defaults() -> None:
    first = record("R", field("a", "int"), field("gone", "string"))
    second = record("R", field("c", "long", aliases=["a"]), field("b", "string", default="none"))
    decoder = ValueDecoder([avro(1, first), avro(2, second)], reader=2)
    assert rows(decoder, written(1, first, {"a": 5, "gone": "x"})) == [{"c": 5, "b": "none"}]


def test_reader_schema_does_not_exclude_schemas_of_a_directory(tmp_path: Path) -> None:
    """Also if subjects are given, as the command line does; a directory has no subjects."""
    fields = [field("n", "int")]
    for id in (1, 2):
        (tmp_path / f"{id}.avsc").write_text(json.dumps(record("R", *fields)))
        fields.append(field("of", "string", default="a"))
    decoder = Decoding(str(tmp_path), ("flights-value",), reader=2).decoder()
    value = written(1, record("R", fields[0]), {"n": 5})
    assert rows(decoder, value) == [{"n": 5, "of": "a"}]


def test_invalid_values_have_errors_and_others_are_decoded() -> None:
    schema = record("R", field("a", "string"))
    decoder = ValueDecoder([avro(1, schema)])
    good = written(1, schema, {"a": "x"})
    found = rows(decoder, good, b"{}", good[:-1], b"", written(9, schema, {"a": "x"}), good)
    assert found[0] == found[5] == {"a": "x"}
    assert found[1] == found[3] == "it does not begin with the magic byte 0 and a schema id"
    assert found[2].startswith("schema 1: ")
    assert found[4] == "schema 9 is not one of 1: give it with --id, or its subject"


@pytest.mark.parametrize("schema", [FLIGHT, WHOLE], ids=["quickly", "surely"])
def test_bytes_after_an_avro_value_are_an_error(schema: dict[str, Any]) -> None:
    """A value with one more field than its schema id has, and two values in one."""
    value = {
        "carrier": "AA",
        "delay": None,
        "tags": ["a"],
        "counts": {"x": 1},
        "kind": "A",
        "at": datetime(2013, 1, 1, tzinfo=UTC),
        "leg": {"km": 1.5},
        **({"raw": b"", "four": b"abcd", "price": Decimal("1.50"), "second": {"km": 2.0}}
           if schema is WHOLE else {}),
    }  # fmt: skip
    good = written(7, schema, value)
    found = rows(ValueDecoder([avro(7, schema)]), good, good + b"\0\0", good)
    assert found == [value, "schema 7: there are 2 bytes after the value", value]


def test_array_in_several_blocks_is_decoded() -> None:
    """Writers may use several blocks, each with its size in bytes."""
    schema = record("R", field("a", {"type": "array", "items": "int"}))
    parts = bytes([2, 10, 3, 4, 12, 14, 0])  # one item; two items in two bytes; no items
    found = rows(ValueDecoder([avro(7, schema)]), struct.pack(">bi", 0, 7) + parts)
    assert found == [{"a": [5, 6, 7]}]


def test_avro_named_types_and_values_other_than_records() -> None:
    leg = {"type": "record", "name": "Leg", "namespace": "n", "fields": [field("km", "int")]}
    schema = record("R", field("first", "n.Leg"), field("second", ["null", "n.Leg"]))
    inlined = record("R", field("first", leg), field("second", ["null", "n.Leg"]))
    decoder = ValueDecoder([avro(1, schema, ("n.Leg", json.dumps(leg))), avro(2, "string")])
    value = {"first": {"km": 1}, "second": {"km": 2}}
    assert rows(decoder, written(1, inlined, value), written(2, "string", "x")) == [
        {**value, "value": None},
        {"first": None, "second": None, "value": "x"},
    ]


@pytest.mark.parametrize(
    ("schemas", "message"),
    [
        (
            [avro(1, record("R", field("a", ["int", "string"])))],
            "schema 1: a is a union of several",
        ),
        ([avro(1, record("R", field("a", ["null", "R"])))], "R contains itself"),
        ([avro(1, record("R", field("a", "Nothing")))], "type Nothing is not defined"),
        ([avro(1, {"type": "record"})], "schema 1 is not an Avro schema"),
        (
            [avro(1, record("R", field("a", "int"))), avro(2, record("R", field("a", "string")))],
            "schemas 1, 2: a has types that cannot be merged: int32, string",
        ),
        ([], "there is no schema"),
        ([Schema(1, "XML", "")], "has the unknown type XML"),
    ],
)
def test_schemas_that_have_no_columns_are_refused(schemas: list[Schema], message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        ValueDecoder(schemas)


@pytest.mark.parametrize("levels", [70, 200, 5000])
@pytest.mark.parametrize(
    ("kind", "within", "innermost"),
    [
        (AVRO, '{"type": "array", "items": %s}', '"int"'),
        (AVRO, '{"type": "map", "values": ["null", %s]}', '"int"'),
        (JSON, '{"type": "object", "properties": {"a": %s}}', '{"type": "integer"}'),
        (JSON, '{"type": "array", "items": %s}', "{}"),
    ],
)
def test_schema_nested_too_deeply_is_named(
    kind: str, within: str, innermost: str, levels: int
) -> None:
    before, _, behind = within.partition("%s")
    text = before * levels + innermost + behind * levels
    shallow = Schema(8, AVRO, '"int"')
    with pytest.raises(
        BadSchema, match=r"schema 7 \(version 3 of t-value\) is nested more than 60"
    ):
        ValueDecoder([shallow, Schema(7, kind, text, origin="version 3 of t-value")])


def test_columns_are_nested_up_to_arrows_limit() -> None:
    text = '{"type": "array", "items": ' * LEVELS_MAX + '"int"' + "}" * LEVELS_MAX
    with pytest.raises(BadSchema):
        ValueDecoder([Schema(1, AVRO, text)])  # the enclosing record is a level, too
    decoder = ValueDecoder([Schema(1, AVRO, text.removeprefix('{"type": "array", "items": ')[:-1])])
    made = pa.RecordBatch.from_arrays([pa.nulls(1, pa.struct([("decoded", decoder.kind)]))], ["m"])
    pa.ipc.new_stream(pa.BufferOutputStream(), made.schema).write_batch(made)


def test_protobuf_schema_nested_too_deeply_is_named() -> None:
    pytest.importorskip("grpc_tools")
    messages = [f"message M{n} {{ M{n + 1} m = 1; }}" for n in range(99)]
    text = 'syntax = "proto3"; ' + " ".join(messages) + " message M99 { int32 a = 1; }"
    with pytest.raises(BadSchema, match="schema 1 cannot be converted to columns: "):
        ValueDecoder([Schema(1, PROTOBUF, text)])


def test_json_value_nested_too_deeply_is_an_error() -> None:
    decoder = ValueDecoder([Schema(1, JSON, '{"properties": {"a": {"type": "integer"}}}')])
    prefix = struct.pack(">bi", 0, 1)
    deep = b'{"b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert rows(decoder, prefix + b'{"a": 1}', prefix + deep, prefix + b'{"a": 2}') == [
        {"a": 1},
        "schema 1: it is nested too deeply",
        {"a": 2},
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3", {"n": 3, "x": 3.0, "any": "3"}),
        ("3.0", {"n": 3, "x": 3.0, "any": "3.0"}),
        ("9007199254740993", {"n": 2**53 + 1, "x": 2.0**53, "any": "9007199254740993"}),
        ("9007199254740993.0", {"n": 2**53 + 1, "x": 2.0**53, "any": "9007199254740992.0"}),
        (
            "-9223372036854775808.0",
            {"n": -(2**63), "x": -(2.0**63), "any": "-9.223372036854776e+18"},
        ),
        ("250e-1", {"n": 25, "x": 25.0, "any": "25.0"}),
        ("3.5", "schema 1: 3.5 is not of type int64"),
        ("9007199254740993.5", "schema 1: 9007199254740993.5 is not of type int64"),
        ("0.99999999999999999999", "schema 1: 0.99999999999999999999 is not of type int64"),
        ("9223372036854775808.0", "schema 1: 9223372036854775808.0 is not of type int64"),
        (
            "1e9999999999999999999",
            "schema 1: 1e9999999999999999999 is out of range for any number type",
        ),
        ("true", "schema 1: True is not of type int64"),
        ('"3"', "schema 1: '3' is not of type int64"),
        ("NaN", "schema 1: NaN is not JSON"),
        ("-Infinity", "schema 1: -Infinity is not JSON"),
        ("1e999", "schema 1: 1E+999 is not of type int64"),
    ],
)
def test_json_number_is_unchanged_or_an_error(text: str, found: Any) -> None:
    properties = {"n": {"type": "integer"}, "x": {"type": "number"}, "any": {}}
    decoder = ValueDecoder([Schema(1, JSON, json.dumps({"properties": properties}))])
    value = f'{{"n": {text}, "x": {text}, "any": {text}}}'.encode()
    assert rows(decoder, struct.pack(">bi", 0, 1) + value) == [found]


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1" + "0" * 400])
def test_number_out_of_range_is_an_error(text: str) -> None:
    decoder = ValueDecoder([Schema(1, JSON, '{"properties": {"x": {"type": "number"}}}')])
    prefix = struct.pack(">bi", 0, 1)
    broken, kept = rows(decoder, prefix + f'{{"x": {text}}}'.encode(), prefix + b'{"x": 1e300}')
    assert isinstance(broken, str)
    assert kept == {"x": 1e300}


PROTO = """
syntax = "proto3";
package flights;
import "money.proto";
import "google/protobuf/timestamp.proto";
message Flight {
  string carrier = 1;
  optional double delay = 2;
  google.protobuf.Timestamp at = 3;
  repeated string tags = 4;
  map<string, int32> counts = 5;
  Kind kind = 6;
  Money price = 7;
  uint64 miles = 8;
  message Leg { int32 km = 1; }
}
enum Kind { A = 0; B = 1; }
message Other { int32 x = 1; }
"""
MONEY = 'syntax = "proto3"; package flights; message Money { int64 units = 1; }'
FLIGHTS = Schema(4, PROTOBUF, PROTO, (("money.proto", MONEY),))


def test_protobuf_values_by_message_type() -> None:
    pytest.importorskip("grpc_tools")
    decoder = ValueDecoder([FLIGHTS], messages=("Flight", "flights.Other"))
    prefix = struct.pack(">bi", 0, 4)
    flight = b"\x0a\x02AA\x1a\x04\x08\x80\xa3\x05\x22\x01t\x2a\x05\x0a\x01k\x10\x07\x30\x01\x3a\x02\x08\x05\x40\x09"
    found = rows(
        decoder,
        prefix + b"\0" + flight,
        prefix + b"\x02\x02" + b"\x08\x05",
        prefix + b"\0",
        prefix + b"\x04\0\0" + b"\x08\x05",
        prefix + b"\x02\x08",
        prefix,
        prefix + b"\0" + flight[:-1],
    )
    assert found[0]["carrier"] == "AA"
    assert found[0]["at"].timestamp() == 86400
    assert (found[0]["tags"], found[0]["counts"], found[0]["kind"]) == (["t"], {"k": 7}, "B")
    assert (found[0]["price"], found[0]["miles"], found[0]["delay"]) == ({"units": 5}, 9, None)
    assert found[0]["x"] is None
    assert (found[1]["x"], found[1]["carrier"]) == (5, None)
    assert (found[2]["carrier"], found[2]["price"]) == ("", None)
    assert (
        found[3]
        == "schema 4: it is a flights.Flight.Leg, which is not one of the message types to read"
    )
    assert found[4] == "schema 4: the schema has no message type at [4]"
    assert found[5] == "schema 4: its message indexes are invalid"
    assert "failed to decode" in found[6]


def test_protobuf_import_may_have_any_name() -> None:
    pytest.importorskip("grpc_tools")
    inner = 'syntax = "proto3"; message Inner { int32 x = 1; }'
    outer = 'syntax = "proto3"; import "schema.proto"; message Outer { Inner a = 1; }'
    decoder = ValueDecoder([Schema(1, PROTOBUF, outer, (("schema.proto", inner),))])
    assert rows(decoder, struct.pack(">bi", 0, 1) + b"\0\x0a\x02\x08\x05") == [{"a": {"x": 5}}]


def test_invalid_protobuf_schema_has_the_error_of_protoc() -> None:
    pytest.importorskip("grpc_tools")
    with pytest.raises(BadSchema, match=r"schema 1: schema.proto:1:\d+"):
        ValueDecoder([Schema(1, PROTOBUF, "message {")])
    for name in ("../x.proto", "a\0", ".", "n" * 300):
        with pytest.raises(
            BadSchema, match=r"schema 1 imports '.*', which is not a valid schema name"
        ):
            ValueDecoder([Schema(1, PROTOBUF, PROTO, ((name, MONEY),))])
    with pytest.raises(BadSchema, match="has no message type Train, but Flight, Other"):
        ValueDecoder([FLIGHTS], messages=("Train",))


def test_json_values_by_their_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "c": {"type": ["null", "number"]},
            "d": {"type": "array", "items": {"$ref": "#/definitions/leg"}},
            "e": {"type": ["string", "integer"]},
        },
        "definitions": {
            "leg": {
                "type": "object",
                "properties": {"km": {"type": "number"}, "next": {"$ref": "#/definitions/leg"}},
            }
        },
    }
    decoder = ValueDecoder([Schema(1, JSON, json.dumps(schema))])
    prefix = struct.pack(">bi", 0, 1)
    text = b'{"a": 1, "b": "x", "d": [{"km": 1, "next": {"km": 2}}], "e": [1, "\xc3\xa4"], "z": 0}'
    broken = (b'{"a": "x"}', b"[", b"[]", b'{"a": 1}{"a": 2}', b'{"a": 1}\n{"a": 2}', b'{"a": 1},')
    found = rows(decoder, prefix + text, *(prefix + each for each in broken))
    assert found[0] == {
        "a": 1,
        "b": "x",
        "c": None,
        "d": [{"km": 1.0, "next": '{"km":2}'}],
        "e": '[1,"ä"]',
    }
    assert all(text.startswith("schema 1: ") for text in found[1:])
    assert [text.partition(":")[2][:11] for text in found[-3:]] == [" Extra data"] * 3
