"""Apache Kafka as the software of a cluster's nodes, each a JVM (`local_cluster.nodes.Software`)."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import trio

from odradek.broker.local_cluster.plan import ClusterPlan, NodePlan


class KafkaNodes:
    """`java` is the command line of a JVM with Kafka's class path, up to the main class."""

    def __init__(self, java: Sequence[str]) -> None:
        self._java = list(java)

    async def format(self, plan: ClusterPlan) -> None:
        """Write the configs, and format every node's log directory with Kafka's own tool."""
        for node in plan.nodes:
            _write_config(plan, node)
            quorum = ["--initial-controllers", plan.initial_controllers]
            done = await trio.run_process(
                [*self._java, "kafka.tools.StorageTool", "format", "-t", plan.cluster_id,
                 "-c", node.config_file, *(quorum if node.is_controller else [])],
                check=False, capture_stdout=True, stderr=subprocess.STDOUT,
            )  # fmt: skip
            if done.returncode != 0:
                raise RuntimeError(
                    f"kafka-storage format failed:\n{done.stdout.decode(errors='replace')}"
                )

    def command(self, node: NodePlan) -> Sequence[str]:
        return [*self._java, "kafka.Kafka", node.config_file]


def _write_config(plan: ClusterPlan, node: NodePlan) -> None:
    Path(node.directory).mkdir(parents=True, exist_ok=True)
    settings = plan.properties(node).items()
    Path(node.config_file).write_text("".join(f"{key}={text}\n" for key, text in settings))
