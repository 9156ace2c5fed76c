"""Generates requests from the structures of the messages and the names of their fields.

Values are valid, at a limit, or invalid. Ids that each broker chooses (topic ids, member ids, producer ids) are
placeholders, which `Known` describes; the side that sends the request replaces them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from odradek.protocol import messages
from odradek.protocol.apis import Api
from odradek.protocol.codec.structure import FieldPlan, Structure, kio_structure
from odradek.protocol.records.records import Record, build_batch


@dataclass(frozen=True)
class Known:
    """Placeholder of a value that a broker chose; `default` as long as it has chosen none."""

    kind: str
    key: str = ""
    default: Any = ""


@dataclass(frozen=True)
class KnownRecords:
    """Placeholder of records whose producer id and epoch the broker chose."""

    build: Callable[[int, int], bytes]
    transactional_id: str
    timestamp_ms: int
    """Timestamp of the records."""


TOPICS = ("t1", "t2", "compacted")
UNKNOWN_ID = UUID(int=0x1234)
MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"
"""Member id that clients of consumer groups choose."""
LONG = "x" * 250
_TOPIC_NAMES = (*TOPICS, "t1", "t2", "missing", "", "bad name!", LONG)
_GROUPS = ("g1", "cg1", "g1", "cg1", "g2", "", "g" * 300)
_TRANSACTIONS = ("x1", "x1", "x2", "")
_MEMBERS = ("", Known("member", "g1"), Known("member", "g1"), MEMBER, "unknown-member")
_GENERATIONS = (-1, 0, 1, Known("generation", "g1", 1), Known("generation", "g1", 1))
_PRODUCER_IDS = (-1, 0, 1 << 40, Known("producer id", "x1", -1), Known("producer id", "x1", -1))
_PRODUCER_EPOCHS = (-1, 0, 5, Known("producer epoch", "x1", -1), Known("producer epoch", "x1", -1))
_TOPIC_CONFIGS = ("retention.ms", "cleanup.policy", "max.message.bytes", "no.such.config", "")
_BROKER_CONFIGS = ("log.retention.ms", "log.cleaner.threads", "node.id")
_CONFIG_VALUES = ("100000000", "compact", "delete", "a", "", "-1")
_LOG_DIRS = (Known("log dir"), Known("log dir"), "/no/such/directory", "")
_FEATURES = ("transaction.version", "group.version", "metadata.version", "no.such.feature")
_PARTITIONS = (0, 0, 0, 1, 1, 7, -1)
_LONG_MS = (60_000, 60_000, 0, -1, 1 << 30)
_FETCH_LIMITS = (1 << 20, 1 << 20, 0, -1, 1)

FIELDS: Mapping[str, Sequence[Any]] = {
    # strings
    "group_id": _GROUPS,
    "groups": _GROUPS,
    "group_ids": _GROUPS,
    "groups_names": ("g2", "g2", "missing", "", "g1"),
    "transactional_id": _TRANSACTIONS,
    "v3_and_below_transactional_id": _TRANSACTIONS,
    "transactional_ids": _TRANSACTIONS,
    "transactional_id_pattern": ("x.*", "", "(", "x1"),
    "member_id": _MEMBERS,
    "group_instance_id": (None, None, "i1"),
    "instance_id": (None, None, "i1"),
    "protocol_type": ("consumer", "consumer", "connect", ""),
    "protocol_name": ("range", "range", "roundrobin", ""),
    "protocols.name": ("range", "range", "roundrobin", "sticky", "other"),
    "key": ("g1", "x1", "", "cg1"),
    "coordinator_keys": ("g1", "x1", "", "cg1"),
    "config_name": (*_TOPIC_CONFIGS, *_BROKER_CONFIGS),
    "configuration_keys": (*_TOPIC_CONFIGS, *_BROKER_CONFIGS),
    "configs.name": (*_TOPIC_CONFIGS, *_BROKER_CONFIGS),
    "configs.value": _CONFIG_VALUES,
    "resource_name": ("t1", "t1", "1", "", "missing", "g1", "cg1", "kafka-cluster"),
    "resource_name_filter": ("t1", "", "g1", "missing"),
    "principal": ("User:alice", "User:alice", "alice", "User:*"),
    "principal_filter": ("User:alice", "alice", "User:*"),
    "host": ("*", "*", "127.0.0.1", ""),
    "host_filter": ("*", "127.0.0.1", ""),
    "owner_principal_type": ("User", "", "Other"),
    "principal_type": ("User", "", "Other"),
    "principal_name": ("alice", ""),
    "server_assignor": (None, "uniform", "range", "no-such-assignor"),
    "subscribed_topic_regex": (None, None, "t.*", "(", ""),
    "rack_id": (None, "", "r1"),
    "client_software_name": ("test", "", "bad name"),
    "client_software_version": ("1", ""),
    "path": _LOG_DIRS,
    "entity_type": ("user", "client-id", "ip", "unknown"),
    "entity_name": ("alice", "127.0.0.1", "", "bad name"),
    "match": ("alice", "127.0.0.1", ""),
    "ops.key": ("producer_byte_rate", "consumer_byte_rate", "request_percentage",
                "controller_mutation_rate", "connection_creation_rate", "no_such_quota"),
    "states_filter": ("Stable", "Empty", "unknown", ""),
    "state_filters": ("Ongoing", "Empty", "unknown", ""),
    "types_filter": ("classic", "consumer", "unknown", ""),
    "deletions.name": ("alice", "bob", ""),
    "upsertions.name": ("alice", "bob", ""),
    "users.name": ("alice", "bob", ""),
    "feature": _FEATURES,
    "topic_name": ("__cluster_metadata", "t1", ""),
    "cluster_id": (None, Known("cluster id"), "bad"),
    "reason": (None, "", "because"),
    "committed_metadata": (None, "", "m"),
    # numbers
    "partition": _PARTITIONS,
    "partition_index": _PARTITIONS,
    "partition_data.index": _PARTITIONS,
    "partitions": (0, 0, 1, 7, -1),
    "partition_indexes": (0, 0, 1, 7, -1),
    "replica_id": (-1, -1, -1, -2, 1),
    "isolation_level": (0, 1, 0, 1, 2, -1),
    "acks": (-1, -1, 1, 0, 2),
    "max_bytes": _FETCH_LIMITS,
    "partition_max_bytes": _FETCH_LIMITS,
    "min_bytes": (0, 1, -1),
    "timestamp": (-1, -2, -3, -4, -5, -6, 0, 1 << 40),
    "current_leader_epoch": (-1, -1, 0, 1, 99),
    "committed_leader_epoch": (-1, 0, 1),
    "leader_epoch": (-1, 0, 1, 99),
    "fetch_offset": (0, 1, 2, 1000, -1),
    "offset": (0, 1, 2, 1000, -1),
    "committed_offset": (0, 5, -1),
    "session_id": (0, 0, 0, 7, -1, Known("fetch session", default=0)),
    "session_epoch": (0, -1, 1, 2),
    "member_epoch": (0, -1, -2, 1, Known("member epoch", "cg1", 1)),
    "generation_id": _GENERATIONS,
    "generation_id_or_member_epoch": (*_GENERATIONS, Known("member epoch", "cg1", 1)),
    "key_type": (0, 1, 2, 9),
    "coordinator_type": (0, 1, 9),
    "num_partitions": (1, -1, 0, 2),
    "replication_factor": (1, -1, 0, 3),
    "count": (2, 3, 0, -1),
    "resource_type": (2, 4, 1, 16, 32, 99, 8),
    "resource_types": (2, 4, 1, 16, 32, 99, 8),
    "creations.resource_type": (2, 3, 4, 5, 6),
    "resource_pattern_type": (3, 3, 4),
    "resource_type_filter": (1, 2, 3, 99),
    "pattern_type_filter": (1, 2, 3, 4, 99),
    "operation": (2, 3, 1, 99),
    "creations.operation": (2, 3, 4, 8, 10),
    "permission_type": (2, 3, 1, 99),
    "creations.permission_type": (2, 3),
    "producer_id": _PRODUCER_IDS,
    "v3_and_below_producer_id": _PRODUCER_IDS,
    "producer_id_filters": _PRODUCER_IDS,
    "producer_epoch": _PRODUCER_EPOCHS,
    "markers.producer_id": (0, 1 << 40, 5, 6, 7, -1),
    "markers.producer_epoch": (0, 0, 1, 5),
    "v3_and_below_producer_epoch": _PRODUCER_EPOCHS,
    "duration_filter": (-1, 0, 1 << 40),
    "broker_id": (9, -1),
    "broker_ids": (1, 9),
    "replicas": (1, 1, 9, -1),
    "config_operation": (0, 0, 1, 2, 3),
    "match_type": (0, 1, 2, 9),
    "mechanism": (1, 2, 0, 3),
    "iterations": (4096, 8192, 1, 20_000, -1),
    "max_version_level": (0, 1, 1000, -1),
    "upgrade_type": (1, 2, 3, 0, 9),
    "voter_id": (9, -1),
    "response_partition_limit": (2000, 1, 0, -1),
    "ops.value": (1e9, 1e9, 0.0, -1.0, 0.5),
    # durations, in ms
    "session_timeout": (300_000, 300_000, 300_000, 0, 100),
    "rebalance_timeout": (500, 500, 0, -1),
    "transaction_timeout": _LONG_MS,
    "timeout": (500, 500, 500, 500, 0),
    "max_wait": (0, 100, 500),
    "retention_time": (-1, 0),
    "max_lifetime": _LONG_MS,
}  # fmt: skip
"""Values by the name of a field, or by the name of its struct and its own."""
ANY_INTEGER = (0, 1, -1, 2, 100)
_NULL = 0.15
_NULL_RECORDS = 0.03
_TAGGED = 0.3


class RequestGenerator:
    """Generates values of requests."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def request(self, api: Api, version: int) -> dict[str, Any]:
        """Values of a request, with placeholders."""
        entity = messages.load(api.key, version, "request")
        return self._values(kio_structure(entity, lambda *_: set()), "")

    def _values(self, structure: Structure, parent: str) -> dict[str, Any]:
        values = {plan.name: self._field(plan, parent) for plan in structure.plain}
        for plan in structure.tagged:
            if self._rng.random() < _TAGGED:
                values[plan.name] = self._field(plan, parent)
        return values

    def _field(self, plan: FieldPlan, parent: str) -> Any:
        null_share = _NULL_RECORDS if plan.kind == "records" else _NULL
        if plan.nullable and self._rng.random() < null_share:
            return None
        if plan.is_array:
            count = self._rng.choice((0, 1, 1, 1, 1, 2))
            return [self._element(plan, parent) for _ in range(count)]
        return self._element(plan, parent)

    def _element(self, plan: FieldPlan, parent: str) -> Any:
        name, choose = plan.name, self._rng.choice
        if plan.kind == "struct":
            assert plan.of is not None
            return self._values(plan.of, name)
        pool = FIELDS.get(f"{parent}.{name}") or FIELDS.get(name)
        match plan.kind:
            case "string":
                is_topic = "topic" in name or name == "name"
                value = choose(pool or (_TOPIC_NAMES if is_topic else ("", "a", "t1")))
                return "" if value is None and not plan.nullable else value
            case "records":
                return self._records()
            case "bytes":
                return choose((b"", b"\0\1", b"abc"))
            case "bool":
                return choose((False, True))
            case "uuid":
                return self._uuid(name)
            case "float64":
                return choose(pool or (0.0, 1.0))
        if pool is not None:
            return choose(pool)
        if "timeout" in name or name.endswith("_ms") or plan.kind.startswith("timedelta"):
            return choose((0, 100, 500))
        return choose((0, 1, 9092) if plan.kind.startswith("uint") else ANY_INTEGER)

    def _uuid(self, name: str) -> Any:
        if "topic" not in name:
            return UUID(int=0)
        return Known("topic id", self._rng.choice((*TOPICS, "t1", "missing")), UNKNOWN_ID)

    def _records(self) -> Any:
        """Records: mostly one valid batch, without a producer, idempotent or transactional."""
        choose = self._rng.choice
        now_ms = int(time.time() * 1000)
        build = partial(
            _batch,
            [Record(-1, now_ms, choose((b"k", None)), b"v")] * choose((1, 3)),
            compression=choose((0, 0, 1, 2, 3, 4)),
            damage=choose(("", "", "", "", "noise", "cut off", "empty", "two")),
            first_sequence=choose((0, 0, 1, 3)),
            producer=choose(("none", "none", "none", "idempotent", "transactional")),
        )
        return KnownRecords(build, "x1", now_ms)


def _batch(
    records: list[Record],
    producer_id: int,
    producer_epoch: int,
    *,
    compression: int,
    damage: str,
    first_sequence: int,
    producer: str,
) -> bytes:
    framing: dict[str, Any] = {"compression": compression}
    if producer != "none":
        framing |= {
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "base_sequence": first_sequence,
            "transactional": producer == "transactional",
        }
    data = bytearray(build_batch(records, **framing))
    match damage:
        case "noise":
            data[61:] = bytes(range(len(data) - 61))
        case "cut off":
            del data[-2:]
        case "empty":
            data = bytearray()
        case "two":
            data *= 2
    return bytes(data)


UNSUPPORTED_VERSION = "version above the supported ones"
MALFORMED = ("cut short", "one byte more", "null arrays")


def malformed(body: bytes, kind: str) -> bytes:
    """Body of a request with an error in its encoding."""
    match kind:
        case "cut short":
            return body[:-1]
        case "one byte more":
            return body + b"\0"
    return body.replace(b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe")  # count -2, or an id of -2
