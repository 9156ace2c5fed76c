"""A cluster as a client sees it: its nodes, who leads what, and a connection to each node.

`Cluster` owns the connections (in the nursery of `open_cluster`) and the newest metadata. Metadata is
asked for when something is not known, or was found to be wrong: whoever is told that it spoke to the
wrong node calls `forget`, and asks again. `retrying` is the one place where that patience is written
down: a request is repeated, with fresh metadata, until it succeeds, fails for good, or time is up.
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
LAST_WORDS_S = 0.25
"""How much longer than its time a first attempt has: its requests, which may have as long as all of it has, then
say who did not answer what."""


@value_class
class Node:
    """A broker of the cluster, at the address it advertises to us."""

    node_id: int
    address: Address
    rack: str | None = None


@value_class
class Partition:
    """A partition's place; `leader` is -1 while there is none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error: ErrorCode = ErrorCode.none


@value_class
class Topic:
    """A topic, its partitions by index."""

    name: str
    topic_id: UUID | None
    internal: bool
    partitions: dict[int, Partition] = field(default_factory=dict)


class Cluster:
    """The nodes and topics known so far; connections are opened when first needed."""

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
        """Where no connection could be had, the one tried last with the highest number."""
        self._asked_at: dict[Address, int] = {}
        """Who was asked for metadata, the last one likewise. The next one to be asked is another: a broker that
        is cut off from the others says for ever what it knew before."""
        self._epochs: dict[str, tuple[UUID, dict[int, int]]] = {}
        """The newest leader epoch that was heard of, of the topic with that id."""
        self._outdated: set[Address] = set()
        """Who told of an older one since the last answer that told of none: others are asked before."""

    def start_soon(self, act: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """A task beside the connections, which ends with them at the latest."""
        self._nursery.start_soon(act, *args)

    async def any_node(self) -> BrokerConnection:
        """A connection to whichever node answers: one that is open already, of several one that is not silent
        and was not asked for metadata last, or to one that has not failed lately; to one whose metadata was
        outdated, and that was not asked last, if no other will do. They share `timeout_s`: one that is silent
        leaves time for the others."""
        open_ones = [
            connection
            for (_, owner), connection in self._connections.items()
            if owner is None and not connection.broken and connection.address not in self._outdated
        ]
        if open_ones:
            return min(
                open_ones, key=lambda each: (each.is_silent, self._asked_at.get(each.address, 0))
            )
        known = [node.address for node in self.nodes.values()]
        failures: list[ClientError] = []
        addresses = sorted(
            dict.fromkeys([*self.bootstrap, *known]),
            key=lambda each: (
                each in self._outdated,
                self._failed_at.get(each, 0),
                self._asked_at.get(each, 0),
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
        """A connection to that node; Unreachable if it is not (any more) one of the cluster."""
        if node_id not in self.nodes:
            await self.refresh()
        if node_id not in self.nodes:
            raise NoSuchNode(f"node {node_id} is not in the cluster now")
        return await self.connect(self.nodes[node_id].address)

    async def controller(self) -> BrokerConnection:
        """A connection to the node that takes changes of the cluster's state.

        In KRaft every broker forwards them; the one that Metadata names is as good as any, and any will do
        where that one is gone, or silent.
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
        """The node that leads a partition, from what is known or else asked for.

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
        """The node that leads a partition by what is known; None where that is nobody, or nothing is."""
        found = self._known(topic, partition)
        return None if found is None or found.leader < 0 else found.leader

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Of the leader that is known, -1 if none is. Who is asked in an epoch and is not its leader says so
        (KIP-320): since KIP-392 followers answer consumers, and one that lacks records takes their offsets for
        out of range."""
        found = self._known(topic, partition)
        return -1 if found is None else found.leader_epoch

    def _known(self, topic: str, partition: int) -> Partition | None:
        known = self.topics.get(topic)
        return None if known is None else known.partitions.get(partition)

    async def topic(self, name: str, *, create: bool = False) -> Topic:
        """Ask for one topic; `create` lets the broker make it where auto creation is on. Raises its
        KafkaError."""
        for error in await self.refresh([name], create=create):
            raise error
        return self.topics[name]

    async def coordinator(
        self, key: str, owner: object = None, *, key_type: int = GROUP
    ) -> BrokerConnection:
        """A connection to the coordinator of a group, or of a transactional id, asked for anew; see
        `connect` for `owner`.

        Raises KafkaError (COORDINATOR_NOT_AVAILABLE while there is none, for one).
        """
        asked = await self.any_node()
        respond = await asked.request(
            FIND_COORDINATOR,
            {"key": key, "key_type": key_type, "coordinator_keys": [key]},
            timeout_s=self.timeout_s,
        )
        found = respond.coordinators[0] if hasattr(respond, "coordinators") else respond
        check(
            found.error_code,
            getattr(found, "error_message", None),
            about=f"the coordinator of {'group' if key_type == GROUP else 'transactional id'} {key}",
        )
        return await self.connect(Address(found.host, found.port), owner)

    async def refresh(
        self, topics: Iterable[str] | None = (), *, create: bool = False
    ) -> list[KafkaError]:
        """Fetch metadata: nodes, and these topics (None: all). The errors of topics are returned."""
        connection = await self.any_node()
        self._asked_at[connection.address] = max(self._asked_at.values(), default=0) + 1
        names = None if topics is None else list(topics)
        wanted = None if names is None else [{"name": name} for name in names]
        respond = await connection.request(
            METADATA,
            {"topics": wanted, "allow_auto_topic_creation": create},
            timeout_s=self.timeout_s,
        )
        check(getattr(respond, "error_code", 0), about="metadata")
        self.cluster_id = getattr(respond, "cluster_id", None)
        self.controller_id = getattr(respond, "controller_id", -1)
        self.nodes = {
            row.node_id: Node(row.node_id, Address(row.host, row.port), getattr(row, "rack", None))
            for row in respond.brokers
        }
        if names is None:
            self.topics.clear()
        outdated, self._outdated = self._outdated, set()
        errors = [
            error
            for row in respond.topics
            if (error := self._take(row, connection.address)) is not None
        ]
        if self._outdated:
            self._outdated |= outdated
        return errors

    async def refresh_existing(self, topics: Iterable[str]) -> None:
        """As `refresh`, of topics that may be gone. Raises the KafkaError that keeps us from seeing one that
        is there."""
        for error in await self.refresh(topics):
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise error

    def forget(self, topic: str) -> None:
        """What is known of this topic was found to be wrong."""
        self.topics.pop(topic, None)

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None = None,
        also: Callable[[Exception], bool] = lambda error: False,
        unless: Callable[[Exception], bool] = lambda error: False,
    ) -> T:
        """Await `attempt()` until it succeeds, fails for good, or `timeout_s` is over.

        Fails for good: what neither `retriable` nor `also` accepts, or `unless` does. Past the time the
        last failure is raised. Before each new attempt everything known about topics is forgotten.
        """
        limit = self.timeout_s if timeout_s is None else timeout_s
        pause = BACKOFF_S
        last: Exception | None = None
        end = trio.current_time() + limit
        with trio.move_on_at(end + LAST_WORDS_S) as patience:
            while True:
                try:
                    return await attempt()
                except (KafkaError, ClientError) as error:
                    if not (retriable(error) or also(error)) or unless(error):
                        raise
                    last = error
                patience.deadline = end
                self.topics.clear()
                await trio.sleep(pause)
                pause = min(pause * 2, BACKOFF_MAX_S)
        raise last if last is not None else TimedOut(f"not done in {limit:g} s")

    async def connect(
        self, address: Address, owner: object = None, *, timeout_s: float | None = None
    ) -> BrokerConnection:
        """The connection to an address: the open one, or a new one, within `timeout_s` (None: the cluster's).

        Brokers answer a connection's requests one after the other. Whoever asks for what takes
        long (a group's member: JoinGroup waits for all members) has a connection of its own, as its
        `owner`, and gives it up with `disconnect`.
        """
        key = (address, owner)
        async with self._connecting.setdefault(key, PromptLock()):
            connection = self._connections.get(key)
            if connection is None or connection.broken:
                # Until it has come about: whoever waits for it may lose patience, and is cancelled.
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
        """Close the connections of this owner."""
        for key in [key for key in self._connections if key[1] is owner]:
            self._connecting.pop(key, None)
            await self._connections.pop(key).aclose()

    async def aclose(self) -> None:
        """Close every connection; what was sent still arrives."""
        for connection in self._connections.values():
            await connection.aclose()

    def _take(self, row: Any, told_by: Address) -> KafkaError | None:
        """Keep what metadata says of a topic, or return its error."""
        if row.error_code not in (0, ErrorCode.leader_not_available):
            self.topics.pop(row.name, None)
            code = ErrorCode(row.error_code)
            what = "does not exist" if code == 3 else code.name.replace("_", " ")
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
            self._outdated.add(told_by)
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
        """Whether somebody else has told of a later leader of the partition (KIP-320): the one that is named
        here may take itself for the leader still, and lack what was written since."""
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
    """A cluster found through `bootstrap` ("host:port[,host:port…]"); its connections end with it.

    Nothing is asked for before it is needed: an address where nobody listens fails the first call.
    """
    addresses = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else list(bootstrap)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        cluster = Cluster(network, addresses, nursery, client_id=client_id, timeout_s=timeout_s)
        try:
            yield cluster
        except Exception as error:  # out of the nursery as it is, not as a group of one
            failure = error
        with trio.CancelScope(shield=True):  # closing does not wait
            await cluster.aclose()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def parse_bootstrap(text: str) -> list[Address]:
    """The addresses in "host:port[,host:port…]" ("[::1]:9092" for IPv6); ValueError if it is none."""
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
