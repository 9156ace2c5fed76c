"""What a partition answers when it is not the one to ask (KIP-320, KIP-101)."""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode, KafkaError


class UnknownPartition(KafkaError):
    code = ErrorCode.unknown_topic_or_partition


class UnknownTopicId(KafkaError):
    code = ErrorCode.unknown_topic_id


class InconsistentTopicId(KafkaError):
    code = ErrorCode.inconsistent_topic_id


class NotLeader(KafkaError):
    code = ErrorCode.not_leader_or_follower


class FencedLeaderEpoch(KafkaError):
    """The client knows an older leader than this one: it must refresh its metadata."""

    code = ErrorCode.fenced_leader_epoch


class UnknownLeaderEpoch(KafkaError):
    """The client knows a newer leader than this broker does."""

    code = ErrorCode.unknown_leader_epoch


class NotEnoughReplicas(KafkaError):
    code = ErrorCode.not_enough_replicas


class NotEnoughReplicasAfterAppend(KafkaError):
    """It is appended, and may or may not stay."""

    code = ErrorCode.not_enough_replicas_after_append


class RequestTimedOut(KafkaError):
    """What was asked for may still happen; the client waits no longer."""

    code = ErrorCode.request_timed_out
