"""One process that starts the nodes of a cluster, passes on what they write, and does what is asked of it.

A node that dies stays dead until somebody asks for it. In the cluster's directory: `cluster.json` (the
plan, durable before anything is formatted by it), a directory a node, and, while it runs, a lock and the
way to ask (`control.py`).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Mapping
from typing import Any

import trio

from odradek.broker.local_cluster import control
from odradek.broker.local_cluster.nodes import ASK_EVERY_S, NodeFailed, Nodes, Software, State
from odradek.broker.local_cluster.plan import ClusterPlan, NodePlan
from odradek.replication.raft.formatting import CannotFormat
from odradek.seams import Seams
from odradek.seams.files import Files, Path
from odradek.storage.directories.opening import LOCK_NAME

PLAN_FILE = "cluster.json"
LOCK_FILE = ".lock"
LAST_RUN_S = 60.0
"""How long nodes whose cluster was killed may take to end: a session, and what is to be closed."""

SILENT = "silent"
"""What a running node is shown as that does not answer: it stands still, or is too busy."""

Values = Mapping[str, Any]


class Supervisor:
    """Runs the nodes of a plan until it is told to `stop`.

    `line` gets what a node writes, a line at a time; `say` gets what there is to say of the cluster.
    """

    def __init__(
        self,
        seams: Seams,
        plan: ClusterPlan,
        software: Software,
        directory: Path,
        *,
        line: Callable[[NodePlan, bytes], None],
        say: Callable[[str], None],
    ) -> None:
        self.plan = plan
        self._seams = seams
        self._software = software
        self._directory = directory
        self._line = line
        self._say = say
        self._serving = trio.CancelScope()
        self._dead: set[int] = set()

    def stop(self) -> None:
        self._serving.cancel()

    async def run(self, ready: Callable[[], None]) -> None:
        """Start all nodes, call `ready` once every broker answers; stop them all when told to.

        Raises NodeFailed if one does not start, or has to be killed at the end.
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
                changed=lambda: self._tell(nodes),
            )
            responses = _Responses(nodes)
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
            raise NodeFailed(f"had to be killed at the end: nodes {', '.join(map(str, late))}")

    async def _start(self, nodes: Nodes) -> None:
        for node in self.plan.nodes:
            await self._wait_for_the_last_run(node)
        try:
            await self._software.format(self.plan)
        except CannotFormat as error:
            raise NodeFailed(str(error)) from None
        ids = [node.node_id for node in self.plan.nodes]
        await nodes.every(nodes.start, ids)
        await nodes.wait_ready(ids)

    async def _wait_for_the_last_run(self, node: NodePlan) -> None:
        """Where who ran the cluster was killed, its nodes end by themselves, and may take a while.

        Raises NodeFailed if this one does not.
        """
        waiting = False
        with trio.move_on_after(LAST_RUN_S):
            while self._is_in_use(node):
                if not waiting:
                    self._say(
                        f"node {node.node_id} of the last run is still ending: waiting for it"
                    )
                waiting = True
                await self._seams.clock.sleep(ASK_EVERY_S)
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
        """Controllers of their own go last: they are asked until the brokers are gone."""
        late: list[int] = []

        async def stop(node_id: int) -> None:
            if not await nodes.stop(node_id):
                late.append(node_id)

        for group in (self.plan.brokers, self.plan.controllers):
            await nodes.every(stop, [each.node_id for each in group if nodes.pid(each.node_id)])
        return late

    def _tell(self, nodes: Nodes) -> None:
        dead = {node.node_id for node in self.plan.nodes if nodes.state(node.node_id) is State.DEAD}
        for node_id in sorted(dead - self._dead):
            self._say(
                f"node {node_id} is dead; "
                f"`odradek cluster restart {node_id} --data {self._directory}` starts it again"
            )
        self._dead = dead


class _Responses:
    """What others may ask: `status`, and `restart` of a node."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def respond(self, asked: Values) -> Values:
        """Raises Refused."""
        if asked.get("do") == "restart":
            return await self._restart(asked.get("node"))
        if asked.get("do") == "status":
            return status(self._nodes.plan, self._nodes, await self._nodes.silent())
        raise control.Refused(f"what is {asked.get('do')!r}?")

    async def _restart(self, node_id: object) -> Values:
        ids = [node.node_id for node in self._nodes.plan.nodes]
        if not isinstance(node_id, int) or node_id not in ids:
            raise control.Refused(f"there is no node {node_id}, only {', '.join(map(str, ids))}")
        try:
            await self._nodes.stop(node_id)
            await self._nodes.start(node_id)
            await self._nodes.wait_ready([node_id])
        except (NodeFailed, RuntimeError) as failed:
            raise control.Refused(str(failed)) from None
        return {"node": row(self._nodes.plan.node(node_id), self._nodes)}


def status(plan: ClusterPlan, nodes: Nodes | None, silent: Collection[int] = ()) -> Values:
    """Every node's row; without `nodes` nobody runs them. Controllers of their own are apart."""
    apart = [node for node in plan.controllers if not node.is_broker]
    return {
        "brokers": [row(node, nodes, silent) for node in plan.brokers],
        **({"controllers": [row(node, nodes, silent) for node in apart]} if apart else {}),
    }


def row(node: NodePlan, nodes: Nodes | None, silent: Collection[int] = ()) -> Values:
    """A node's id, process, address and state; those that are `silent` do not answer."""
    state = State.STOPPED if nodes is None else nodes.state(node.node_id)
    is_silent = state is State.RUNNING and node.node_id in silent
    return {
        "id": node.node_id,
        "pid": None if nodes is None else nodes.pid(node.node_id),
        "address": str(node.doors[0][1].advertised),
        "state": SILENT if is_silent else state.value,
    }


def read_plan(files: Files, directory: Path) -> ClusterPlan | None:
    """The plan of the cluster in this directory, wherever it was made; None if there is none. Raises
    ValueError."""
    try:
        text = files.read(directory / PLAN_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return ClusterPlan.from_json(text.decode()).at(str(directory))


def write_plan(files: Files, directory: Path, plan: ClusterPlan) -> None:
    """Durable when it returns."""
    files.write_new(directory / PLAN_FILE, plan.to_json().encode())
