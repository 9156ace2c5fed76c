"""Messages and records of diskless coordinators equal the bytes made from KIP-1164's JSON (D-01 to D-12).

`kip_1164.json` has the definitions in the KIP's text without their descriptions. `diskless_private.json` has those of the
private messages and records in the same form.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol import apis, messages
from odradek.protocol.codec.structure import Structure, record_structure
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.schemas import serde
from tests.protocol import kip_codec

HERE = Path(__file__).parent
KIP = json.loads((HERE / "kip_1164.json").read_text())
PRIVATE = json.loads((HERE / "diskless_private.json").read_text())
MESSAGES = [schema for schema in (*KIP, *PRIVATE) if schema["type"] != "data"]
RECORDS = [schema for schema in (*KIP, *PRIVATE) if schema["type"] == "data"]
REQUIREMENTS = {93: "D-03", 94: "D-04", 96: "D-08", 97: "D-09", 98: "D-10", 100: "D-11"}
VECTORS = {
    "DisklessHandOverFileRequest": "00000003046b65790100000000000010000300000005000000030000ea6000",
    "DisklessHandOverFileResponse": "0000000000100a6e6f206c656164657200",
    "DisklessDescribeCoordinatorsRequest": "000000ea6000",
    "DisklessDescribeCoordinatorsResponse": "00000000"
    "02"
    "00000003"
    "0000"
    "00"
    "01"
    "00000007"
    "0000000000000001"
    "0000000000000002"
    "0000000000000003"
    "0000000000000004"
    "0000000000000005"
    "0000000000000006"
    "0000000000000007"
    "0000000000000008"
    "0000000000000009"
    "000000000000000a"
    "000000000000000b"
    "000000000000000c"
    "00"
    "00",
    "DisklessFetchSnapshotRequest": "00000003ffffffffffffffff00000000000000000010000000",
    "DisklessFetchSnapshotResponse": "00000000"
    "0000"
    "00"
    "0000000000000064"
    "0000000000000002"
    "0000000000000000"
    "03abcd"
    "00",
    "DisklessListFilesRequest": "0000000301000003e800",
    "DisklessListFilesResponse": "00000000"
    "0000"
    "00"
    "02"
    "046b6579"
    "01"
    "0000000000001000"
    "00000001"
    "02"
    "00000003"
    "02"
    "0000000000000004"
    "0000000000000200"
    "0000018bcfe56800"
    "00"
    "00",
    "DisklessFileOwnershipRecord": "0188a90100046b657901000000000000100003000000050000000300",
    "DisklessFileRemovedRecord": "0189a90100046b657900",
}
"""Bytes of the private messages and records, written by hand. They must stay as they are."""


def case_name(schema: dict[str, Any]) -> str:
    requirement = "D-12" if schema["type"] == "data" else REQUIREMENTS.get(schema["apiKey"])
    if schema["apiKey"] == 95:
        requirement = "D-05" if schema["type"] == "request" else "D-06"
    return f"{requirement or 'private'}-{schema['name']}"


def write_message(schema: dict[str, Any], values: Any) -> bytes:
    write = messages.write_request if schema["type"] == "request" else messages.write_response
    return write(schema["apiKey"], 0, values)


def read_message(schema: dict[str, Any], raw: bytes) -> Any:
    read = messages.read_request if schema["type"] == "request" else messages.read_response
    return read(schema["apiKey"], 0, memoryview(raw))


def class_of(schema: dict[str, Any]) -> type[Any]:
    if schema["type"] == "data":
        types = serde.all_record_types()["diskless"]
        return next(each for each in types if each.__name__ == schema["name"])
    return messages.load(schema["apiKey"], 0, schema["type"])


def frame_of(schema: dict[str, Any]) -> bytes:
    """Frame version 1, key and version 0 of a record, as KRaft's metadata records have them."""
    return kip_codec.uvarint(1) + kip_codec.uvarint(schema["apiKey"]) + kip_codec.uvarint(0)


def with_snake_case(values: Any) -> Any:
    if isinstance(values, dict):
        return {kip_codec.attribute_name(k): with_snake_case(v) for k, v in values.items()}
    return [with_snake_case(item) for item in values] if isinstance(values, tuple) else values


def test_definitions_of_the_kip_are_complete() -> None:
    """D-01, D-12: the KIP has 7 APIs and 4 records of version 0, which are flexible."""
    found = {(schema["type"], schema["apiKey"]) for schema in KIP}
    keys = (93, 94, 95, 96, 97, 98, 100)
    records = {("data", key) for key in (100, 101, 102, 103)}
    assert found == {(kind, key) for kind in ("request", "response") for key in keys} | records
    assert all(
        schema["validVersions"] == "0" and schema["flexibleVersions"] == "0+" for schema in KIP
    )


def test_every_diskless_api_and_record_has_a_definition() -> None:
    assert {schema["apiKey"] for schema in MESSAGES} == set(apis.DISKLESS_APIS)
    names = {record_type.__name__ for record_type in serde.all_record_types()["diskless"]}
    assert {schema["name"] for schema in RECORDS} == names
    assert {schema["name"] for schema in PRIVATE} == set(VECTORS)


def test_diskless_apis_are_private() -> None:
    """D-01: brokers use version 0 between them, and ApiVersions does not report the APIs to clients."""
    for api in apis.DISKLESS_APIS.values():
        assert (api.min_version, api.max_version, api.flexible_version) == (0, 0, 0)
        assert apis.PRIVATE_APIS[api.key] is api
        assert api.key not in apis.APIS


@pytest.mark.parametrize("schema", KIP, ids=case_name)
def test_messages_begin_and_end_as_the_kip_requires(schema: dict[str, Any]) -> None:
    """D-02: requests end with TimeoutMs of 60,000 ms, and responses start with ThrottleTimeMs."""
    structure = record_structure(class_of(schema), 0)
    if schema["type"] == "request":
        assert (structure.names[-1], structure.plain[-1].default) == ("timeout_ms", 60_000)
    elif schema["type"] == "response":
        assert (structure.names[0], structure.plain[0].kind) == ("throttle_time_ms", "int32")


@pytest.mark.parametrize("schema", [*MESSAGES, *RECORDS], ids=case_name)
def test_fields_have_the_types_and_defaults_of_the_definition(schema: dict[str, Any]) -> None:
    """The only other default: no ErrorMessage is null in API 93 too, where the KIP has omitted it."""

    def compare(fields: list[dict[str, Any]], structure: Structure) -> None:
        assert not structure.tagged
        assert [plan.name for plan in structure.plain] == [
            kip_codec.attribute_name(field["name"]) for field in fields
        ]
        expected = kip_codec.defaults(fields)
        for plan, field in zip(structure.plain, fields, strict=True):
            assert plan.is_array == field["type"].startswith("[]")
            assert plan.nullable == ("nullableVersions" in field)
            if (schema["apiKey"], field["name"]) != (93, "ErrorMessage"):
                assert plan.default == expected[field["name"]]
            if plan.of is not None:
                assert plan.of.entity_type.__name__ == field["type"].removeprefix("[]")
                compare(field["fields"], plan.of)
            else:
                kind = "int16" if plan.kind == "error_code" else plan.kind
                assert kind == field["type"].removeprefix("[]")

    compare(schema["fields"], record_structure(class_of(schema), 0))


@pytest.mark.parametrize("schema", MESSAGES, ids=case_name)
def test_message_equals_the_bytes_of_the_definition(schema: dict[str, Any]) -> None:
    fields = schema["fields"]
    for seed in range(40):
        values = kip_codec.draw(fields, random.Random(seed))
        raw = kip_codec.encode(fields, values)
        entity = read_message(schema, raw)
        assert kip_codec.as_values(fields, entity) == values
        assert write_message(schema, entity) == raw
        assert write_message(schema, with_snake_case(values)) == raw
    for end in range(0, len(raw), max(1, len(raw) // 50)):
        with pytest.raises(InvalidFrame):
            read_message(schema, raw[:end])


@pytest.mark.parametrize("schema", RECORDS, ids=case_name)
def test_record_equals_the_bytes_of_the_definition(schema: dict[str, Any]) -> None:
    """D-12: the value of a record is a frame as in `__cluster_metadata`, and the fields."""
    fields = schema["fields"]
    for seed in range(40):
        values = kip_codec.draw(fields, random.Random(seed))
        raw = frame_of(schema) + kip_codec.encode(fields, values)
        record = serde.decode_diskless_record(raw)
        assert type(record).__name__ == schema["name"]
        assert kip_codec.as_values(fields, record) == values
        assert serde.encode_diskless_record(record) == raw


@pytest.mark.parametrize("schema", PRIVATE, ids=lambda schema: str(schema["name"]))
def test_private_messages_and_records_keep_their_bytes(schema: dict[str, Any]) -> None:
    raw = bytes.fromhex(VECTORS[schema["name"]])
    if schema["type"] == "data":
        entity = serde.decode_diskless_record(raw)
        assert serde.encode_diskless_record(entity) == raw
    else:
        entity = read_message(schema, raw)
        assert write_message(schema, entity) == raw
        assert (
            kip_codec.encode(schema["fields"], kip_codec.as_values(schema["fields"], entity)) == raw
        )
