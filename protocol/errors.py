"""Kafka's errors: an error code for the peer and a message for people.

Every expected failure of a request is a `KafkaError`, whose error code is sent in the response. `InvalidFrame` is
not a `KafkaError`: a malformed frame has no response, and the connection is closed.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "InvalidFrame", "CorruptBatch", "error_code"]


class KafkaError(Exception):
    """An expected failure with the error code for the response.

    Raised as `KafkaError(ErrorCode.invalid_config, "…")`, or through a subclass that fixes the code
    as a class attribute and takes the message alone.
    """

    code: ErrorCode = ErrorCode.unknown_server_error

    def __init__(self, code: ErrorCode | str = "", message: str = "") -> None:
        if isinstance(code, ErrorCode):
            self.code = code
        else:
            message = code or message
        self.message = message
        super().__init__(f"{self.code.name}: {message}" if message else self.code.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps code, message and class when a worker process sends the error by pickle."""
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[KafkaError], args: tuple[Any, ...]) -> KafkaError:
    return kind.__new__(kind, *args)


class CorruptBatch(KafkaError):
    """A record batch that is truncated, fails its checksum, or has contradictory fields."""

    code: ErrorCode = ErrorCode.corrupt_message


class DecompressedRecordsTooLarge(CorruptBatch):
    """Records that decompress to more bytes than the reader's limit."""


class InvalidFrame(Exception):
    """A malformed frame: it has no response, and the connection is closed."""


_BY_VALUE = {int(code): code for code in ErrorCode}


def private_error_code(name: str, value: int) -> ErrorCode:
    """An error code of Odradek's own, which Odradek's clients know by its name. Kafka's clients report it as
    UNKNOWN_SERVER_ERROR with the message."""
    code = int.__new__(ErrorCode, value)
    code._name_, code._value_, code.retriable = name, value, True
    _BY_VALUE[value] = code
    return code


TIERED_STORAGE_DISABLEMENT_IN_PROGRESS: Final = private_error_code(
    "tiered_storage_disablement_in_progress", 20_950
)
"""A change of tiered storage of a topic that is being disabled (KIP-950)."""


def error_code(value: int) -> ErrorCode:
    """The error with this code. An unknown code is UNKNOWN_SERVER_ERROR, as in the Java client."""
    return _BY_VALUE.get(value, ErrorCode.unknown_server_error)
