"""Why a quorum's log cannot be opened or written."""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode, KafkaError


class InvalidQuorum(Exception):
    """The metadata directory tells of a quorum that this node cannot be part of; the text says why."""


class InconsistentQuorum(Exception):
    """What must never be: two leaders of an epoch, or something committed that is to be cut off."""


class WrongState(Exception):
    """An event that cannot happen in this role: a bug of the driver's."""


class BatchTooLarge(KafkaError):
    """Records that do not fit one batch of the metadata log."""

    code = ErrorCode.record_list_too_large


class NotController(KafkaError):
    """This node is not the active controller: it does not lead the quorum, or has yet to take over."""

    code = ErrorCode.not_controller


class QuorumRefused(KafkaError):
    """The quorum does not change as it was asked to; code and text say why."""
