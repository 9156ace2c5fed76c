"""Errors of requests to a broker, and which of them are retriable."""

from __future__ import annotations

import re

from odradek.protocol.errors import ErrorCode, KafkaError

RETRIABLE = frozenset(
    {
        ErrorCode.broker_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
        ErrorCode.network_exception,
        ErrorCode.not_controller,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_leader_or_follower,
        ErrorCode.offset_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.request_timed_out,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.inconsistent_topic_id,
    }
)
"""Error codes after which a request is retried with new metadata."""


class ClientError(Exception):
    """A request got no response; the text has the broker and the reason."""


class Unreachable(ClientError):
    """No connection to the address could be established, or the connection was lost."""


class Refused(Unreachable):
    """The connection was refused: no process listens at the address."""


class NoSuchNode(Unreachable):
    """The metadata of the cluster does not contain the node."""


class TimedOut(ClientError):
    """The broker did not respond within the timeout."""


class Unsupported(ClientError):
    """The broker does not support the API, or none of the required versions."""


def retriable(error: Exception) -> bool:
    """Whether the same request may succeed later, or at another broker."""
    if isinstance(error, KafkaError):
        return error.code in RETRIABLE
    return isinstance(error, Unreachable | TimedOut)


def check(code: int, message: str | None = None, *, about: str = "") -> None:
    """Raise KafkaError for any code but NONE.

    `about` is the subject of the request; it precedes a `message` that does not contain it.
    """
    if code == 0:
        return
    found = ErrorCode(code)
    text = message or found.name.replace("_", " ")
    named = not about or (
        message is not None and about.split()[-1] in re.split(r"[\s'\"]+", message)
    )
    raise KafkaError(found, text if named else f"{about}: {text}")
