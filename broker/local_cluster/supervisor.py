"""Supervisor of a local cluster: starts and stops its nodes, prints their output, and serves control requests.

A node that exits is restarted only by request. The cluster's directory contains `cluster.json` (the plan, which is
durable before the nodes are formatted), a directory per node, and, while the supervisor runs, a lock and the control
file (`control.py`).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Mapping
from typing import Any

import trio

from odradek.broker.local_cluster import control
from odradek.broker.local_cluster.nodes import (
    POLL_INTERVAL_S,
    NodeFailed,
    Nodes,
    NodeState,
    Software,
)
from odradek.broker.local_cluster.plan import ClusterPlan, NodePlan
from odradek.replication.raft.formatting import CannotFormat
from odradek.seams import Seams
from odradek.seams.files import Files, Path
from odradek.storage.directories.opening import LOCK_NAME

PLAN_FILE = "cluster.json"
LOCK_FILE = ".lock"
PREVIOUS_RUN_S = 60.0
"""Time for the shutdown of nodes whose supervisor was killed."""

SILENT = "silent"
"""NodeState that is reported for a running node that does not respond."""

Values = Mapping[str, Any]


class Supervisor:
    """Runs the nodes of a plan until `stop` is called.

    `line` is called with each line of a node's output; `report` is called with messages about the cluster.
    """

    def __init__(
        self,
        seams: Seams,
        plan: ClusterPlan,
        software: Software,
        directory: Path,
        *,
        line: Callable[[NodePlan, bytes], None],
        report: Callable[[str], None],
    ) -> None:
        self.plan = plan
        self._seams = seams
        self._software = software
        self._directory = directory
        self._line = line
        self._report = report
        self._serving = trio.CancelScope()
        self._dead: set[int] = set()

    def stop(self) -> None:
        self._serving.cancel()

    async def run(self, ready: Callable[[], None]) -> None:
        """Start all nodes, call `ready` when all respond, and stop them after `stop` was called.

        Raises NodeFailed if a node does not start, or does not exit in time.
        """
        failure: NodeFailed | None = None
        async with trio.open_nursery() as nursery:
            nodes = Nodes(
                self.plan,
                self._software,
                self._seams.network,
                nursery,
                output=lambda node: subprocess.PIPE,
                line=self._line,
                changed=lambda: self._report_dead_nodes(nodes),
            )
            responses = _ControlRequests(nodes)
            await nursery.start(control.serve, self._seams, self._directory, responses.respond)
            try:
                with self._serving:
                    await self._start(nodes)
                    ready()
                    await trio.sleep_forever()
            except NodeFailed as error:
                failure = error
            late = await self._stop_all(nodes)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if late:
            raise NodeFailed(
                f"nodes killed because they did not stop in time: {', '.join(map(str, late))}"
            )

    async def _start(self, nodes: Nodes) -> None:
        for node in self.plan.nodes:
            await self._wait_for_previous_run(node)
        try:
            await self._software.format(self.plan)
        except CannotFormat as error:
            raise NodeFailed(str(error)) from None
        ids = [node.node_id for node in self.plan.nodes]
        await nodes.every(nodes.start, ids)
        await nodes.wait_ready(ids)

    async def _wait_for_previous_run(self, node: NodePlan) -> None:
        """Wait for the shutdown of a node whose supervisor was killed. Raises NodeFailed at the timeout."""
        waiting = False
        with trio.move_on_after(PREVIOUS_RUN_S):
            while self._is_in_use(node):
                if not waiting:
                    self._report(
                        f"node {node.node_id} of the previous run is still shutting down; waiting for it"
                    )
                waiting = True
                await self._seams.clock.sleep(POLL_INTERVAL_S)
            return
        raise NodeFailed(f"node {node.node_id}: another process uses {node.log_directory}")

    def _is_in_use(self, node: NodePlan) -> bool:
        files = self._seams.files
        for directory in map(Path, node.log_directories):
            if files.is_directory(directory):
                try:
                    files.lock(directory / LOCK_NAME).release()
                except BlockingIOError:
                    return True
        return False

    async def _stop_all(self, nodes: Nodes) -> list[int]:
        """Stop brokers before dedicated controllers, which the brokers' controlled shutdown needs."""
        late: list[int] = []

        async def stop(node_id: int) -> None:
            if not await nodes.stop(node_id):
                late.append(node_id)

        for group in (self.plan.brokers, self.plan.controllers):
            await nodes.every(stop, [each.node_id for each in group if nodes.pid(each.node_id)])
        return late

    def _report_dead_nodes(self, nodes: Nodes) -> None:
        dead = {
            node.node_id for node in self.plan.nodes if nodes.state(node.node_id) is NodeState.DEAD
        }
        for node_id in sorted(dead - self._dead):
            self._report(
                f"node {node_id} is dead; "
                f"restart it with `odradek cluster restart {node_id} --data {self._directory}`"
            )
        self._dead = dead


class _ControlRequests:
    """Handler of the control requests `status` and `restart`."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def respond(self, request: Values) -> Values:
        """Handle a request. Raises ControlRequestFailed."""
        if request.get("do") == "restart":
            return await self._restart(request.get("node"))
        if request.get("do") == "status":
            return status(self._nodes.plan, self._nodes, await self._nodes.silent())
        raise control.ControlRequestFailed(f"unknown request {request.get('do')!r}")

    async def _restart(self, node_id: object) -> Values:
        ids = [node.node_id for node in self._nodes.plan.nodes]
        if not isinstance(node_id, int) or node_id not in ids:
            raise control.ControlRequestFailed(
                f"node {node_id} does not exist; the nodes are {', '.join(map(str, ids))}"
            )
        try:
            await self._nodes.stop(node_id)
            await self._nodes.start(node_id)
            await self._nodes.wait_ready([node_id])
        except (NodeFailed, RuntimeError) as failed:
            raise control.ControlRequestFailed(str(failed)) from None
        return {"node": row(self._nodes.plan.node(node_id), self._nodes)}


def status(plan: ClusterPlan, nodes: Nodes | None, silent: Collection[int] = ()) -> Values:
    """Status of all nodes; `nodes` is None if the cluster is not running. Dedicated controllers are separate."""
    apart = [node for node in plan.controllers if not node.is_broker]
    return {
        "brokers": [row(node, nodes, silent) for node in plan.brokers],
        **({"controllers": [row(node, nodes, silent) for node in apart]} if apart else {}),
    }


def row(node: NodePlan, nodes: Nodes | None, silent: Collection[int] = ()) -> Values:
    """Id, process, address and state of a node; nodes in `silent` do not respond."""
    state = NodeState.STOPPED if nodes is None else nodes.state(node.node_id)
    is_silent = state is NodeState.RUNNING and node.node_id in silent
    return {
        "id": node.node_id,
        "pid": None if nodes is None else nodes.pid(node.node_id),
        "address": str(node.listeners[0][1].advertised),
        "state": SILENT if is_silent else state.value,
    }


def read_plan(files: Files, directory: Path) -> ClusterPlan | None:
    """Read the plan of the cluster in this directory; None if there is none. Raises ValueError."""
    try:
        text = files.read(directory / PLAN_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return ClusterPlan.from_json(text.decode()).at(str(directory))


def write_plan(files: Files, directory: Path, plan: ClusterPlan) -> None:
    """Write the plan durably to the directory."""
    files.write_new(directory / PLAN_FILE, plan.to_json().encode())
