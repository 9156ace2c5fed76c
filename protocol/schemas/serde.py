"""Stored records to bytes and back: the frame around each family, and the class behind each key.

Metadata and remote-log records: uvarint frame version 1, uvarint API key, uvarint version, body.
Coordinator records: a key is its type (int16) and body (version 0), a value its version (int16) and
body. Classes load when their key is first met. Whatever is malformed, unknown or left over is an
InvalidRecord: these bytes come from a disk, and the caller decides what that means.
"""

from __future__ import annotations

from typing import Any

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.files import Buffer


class InvalidRecord(KafkaError):
    """Stored bytes that are no record we know, or not wholly one."""

    code: ErrorCode = ErrorCode.corrupt_message


class UnknownRecord(InvalidRecord):
    """A record of a type or version that Kafka 4.3 does not have."""


def encode_metadata_record(record: Any, version: int | None = None) -> bytes:
    """A metadata record as the value of a record in `__cluster_metadata`; None is the newest version."""
    raise NotImplementedError


def decode_metadata_record(data: Buffer) -> Any:
    """The metadata record in a value of `__cluster_metadata`."""
    raise NotImplementedError


def metadata_record_version(data: Buffer) -> tuple[int, int]:
    """API key and version of an encoded metadata record, for those who show it."""
    raise NotImplementedError


def encode_remote_log_record(record: Any, version: int | None = None) -> bytes:
    raise NotImplementedError


def decode_remote_log_record(data: Buffer) -> Any:
    raise NotImplementedError


def encode_coordinator_key(key: Any) -> bytes:
    """The key of a record in `__consumer_offsets` or `__transaction_state`."""
    raise NotImplementedError


def encode_coordinator_value(value: Any, version: int | None = None) -> bytes:
    """The value; None is the version that Kafka 4.3 writes."""
    raise NotImplementedError


def decode_group_key(data: Buffer) -> Any:
    """A key of `__consumer_offsets`; UnknownRecord for a type that is not Kafka 4.3's."""
    raise NotImplementedError


def decode_group_value(key: Any, data: Buffer) -> Any:
    """The value that belongs to `key` (a tombstone, None, is not for here)."""
    raise NotImplementedError


def decode_transaction_key(data: Buffer) -> Any:
    """A key of `__transaction_state`."""
    raise NotImplementedError


def decode_transaction_value(data: Buffer) -> Any:
    """A value of `__transaction_state`."""
    raise NotImplementedError


def encode(record: Any, version: int) -> bytes:
    """The body of any record or struct of ours, without a frame."""
    raise NotImplementedError


def decode(record_type: type[Any], version: int, data: Buffer) -> Any:
    """A body without a frame; InvalidRecord for anything malformed or left over."""
    raise NotImplementedError
