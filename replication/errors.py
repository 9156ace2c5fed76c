"""Errors of partitions: wrong leader, wrong epoch, too few replicas (KIP-320, KIP-101)."""

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
    """The client's leader epoch is older than the current one."""

    code = ErrorCode.fenced_leader_epoch


class UnknownLeaderEpoch(KafkaError):
    """The client's leader epoch is newer than this broker's."""

    code = ErrorCode.unknown_leader_epoch


class NotEnoughReplicas(KafkaError):
    code = ErrorCode.not_enough_replicas


class NotEnoughReplicasAfterAppend(KafkaError):
    """The records were appended, but too few replicas are in sync."""

    code = ErrorCode.not_enough_replicas_after_append


class RequestTimedOut(KafkaError):
    """The operation may still complete after the timeout."""

    code = ErrorCode.request_timed_out
