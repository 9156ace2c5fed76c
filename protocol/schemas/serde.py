"""Encodes and decodes stored records, and maps their keys and types to classes.

Metadata records, remote log metadata records and diskless metadata records: uvarint frame version 1, uvarint API key, uvarint version, body.
Coordinator records: a key is a type (int16) and a body of version 0; a value is a version (int16) and a body.
The class of a record is loaded when its key is first used. Malformed bytes, unknown records and trailing bytes raise
InvalidRecord, which the caller handles, because the bytes come from a disk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, cast

from odradek.protocol.codec.primitives import append_uvarint
from odradek.protocol.codec.reading import compile_reader
from odradek.protocol.codec.structure import record_structure
from odradek.protocol.codec.writing import compile_writer
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.framing import read_uvarint
from odradek.seams.files import Buffer

R = TypeVar("R")

_FRAME_VERSION = 1
_INT16 = struct.Struct(">h")
_MAX_SHORT = 2**15 - 1

_TOPICS, _CLUSTER, _SECURITY = "topic_records", "cluster_records", "security_records"
_METADATA: Mapping[int, tuple[str, str]] = {
    0: (_CLUSTER, "RegisterBrokerRecord"),
    1: (_CLUSTER, "UnregisterBrokerRecord"),
    2: (_TOPICS, "TopicRecord"),
    3: (_TOPICS, "PartitionRecord"),
    4: (_TOPICS, "ConfigRecord"),
    5: (_TOPICS, "PartitionChangeRecord"),
    7: (_CLUSTER, "FenceBrokerRecord"),
    8: (_CLUSTER, "UnfenceBrokerRecord"),
    9: (_TOPICS, "RemoveTopicRecord"),
    10: (_SECURITY, "DelegationTokenRecord"),
    11: (_SECURITY, "UserScramCredentialRecord"),
    12: (_CLUSTER, "FeatureLevelRecord"),
    14: (_SECURITY, "ClientQuotaRecord"),
    15: (_CLUSTER, "ProducerIdsRecord"),
    17: (_CLUSTER, "BrokerRegistrationChangeRecord"),
    18: (_SECURITY, "AccessControlEntryRecord"),
    19: (_SECURITY, "RemoveAccessControlEntryRecord"),
    20: (_CLUSTER, "NoOpRecord"),
    21: (_CLUSTER, "ZkMigrationStateRecord"),
    22: (_SECURITY, "RemoveUserScramCredentialRecord"),
    23: (_CLUSTER, "BeginTransactionRecord"),
    24: (_CLUSTER, "EndTransactionRecord"),
    25: (_CLUSTER, "AbortTransactionRecord"),
    26: (_SECURITY, "RemoveDelegationTokenRecord"),
    27: (_CLUSTER, "RegisterControllerRecord"),
    28: (_TOPICS, "ClearElrRecord"),
}
_REMOTE_LOG: Mapping[int, tuple[str, str]] = {
    0: ("remote_log_records", "RemoteLogSegmentMetadataRecord"),
    1: ("remote_log_records", "RemoteLogSegmentMetadataUpdateRecord"),
    2: ("remote_log_records", "RemotePartitionDeleteMetadataRecord"),
    3: ("remote_log_records", "RemoteLogSegmentMetadataSnapshotRecord"),
}
_DISKLESS: Mapping[int, tuple[str, str]] = {
    100: ("diskless_records", "DisklessPartitionCreatedRecord"),
    101: ("diskless_records", "DisklessTopicDeletedRecord"),
    102: ("diskless_records", "DisklessFileCommittedRecord"),
    103: ("diskless_records", "DisklessRecordsDeletedRecord"),
    21_640: ("diskless_records", "DisklessFileOwnershipRecord"),
    21_641: ("diskless_records", "DisklessFileRemovedRecord"),
}
_CONSUMER, _SHARE, _STREAMS = (
    "consumer_group_records",
    "share_group_records",
    "streams_group_records",
)
_GROUPS: Mapping[int, tuple[str, str]] = {
    0: ("group_records", "LegacyOffsetCommit"),
    1: ("group_records", "OffsetCommit"),
    2: ("group_records", "GroupMetadata"),
    3: (_CONSUMER, "ConsumerGroupMetadata"),
    4: (_CONSUMER, "ConsumerGroupPartitionMetadata"),
    5: (_CONSUMER, "ConsumerGroupMemberMetadata"),
    6: (_CONSUMER, "ConsumerGroupTargetAssignmentMetadata"),
    7: (_CONSUMER, "ConsumerGroupTargetAssignmentMember"),
    8: (_CONSUMER, "ConsumerGroupCurrentMemberAssignment"),
    10: (_SHARE, "ShareGroupMemberMetadata"),
    11: (_SHARE, "ShareGroupMetadata"),
    12: (_SHARE, "ShareGroupTargetAssignmentMetadata"),
    13: (_SHARE, "ShareGroupTargetAssignmentMember"),
    14: (_SHARE, "ShareGroupCurrentMemberAssignment"),
    15: (_SHARE, "ShareGroupStatePartitionMetadata"),
    16: (_CONSUMER, "ConsumerGroupRegularExpression"),
    17: (_STREAMS, "StreamsGroupMetadata"),
    19: (_STREAMS, "StreamsGroupMemberMetadata"),
    20: (_STREAMS, "StreamsGroupTargetAssignmentMetadata"),
    21: (_STREAMS, "StreamsGroupTargetAssignmentMember"),
    22: (_STREAMS, "StreamsGroupCurrentMemberAssignment"),
    23: (_STREAMS, "StreamsGroupTopology"),
}
"""Types of group records, with the module and the name of their classes without `Key` or `Value`."""
_TRANSACTIONS: Mapping[int, tuple[str, str]] = {0: ("transaction_records", "TransactionLog")}

_WRITTEN_VERSIONS = {"GroupMetadataValue": 3}
"""Versions of coordinator values that Kafka 4.3 writes, where it is not the newest version."""


class InvalidRecord(KafkaError):
    """Stored bytes that are malformed, truncated or an unknown record."""

    code: ErrorCode = ErrorCode.corrupt_message


class StringTooLong(KafkaError):
    """A record that its format cannot encode, because a string is longer than its length field allows."""

    code: ErrorCode = ErrorCode.unknown_server_error


class UnknownRecord(InvalidRecord):
    """A record with a type or version that Kafka 4.3 does not have."""


def encode_metadata_record(record: Any, version: int | None = None) -> bytes:
    """Encode a metadata record for `__cluster_metadata`. A version of None is the newest.

    The newest versions are those of metadata.version 4.3-IV0.
    """
    return _encode_framed(record, version)


def decode_metadata_record(data: Buffer) -> Any:
    """Decode a metadata record of `__cluster_metadata`."""
    return _decode_framed(_METADATA, data)


def encode_remote_log_record(record: Any, version: int | None = None) -> bytes:
    """Encode a record of `__remote_log_metadata` (KIP-405)."""
    return _encode_framed(record, version)


def decode_remote_log_record(data: Buffer) -> Any:
    """Decode a record of `__remote_log_metadata`."""
    return _decode_framed(_REMOTE_LOG, data)


def encode_diskless_record(record: Any) -> bytes:
    """Encode a record of `__diskless_metadata` (KIP-1164, D-12)."""
    return _encode_framed(record, None)


def decode_diskless_record(data: Buffer) -> Any:
    """Decode a record of `__diskless_metadata`."""
    return _decode_framed(_DISKLESS, data)


def framed_version(data: Buffer) -> tuple[int, int]:
    """API key and version of an encoded metadata record or remote log metadata record."""
    key, version, _ = _read_frame(data)
    return key, version


def encode_coordinator_key(key: Any) -> bytes:
    """Encode the key of a record in `__consumer_offsets` or `__transaction_state`."""
    return _INT16.pack(key.__api_key__) + encode(key, 0)


def encode_coordinator_value(value: Any, version: int | None = None) -> bytes:
    """Encode the value of a coordinator record. A version of None is the one that Kafka 4.3 writes.

    For OffsetCommitValue that is 4, or 1 if it has an `expire_timestamp`.
    """
    if version is None:
        version = _written_version(value)
    return _INT16.pack(version) + encode(value, version)


def _written_version(value: Any) -> int:
    if getattr(value, "expire_timestamp", -1) != -1:
        return 1
    newest: int = value.__versions__[-1]
    return _WRITTEN_VERSIONS.get(type(value).__name__, newest)


def decode_group_key(data: Buffer) -> Any:
    """Decode a key of `__consumer_offsets`. Raises UnknownRecord for a type that Kafka 4.3 does not have."""
    return _decode_key(_GROUPS, data)


def decode_group_value(key: Any, data: Buffer) -> Any:
    """Decode the value of `key`, which must not be a tombstone (None)."""
    return _decode_value(_GROUPS, key.__api_key__, data)


def decode_transaction_key(data: Buffer) -> Any:
    """Decode a key of `__transaction_state`."""
    return _decode_key(_TRANSACTIONS, data)


def decode_transaction_value(data: Buffer) -> Any:
    """Decode a value of `__transaction_state`."""
    return _decode_value(_TRANSACTIONS, 0, data)


def encode(record: Any, version: int) -> bytes:
    """Encode the body of a stored record without a frame.

    Raises KeyError for an unknown version, and StringTooLong for a string that the format cannot encode.
    """
    try:
        return _writer(type(record), version)(record)
    except struct.error as error:
        raise StringTooLong(f"a {type(record).__name__}: {error}") from None


def decode(record_type: type[R], version: int, data: Buffer, offset: int = 0) -> R:
    """Decode a body without a frame. Raises InvalidRecord if it is malformed or has trailing bytes."""
    try:
        return cast(R, _reader(record_type, version)(memoryview(data), offset))
    except InvalidFrame as error:
        raise InvalidRecord(str(error)) from None


def all_record_types() -> dict[str, list[type[Any]]]:
    """All classes of records by kind and key, for tests and tools that list them."""
    framed = {"metadata": _METADATA, "remote_log": _REMOTE_LOG, "diskless": _DISKLESS}
    keyed = {"group": _GROUPS, "transaction": _TRANSACTIONS}
    types = {family: [_load(*row) for row in table.values()] for family, table in framed.items()}
    for family, table in keyed.items():
        types[family] = [
            _load(module, name + ending)
            for module, name in table.values()
            for ending in ("Key", "Value")
        ]
    return types


def _encode_framed(record: Any, version: int | None) -> bytes:
    if version is None:
        version = record.__versions__[-1]
    out = bytearray([_FRAME_VERSION])
    append_uvarint(out, record.__api_key__)
    append_uvarint(out, version)
    out += encode(record, version)
    return bytes(out)


def _decode_framed(table: Mapping[int, tuple[str, str]], data: Buffer) -> Any:
    key, version, position = _read_frame(data)
    return decode(_record_type(table, key, "", version), version, data, position)


def _read_frame(data: Buffer) -> tuple[int, int, int]:
    """Read the API key, the version, and the position of the body."""
    try:
        frame_version, position = read_uvarint(data, 0)
        if frame_version != _FRAME_VERSION:
            raise UnknownRecord(f"frame version {frame_version} of a record")
        key, position = read_uvarint(data, position)
        version, position = read_uvarint(data, position)
    except InvalidFrame as error:
        raise InvalidRecord(str(error)) from None
    if key > _MAX_SHORT or version > _MAX_SHORT:
        raise InvalidRecord(f"a record of type {key}, version {version}")
    return key, version, position


def _decode_key(table: Mapping[int, tuple[str, str]], data: Buffer) -> Any:
    return decode(_record_type(table, _int16(data), "Key", 0), 0, data, 2)


def _decode_value(table: Mapping[int, tuple[str, str]], record_type: int, data: Buffer) -> Any:
    version = _int16(data)
    return decode(_record_type(table, record_type, "Value", version), version, data, 2)


def _int16(data: Buffer) -> int:
    if len(data) < 2:
        raise InvalidRecord(f"{len(data)} bytes are no record")
    (number,) = _INT16.unpack_from(data)
    return int(number)


def _record_type(
    table: Mapping[int, tuple[str, str]], key: int, ending: str, version: int
) -> type[Any]:
    row = table.get(key)
    if row is None:
        raise UnknownRecord(f"no record is of type {key}")
    found = _load(row[0], row[1] + ending)
    if version not in found.__versions__:
        raise UnknownRecord(f"{found.__name__} has no version {version}")
    return found


@cache
def _load(module: str, name: str) -> type[Any]:
    found = import_module(f"odradek.protocol.schemas.{module}")
    return cast(type[Any], getattr(found, name))


_readers: dict[tuple[type[Any], int], Callable[[memoryview, int], Any]] = {}
_writers: dict[tuple[type[Any], int], Callable[[Any], bytes]] = {}


def _reader(record_type: type[Any], version: int) -> Callable[[memoryview, int], Any]:
    read = _readers.get((record_type, version))
    if read is None:
        read = compile_reader(record_structure(record_type, version))
        _readers[record_type, version] = read
    return read


def _writer(record_type: type[Any], version: int) -> Callable[[Any], bytes]:
    write = _writers.get((record_type, version))
    if write is None:
        if version not in record_type.__versions__:
            raise KeyError(f"{record_type.__name__} has no version {version}")
        write = compile_writer(record_structure(record_type, version))
        _writers[record_type, version] = write
    return write
