"""Decoders of records in internal topics, with Kafka's schemas.

The result is the JSON of kafka-dump-log: type or version, and the fields of the record's version with
Kafka's names. A record that cannot be decoded is printed with the reason, and the dump continues, because
the files may be damaged.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any
from uuid import UUID

from odradek.protocol.errors import InvalidFrame, KafkaError
from odradek.protocol.records.control import ControlType, control_type, marker_coordinator_epoch
from odradek.protocol.records.records import Record
from odradek.protocol.uuids import uuid_to_text

Json = Any
Decoded = dict[str, Json]

_CONTROL_VALUES = {
    ControlType.LEADER_CHANGE: "LeaderChangeMessage",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeaderRecord",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooterRecord",
    ControlType.KRAFT_VERSION: "KRaftVersionRecord",
    ControlType.KRAFT_VOTERS: "VotersRecord",
}
CONSUMER_PROTOCOL = "consumer"


def plain(record: Decoded, name: str, data: bytes | None) -> None:
    """Add a key or value as text under `name` if it is UTF-8, else in base64 under `name` with the suffix Base64."""
    try:
        record[name] = None if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        record[f"{name}Base64"] = base64.b64encode(data or b"").decode("ascii")


def plain_record(record: Record) -> Decoded:
    """Key and value without decoding."""
    decoded: Decoded = {}
    plain(decoded, "key", record.key)
    plain(decoded, "value", record.value)
    return decoded


def control_record(record: Record) -> Decoded:
    """Decode a record of a control batch: a transaction marker or a KRaft control record."""
    kind = control_type(record.key)
    value: Json
    if kind in (ControlType.COMMIT, ControlType.ABORT):
        value = {"coordinatorEpoch": marker_coordinator_epoch(record.value)}
    elif kind in _CONTROL_VALUES and record.value is not None:
        from odradek.protocol.schemas import control_records, serde

        version = int.from_bytes(record.value[:2], "big", signed=True)
        message = serde.decode(
            getattr(control_records, _CONTROL_VALUES[kind]), version, record.value
        )
        value = to_json(message, version)
    else:
        value = None if record.value is None else base64.b64encode(record.value).decode("ascii")
    return {"controlType": kind.name, "value": value}


def offsets_record(record: Record) -> Decoded:
    """Decode a record of `__consumer_offsets`."""
    from odradek.protocol.schemas import serde

    if record.key is None:
        raise KafkaError("the record has no key")
    key = serde.decode_group_key(record.key)
    value = None if record.value is None else serde.decode_group_value(key, record.value)
    decoded = _coordinator_record(key, value, record)
    if value is not None:
        _decode_consumer_protocol(decoded["value"]["data"])
    return decoded


def transactions_record(record: Record) -> Decoded:
    """Decode a record of `__transaction_state`."""
    from odradek.protocol.schemas import serde

    if record.key is None:
        raise KafkaError("the record has no key")
    key = serde.decode_transaction_key(record.key)
    value = None if record.value is None else serde.decode_transaction_value(record.value)
    return _coordinator_record(key, value, record)


def _coordinator_record(key: Any, value: Any, record: Record) -> Decoded:
    decoded: Decoded = {"key": {"type": str(key.__api_key__), "data": to_json(key, 0)}}
    if value is None:
        decoded["value"] = None
    else:
        version = int.from_bytes((record.value or b"")[:2], "big", signed=True)
        decoded["value"] = {"version": str(version), "data": to_json(value, version)}
    return decoded


def metadata_record(record: Record) -> Decoded:
    """Decode a record of `__cluster_metadata` or of its snapshots."""
    from odradek.protocol.schemas import serde

    if record.value is None:
        raise KafkaError("the record has no value")
    _, version = serde.framed_version(record.value)
    return {"key": None, "value": _typed(serde.decode_metadata_record(record.value), version)}


def remote_log_record(record: Record) -> Decoded:
    """Decode a record of `__remote_log_metadata`."""
    from odradek.protocol.schemas import serde

    if record.value is None:
        raise KafkaError("the record has no value")
    _, version = serde.framed_version(record.value)
    return {"key": None, "value": _typed(serde.decode_remote_log_record(record.value), version)}


def diskless_record(record: Record) -> Decoded:
    """Decode a record of `__diskless_metadata` (KIP-1164, D-12)."""
    from odradek.protocol.schemas import serde

    if record.value is None:
        raise KafkaError("the record has no value")
    _, version = serde.framed_version(record.value)
    return {"key": None, "value": _typed(serde.decode_diskless_record(record.value), version)}


def _typed(message: Any, version: int) -> Json:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(message).__name__).upper()
    return {"type": name, "version": version, "data": to_json(message, version)}


DECODERS: Mapping[str, Callable[[Record], Decoded]] = {
    "none": plain_record,
    "offsets": offsets_record,
    "transactions": transactions_record,
    "metadata": metadata_record,
    "remote": remote_log_record,
    "diskless": diskless_record,
}
BY_TOPIC: Mapping[str, str] = {
    "__consumer_offsets": "offsets",
    "__transaction_state": "transactions",
    "__cluster_metadata": "metadata",
    "__remote_log_metadata": "remote",
    "__diskless_metadata": "diskless",
}


def decode(decoder: str, record: Record, *, is_control: bool) -> Decoded:
    """Decode a record; on failure return key and value with the reason as `decodeError`."""
    try:
        return control_record(record) if is_control else DECODERS[decoder](record)
    except (KafkaError, InvalidFrame, ValueError) as error:
        reason = getattr(error, "message", "") or str(error)
        return {**plain_record(record), "decodeError": reason}


def to_json(message: Any, version: int) -> Json:
    """Convert a message to Kafka's JSON, with the fields of `version`."""
    if is_dataclass(message) and not isinstance(message, type):
        shown = {}
        for field in fields(message):
            value = getattr(message, field.name)
            metadata = field.metadata
            if not metadata.get("since", 0) <= version <= metadata.get("until", version):
                continue
            if metadata.get("tag") is not None and value == field.default:
                continue
            shown[_camel(field.name)] = to_json(value, version)
        return shown
    if isinstance(message, UUID):
        return uuid_to_text(message)
    if isinstance(message, bytes | bytearray | memoryview):
        return base64.b64encode(message).decode("ascii")
    if isinstance(message, tuple | list):
        return [to_json(each, version) for each in message]
    return message


@cache
def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _decode_consumer_protocol(data: dict[str, Any]) -> None:
    """Decode the subscriptions and assignments of members, if the protocol type is `consumer`."""
    if data.get("protocolType") != CONSUMER_PROTOCOL:
        return
    for member in data.get("members") or ():
        for name in ("subscription", "assignment"):
            if isinstance(member.get(name), str):
                try:
                    member[name] = _consumer_protocol(name, base64.b64decode(member[name]))
                except (InvalidFrame, ValueError, ImportError):
                    continue  # keep the base64 text


def _consumer_protocol(name: str, data: bytes) -> Json:
    import importlib

    from odradek.protocol.codec.reading import compile_reader
    from odradek.protocol.codec.structure import kio_structure

    version = min(int.from_bytes(data[:2], "big", signed=True), 3)
    module = importlib.import_module(f"kio.schema.consumer_protocol_{name}.v{version}.data")
    message_type = getattr(module, f"ConsumerProtocol{name.capitalize()}")
    structure = kio_structure(message_type, lambda _, names: set(names))
    message = compile_reader(structure)(memoryview(data), 2)
    return to_json(message, version)
