"""One of the two brokers of the request comparison: its connection, and the values that it chose."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode
from odradek.protocol.framing import read_response_header, request_header
from odradek.protocol.records.records import Record, build_batch
from tests.conformance.request_generator import (
    MEMBER,
    TOPICS,
    UNSUPPORTED_VERSION,
    Known,
    KnownRecords,
    malformed,
)
from tests.support.raw_requests import framed, read_frame

RESPONSE_SECONDS = 3.0
READY_SECONDS = 30.0
SETTLE_SECONDS = 0.05
"""Time that a broker has to apply a change of the metadata, which it does after the response."""
NO_RESPONSE = "no response in time"
CLOSED = "connection closed"
UNDECODABLE = "a response that cannot be decoded"
_RETRIED = {ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress,
            ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}  # fmt: skip
"""Errors that end by themselves, at another time on each broker: the request is sent again."""


class ComparedBroker:
    """Sends requests with the values that its broker chose, and normalizes responses."""

    def __init__(self, bootstrap: str, log_dir: Path) -> None:
        self._port = int(bootstrap.rpartition(":")[2])
        self._socket: socket.socket | None = None
        self._sent_at = 0.0
        self._known: dict[tuple[str, str], Any] = {("log dir", ""): str(log_dir)}
        self._record_times_ms: set[int] = set()
        """Timestamps of the records that were sent."""

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # State before the first generated request

    def prepare(self, now_ms: int) -> None:
        """Create topics, records, groups with a member, a transaction, configs, ACLs, quotas and credentials.

        `now_ms` is the time of the records, which must be the same on both brokers.
        """
        topics = [
            {"name": name, "num_partitions": 2, "replication_factor": 1,
             "configs": [{"name": "cleanup.policy", "value": "compact"}] if name == "compacted" else []}
            for name in TOPICS
        ]  # fmt: skip
        self.request(apis.CREATE_TOPICS, 7, {"topics": topics, "timeout": 10_000})
        times_ms = range(now_ms, now_ms + 3)
        self._record_times_ms |= set(times_ms)
        data = bytes(build_batch([Record(-1, each, b"k", b"v") for each in times_ms]))
        produce = {"acks": -1, "timeout": 5000, "transactional_id": None, "topic_data": [
            {"name": "t1", "partition_data": [{"index": 0, "records": data}]}]}  # fmt: skip
        self._retry(
            lambda: self.request(apis.PRODUCE, 9, produce)["responses"][0]["partition_responses"][0]
        )
        for key_type, key in ((0, "g1"), (0, "cg1"), (1, "x1")):
            keys = {"key_type": key_type, "coordinator_keys": [key]}
            self._retry(partial(self._first, apis.FIND_COORDINATOR, 4, keys, "coordinators"))
        found = self.request(apis.METADATA, 12, {"topics": None})
        self._known["cluster id", ""] = found["cluster_id"]
        for topic in found["topics"]:
            self._known["topic id", topic["name"]] = topic["topic_id"]
        self._prepare_groups()
        self._prepare_transaction()
        self._prepare_cluster()

    def restore_topics(self) -> None:
        """Create the topics that the request deleted, and wait until the broker has applied both changes."""
        topics = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in TOPICS]
        response = self.request(apis.CREATE_TOPICS, 7, {"topics": topics, "timeout": 10_000})
        created = {
            topic["topic_id"]
            for topic in (response["topics"] if isinstance(response, dict) else ())
            if topic["error_code"] == ErrorCode.none
        }
        deadline = time.monotonic() + READY_SECONDS
        while True:
            time.sleep(SETTLE_SECONDS)
            found = self.request(apis.METADATA, 12, {"topics": None})["topics"]
            if created <= {topic["topic_id"] for topic in found}:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"the topics that were created are not found: {created}")
        for topic in found:
            self._known["topic id", topic["name"]] = topic["topic_id"]

    def _prepare_groups(self) -> None:
        join = {"group_id": "g1", "session_timeout": 300_000, "rebalance_timeout": 500, "member_id": "",
                "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}  # fmt: skip
        self._retry(partial(self.request, apis.JOIN_GROUP, 3, join))
        member = self._known["member", "g1"]
        sync = {"group_id": "g1", "generation_id": 1, "member_id": member,
                "assignments": [{"member_id": member, "assignment": b"\0"}]}  # fmt: skip
        self._retry(partial(self.request, apis.SYNC_GROUP, 2, sync))
        beat = {"group_id": "cg1", "member_id": MEMBER, "member_epoch": 0, "instance_id": None,
                "rack_id": None, "rebalance_timeout": 60_000, "subscribed_topic_names": ["t2"],
                "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": []}  # fmt: skip
        self._retry(partial(self.request, apis.CONSUMER_GROUP_HEARTBEAT, 1, beat))
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        commit = {"group_id": "g2", "generation_id_or_member_epoch": -1, "member_id": "",
                  "topics": [{"name": "t1", "partitions": [partition]}]}  # fmt: skip
        self.request(apis.OFFSET_COMMIT, 8, commit)

    def _prepare_transaction(self) -> None:
        producer = {"transactional_id": "x1", "transaction_timeout": 600_000}
        self._retry(partial(self.request, apis.INIT_PRODUCER_ID, 2, producer))
        add = {"v3_and_below_transactional_id": "x1",
               "v3_and_below_producer_id": self._known["producer id", "x1"],
               "v3_and_below_producer_epoch": self._known["producer epoch", "x1"],
               "v3_and_below_topics": [{"name": "t2", "partitions": [1]}]}  # fmt: skip
        self.request(apis.ADD_PARTITIONS_TO_TXN, 3, add)

    def _prepare_cluster(self) -> None:
        acl = {"resource_type": 2, "resource_name": "t1", "resource_pattern_type": 3,
               "principal": "User:alice", "host": "*", "operation": 3, "permission_type": 3}  # fmt: skip
        self.request(apis.CREATE_ACLS, 3, {"creations": [acl]})
        config = {"name": "retention.ms", "config_operation": 0, "value": "200000000"}
        resource = {"resource_type": 2, "resource_name": "t1", "configs": [config]}
        altered = {"resources": [resource], "validate_only": False}
        self.request(apis.INCREMENTAL_ALTER_CONFIGS, 1, altered)
        entity = [{"entity_type": "user", "entity_name": "alice"}]
        ops = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
        quotas = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
        self.request(apis.ALTER_CLIENT_QUOTAS, 1, quotas)
        credential = {"name": "alice", "mechanism": 1, "iterations": 4096, "salt": b"salt",
                      "salted_password": b"password"}  # fmt: skip
        scram = {"deletions": [], "upsertions": [credential]}
        self.request(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, scram)

    def _first(self, api: Api, version: int, values: Mapping[str, Any], array: str) -> Any:
        return self.request(api, version, values)[array][0]

    @staticmethod
    def _retry(request: Callable[[], Any]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while (found := request())["error_code"] != ErrorCode.none:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker is not ready: {found}")
            time.sleep(0.1)

    def versions(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version of each API that ApiVersions returns."""
        found = self.request(apis.API_VERSIONS, 0, {})
        return {
            each["api_key"]: (each["min_version"], each["max_version"])
            for each in found["api_keys"]
        }

    # Requests

    def request(self, api: Api, version: int, values: Mapping[str, Any]) -> Any:
        """Return the response as nested dicts, or a text if there is none. Errors that end by themselves are
        waited for."""
        deadline = time.monotonic() + RESPONSE_SECONDS
        while True:
            self.send(api, version, values)
            response = self.receive(api, version, values)
            if not is_temporary(response) or time.monotonic() > deadline:
                return response
            time.sleep(0.02)

    def send(self, api: Api, version: int, values: Mapping[str, Any], kind: str = "") -> None:
        """Send the request, with an error of `kind`."""
        body = messages.write_request(api.key, version, self.resolved(values))
        if kind == UNSUPPORTED_VERSION:
            version += 1
        elif kind:
            body = malformed(body, kind)
        self._sent_at = time.monotonic()
        with suppress(OSError):  # `receive` reports it
            head = request_header(api, version, 7, "test")
            self._connection().sendall(framed(head + body))

    def receive(self, api: Api, version: int, values: Mapping[str, Any]) -> Any:
        """Return the response to the last request, as `request`."""
        if api is apis.PRODUCE and values.get("acks") == 0:
            return self._after_acks_0()
        try:
            connection = self._connection()
            left = self._sent_at + RESPONSE_SECONDS - time.monotonic()
            connection.settimeout(max(left, 0.05))
            response = read_frame(connection)
            if not response:
                raise ConnectionError
        except TimeoutError:
            self.close()
            return NO_RESPONSE
        except OSError:
            self.close()
            return CLOSED
        try:
            view = memoryview(response)
            _, offset = read_response_header(api, version, view)
            found = _plain(messages.read_response(api.key, version, view, offset))
        except Exception as error:
            return f"{UNDECODABLE}: {error}"
        self._learn(api, values, found)
        return found

    def _after_acks_0(self) -> str:
        """Whether the broker closed the connection, which is the only response to acks=0."""
        self.send(apis.API_VERSIONS, 0, {})
        found = self.receive(apis.API_VERSIONS, 0, {})
        return found if isinstance(found, str) else "no response, as acks=0 requests"

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), RESPONSE_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def resolved(self, value: Any) -> Any:
        """The value with the placeholders replaced."""
        if isinstance(value, Known):
            return self._known.get((value.kind, value.key), value.default)
        if isinstance(value, KnownRecords):
            self._record_times_ms.add(value.timestamp_ms)
            key = value.transactional_id
            return value.build(
                self._known.get(("producer id", key), -1),
                self._known.get(("producer epoch", key), -1),
            )
        if isinstance(value, Mapping):
            return {name: self.resolved(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        return value

    def _learn(self, api: Api, values: Mapping[str, Any], found: Any) -> None:
        """Keep the values of a response that later requests need."""
        if found.get("error_code") not in (ErrorCode.none, ErrorCode.member_id_required):
            return
        key = str(values.get("group_id") or values.get("transactional_id") or "")
        match api.name:
            case "join_group":
                self._known["member", key] = found["member_id"]
                if found["generation_id"] > 0:
                    self._known["generation", key] = found["generation_id"]
            case "consumer_group_heartbeat" if found["member_epoch"] > 0:
                self._known["member epoch", key] = found["member_epoch"]
            case "init_producer_id" | "end_txn" if found.get("producer_id", -1) >= 0:
                self._known["producer id", key] = found["producer_id"]
                self._known["producer epoch", key] = found["producer_epoch"]
            case "fetch" if found.get("session_id"):
                self._known["fetch session", ""] = found["session_id"]

    def normalized(self, value: Any, name: str = "") -> Any:
        """Without what a broker chooses, and arrays of structs sorted."""
        if isinstance(value, dict):
            ignored = IGNORED
            if "current_voters" in value:
                ignored |= {"high_watermark"}
            elif value.get("resource_type") == BROKER:  # the settings of the processes
                ignored |= {"value", "config_source", "synonyms"}
                value = {**value, "configs": [each["name"] for each in value.get("configs") or ()]}
            return {
                key: self.normalized(item, key) for key, item in value.items() if key not in ignored
            }
        if isinstance(value, (list, tuple)):
            items = [self.normalized(item, name) for item in value]
            is_sorted = any(isinstance(item, (dict, str)) for item in items)
            return sorted(items, key=repr) if is_sorted else items
        if name == "records" and isinstance(value, bytes):
            return without_marker_times(value)
        if name == "timestamp" and value > 0 and value not in self._record_times_ms:
            return MARKER_TIME
        if name in CHOSEN:
            return "set" if value not in (None, "", -1, 0, UUID(int=0)) else "unset"
        if isinstance(value, UUID):
            names = {
                chosen: key for (kind, key), chosen in self._known.items() if kind == "topic id"
            }
            return names.get(value, "unset" if not value.int else "an id")
        if isinstance(value, str) and value.startswith(UNDECODABLE):
            return UNDECODABLE
        return value


IGNORED = frozenset(
    {"error_message", "batch_index_error_message", "throttle_time", "host", "port", "cluster_id",
     "controller_id", "leader_id", "node_id", "log_append_time", "supported_features", "finalized_features",
     "finalized_features_epoch", "documentation", "log_dir", "partition_size", "total_bytes",
     "usable_bytes", "api_keys", "broker_epoch", "last_timestamp", "last_caught_up_timestamp",
     "last_fetch_timestamp", "transaction_start_time", "voter_directory_id", "replica_directory_id",
     "log_end_offset"}
)  # fmt: skip
"""Fields that depend on the machine, the time or the wording."""
BROKER = 4
"""Resource type of the configs of a broker."""
_ATTRIBUTES_AT, _CONTROL = 22, 0x20
CHOSEN = frozenset(
    {"member_id", "producer_id", "session_id", "coordinator_epoch", "leader", "client_instance_id",
     "subscription_id", "topic_id", "push_interval_ms", "topic_config_error_code"}
)  # fmt: skip
"""Fields of which only their presence is compared."""
MARKER_TIME = "the time of a transaction marker"
"""Timestamp of a ListOffsets response that is of none of the records that were sent."""


def without_marker_times(records: bytes) -> bytes:
    """Records without the timestamps and the CRCs of control batches, whose time the broker chose."""
    data, position = bytearray(records), 0
    while position + _ATTRIBUTES_AT < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if data[position + _ATTRIBUTES_AT] & _CONTROL:
            data[position + 17 : position + 21] = bytes(4)
            data[position + 27 : position + 43] = bytes(16)
        position += size
    return bytes(data)


def is_temporary(response: Any) -> bool:
    """Whether the response has an error, at its top level, that ends by itself."""
    return isinstance(response, dict) and response.get("error_code") in _RETRIED


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return value
