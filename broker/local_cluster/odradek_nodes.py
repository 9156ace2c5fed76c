"""Nodes of a local cluster that run `odradek serve` of this installation."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from odradek.broker.controller.voter_argument import parse_voters
from odradek.broker.local_cluster.plan import CONTROLLER_LISTENER, ClusterPlan, NodePlan
from odradek.replication.controller.release_versions import initial_levels
from odradek.replication.raft.formatting import NodeFormat, format_node
from odradek.seams import Seams
from odradek.seams.files import Path


class OdradekNodes:
    """Software of the nodes; directories that are already formatted are not changed."""

    def __init__(self, seams: Seams, *, log_level: str = "warning") -> None:
        self._seams = seams
        self._log_level = log_level

    async def format(self, plan: ClusterPlan) -> None:
        """Write the config files and format the nodes. Raises CannotFormat for another cluster's data, OSError."""
        files = self._seams.files
        for node in plan.nodes:
            directory = Path(node.directory)
            if not files.is_directory(directory):
                files.make_directory(directory)
            settings = plan.properties(node).items()
            text = "".join(f"{key}={value}\n" for key, value in settings)
            files.write_new(Path(node.config_file), text.encode())
            wanted = _format_of(plan, node)
            format_node(
                files,
                self._seams.entropy,
                wanted,
                now_ms=self._seams.clock.wall_ms(),
                report=lambda line: None,
            )

    def command(self, node: NodePlan) -> Sequence[str]:
        return [
            sys.executable, "-m", "odradek.cli", "serve",
            "--config", node.config_file, "--log-level", self._log_level, "--stop-with-stdin",
        ]  # fmt: skip


def _format_of(plan: ClusterPlan, node: NodePlan) -> NodeFormat:
    """Format of a node: controllers with the initial voters, brokers without."""
    voters = parse_voters(plan.initial_controllers, CONTROLLER_LISTENER)
    return NodeFormat(
        node_id=node.node_id,
        cluster_id=plan.cluster_id,
        directories=tuple(Path(each) for each in node.log_directories),
        metadata=Path(node.log_directory),
        levels=initial_levels(None, {}, is_dynamic=True),
        voters=voters if node.is_controller else (),
        ignore_formatted=True,
    )
