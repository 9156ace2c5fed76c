"""What goes wrong between us and a broker, before or instead of an answer."""

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
"""Codes that may be gone after fresh metadata and a little patience."""


class ClientError(Exception):
    """No answer could be had from a broker; the text says from which, and why."""


class Unreachable(ClientError):
    """Nobody answers at that address, or the connection broke."""


class Refused(Unreachable):
    """The host answers, and nobody listens at that address."""


class NoSuchNode(Unreachable):
    """The cluster answers, and that node is not in it, or not now."""


class TimedOut(ClientError):
    """The broker did not answer in time."""


class Unsupported(ClientError):
    """The broker does not have that API, or none of the versions that are needed."""


def retriable(error: Exception) -> bool:
    """Whether the same request may succeed later, or at another broker."""
    if isinstance(error, KafkaError):
        return error.code in RETRIABLE
    return isinstance(error, Unreachable | TimedOut)


def check(code: int, message: str | None = None, *, about: str = "") -> None:
    """Raise KafkaError for any code but NONE.

    `about` names the thing it happened to, in front of a `message` that doesn't.
    """
    if code == 0:
        return
    found = ErrorCode(code)
    text = message or found.name.replace("_", " ")
    named = not about or (
        message is not None and about.split()[-1] in re.split(r"[\s'\"]+", message)
    )
    raise KafkaError(found, text if named else f"{about}: {text}")
