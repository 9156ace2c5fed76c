"""Generated requests against Odradek and Apache Kafka, and the differences between their responses.

    python -m tests.conformance.request_comparison [--requests N] [--seed N] [--api NAME] [--page FILE]

Both brokers receive the same requests in the same order: all APIs and versions that both advertise, with field
values that are valid, at a limit, or invalid. Rounds of 250 requests start with new brokers, so that a difference in
the state of the brokers does not have consequences for long. Values that a broker chooses (ids, times, addresses) and
the wording of error messages are not compared.
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from odradek.protocol import apis, messages
from odradek.protocol.apis import APIS, Api
from odradek.protocol.codec.structure import FieldPlan, Structure, kio_structure
from odradek.protocol.errors import ErrorCode
from odradek.protocol.framing import read_response_header
from odradek.protocol.records.records import Record, build_batch
from tests.conformance import brokers
from tests.support.raw_requests import read_frame, request_frame

REQUESTS_PER_ROUND = 250
RESPONSE_SECONDS = 3.0
SETTINGS = {
    "auto.create.topics.enable": "false",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.min.session.timeout.ms": "1000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
EXCLUDED: Mapping[str, str] = {
    "unregister_broker": "removes the only broker",
    "sasl_handshake": "closes connections without SASL",
    "sasl_authenticate": "closes connections without SASL",
    "envelope": "of controllers only",
    "add_raft_voter": "waits for voters that do not exist",
    "remove_raft_voter": "removes the only voter",
}
"""APIs that are not sent, and why."""


@dataclass(frozen=True)
class TopicId:
    """Placeholder of the id that a broker gave to a topic; an unknown topic has a fixed id."""

    topic: str


UNKNOWN_TOPIC_ID = UUID(int=0x1234)
TOPICS = ("t1", "t2", "compacted")
TOPIC_NAMES = (*TOPICS, "t1", "missing", "", "bad name!", "x" * 250)
NAMES: Mapping[str, Sequence[Any]] = {
    "group_id": ("g1", "g2", "", "g" * 300),
    "transactional_id": ("x1", "x2", "", None),
    "member_id": ("", "m1", "unknown-member"),
    "group_instance_id": (None, "i1"),
    "instance_id": (None, "i1"),
    "protocol_type": ("consumer", "connect", ""),
    "protocol_name": ("range", "roundrobin", ""),
    "key": ("g1", "x1", ""),
    "config_name": ("retention.ms", "cleanup.policy", "no.such.config", "log.retention.ms"),
    "resource_name": ("t1", "1", "", "missing", "g1"),
    "principal": ("User:alice", "alice", "User:*"),
    "host": ("*", "127.0.0.1", ""),
    "filter": ("", "t1"),
    "assignor": (None, "range", "no-such-assignor"),
    "server_assignor": (None, "uniform", "range", "no-such-assignor"),
    "rack_id": (None, "", "r1"),
    "rack": (None, "", "r1"),
    "client_id": ("c",),
    "client_software_name": ("test", "", "bad name"),
    "client_software_version": ("1", ""),
    "log_dir": ("/no/such/directory", ""),
    "path": ("/no/such/directory", ""),
    "entity_type": ("user", "client-id", "ip", "unknown"),
    "states_filter": ("Stable", "Empty", "unknown"),
    "types_filter": ("classic", "consumer", "unknown"),
}
TIMEOUTS = (0, 100, 500)
INTEGERS: Mapping[str, Sequence[int]] = {
    "partition": (0, 0, 0, 1, 7, -1),
    "partition_index": (0, 0, 0, 1, 7, -1),
    "partitions": (0, 0, 1, 7, -1),
    "partition_indexes": (0, 0, 1, 7, -1),
    "replica_id": (-1, -1, -1, -2, 1),
    "isolation_level": (0, 1, 2, -1),
    "acks": (-1, 1, 2),
    "max_bytes": (1 << 20, 0, -1, 1),
    "partition_max_bytes": (1 << 20, 0, -1, 1),
    "min_bytes": (0, 1, -1),
    "timestamp": (-1, -2, -3, -4, -5, -6, 0, 1 << 40),
    "current_leader_epoch": (-1, 0, 1, 99),
    "leader_epoch": (-1, 0, 1, 99),
    "fetch_offset": (0, 1, 2, 1000, -1),
    "offset": (0, 1, 2, 1000, -1),
    "committed_offset": (0, 5, -1),
    "session_id": (0, 0, 0, 7, -1),
    "session_epoch": (0, -1, 1),
    "member_epoch": (0, -1, -2, 1),
    "generation_id": (-1, 0, 1),
    "generation_id_or_member_epoch": (-1, 0, 1),
    "key_type": (0, 1, 2, 9),
    "coordinator_type": (0, 1, 9),
    "num_partitions": (1, -1, 0, 2),
    "replication_factor": (1, -1, 0, 3),
    "count": (2, 3, 0, -1),
    "resource_type": (2, 4, 1, 16, 32, 99, 8),
    "resource_type_filter": (1, 2, 3, 99),
    "operation": (2, 3, 1, 99),
    "permission_type": (2, 3, 1, 99),
    "pattern_type": (3, 4, 1, 99),
    "producer_id": (-1, 0, 1 << 40),
    "producer_epoch": (-1, 0, 5),
    "broker_id": (1, 9, -1),
    "broker_ids": (1, 9),
    "replicas": (1, 9, -1),
    "config_operation": (0, 1, 2, 3, 9),
}
ANY_INTEGER = (0, 1, -1, 2, 100)


class RequestGenerator:
    """Generates values of requests from the structures of the messages and the names of their fields."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def values(self, structure: Structure) -> dict[str, Any]:
        values = {plan.name: self._field(plan) for plan in structure.plain}
        for plan in structure.tagged:
            if self._rng.random() < 0.3:
                values[plan.name] = self._field(plan)
        return values

    def _field(self, plan: FieldPlan) -> Any:
        if plan.nullable and self._rng.random() < 0.25:
            return None
        if plan.is_array:
            count = self._rng.choice((0, 1, 1, 1, 2))
            return [self._element(plan) for _ in range(count)]
        return self._element(plan)

    def _element(self, plan: FieldPlan) -> Any:
        name, choose = plan.name, self._rng.choice
        match plan.kind:
            case "struct":
                assert plan.of is not None
                return self.values(plan.of)
            case "string":
                if name in NAMES:
                    value = choose(NAMES[name])
                    return "" if value is None and not plan.nullable else value
                is_topic = "topic" in name or name == "name"
                return choose(TOPIC_NAMES if is_topic else ("", "a", "t1"))
            case "records":
                return self._records()
            case "bytes":
                return choose((b"", b"\0\1", b"abc"))
            case "bool":
                return choose((False, True))
            case "uuid":
                return TopicId(choose((*TOPICS, "missing"))) if "topic" in name else UUID(int=0)
            case "float64":
                return choose((0.0, 1.0, -1.0, 1000.0))
        if "timeout" in name or name.endswith("_ms") or plan.kind.startswith("timedelta"):
            return choose(TIMEOUTS)
        return choose(INTEGERS.get(name, ANY_INTEGER))

    def _records(self) -> bytes:
        choose = self._rng.choice
        now_ms = int(time.time() * 1000)
        records = [Record(-1, now_ms, choose((b"k", None)), b"v") for _ in range(choose((1, 3)))]
        data = bytearray(build_batch(records, compression=choose((0, 0, 1, 2, 3, 4))))
        match choose(("good", "good", "good", "noise", "cut off", "empty", "two")):
            case "noise":
                data[61:] = bytes(range(len(data) - 61))
            case "cut off":
                del data[-2:]
            case "empty":
                data = bytearray()
            case "two":
                data *= 2
        return bytes(data)


class Side:
    """One broker: sends requests with its own topic ids, and normalizes responses."""

    def __init__(self, bootstrap: str) -> None:
        self._port = int(bootstrap.rpartition(":")[2])
        self._socket: socket.socket | None = None
        self._topic_ids: dict[str, UUID] = {}

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def prepare(self) -> None:
        """Create the topics, write a few records, and wait for the coordinators."""
        topics = [
            {"name": name, "num_partitions": 2, "replication_factor": 1,
             "configs": [{"name": "cleanup.policy", "value": "compact"}] if name == "compacted" else []}
            for name in TOPICS
        ]  # fmt: skip
        self.request(apis.CREATE_TOPICS, 7, {"topics": topics, "timeout": 10_000})
        data = bytes(build_batch([Record(-1, 1_700_000_000_000 + i, b"k", b"v") for i in range(3)]))
        produce = {"acks": -1, "timeout": 5000, "transactional_id": None, "topic_data": [
            {"name": "t1", "partition_data": [{"index": 0, "records": data}]}]}  # fmt: skip
        self._retry(
            lambda: self.request(apis.PRODUCE, 9, produce)["responses"][0]["partition_responses"][0]
        )
        for key_type, key in enumerate(("g1", "x1")):
            keys = {"key_type": key_type, "coordinator_keys": [key]}
            self._retry(partial(self._first, apis.FIND_COORDINATOR, 4, keys, "coordinators"))
        offsets = {"groups": [{"group_id": "g1", "topics": None}], "require_stable": False}
        self._retry(partial(self._first, apis.OFFSET_FETCH, 8, offsets, "groups"))
        producer = {"transactional_id": "x1", "transaction_timeout": 60_000}
        self._retry(partial(self.request, apis.INIT_PRODUCER_ID, 2, producer))
        found = self.request(apis.METADATA, 12, {"topics": None})
        self._topic_ids = {topic["name"]: topic["topic_id"] for topic in found["topics"]}

    def _first(self, api: Api, version: int, values: Mapping[str, Any], array: str) -> Any:
        return self.request(api, version, values)[array][0]

    @staticmethod
    def _retry(request: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 30
        while (found := request())["error_code"] != ErrorCode.none:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker is not ready: {found}")
            time.sleep(0.1)

    def versions(self) -> dict[int, tuple[int, int]]:
        found = self.request(apis.API_VERSIONS, 0, {})
        return {
            each["api_key"]: (each["min_version"], each["max_version"])
            for each in found["api_keys"]
        }

    def request(self, api: Api, version: int, values: Mapping[str, Any]) -> Any:
        """Response as nested dicts, or what happened instead of a response."""
        frame = request_frame(api, version, 7, self._resolved(values))
        try:
            connection = self._connection()
            connection.sendall(frame)
            if api.name == "produce" and values.get("acks") == 0:
                return "no response"
            response = read_frame(connection)
            if not response:
                raise ConnectionError
        except TimeoutError:
            self.close()
            return "no response in time"
        except OSError:
            self.close()
            return "connection closed"
        try:
            view = memoryview(response)
            _, offset = read_response_header(api, version, view)
            return _plain(messages.read_response(api.key, version, view, offset))
        except Exception as error:
            return f"a response that cannot be decoded: {error}"

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), RESPONSE_SECONDS)
        return self._socket

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, TopicId):
            return self._topic_ids.get(value.topic, UNKNOWN_TOPIC_ID)
        if isinstance(value, Mapping):
            return {name: self._resolved(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._resolved(item) for item in value]
        return value

    def normalized(self, value: Any, name: str = "") -> Any:
        """Without what a broker chooses, and arrays of structs in an order of their own."""
        if isinstance(value, dict):
            return {
                key: self.normalized(item, key) for key, item in value.items() if key not in IGNORED
            }
        if isinstance(value, (list, tuple)):
            items = [self.normalized(item, name) for item in value]
            return (
                sorted(items, key=repr) if any(isinstance(item, dict) for item in items) else items
            )
        if name in CHOSEN:
            return "set" if value not in (None, "", -1, 0, UUID(int=0)) else "unset"
        if isinstance(value, UUID):
            names = {topic_id: topic for topic, topic_id in self._topic_ids.items()}
            return names.get(value, "unset" if not value.int else "an id")
        return value


IGNORED = frozenset(
    {"error_message", "batch_index_error_message", "throttle_time", "host", "port", "rack", "cluster_id",
     "controller_id", "leader_id", "node_id", "log_append_time", "supported_features", "finalized_features",
     "finalized_features_epoch", "configs", "documentation", "log_dir", "partition_size", "total_bytes",
     "usable_bytes", "api_keys", "broker_epoch", "last_timestamp", "last_caught_up_timestamp",
     "last_fetch_timestamp"}
)  # fmt: skip
"""Fields that depend on the machine, the time or the wording."""
CHOSEN = frozenset(
    {"member_id", "producer_id", "session_id", "coordinator_epoch", "leader", "client_instance_id",
     "subscription_id", "topic_id", "push_interval_ms", "skip_assignment", "topic_config_error_code"}
)  # fmt: skip
"""Fields of which only their presence is compared."""


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return value


@dataclass
class Difference:
    """Requests of one API whose responses differ in one field in the same way."""

    api: str
    path: str
    odradek: str
    kafka: str
    versions: Counter[int] = field(default_factory=Counter)
    example: str = ""


def differences(odradek: Any, kafka: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Path of each field that differs, with both values."""
    if isinstance(odradek, dict) and isinstance(kafka, dict):
        for name in sorted({*odradek, *kafka}):
            yield from differences(odradek.get(name), kafka.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(odradek, list) and isinstance(kafka, list) and len(odradek) == len(kafka):
        for mine, other in zip(odradek, kafka, strict=True):
            yield from differences(mine, other, f"{path}[]")
    elif odradek != kafka:
        yield path, _short(odradek), _short(kafka)


def _short(value: Any) -> str:
    if isinstance(value, ErrorCode):
        return value.name.upper()
    if isinstance(value, list):
        return f"{len(value)} items"
    return str(value)[:60]


def compare(
    requests: int, seed: int, only: str | None
) -> tuple[int, dict[tuple[str, ...], Difference]]:
    """Number of requests that were sent, and the differences."""
    found: dict[tuple[str, ...], Difference] = {}
    sent = 0
    for number in range(-(-requests // REQUESTS_PER_ROUND)):
        count = min(REQUESTS_PER_ROUND, requests - sent)
        for api, version, values, odradek, kafka in _round(count, f"{seed}-{number}", only):
            sent += 1
            for path, mine, other in differences(odradek, kafka):
                key = (api.name, path, mine, other)
                entry = found.setdefault(key, Difference(*key))
                entry.versions[version] += 1
                entry.example = entry.example or repr(values)
        print(f"{sent} requests, {len(found)} differences", file=sys.stderr, flush=True)
    return sent, found


def _round(
    count: int, seed: str, only: str | None
) -> Iterator[tuple[Api, int, Mapping[str, Any], Any, Any]]:
    rng = random.Random(seed)
    generator = RequestGenerator(rng)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = []
        for name in brokers.TITLES:
            process = stack.enter_context(brokers.start(name, directory / name, SETTINGS))
            side = Side(process.bootstrap)
            stack.callback(side.close)
            side.prepare()
            sides.append(side)
        odradek, kafka = sides
        kafka_versions = kafka.versions()
        choices = [
            (APIS[key], version)
            for key, (low, high) in odradek.versions().items()
            if key in kafka_versions and APIS[key].name not in EXCLUDED
            for version in range(
                max(low, kafka_versions[key][0], APIS[key].min_version),
                min(high, kafka_versions[key][1]) + 1,
            )
            if only in (None, APIS[key].name)
        ]
        for _ in range(count):
            api, version = rng.choice(choices)
            structure = kio_structure(messages.load(api.key, version, "request"), lambda *_: set())
            values = generator.values(structure)
            results = [side.normalized(side.request(api, version, values)) for side in sides]
            yield api, version, values, results[0], results[1]


def report(sent: int, seed: int, found: Mapping[tuple[str, ...], Difference]) -> str:
    """Markdown table of the differences."""
    lines = [
        f"{sent} requests (seed {seed}), {len(found)} differences.",
        "",
        "| API | Versions | Field of the response | Odradek | Apache Kafka | Requests |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for entry in sorted(found.values(), key=lambda entry: (entry.api, -entry.versions.total())):
        versions = ", ".join(map(str, sorted(entry.versions)))
        lines.append(
            f"| {entry.api} | {versions} | `{entry.path or 'response'}` | {entry.odradek} | {entry.kafka} "
            f"| {entry.versions.total()} |"
        )
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Print the differences; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--api", help="send only requests of this API, for example list_offsets")
    parser.add_argument(
        "--examples", action="store_true", help="print a request for each difference"
    )
    options = parser.parse_args(words)
    sent, found = compare(options.requests, options.seed, options.api)
    print(report(sent, options.seed, found))
    if options.examples:
        for entry in found.values():
            print(f"{entry.api} {entry.path}: {entry.odradek} / {entry.kafka}\n    {entry.example}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
