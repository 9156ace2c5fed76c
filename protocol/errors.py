"""Errors as Kafka knows them: a code for the peer, a text for people.

Every expected failure above the wire is a `KafkaError`; the code it carries is what the peer gets,
and it is translated once, at the edge. `InvalidFrame` is no `KafkaError`: garbage from the wire has
no answer, the connection is closed.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "InvalidFrame", "CorruptBatch", "error_code"]


class KafkaError(Exception):
    """An expected failure with the error code that the peer is told.

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
        """Pickled as it is (from a worker process), not made anew from its text."""
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[KafkaError], args: tuple[Any, ...]) -> KafkaError:
    return kind.__new__(kind, *args)


class CorruptBatch(KafkaError):
    """A record batch that is cut short, fails its checksum, or contradicts itself."""

    code: ErrorCode = ErrorCode.corrupt_message


class DecompressesToMore(CorruptBatch):
    """Records that decompress to more than whoever reads them has room for."""


class InvalidFrame(Exception):
    """Garbage from the wire: there is nothing to answer, the connection is closed."""


_BY_VALUE = {int(code): code for code in ErrorCode}


def error_code(value: int) -> ErrorCode:
    """The error with this number; one that we do not know is UNKNOWN_SERVER_ERROR, as in Java."""
    return _BY_VALUE.get(value, ErrorCode.unknown_server_error)
