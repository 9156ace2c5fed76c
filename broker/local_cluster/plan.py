"""What a cluster on one machine consists of: its nodes, their roles, addresses and configs.

A plan is decided once, when the cluster is made, and kept as a file beside the nodes' directories, so
that the cluster comes back as it was: same ids, same ports, same data. The quorum is a dynamic one
(KIP-853): its first voters are in the bootstrap checkpoint that formatting writes. Brokers have the ids
from 1 on; the first three are the controllers, too, unless the cluster has controllers of their own,
which follow the brokers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from odradek.broker.config.tiered import tiered_settings
from odradek.seams.network import Address

COMBINED_CONTROLLERS_MAX = 3
"""So many brokers are controllers, too, in a cluster that has none of their own."""

CLIENT_LISTENER = "PLAINTEXT"
CONTROLLER_LISTENER = "CONTROLLER"

HOST = "127.0.0.1"
_FORMAT = 1


@dataclass(frozen=True)
class Door:
    """Where a listener listens, and where others are told to connect: the same, or a proxy's."""

    listen: Address
    advertised: Address


@dataclass(frozen=True)
class NodePlan:
    """One node. `clients` is a broker's listener, `quorum` a controller's.

    `directory` is the node's own: its config is in it, and its log directories. `directory_id` is the
    id of the first of them, which has the metadata log, and which a first voter of the quorum is known by.
    """

    node_id: int
    directory: str
    directory_id: str
    clients: Door | None
    quorum: Door | None
    log_directory_count: int = 1

    @property
    def is_broker(self) -> bool:
        return self.clients is not None

    @property
    def is_controller(self) -> bool:
        return self.quorum is not None

    @property
    def doors(self) -> tuple[tuple[str, Door], ...]:
        """The listeners by name, the clients' first."""
        named = ((CLIENT_LISTENER, self.clients), (CONTROLLER_LISTENER, self.quorum))
        return tuple((name, door) for name, door in named if door is not None)

    @property
    def config_file(self) -> str:
        return f"{self.directory}/server.properties"

    @property
    def log_directory(self) -> str:
        """The first one."""
        return self.log_directories[0]

    @property
    def log_directories(self) -> tuple[str, ...]:
        more = (
            f"{self.directory}/data-{number}" for number in range(2, self.log_directory_count + 1)
        )
        return (f"{self.directory}/data", *more)


@dataclass(frozen=True)
class ClusterPlan:
    """All nodes; `settings` are configs that every node has, over those that the plan makes."""

    cluster_id: str
    nodes: tuple[NodePlan, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    def node(self, node_id: int) -> NodePlan:
        """Raises KeyError."""
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise KeyError(node_id)

    def at(self, directory: str) -> ClusterPlan:
        """The same cluster in another directory (absolute): it was moved, or copied."""
        nodes = (replace(each, directory=_place(directory, each.node_id)) for each in self.nodes)
        return replace(self, nodes=tuple(nodes))

    @property
    def brokers(self) -> tuple[NodePlan, ...]:
        return tuple(node for node in self.nodes if node.is_broker)

    @property
    def controllers(self) -> tuple[NodePlan, ...]:
        return tuple(node for node in self.nodes if node.is_controller)

    @property
    def initial_controllers(self) -> str:
        """As `storage format --initial-controllers` takes them: ID@HOST:PORT:DIRECTORY,…"""
        return ",".join(
            f"{node.node_id}@{node.quorum.advertised}:{node.directory_id}"
            for node in self.controllers
            if node.quorum is not None
        )

    def properties(self, node: NodePlan) -> dict[str, str]:
        """The node's configs, by Kafka's names."""
        roles = [("broker", node.is_broker), ("controller", node.is_controller)]
        voters = [each.quorum.advertised for each in self.controllers if each.quorum is not None]
        return {
            "process.roles": ",".join(name for name, has_it in roles if has_it),
            "node.id": str(node.node_id),
            "controller.quorum.bootstrap.servers": ",".join(map(str, voters)),
            "listeners": ",".join(f"{name}://{door.listen}" for name, door in node.doors),
            "advertised.listeners": ",".join(
                f"{name}://{door.advertised}" for name, door in node.doors
            ),
            "controller.listener.names": CONTROLLER_LISTENER,
            "listener.security.protocol.map": f"{CLIENT_LISTENER}:PLAINTEXT,"
            f"{CONTROLLER_LISTENER}:PLAINTEXT",
            "log.dirs": ",".join(node.log_directories),
            **_replication(len(self.brokers)),
            "group.initial.rebalance.delay.ms": "0",
            **self.settings,
        }

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ClusterPlan:
        """Raises ValueError for what is no plan of ours."""
        try:
            values = json.loads(text)
            if values["format"] != _FORMAT:
                raise ValueError(f"format {values['format']} is not known")
            nodes = tuple(_node_from(row) for row in values["nodes"])
            return cls(values["cluster_id"], nodes, values["settings"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks {error}") from None


def make_plan(
    *,
    brokers: int,
    controllers: int = 0,
    directory: str,
    new_id: Callable[[], str],
    addresses: Iterator[Door],
    settings: Mapping[str, str] | None = None,
    log_directories: int = 1,
    tiered: str | None = None,
) -> ClusterPlan:
    """A new cluster: `brokers` of them, and `controllers` that are nothing else (0: brokers are).

    `directory` (absolute) gets a subdirectory a node, with `log_directories` of a broker's in it.
    `addresses` gives each listener its own, the brokers' for clients first. `tiered` is where the remote
    tier is, if there is one: an absolute directory, or a URL.
    """
    if brokers < 1 or controllers < 0 or log_directories < 1:
        raise ValueError(
            "a cluster has at least one broker, no less than no controllers, and log directories"
        )
    last = brokers + controllers
    leading = range(brokers + 1, last + 1) if controllers else range(1, brokers + 1)
    clients = {node_id: next(addresses) for node_id in range(1, brokers + 1)}
    quorum = {
        node_id: next(addresses) for node_id in leading[: controllers or COMBINED_CONTROLLERS_MAX]
    }
    nodes = [
        NodePlan(
            node_id,
            _place(directory, node_id),
            new_id(),
            clients.get(node_id),
            quorum.get(node_id),
            log_directories if node_id in clients else 1,
        )
        for node_id in range(1, last + 1)
    ]
    tier = {}
    if tiered is not None:
        tier = tiered_settings(tiered, brokers=brokers, listener=CLIENT_LISTENER)
    return ClusterPlan(new_id(), tuple(nodes), {**tier, **(settings or {})})


def _place(directory: str, node_id: int) -> str:
    return f"{directory}/node-{node_id}"


def _replication(brokers: int) -> dict[str, str]:
    """The internal topics' replicas: Kafka's defaults, as far as there are brokers for them."""
    replicas, in_sync = str(min(3, brokers)), str(min(2, brokers))
    return {
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def _node_from(row: Mapping[str, Any]) -> NodePlan:
    return NodePlan(
        row["node_id"],
        row["directory"],
        row["directory_id"],
        _door_from(row["clients"]),
        _door_from(row["quorum"]),
        row.get("log_directory_count", 1),
    )


def _door_from(row: Mapping[str, Any] | None) -> Door | None:
    if row is None:
        return None
    return Door(Address(**row["listen"]), Address(**row["advertised"]))
