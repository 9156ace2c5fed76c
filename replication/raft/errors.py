"""Errors of the metadata quorum and its log."""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode, KafkaError


class InvalidQuorum(Exception):
    """The metadata log directory belongs to a quorum that this node cannot join."""


class InconsistentQuorum(Exception):
    """A broken invariant: an epoch with two leaders, or a truncation below the high watermark."""


class UnexpectedRaftEvent(Exception):
    """An event that cannot occur in this role: a bug in the driver."""


class BatchTooLarge(KafkaError):
    """Records that exceed the maximum batch size of the metadata log."""

    code = ErrorCode.record_list_too_large


class NotController(KafkaError):
    """This node is not the active controller: it does not lead the quorum, or its failover is not
    complete."""

    code = ErrorCode.not_controller


class KRaftVersionChangeRejected(KafkaError):
    """A change of kraft.version was rejected, with an error code and message."""
