"""Metadata of a cluster, and a connection to each of its nodes.

`Cluster` owns the connections (in the nursery of `open_cluster`) and the cached metadata. Metadata is requested when it
is missing or outdated: after an error such as NOT_LEADER_OR_FOLLOWER, the caller invalidates a topic with `forget`
and retries. `retrying` retries a request with new metadata until it succeeds, fails with an error that is not
retriable, or times out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from typing import Any, TypeVar, TypeVarTuple
from uuid import UUID

import trio

from odradek.client.connection import CLIENT_ID, BrokerConnection, open_connection
from odradek.client.errors import (
    ClientError,
    NoSuchNode,
    TimedOut,
    Unreachable,
    check,
    retriable,
)
from odradek.protocol.apis import FIND_COORDINATOR, METADATA
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.locks import PromptLock
from odradek.seams.network import Address, Network
from odradek.seams.values import value_class

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""
BACKOFF_S = 0.05
BACKOFF_MAX_S = 1.0
FIRST_ATTEMPT_EXTRA_S = 0.25
"""Additional time for the first attempt, so that a request with the same timeout reports its own error."""


@value_class
class Node:
    """Broker of the cluster, with its advertised address."""

    node_id: int
    address: Address
    rack: str | None = None


@value_class
class Partition:
    """Metadata of a partition; `leader` is -1 while there is none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error: ErrorCode = ErrorCode.none


@value_class
class Topic:
    """Metadata of a topic, with its partitions by index."""

    name: str
    topic_id: UUID | None
    internal: bool
    partitions: dict[int, Partition] = field(default_factory=dict)


class Cluster:
    """Cached nodes and topics; connections are opened when first needed."""

    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[Address],
        nursery: trio.Nursery,
        *,
        client_id: str | None = CLIENT_ID,
        timeout_s: float = 30.0,
    ) -> None:
        self.timeout_s = timeout_s
        self.client_id = client_id
        self.bootstrap = tuple(bootstrap)
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        self._network = network
        self._nursery = nursery
        self._connections: dict[tuple[Address, object], BrokerConnection] = {}
        self._connecting: dict[tuple[Address, object], PromptLock] = {}
        self._failed_at: dict[Address, int] = {}
        """Addresses of failed connections, with a number that increases with every failure."""
        self._requested_at: dict[Address, int] = {}
        """Addresses of Metadata requests, with a number that increases with every request. The next request
        goes to another broker, because the metadata of a partitioned broker stays outdated."""
        self._epochs: dict[str, tuple[UUID, dict[int, int]]] = {}
        """Largest received leader epoch of each partition, with the topic id."""
        self._outdated: set[Address] = set()
        """Addresses that returned older leader epochs since the last current response; others are preferred."""

    def start_soon(self, act: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Start a task that is cancelled when the cluster is closed."""
        self._nursery.start_soon(act, *args)

    async def any_node(self) -> BrokerConnection:
        """Return a connection to any node.

        Open connections are preferred: first responsive ones, then the one with the oldest Metadata
        request. Otherwise addresses are tried in this order: current metadata before outdated,
        connections that did not fail recently, oldest Metadata request. The attempts share `timeout_s`.
        """
        open_ones = [
            connection
            for (_, owner), connection in self._connections.items()
            if owner is None and not connection.broken and connection.address not in self._outdated
        ]
        if open_ones:
            return min(
                open_ones,
                key=lambda each: (each.is_unresponsive, self._requested_at.get(each.address, 0)),
            )
        known = [node.address for node in self.nodes.values()]
        failures: list[ClientError] = []
        addresses = sorted(
            dict.fromkeys([*self.bootstrap, *known]),
            key=lambda each: (
                each in self._outdated,
                self._failed_at.get(each, 0),
                self._requested_at.get(each, 0),
            ),
        )
        end = trio.current_time() + self.timeout_s
        for count, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            left_s = max(0.0, end - trio.current_time())
            try:
                return await self.connect(address, timeout_s=left_s / count)
            except ClientError as failure:
                failures.append(failure)
        raise Unreachable("; ".join(str(failure) for failure in failures))

    async def node(self, node_id: int) -> BrokerConnection:
        """Return a connection to a node. Raises NoSuchNode if the node is not in the metadata."""
        if node_id not in self.nodes:
            await self.refresh()
        if node_id not in self.nodes:
            raise NoSuchNode(f"node {node_id} is not in the cluster now")
        return await self.connect(self.nodes[node_id].address)

    async def controller(self) -> BrokerConnection:
        """Return a connection for requests to the controller.

        In KRaft every broker forwards them. The broker in the Metadata response is tried first, and then
        any other one.
        """
        if self.controller_id not in self.nodes:
            await self.refresh()
        if self.controller_id in self.nodes:
            address = self.nodes[self.controller_id].address
            with suppress(ClientError):
                return await self.connect(address, timeout_s=self.timeout_s / 2)
            self.controller_id = -1
        return await self.any_node()

    async def leader(self, topic: str, partition: int) -> int:
        """Return the leader of a partition, with a Metadata request if it is not cached.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE.
        """
        known = self.topics.get(topic)
        if known is None or partition not in known.partitions:
            known = await self.topic(topic)
        found = known.partitions.get(partition)
        if found is None:
            count = len(known.partitions)
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has no partition {partition} (it has {count}, from 0)",
            )
        if found.leader < 0:
            self.forget(topic)
            raise no_leader(topic, partition)
        return found.leader

    def known_leader(self, topic: str, partition: int) -> int | None:
        """Return the cached leader of a partition; None if there is none."""
        found = self._known(topic, partition)
        return None if found is None or found.leader < 0 else found.leader

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the cached leader epoch, -1 if there is none.

        A request with this epoch fails with an error at a broker that is not the leader in it (KIP-320).
        Without it, a follower without the records responds OFFSET_OUT_OF_RANGE (KIP-392).
        """
        found = self._known(topic, partition)
        return -1 if found is None else found.leader_epoch

    def _known(self, topic: str, partition: int) -> Partition | None:
        known = self.topics.get(topic)
        return None if known is None else known.partitions.get(partition)

    async def topic(self, name: str, *, create: bool = False) -> Topic:
        """Request the metadata of a topic. `create` allows its automatic creation. Raises the topic's KafkaError."""
        for error in await self.refresh([name], create=create):
            raise error
        return self.topics[name]

    async def coordinator(
        self, key: str, owner: object = None, *, key_type: int = GROUP
    ) -> BrokerConnection:
        """Look up the coordinator of a group or transactional id, and connect to it; `owner` as in `connect`.

        Raises KafkaError, for example COORDINATOR_NOT_AVAILABLE, and ClientError.
        """
        node = await self.any_node()
        response = await node.request(
            FIND_COORDINATOR,
            {"key": key, "key_type": key_type, "coordinator_keys": [key]},
            timeout_s=self.timeout_s,
        )
        found = response.coordinators[0] if hasattr(response, "coordinators") else response
        check(
            found.error_code,
            getattr(found, "error_message", None),
            about=f"the coordinator of {'group' if key_type == GROUP else 'transactional id'} {key}",
        )
        return await self.connect(Address(found.host, found.port), owner)

    async def refresh(
        self, topics: Iterable[str] | None = (), *, create: bool = False
    ) -> list[KafkaError]:
        """Request the metadata of the nodes and of these topics (None: all); return the errors of topics."""
        connection = await self.any_node()
        self._requested_at[connection.address] = max(self._requested_at.values(), default=0) + 1
        names = None if topics is None else list(topics)
        wanted = None if names is None else [{"name": name} for name in names]
        response = await connection.request(
            METADATA,
            {"topics": wanted, "allow_auto_topic_creation": create},
            timeout_s=self.timeout_s,
        )
        check(getattr(response, "error_code", 0), about="metadata")
        self.cluster_id = getattr(response, "cluster_id", None)
        self.controller_id = getattr(response, "controller_id", -1)
        self.nodes = {
            row.node_id: Node(row.node_id, Address(row.host, row.port), getattr(row, "rack", None))
            for row in response.brokers
        }
        if names is None:
            self.topics.clear()
        outdated, self._outdated = self._outdated, set()
        errors = [
            error
            for row in response.topics
            if (error := self._take(row, connection.address)) is not None
        ]
        if self._outdated:
            self._outdated |= outdated
        return errors

    async def refresh_existing(self, topics: Iterable[str]) -> None:
        """Request the metadata of topics that may not exist; raises the other errors of topics."""
        for error in await self.refresh(topics):
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise error

    def forget(self, topic: str) -> None:
        """Remove a topic from the cache, because its metadata is outdated."""
        self.topics.pop(topic, None)

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None = None,
        also: Callable[[Exception], bool] = lambda error: False,
        unless: Callable[[Exception], bool] = lambda error: False,
    ) -> T:
        """Await `attempt()` until it succeeds, fails with a non-retriable error, or `timeout_s` is over.

        An error is retried if `retriable` or `also` accepts it and `unless` does not. After the timeout
        the last error is raised. The cached topics are removed before each retry.
        """
        limit = self.timeout_s if timeout_s is None else timeout_s
        pause = BACKOFF_S
        last: Exception | None = None
        end = trio.current_time() + limit
        with trio.move_on_at(end + FIRST_ATTEMPT_EXTRA_S) as time_limit:
            while True:
                try:
                    return await attempt()
                except (KafkaError, ClientError) as error:
                    if not (retriable(error) or also(error)) or unless(error):
                        raise
                    last = error
                time_limit.deadline = end
                self.topics.clear()
                await trio.sleep(pause)
                pause = min(pause * 2, BACKOFF_MAX_S)
        raise last if last is not None else TimedOut(f"timed out after {limit:g} s")

    async def connect(
        self, address: Address, owner: object = None, *, timeout_s: float | None = None
    ) -> BrokerConnection:
        """Return the open connection to an address, or open one within `timeout_s` (None: the cluster's).

        A broker processes the requests of a connection in order. A caller with long requests, such as
        JoinGroup of a group member, passes itself as `owner` to get its own connection, and closes it
        with `disconnect`.
        """
        key = (address, owner)
        async with self._connecting.setdefault(key, PromptLock()):
            connection = self._connections.get(key)
            if connection is None or connection.broken:
                # Counted as failed until it is open, because the caller may cancel the attempt.
                self._failed_at[address] = max(self._failed_at.values(), default=0) + 1
                connection = await open_connection(
                    self._network,
                    address,
                    self._nursery,
                    client_id=self.client_id,
                    timeout_s=self.timeout_s if timeout_s is None else timeout_s,
                )
                self._failed_at.pop(address, None)
                self._connections[key] = connection
            return connection

    async def disconnect(self, owner: object) -> None:
        """Close the connections of an owner."""
        for key in [key for key in self._connections if key[1] is owner]:
            self._connecting.pop(key, None)
            await self._connections.pop(key).aclose()

    async def aclose(self) -> None:
        """Close all connections; sent requests still reach the brokers."""
        for connection in self._connections.values():
            await connection.aclose()

    def _take(self, row: Any, source: Address) -> KafkaError | None:
        """Cache the metadata of a topic, or return its error."""
        if row.error_code not in (0, ErrorCode.leader_not_available):
            self.topics.pop(row.name, None)
            code = ErrorCode(row.error_code)
            what = (
                "does not exist"
                if code is ErrorCode.unknown_topic_or_partition
                else code.name.replace("_", " ")
            )
            return KafkaError(code, f"topic {row.name} {what}")
        if row.error_code and not row.partitions:
            return KafkaError(ErrorCode.leader_not_available, f"topic {row.name} is being created")
        topic_id: UUID | None = getattr(row, "topic_id", None)
        outdated = {
            part.partition_index
            for part in row.partitions
            if self._is_outdated(row.name, topic_id, part)
        }
        if outdated:
            self._outdated.add(source)
        partitions = {
            part.partition_index: Partition(
                part.partition_index,
                -1 if part.partition_index in outdated else part.leader_id,
                getattr(part, "leader_epoch", -1),
                tuple(part.replica_nodes),
                tuple(part.isr_nodes),
                tuple(getattr(part, "offline_replicas", ())),
                ErrorCode(part.error_code),
            )
            for part in sorted(row.partitions, key=lambda part: int(part.partition_index))
        }
        internal = bool(getattr(row, "is_internal", False))
        self.topics[row.name] = Topic(row.name, topic_id, internal, partitions)
        return None

    def _is_outdated(self, topic: str, topic_id: UUID | None, part: Any) -> bool:
        """Whether a larger leader epoch of the partition was received before (KIP-320).

        The leader in an outdated response may be a former leader without the latest records.
        """
        if topic_id is None or part.leader_epoch < 0:
            return False
        known_id, epochs = self._epochs.get(topic, (None, {}))
        if known_id != topic_id:
            epochs = {}
            self._epochs[topic] = topic_id, epochs
        newest = max(part.leader_epoch, epochs.get(part.partition_index, -1))
        epochs[part.partition_index] = newest
        return bool(part.leader_epoch < newest)


def no_leader(topic: str, partition: int) -> KafkaError:
    return KafkaError(ErrorCode.leader_not_available, f"{topic}-{partition} has no leader")


@asynccontextmanager
async def open_cluster(
    network: Network,
    bootstrap: str | Sequence[Address],
    *,
    client_id: str | None = CLIENT_ID,
    timeout_s: float = 30.0,
) -> AsyncIterator[Cluster]:
    """Open a cluster with the bootstrap addresses "host:port[,host:port…]", and close its connections at the end.

    No connection is opened before the first request, which fails if no address is reachable.
    """
    addresses = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else list(bootstrap)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        cluster = Cluster(network, addresses, nursery, client_id=client_id, timeout_s=timeout_s)
        try:
            yield cluster
        except Exception as error:  # raise it without the exception group of the nursery
            failure = error
        with trio.CancelScope(shield=True):  # closing does not wait
            await cluster.aclose()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def parse_bootstrap(text: str) -> list[Address]:
    """Parse "host:port[,host:port…]" ("[::1]:9092" for IPv6). Raises ValueError."""
    addresses = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            colon = ""
        if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{part.strip()!r} is not HOST:PORT")
        addresses.append(Address(host, int(port)))
    return addresses
