"""The processes of a cluster's nodes: started, signalled, watched, started again.

`Nodes` knows what each process is meant to be doing (its `State`) and tells whoever asked when that
changes by itself: a process that ends while nobody wanted it to is dead, and stays dead until it is
started again. Everything is done by signals and by asking the brokers what any client may ask.
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
ASK_EVERY_S = 0.02
RESPONSE_S = 2.0


class NodeFailed(Exception):
    """A node ended while it was to start, or does not answer; the text says which."""


class State(enum.Enum):
    STOPPED = "stopped"
    """Not started yet, or ended because it was told to."""
    STARTING = "starting"
    RUNNING = "running"
    """It has answered since its start."""
    PAUSED = "paused"
    STOPPING = "stopping"
    DEAD = "dead"
    """Ended by itself, or was killed."""


class Software(Protocol):
    """What the nodes run."""

    async def format(self, plan: ClusterPlan) -> None:
        """Make every node's directories and config file ready for its first start."""
        ...

    def command(self, node: NodePlan) -> Sequence[str]:
        """The command line that runs a node in the foreground until SIGTERM."""
        ...


class _Node:
    """A node and its process, if it has one."""

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.state = State.STOPPED
        self.process: trio.Process | None = None
        self.begun = trio.Event()
        """It has a process, or will have none."""
        self.begun.set()
        self.ended = trio.Event()
        self.ended.set()


class Nodes:
    """All nodes of a plan. `nursery` owns what watches them; cancelling it kills them.

    `output(node)` opens what a node's process writes to, at each start: a file, or
    `subprocess.PIPE`, whose lines then go to `line`. `changed` is called after each change of a state.
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

    def state(self, node_id: int) -> State:
        """Raises KeyError."""
        return self._nodes[node_id].state

    def pid(self, node_id: int) -> int | None:
        """The process's id, None if there is none. Raises KeyError."""
        node = self._nodes[node_id]
        return None if node.process is None or node.ended.is_set() else node.process.pid

    async def start(self, node_id: int) -> None:
        """Start a node that has no process; `wait_ready` waits for its answers. NodeFailed without one."""
        node = self._nodes[node_id]
        if not node.ended.is_set():
            raise RuntimeError(f"node {node_id} is {node.state.value}")
        node.process = None  # its last one
        node.begun, node.ended = trio.Event(), trio.Event()
        self._become(node, State.STARTING)
        try:
            await self._nursery.start(self._live, node)
        except OSError as error:
            raise NodeFailed(f"node {node_id} can't be started: {error}") from error

    async def _live(
        self, node: _Node, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """A process's life: from its start to its end, and what it said to the last line."""
        try:
            node.process = await self._open_process(node.plan)
        except BaseException:
            self._end(node, State.DEAD)
            raise
        node.begun.set()
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                if node.process.stdout is not None:
                    nursery.start_soon(self._read, node, node.process.stdout)
                await node.process.wait()
        finally:
            if node.process.returncode is None:  # cancelled: nobody is left to look after it
                node.process.kill()
                with trio.CancelScope(shield=True):
                    await node.process.wait()
            if node.process.stdin is not None:
                await trio.aclose_forcefully(node.process.stdin)
            wanted = node.state is State.STOPPING
            self._end(node, State.STOPPED if wanted else State.DEAD)

    async def _open_process(self, node: NodePlan) -> trio.Process:
        """Raises OSError, where there is no such directory or the disk is full, for two."""
        output = self._output(node)
        try:
            # Its stdin ends when we do; and Ctrl-C in our terminal is not for it but for us.
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

    def _end(self, node: _Node, state: State) -> None:
        node.begun.set()
        node.ended.set()
        self._become(node, state)

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
        """SIGTERM, and wait for the end; whether it came in time. If not, the node is killed."""
        node = self._nodes[node_id]
        await node.begun.wait()
        if not node.ended.is_set():
            if node.state is State.PAUSED:
                self._signal(node, signal.SIGCONT)
            self._become(node, State.STOPPING)
            self._signal(node, signal.SIGTERM)
            with trio.move_on_after(timeout_s):
                await node.ended.wait()
                return True
            await self.kill(node_id)
            return False
        self._become(node, State.STOPPED)
        return True

    async def kill(self, node_id: int) -> None:
        """SIGKILL, and wait until the process is gone."""
        node = self._nodes[node_id]
        await node.begun.wait()
        if not node.ended.is_set():
            self._signal(node, signal.SIGKILL)
            await node.ended.wait()

    def pause(self, node_id: int) -> None:
        """SIGSTOP: the process stands still, its connections stay open."""
        node = self._nodes[node_id]
        self._signal(node, signal.SIGSTOP)
        self._become(node, State.PAUSED)

    def resume(self, node_id: int) -> None:
        """SIGCONT."""
        node = self._nodes[node_id]
        self._signal(node, signal.SIGCONT)
        self._become(node, State.RUNNING)

    def _signal(self, node: _Node, number: signal.Signals) -> None:
        if node.process is None or node.ended.is_set():
            raise RuntimeError(f"node {node.plan.node_id} is {node.state.value}")
        node.process.send_signal(number)

    async def wait_ready(self, node_ids: Iterable[int], *, timeout_s: float = START_S) -> None:
        """Wait until each of these answers, and its brokers show each other; NodeFailed if one ends."""
        wanted = sorted(node_ids)
        brokers = {node_id for node_id in wanted if self.plan.node(node_id).is_broker}
        try:
            with trio.fail_after(timeout_s):
                for node_id in wanted:
                    await self._wait_for(node_id, brokers, wanted)
        except trio.TooSlowError:
            missing = [each for each in wanted if self.state(each) is State.STARTING] or wanted
            raise NodeFailed(f"no answer in {timeout_s:g} s from {missing}") from None

    async def _wait_for(self, node_id: int, brokers: set[int], wanted: Iterable[int]) -> None:
        """As `wait_ready`, for one of `wanted`: without any of them it may wait in vain."""
        node = self._nodes[node_id]
        while not await self._is_ready(node.plan, brokers):
            for each in wanted:
                self._check_alive(self._nodes[each])
            await trio.sleep(ASK_EVERY_S)
        if node.state is State.STARTING:
            self._become(node, State.RUNNING)

    def _check_alive(self, node: _Node) -> None:
        if node.ended.is_set():
            code = None if node.process is None else node.process.returncode
            raise NodeFailed(f"node {node.plan.node_id} ended with exit code {code}")

    async def _is_ready(self, node: NodePlan, brokers: set[int]) -> bool:
        """Whether it answers: a broker with all these brokers, a controller at all."""
        address = node.doors[0][1].listen
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
        """The nodes that run and do not answer now; takes `RESPONSE_S` at most."""
        running = {each for each, node in self._nodes.items() if node.state is State.RUNNING}
        responding: set[int] = set()

        async def ask(node_id: int) -> None:
            if await self._is_ready(self._nodes[node_id].plan, {node_id}):
                responding.add(node_id)

        with trio.move_on_after(RESPONSE_S):
            await self.every(ask, running)
        return running - responding

    async def every(self, act: Callable[[int], Awaitable[object]], node_ids: Iterable[int]) -> None:
        """Do the same to several nodes at the same time; raises what failed first, once all are done."""
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

    def _become(self, node: _Node, state: State) -> None:
        if node.state is not state:
            node.state = state
            self._changed()
