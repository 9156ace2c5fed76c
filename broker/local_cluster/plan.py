"""Plan of a cluster on one machine: its nodes with roles, addresses and configs.

The plan is created once and stored in a file with the nodes' directories, so that the cluster restarts with the same
ids, ports and data. The metadata quorum is dynamic (KIP-853): formatting writes the initial voters to the bootstrap
checkpoint. Brokers have the ids from 1; the first three are also controllers, unless the cluster has dedicated
controllers, whose ids follow those of the brokers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from odradek.broker.config.diskless_option import diskless_settings
from odradek.broker.config.tiered_option import tiered_settings
from odradek.seams.network import Address

COMBINED_CONTROLLERS_MAX = 3
"""Number of brokers that are also controllers in a cluster without dedicated controllers."""

CLIENT_LISTENER = "PLAINTEXT"
CONTROLLER_LISTENER = "CONTROLLER"

HOST = "127.0.0.1"
_FORMAT = 1


@dataclass(frozen=True)
class ListenerAddress:
    """Address of a listener, and its advertised address, which may be that of a proxy."""

    listen: Address
    advertised: Address


@dataclass(frozen=True)
class NodePlan:
    """Node of the cluster. `clients` is the listener of a broker, `quorum` that of a controller.

    `directory` contains its config file and its log directories. `directory_id` is the id of the first log
    directory, which has the metadata log; it identifies an initial voter.
    """

    node_id: int
    directory: str
    directory_id: str
    clients: ListenerAddress | None
    quorum: ListenerAddress | None
    log_directory_count: int = 1

    @property
    def is_broker(self) -> bool:
        return self.clients is not None

    @property
    def is_controller(self) -> bool:
        return self.quorum is not None

    @property
    def listeners(self) -> tuple[tuple[str, ListenerAddress], ...]:
        """Listeners with their names, the client listener first."""
        named = ((CLIENT_LISTENER, self.clients), (CONTROLLER_LISTENER, self.quorum))
        return tuple((name, address) for name, address in named if address is not None)

    @property
    def config_file(self) -> str:
        return f"{self.directory}/server.properties"

    @property
    def log_directory(self) -> str:
        """First log directory, which has the metadata log."""
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
        """Return the plan for another absolute directory, to which the cluster was moved or copied."""
        nodes = (
            replace(each, directory=_node_directory(directory, each.node_id)) for each in self.nodes
        )
        return replace(self, nodes=tuple(nodes))

    @property
    def brokers(self) -> tuple[NodePlan, ...]:
        return tuple(node for node in self.nodes if node.is_broker)

    @property
    def controllers(self) -> tuple[NodePlan, ...]:
        return tuple(node for node in self.nodes if node.is_controller)

    @property
    def initial_controllers(self) -> str:
        """Argument of `storage format --initial-controllers`: ID@HOST:PORT:DIRECTORY,…"""
        return ",".join(
            f"{node.node_id}@{node.quorum.advertised}:{node.directory_id}"
            for node in self.controllers
            if node.quorum is not None
        )

    def properties(self, node: NodePlan) -> dict[str, str]:
        """Configs of a node, with Kafka's names."""
        roles = [("broker", node.is_broker), ("controller", node.is_controller)]
        voters = [each.quorum.advertised for each in self.controllers if each.quorum is not None]
        return {
            "process.roles": ",".join(name for name, has_it in roles if has_it),
            "node.id": str(node.node_id),
            "controller.quorum.bootstrap.servers": ",".join(map(str, voters)),
            "listeners": ",".join(f"{name}://{address.listen}" for name, address in node.listeners),
            "advertised.listeners": ",".join(
                f"{name}://{address.advertised}" for name, address in node.listeners
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
        """Parse a plan. Raises ValueError if it is invalid."""
        try:
            values = json.loads(text)
            if values["format"] != _FORMAT:
                raise ValueError(f"unknown format {values['format']}")
            nodes = tuple(_node_from(row) for row in values["nodes"])
            return cls(values["cluster_id"], nodes, values["settings"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{error} is missing") from None


def make_plan(
    *,
    brokers: int,
    controllers: int = 0,
    directory: str,
    new_id: Callable[[], str],
    addresses: Iterator[ListenerAddress],
    settings: Mapping[str, str] | None = None,
    log_directories: int = 1,
    tiered: str | None = None,
    diskless: str | None = None,
) -> ClusterPlan:
    """Create the plan of a new cluster with dedicated `controllers` (0: brokers are also controllers).

    Each node gets a subdirectory of `directory` (absolute), with `log_directories` log directories for a
    broker. `addresses` yields the address of each listener, client listeners first. `tiered` is the store
    of the remote tier, and `diskless` that of diskless topics, if there is one: an absolute directory or a URL.
    """
    if brokers < 1 or controllers < 0 or log_directories < 1:
        raise ValueError(
            "a cluster needs at least one broker and one log directory, and not a negative number of controllers"
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
            _node_directory(directory, node_id),
            new_id(),
            clients.get(node_id),
            quorum.get(node_id),
            log_directories if node_id in clients else 1,
        )
        for node_id in range(1, last + 1)
    ]
    stores: dict[str, str] = {}
    if tiered is not None:
        stores |= tiered_settings(tiered, brokers=brokers, listener=CLIENT_LISTENER)
    if diskless is not None:
        stores |= diskless_settings(diskless, brokers=brokers)
    return ClusterPlan(new_id(), tuple(nodes), {**stores, **(settings or {})})


def _node_directory(directory: str, node_id: int) -> str:
    return f"{directory}/node-{node_id}"


def _replication(brokers: int) -> dict[str, str]:
    """Replication factors of internal topics: Kafka's defaults, limited by the number of brokers."""
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
        _address_from(row["clients"]),
        _address_from(row["quorum"]),
        row.get("log_directory_count", 1),
    )


def _address_from(row: Mapping[str, Any] | None) -> ListenerAddress | None:
    if row is None:
        return None
    return ListenerAddress(Address(**row["listen"]), Address(**row["advertised"]))
