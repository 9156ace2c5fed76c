"""Creates the metadata manager and its network channel from the node's configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.controller.quorum_settings import (
    bootstrap_servers,
    is_alone,
    quorum_settings,
    static_voters,
)
from odradek.broker.lifecycle import storage_settings
from odradek.broker.lifecycle.broker_registration import advertised_endpoints
from odradek.broker.network.listeners import Endpoint
from odradek.replication.raft.metadata_manager import MetadataManager, MetadataSettings
from odradek.replication.raft.quorum_recovery import QuorumMember
from odradek.seams import Seams
from odradek.seams.network import Address
from odradek.storage.directories.opening import LogDirectories

if TYPE_CHECKING:
    from odradek.replication.raft.kafka_network_channel import KafkaNetworkChannel


def new_network_channel(
    seams: Seams, config: ServerConfig, listening: Sequence[Endpoint]
) -> KafkaNetworkChannel | None:
    """Channel to the other nodes of the quorum; None if there are and can be none."""
    if is_alone(config) and not listening:
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
    listening: Sequence[Endpoint],
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
