"""Creates a node's metadata manager and network channel from the `controller.quorum.*` configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek.broker.config.listeners import EVERY_ADDRESS, parse_bootstrap_servers
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.lifecycle import storage_settings
from odradek.broker.lifecycle.broker_registration import advertised_endpoints
from odradek.broker.network.listeners import BoundListener
from odradek.replication.raft.metadata_manager import MetadataManager, MetadataSettings
from odradek.replication.raft.quorum_recovery import QuorumMember
from odradek.replication.raft.quorum_state import QuorumSettings
from odradek.seams import Seams
from odradek.seams.network import Address
from odradek.storage.directories.opening import LogDirectories

if TYPE_CHECKING:
    from odradek.replication.raft.kafka_network_channel import KafkaNetworkChannel


def new_network_channel(
    seams: Seams, config: ServerConfig, listening: Sequence[BoundListener]
) -> KafkaNetworkChannel | None:
    """Channel to the other nodes of the quorum; None if there are and can be none."""
    if configures_no_other_node(config) and not listening:
        return None
    from odradek.replication.raft.kafka_network_channel import KafkaNetworkChannel

    return KafkaNetworkChannel(
        seams.network,
        listener=config.controller_listener,
        bootstrap=[Address(*each) for each in bootstrap_servers(config)],
        client_id=f"raft-client-{config.node_id}",
        timeout_s=config.get_int("controller.quorum.request.timeout.ms") / 1000,
    )


def new_metadata(
    seams: Seams,
    config: ServerConfig,
    directories: LogDirectories,
    listening: Sequence[BoundListener],
    channel: KafkaNetworkChannel | None,
) -> MetadataManager:
    """Create the manager, not started. `listening` are this node's controller listeners."""
    directory = directories.metadata
    assert directory.id is not None
    member = QuorumMember(
        node_id=config.node_id,
        cluster_id=directories.cluster_id,
        directory_id=directory.id,
        controller_listeners=tuple(advertised_endpoints(listening)),
        controller_listener=config.controller_listener,
        static_voters=static_voters(config) or {},
        bootstrap_servers=tuple(bootstrap_servers(config)),
        can_become_voter=config.is_controller,
    )
    settings = MetadataSettings(
        log=storage_settings.metadata_log(config),
        quorum=quorum_settings(config, directories.cluster_id),
        max_idle_ms=config.get_int("metadata.max.idle.interval.ms"),
        min_insync_replicas=config.get_int("min.insync.replicas"),
    )
    return MetadataManager(
        seams,
        directory.path,
        member,
        channel=channel,
        settings=settings,
        on_full=directory.low_disk_space.write_failed,
        find_partitions=directories.partitions_are_in,
    )


_LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))


def quorum_settings(config: ServerConfig, cluster_id: str) -> QuorumSettings:
    """Raft settings from the `controller.quorum.*` configs."""
    return QuorumSettings(
        cluster_id=cluster_id,
        election_timeout_ms=config.get_int("controller.quorum.election.timeout.ms"),
        election_backoff_max_ms=config.get_int("controller.quorum.election.backoff.max.ms"),
        fetch_timeout_ms=config.get_int("controller.quorum.fetch.timeout.ms"),
        request_timeout_ms=config.get_int("controller.quorum.request.timeout.ms"),
        retry_backoff_ms=config.get_int("controller.quorum.retry.backoff.ms"),
        fetch_max_bytes=config.get_int("controller.quorum.fetch.max.bytes"),
        fetch_snapshot_max_bytes=config.get_int("controller.quorum.fetch.snapshot.max.bytes"),
        auto_join=config.get_bool("controller.quorum.auto.join.enable"),
        can_become_voter=config.is_controller,
    )


def static_voters(config: ServerConfig) -> dict[int, tuple[str, int]]:
    """Voters of controller.quorum.voters, by id."""
    return {
        voter.node_id: (voter.host, voter.port)
        for voter in config.quorum_voters
        if voter.node_id is not None
    }


def bootstrap_servers(config: ServerConfig) -> list[tuple[str, int]]:
    """Addresses of controller.quorum.bootstrap.servers, else of the voters, without this node's
    own."""
    name = "controller.quorum.bootstrap.servers"
    named = [
        (server.host, server.port)
        for server in parse_bootstrap_servers(name, config.get_list(name))
        if not _is_own(config, server.host, server.port)
    ]
    if len(named) == 1 and _may_be_own(config, named[0][1]):
        named = []
    voters = static_voters(config)
    return named or [voters[each] for each in sorted(voters) if each != config.node_id]


def configures_no_other_node(config: ServerConfig) -> bool:
    """Whether the configs name no other node, so that this one may create a cluster."""
    return config.is_broker and config.is_controller and not bootstrap_servers(config)


def _is_own(config: ServerConfig, host: str, port: int) -> bool:
    """Whether the address is a controller listener of this node, as bound or as advertised."""
    for mine in (*config.controller_listeners, *config.advertised_controller_listeners):
        here = host in _LOCAL and (mine.host in _LOCAL or mine.host in EVERY_ADDRESS)
        if port == mine.port and (host == mine.host or here):
            return True
    return False


def _may_be_own(config: ServerConfig, port: int) -> bool:
    """Whether the port is that of a wildcard listener without an advertised name. A single
    address may then be this node's own."""
    return any(
        mine.port == port and mine.host in EVERY_ADDRESS and advertised.host in EVERY_ADDRESS
        for mine, advertised in zip(
            config.controller_listeners, config.advertised_controller_listeners, strict=True
        )
    )
