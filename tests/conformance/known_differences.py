"""Differences between the responses of Odradek and Apache Kafka to generated requests that are intended.

docs/compatibility.md contains the reason of each (a test compares them).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode
from tests.conformance.compared_broker import CLOSED, NO_RESPONSE

UNKNOWN_SERVER_ERROR = ErrorCode.unknown_server_error.name.upper()


@dataclass(frozen=True)
class Exchange:
    """A request and its normalized responses."""

    api: Api
    version: int
    values: Mapping[str, Any]
    odradek: Any
    kafka: Any
    kind: str = ""
    """The error in the encoding of the request, if any."""


@dataclass(frozen=True)
class KnownDifference:
    """A difference that is intended.

    `path`, `odradek` and `kafka` are patterns of the field and of both values; `applies` checks the request and the
    responses. After a request that changed only one broker, `restarts` starts new brokers.
    """

    id: str
    apis: Sequence[str]
    reason: str
    """Sentence of docs/compatibility.md."""
    path: str = ".*"
    odradek: str = ".*"
    kafka: str = ".*"
    applies: Callable[[Exchange], bool] = lambda exchange: True
    restarts: bool = False

    def matches(self, exchange: Exchange, path: str, odradek: str, kafka: str) -> bool:
        """Whether this is the difference."""
        return (
            (not self.apis or exchange.api.name in self.apis)
            and all(
                re.fullmatch(pattern, text)
                for pattern, text in (
                    (self.path, path),
                    (self.odradek, odradek),
                    (self.kafka, kafka),
                )
            )
            and self.applies(exchange)
        )


def known_difference(
    exchange: Exchange, path: str, odradek: str, kafka: str
) -> KnownDifference | None:
    """Return the known difference, if it is one."""
    matching = (each for each in KNOWN if each.matches(exchange, path, odradek, kafka))
    return next(matching, None)


def _batches(exchange: Exchange) -> Iterable[Any]:
    for topic in exchange.values.get("topic_data", ()):
        for partition in topic["partition_data"]:
            yield partition["records"]


def _is_earliest_local(exchange: Exchange) -> bool:
    return exchange.version < 8 and any(
        partition["timestamp"] == -4
        for topic in exchange.values["topics"]
        for partition in topic["partitions"]
    )


def _repeats_a_transaction(exchange: Exchange) -> bool:
    ids = [each["transactional_id"] for each in exchange.values.get("transactions", ())]
    return len(set(ids)) < len(ids)


def _has_zero_topic_id(exchange: Exchange) -> bool:
    return exchange.version >= 13 and any(
        topic["topic_id"] is None for topic in exchange.values["topics"]
    )


def _has_unknown_operation(exchange: Exchange) -> bool:
    return any(
        config["config_operation"] not in range(4)
        for resource in exchange.values["resources"]
        for config in resource["configs"]
    )


def _has_negative_producer(exchange: Exchange) -> bool:
    """Whether a marker may have a negative producer id or epoch; placeholders may be negative."""
    return any(
        not isinstance(marker[name], int) or marker[name] < 0
        for marker in exchange.values["markers"]
        for name in ("producer_id", "producer_epoch")
    )


def _repeats_a_topic(exchange: Exchange) -> bool:
    topics = [repr(topic.get("topic_id", topic.get("name"))) for topic in exchange.values["topics"]]
    return len(set(topics)) < len(topics)


def _repeats_a_partition(exchange: Exchange) -> bool:
    partitions = [
        (repr(topic.get("topic_id", topic.get("name"))), partition["index"])
        for topic in exchange.values["topic_data"]
        for partition in topic["partition_data"]
    ]
    return len(set(partitions)) < len(partitions)


def forgets_a_group(exchange: Exchange, earlier: Iterable[Exchange]) -> bool:
    """Whether Kafka may have forgotten an empty consumer group, which only later responses show: it does if a classic
    member joins with an unknown member id after the last member left."""
    return (
        exchange.api.name == "join_group"
        and isinstance(exchange.kafka, dict)
        and exchange.kafka["error_code"] == ErrorCode.unknown_member_id
        and any(
            each.api.name in ("consumer_group_heartbeat", "leave_group")
            and each.values["group_id"] == exchange.values["group_id"]
            for each in earlier
        )
    )


def _repeats_a_protocol(exchange: Exchange) -> bool:
    names = [protocol["name"] for protocol in exchange.values["protocols"]]
    return len(set(names)) < len(names)


KNOWN: tuple[KnownDifference, ...] = (
    KnownDifference(
        id="join-group-repeated-protocol",
        apis=("join_group",),
        applies=_repeats_a_protocol,
        restarts=True,
        reason="JoinGroup with a protocol name that is repeated uses the first entry. Kafka returns "
        "UNKNOWN_SERVER_ERROR if the member was in the group.",
    ),
    KnownDifference(
        id="list-offsets-earliest-local",
        apis=("list_offsets",),
        applies=_is_earliest_local,
        kafka="UNSUPPORTED_VERSION|-?[0-9]+",
        reason="ListOffsets with timestamp -4 (earliest local offset) is supported from version 7, as in KIP-405. "
        "Kafka supports it from version 8.",
    ),
    KnownDifference(
        id="telemetry",
        apis=("get_telemetry_subscriptions", "push_telemetry"),
        path="",
        odradek=CLOSED,
        reason="GetTelemetrySubscriptions and PushTelemetry: Kafka lists them only if a metrics reporter receives "
        "client metrics.",
    ),
    KnownDifference(
        id="create-acls-any",
        apis=("create_acls",),
        path=r"results\[\]\.error_code",
        odradek="INVALID_REQUEST|NONE",
        kafka=UNKNOWN_SERVER_ERROR,
        restarts=True,
        reason="CreateAcls with ANY or an unknown value where a specific value is required returns INVALID_REQUEST "
        "for that ACL. Kafka returns UNKNOWN_SERVER_ERROR for the whole request.",
    ),
    KnownDifference(
        id="add-partitions-to-txn-empty",
        apis=("add_partitions_to_txn",),
        path="",
        kafka=NO_RESPONSE,
        applies=lambda exchange: not exchange.values.get("transactions"),
        reason="AddPartitionsToTxn 4 and 5 without transactions gets an empty response. Kafka does not respond.",
    ),
    KnownDifference(
        id="add-partitions-to-txn-repeated",
        apis=("add_partitions_to_txn",),
        applies=_repeats_a_transaction,
        restarts=True,
        reason="AddPartitionsToTxn 4 and 5 with a repeated transactional id adds the partitions of each entry. Kafka "
        "adds the partitions of the last entry for all entries.",
    ),
    KnownDifference(
        id="offset-fetch-null-member",
        apis=("offset_fetch",),
        path=r"groups\[\]\.error_code",
        odradek="UNKNOWN_MEMBER_ID",
        kafka=UNKNOWN_SERVER_ERROR,
        applies=lambda exchange: any(
            group["member_id"] is None for group in exchange.values["groups"]
        ),
        reason="OffsetFetch of a consumer group with a member epoch and without a member id returns "
        "UNKNOWN_MEMBER_ID. Kafka returns UNKNOWN_SERVER_ERROR.",
    ),
    KnownDifference(
        id="produce-null-records",
        apis=("produce",),
        applies=lambda exchange: any(records is None for records in _batches(exchange)),
        restarts=True,
        reason="Produce with null records returns INVALID_RECORD for the partition. Kafka does not respond, or "
        "returns UNKNOWN_SERVER_ERROR.",
    ),
    KnownDifference(
        id="produce-repeated-partitions",
        apis=("produce",),
        applies=_repeats_a_partition,
        restarts=True,
        reason="Produce with a partition that is repeated appends the last records, and returns their result. Kafka "
        "appends the last records that are one batch, and returns the error of the others.",
    ),
    KnownDifference(
        id="end-txn-previous-epoch",
        apis=("end_txn",),
        path="error_code|producer_id|producer_epoch",
        applies=lambda exchange: (
            exchange.version == 5
            and exchange.odradek["error_code"] == ErrorCode.producer_fenced
            and exchange.kafka["error_code"] == ErrorCode.none
        ),
        reason="EndTxn 5 with the epoch before the current one returns PRODUCER_FENCED if an older version of EndTxn "
        "ended the transaction, because that did not increase the epoch. Kafka treats it as a retry.",
    ),
    KnownDifference(
        id="scram-empty-password",
        apis=("alter_user_scram_credentials",),
        path=r"results\[\]\.error_code",
        kafka=UNKNOWN_SERVER_ERROR,
        applies=lambda exchange: any(
            not each["salted_password"] for each in exchange.values["upsertions"]
        ),
        restarts=True,
        reason="AlterUserScramCredentials with an empty salted password returns UNACCEPTABLE_CREDENTIAL for that user. "
        "Kafka returns UNKNOWN_SERVER_ERROR for all users of the request.",
    ),
    KnownDifference(
        id="describe-quorum-listeners",
        apis=("describe_quorum",),
        path=r"nodes\[\]\.listeners",
        odradek="0 items",
        reason="DescribeQuorum lists no listeners of a node that has no controller listener, which is the default of a "
        "single node. Kafka requires a controller listener.",
    ),
    KnownDifference(
        id="write-txn-markers-without-partitions",
        apis=("write_txn_markers",),
        path="",
        kafka=NO_RESPONSE,
        reason="WriteTxnMarkers: Kafka does not respond if a marker repeats a partition, and may not respond if a "
        "marker without a partition that exists follows another marker.",
    ),
    KnownDifference(
        id="write-txn-markers-negative-producer",
        apis=("write_txn_markers",),
        applies=_has_negative_producer,
        restarts=True,
        reason="WriteTxnMarkers with a negative producer id or epoch returns UNKNOWN_SERVER_ERROR for partitions that "
        "exist. Kafka returns it for all partitions of the request.",
    ),
    KnownDifference(
        id="offset-commit-repeated-topics",
        apis=("offset_commit", "txn_offset_commit", "offset_delete"),
        path="topics",
        applies=_repeats_a_topic,
        reason="OffsetCommit, TxnOffsetCommit and OffsetDelete with a repeated topic return one entry for the topic. "
        "Kafka returns one or several, depending on the errors.",
    ),
    KnownDifference(
        id="metadata-null-name",
        apis=("metadata",),
        path=r"(topics\[\]\.)?error_code",
        odradek="INVALID_REQUEST",
        kafka=UNKNOWN_SERVER_ERROR,
        reason="Metadata 12 and 13 with a topic without name and id returns INVALID_REQUEST. Kafka returns "
        "UNKNOWN_SERVER_ERROR.",
    ),
    KnownDifference(
        id="fetch-zero-topic-id",
        apis=("fetch",),
        applies=_has_zero_topic_id,
        reason="Fetch 13 and later with several partitions of the zero topic id returns UNKNOWN_TOPIC_ID for each. "
        "Kafka returns UNKNOWN_SERVER_ERROR for the request.",
    ),
    KnownDifference(
        id="alter-configs-unknown-operation",
        apis=("incremental_alter_configs",),
        applies=_has_unknown_operation,
        kafka=UNKNOWN_SERVER_ERROR,
        restarts=True,
        reason="IncrementalAlterConfigs with an unknown operation for a group or client metrics returns "
        "INVALID_REQUEST for that resource. Kafka returns UNKNOWN_SERVER_ERROR for all resources.",
    ),
)
