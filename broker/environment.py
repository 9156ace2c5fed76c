"""Dependencies that all parts of a node share, each of which takes what it uses from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.seams.values import state_class

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.controller.controller_channel import ControllerChannel
    from odradek.broker.metrics.registry import Metrics
    from odradek.replication.raft.metadata_manager import MetadataManager
    from odradek.seams import Seams
    from odradek.storage.directories.opening import LogDirectories


@state_class
class NodeEnvironment:
    """Configs, seams, directories and metadata of one node, and its channel to the active controller."""

    config: ServerConfig
    seams: Seams
    directories: LogDirectories
    metadata: MetadataManager
    controller_channel: ControllerChannel
    metrics: Metrics

    @property
    def node_id(self) -> int:
        return self.config.node_id

    @property
    def cluster_id(self) -> str:
        return self.directories.cluster_id
