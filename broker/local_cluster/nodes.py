"""Processes of the nodes of a cluster: start, stop, kill, pause and resume.

`Nodes` has the state of each process and calls back when it changes. A process that exits unexpectedly is dead until
it is started again. Processes are controlled with signals, and their readiness is checked with client requests.
"""

from __future__ import annotations

import enum
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import IO, Protocol

import trio

from odradek.broker.local_cluster.plan import ClusterPlan, NodePlan
from odradek.client.errors import ClientError
from odradek.client.metadata import open_cluster
from odradek.protocol.errors import KafkaError
from odradek.seams.network import Network

START_S = 60.0
STOP_S = 60.0
POLL_INTERVAL_S = 0.02
RESPONSE_S = 2.0


class NodeFailed(Exception):
    """A node exited during its start or does not respond; the text has the node."""


class NodeState(enum.Enum):
    STOPPED = "stopped"
    """Not started, or stopped by request."""
    STARTING = "starting"
    RUNNING = "running"
    """It has responded since its start."""
    PAUSED = "paused"
    STOPPING = "stopping"
    DEAD = "dead"
    """Exited unexpectedly, or was killed."""


class Software(Protocol):
    """Broker software that the nodes run."""

    async def format(self, plan: ClusterPlan) -> None:
        """Create the directories and config files of all nodes, and format them."""
        ...

    def command(self, node: NodePlan) -> Sequence[str]:
        """Command line that runs a node in the foreground until SIGTERM."""
        ...


class _Node:
    """Node with its process, if it has one."""

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.state = NodeState.STOPPED
        self.process: trio.Process | None = None
        self.started = trio.Event()
        """Set when the process was started or failed to start."""
        self.started.set()
        self.ended = trio.Event()
        self.ended.set()


class Nodes:
    """Processes of all nodes of a plan. Cancelling `nursery` kills them.

    `output(node)` returns the output of a process at each start: a file, or a pipe (PIPE of `subprocess`), whose lines
    are passed to `line`. `changed` is called after each change of a state.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        software: Software,
        network: Network,
        nursery: trio.Nursery,
        *,
        output: Callable[[NodePlan], IO[bytes] | int],
        line: Callable[[NodePlan, bytes], None] = lambda node, line: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan = plan
        self._software = software
        self._network = network
        self._nursery = nursery
        self._output = output
        self._line = line
        self._changed = changed
        self._nodes = {node.node_id: _Node(node) for node in plan.nodes}

    def state(self, node_id: int) -> NodeState:
        """Return the state of a node. Raises KeyError."""
        return self._nodes[node_id].state

    def pid(self, node_id: int) -> int | None:
        """Return the process id of a node, None if it has no process. Raises KeyError."""
        node = self._nodes[node_id]
        return None if node.process is None or node.ended.is_set() else node.process.pid

    async def start(self, node_id: int) -> None:
        """Start a node without a process; `wait_ready` waits for its responses. Raises NodeFailed."""
        node = self._nodes[node_id]
        if not node.ended.is_set():
            raise RuntimeError(f"node {node_id} is {node.state.value}")
        node.process = None
        node.started, node.ended = trio.Event(), trio.Event()
        self._set_state(node, NodeState.STARTING)
        try:
            await self._nursery.start(self._run_process, node)
        except OSError as error:
            raise NodeFailed(f"node {node_id} cannot be started: {error}") from error

    async def _run_process(
        self, node: _Node, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run a process until it exits, and read all of its output."""
        try:
            node.process = await self._open_process(node.plan)
        except BaseException:
            self._end(node, NodeState.DEAD)
            raise
        node.started.set()
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                if node.process.stdout is not None:
                    nursery.start_soon(self._read, node, node.process.stdout)
                await node.process.wait()
        finally:
            # Cancelled: the process must not outlive its supervisor
            if node.process.returncode is None:
                node.process.kill()
                with trio.CancelScope(shield=True):
                    await node.process.wait()
            if node.process.stdin is not None:
                await trio.aclose_forcefully(node.process.stdin)
            wanted = node.state is NodeState.STOPPING
            self._end(node, NodeState.STOPPED if wanted else NodeState.DEAD)

    async def _open_process(self, node: NodePlan) -> trio.Process:
        """Start the process of a node. Raises OSError, for example without its directory."""
        output = self._output(node)
        try:
            # Its stdin ends with this process. A new session does not get Ctrl-C from the terminal.
            return await trio.lowlevel.open_process(
                list(self._software.command(node)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=node.directory,
                start_new_session=True,
            )
        finally:
            if not isinstance(output, int):
                output.close()

    def _end(self, node: _Node, state: NodeState) -> None:
        node.started.set()
        node.ended.set()
        self._set_state(node, state)

    async def _read(self, node: _Node, stream: trio.abc.ReceiveStream) -> None:
        rest = b""
        async with stream:
            async for chunk in stream:
                *lines, rest = (rest + chunk).split(b"\n")
                for each in lines:
                    self._line(node.plan, each)
        if rest:
            self._line(node.plan, rest)

    async def stop(self, node_id: int, *, timeout_s: float = STOP_S) -> bool:
        """Send SIGTERM and wait; return whether the process exited in time. If not, it is killed."""
        node = self._nodes[node_id]
        await node.started.wait()
        if not node.ended.is_set():
            if node.state is NodeState.PAUSED:
                self._signal(node, signal.SIGCONT)
            self._set_state(node, NodeState.STOPPING)
            self._signal(node, signal.SIGTERM)
            with trio.move_on_after(timeout_s):
                await node.ended.wait()
                return True
            await self.kill(node_id)
            return False
        self._set_state(node, NodeState.STOPPED)
        return True

    async def kill(self, node_id: int) -> None:
        """Send SIGKILL, and wait until the process has exited."""
        node = self._nodes[node_id]
        await node.started.wait()
        if not node.ended.is_set():
            self._signal(node, signal.SIGKILL)
            await node.ended.wait()

    def pause(self, node_id: int) -> None:
        """Send SIGSTOP: the process is suspended, and its connections stay open."""
        node = self._nodes[node_id]
        self._signal(node, signal.SIGSTOP)
        self._set_state(node, NodeState.PAUSED)

    def resume(self, node_id: int) -> None:
        """Send SIGCONT to a paused process."""
        node = self._nodes[node_id]
        self._signal(node, signal.SIGCONT)
        self._set_state(node, NodeState.RUNNING)

    def _signal(self, node: _Node, number: signal.Signals) -> None:
        if node.process is None or node.ended.is_set():
            raise RuntimeError(f"node {node.plan.node_id} is {node.state.value}")
        node.process.send_signal(number)

    async def wait_ready(self, node_ids: Iterable[int], *, timeout_s: float = START_S) -> None:
        """Wait until these nodes respond, and each broker has all of these brokers in its metadata.

        Raises NodeFailed if one exits or the timeout expires.
        """
        wanted = sorted(node_ids)
        brokers = {node_id for node_id in wanted if self.plan.node(node_id).is_broker}
        try:
            with trio.fail_after(timeout_s):
                for node_id in wanted:
                    await self._wait_for(node_id, brokers, wanted)
        except trio.TooSlowError:
            missing = [each for each in wanted if self.state(each) is NodeState.STARTING] or wanted
            raise NodeFailed(f"no response in {timeout_s:g} s from {missing}") from None

    async def _wait_for(self, node_id: int, brokers: set[int], wanted: Iterable[int]) -> None:
        """Wait for one node, and raise NodeFailed if any of `wanted` exits."""
        node = self._nodes[node_id]
        while not await self._is_ready(node.plan, brokers):
            for each in wanted:
                self._check_alive(self._nodes[each])
            await trio.sleep(POLL_INTERVAL_S)
        if node.state is NodeState.STARTING:
            self._set_state(node, NodeState.RUNNING)

    def _check_alive(self, node: _Node) -> None:
        if node.ended.is_set():
            code = None if node.process is None else node.process.returncode
            raise NodeFailed(f"node {node.plan.node_id} exited with code {code}")

    async def _is_ready(self, node: NodePlan, brokers: set[int]) -> bool:
        """Whether a node responds; the metadata of a broker must contain all of `brokers`."""
        address = node.listeners[0][1].listen
        try:
            opened = open_cluster(self._network, [address], timeout_s=RESPONSE_S)
            async with opened as cluster:
                if not node.is_broker:
                    await cluster.any_node()
                    return True
                await cluster.refresh()
                return brokers <= cluster.nodes.keys()
        except (ClientError, KafkaError, OSError):
            return False

    async def silent(self) -> set[int]:
        """Return the running nodes that do not respond within `RESPONSE_S`."""
        running = {each for each, node in self._nodes.items() if node.state is NodeState.RUNNING}
        responding: set[int] = set()

        async def check(node_id: int) -> None:
            if await self._is_ready(self._nodes[node_id].plan, {node_id}):
                responding.add(node_id)

        with trio.move_on_after(RESPONSE_S):
            await self.every(check, running)
        return running - responding

    async def every(self, act: Callable[[int], Awaitable[object]], node_ids: Iterable[int]) -> None:
        """Call `act` for several nodes concurrently; raise the first error after all have finished."""
        failures: list[Exception] = []

        async def one(node_id: int) -> None:
            try:
                await act(node_id)
            except Exception as failure:
                failures.append(failure)

        async with trio.open_nursery() as nursery:
            for node_id in node_ids:
                nursery.start_soon(one, node_id)
        if failures:
            raise failures[0]

    def _set_state(self, node: _Node, state: NodeState) -> None:
        if node.state is not state:
            node.state = state
            self._changed()
