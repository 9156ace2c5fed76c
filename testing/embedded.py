"""A broker for a test: `async with` under trio, `with` anywhere else.

    with Broker(topics={"orders": 6}) as broker:
        client = MyClient(broker.bootstrap)

Under plain `with`, the broker runs in its own thread with a trio loop, or in a process of its own
(`process=True`). Unless a directory is given, its data is in a temporary directory that is removed at
the end.

The node is imported when it starts, because trio cannot be imported once gevent has patched `select`.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from odradek.testing.broker_death import RecentMessages, broker_died, describe_error
from odradek.testing.patched_modules import cannot_start_here, real_files

if TYPE_CHECKING:
    from odradek.broker.node import Node
    from odradek.seams import Seams
    from odradek.seams.loop_thread import LoopThread
    from odradek.testing.broker_process import BrokerProcess, NodeOptions
    from odradek.testing.embedded_node import EmbeddedNode

if sys.platform == "win32":
    importlib.import_module("odradek.seams")  # raises ImportError, which names the alternatives

T = TypeVar("T")
Topics = Mapping[str, int] | Iterable[str]
Configs = Mapping[str, str | int | float]
"""Kafka config names and values; values that are not strings are converted with `str`."""

START_SECONDS = 30.0


class Broker:
    """A single-node broker on a free port of 127.0.0.1.

    `topics` are created before the broker is ready: names, or names with their partition counts.
    `configs` are Kafka broker configs. `data` is a directory to use and keep; directories separated
    by commas are log directories. `seams` replaces the broker's access to the operating system.
    `tiered` is the remote tier of tiered storage: a directory or a URL, or True for a temporary
    directory; topics use it with `remote.storage.enable`. `diskless` is the store of diskless topics,
    likewise; topics use it if they are created with `diskless.enable`. `process` is whether plain `with` serves
    from a process of its own, which nothing that a test patches can affect; by default it does so
    if gevent, freezegun or pyfakefs has patched this process.
    """

    def __init__(
        self,
        *,
        topics: Topics = (),
        configs: Configs | None = None,
        data: str | Path | None = None,
        listen: str = "127.0.0.1:0",
        seams: Seams | None = None,
        tiered: bool | str | Path = False,
        diskless: bool | str | Path = False,
        process: bool | None = None,
    ) -> None:
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, -1)
        self._configs = _texts(configs)
        self._data = None if data is None else str(data)
        self._listen = listen
        self._seams = seams
        self._tiered = tiered
        self._diskless = diskless
        self._wants_process = process
        if process and seams is not None:
            raise ValueError("seams cannot be given to a broker in a process of its own")
        self._temporary: list[str] = []
        self._messages = RecentMessages()
        self._runner: _InLoop | _InThread | BrokerProcess | None = None

    # The interface for tests

    @property
    def bootstrap(self) -> str:
        """`HOST:PORT` of the broker, for a client's bootstrap.servers. Raises BrokerDied."""
        return self._running.bootstrap

    @property
    def host(self) -> str:
        return self.bootstrap.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def node(self) -> Node:
        """The running node, for tests of its internals. Use it only from the broker's own thread."""
        return self._running.node

    def check_alive(self) -> None:
        """Raise BrokerDied with the cause if the broker has ended by itself."""
        _ = self._running

    def create_topic(self, name: str, partitions: int = -1, configs: Configs | None = None) -> None:
        """Create a topic if it does not exist; for use under plain `with`. Raises BrokerDied."""
        self._running.create_topic(name, partitions, _texts(configs))

    async def acreate_topic(
        self, name: str, partitions: int = -1, configs: Configs | None = None
    ) -> None:
        """Create a topic if it does not exist; for use under trio."""
        await self._in_loop.node_in_loop.create_topic(name, partitions, _texts(configs))

    def reset(self) -> None:
        """Undo everything that clients have changed since the start, in milliseconds: topics,
        groups, transactional ids, configs, ACLs, quotas, SCRAM credentials, features and log levels.

        `topics` are created again. For use under plain `with`. Raises BrokerDied.
        """
        self._running.reset()

    async def areset(self) -> None:
        """Undo everything that clients have changed since the start, like `reset`; under trio."""
        await self._in_loop.node_in_loop.reset()

    @property
    def _running(self) -> _InLoop | _InThread | BrokerProcess:
        """The loop, thread or process of the broker. Raises RuntimeError if there is none, and BrokerDied."""
        if self._runner is None:
            raise RuntimeError("the broker is not running: enter it by `with` or `async with`")
        self._runner.check_alive()
        return self._runner

    @property
    def _in_loop(self) -> _InLoop:
        running = self._running
        if not isinstance(running, _InLoop):
            raise RuntimeError("the broker runs by plain `with`: use create_topic and reset")
        return running

    def _call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run an async function in the broker's thread, for tests of its internals."""
        running = self._running
        if isinstance(running, _InThread):
            return running.call(function, *args)
        raise RuntimeError("the broker does not run in a thread of this process")

    # async with

    async def __aenter__(self) -> Broker:
        from odradek.testing.trio_checks import check_trio

        check_trio()
        if self._wants_process:
            raise RuntimeError("a broker in a process of its own is entered by plain `with`")
        self._check_not_running()
        try:
            node = self._new_node()
            await node.__aenter__()
        except BaseException:
            self._remove_data()
            raise
        self._runner = _InLoop(node)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert isinstance(self._runner, _InLoop)
        node, self._runner = self._runner.node_in_loop, None
        try:
            await node.__aexit__(kind, error, trace)
        finally:
            self._remove_data()

    # with

    def __enter__(self) -> Broker:
        self._check_not_running()
        wants_process = self._wants_process
        if wants_process is None:
            wants_process = self._seams is None and cannot_start_here()
        with real_files():
            try:
                self._runner = self._new_process() if wants_process else self._new_thread()
            except BaseException:
                self._messages.stop()
                self._remove_data()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        runner, self._runner = self._runner, None
        assert not isinstance(runner, _InLoop)
        if runner is None:
            return
        with real_files():
            try:
                runner.close()
            finally:
                self._messages.stop()
                self._remove_data()

    def _check_not_running(self) -> None:
        if self._runner is not None:  # in this loop, in its own thread or process
            raise RuntimeError("the broker runs already: make another one, or use it as it is")

    def _new_thread(self) -> _InThread:
        from odradek.seams.loop_thread import LoopThread
        from odradek.testing.unpatched_clock import UnpatchedTrioClock

        self._messages.start()
        thread = LoopThread(
            self._new_node, name="odradek", start_s=START_SECONDS, clock=UnpatchedTrioClock()
        )
        return _InThread(thread, self._messages)

    def _new_node(self) -> EmbeddedNode:
        from odradek.testing.embedded_node import EmbeddedNode

        return EmbeddedNode(**self._node_options(), seams=self._seams)

    def _new_process(self) -> BrokerProcess:
        from odradek.testing.broker_process import BrokerProcess

        self._messages.start()
        return BrokerProcess(self._node_options(), self._messages, start_s=START_SECONDS)

    def _node_options(self) -> NodeOptions:
        data = self._new_directory("odradek-") if self._data is None else self._data
        return {
            "topics": self._topics,
            "configs": self._configs,
            "data": data,
            "listen": self._listen,
            "tier": self._store(self._tiered, "tiered storage", "odradek-tier-"),
            "diskless": self._store(self._diskless, "diskless topics", "odradek-diskless-"),
        }

    def _store(self, given: bool | str | Path, what: str, prefix: str) -> str | None:
        """Directory or URL of a store; a temporary directory if `given` is True."""
        if isinstance(given, bool):
            return self._new_directory(prefix) if given else None
        from odradek.broker.config.tiered_option import absolute_target

        return absolute_target(str(given), what)

    def _new_directory(self, prefix: str) -> str:
        self._temporary.append(tempfile.mkdtemp(prefix=prefix))
        return self._temporary[-1]

    def _remove_data(self) -> None:
        while self._temporary:
            shutil.rmtree(self._temporary.pop(), ignore_errors=True)


class _InLoop:
    """The broker in the current trio loop, by `async with`."""

    def __init__(self, node: EmbeddedNode) -> None:
        self.node_in_loop = node

    @property
    def node(self) -> Node:
        assert self.node_in_loop.node is not None, "the node has started"
        return self.node_in_loop.node

    @property
    def bootstrap(self) -> str:
        return str(self.node.endpoints[0].address)

    def check_alive(self) -> None:
        """The nursery of `async with` raises the error of a node that has failed."""

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        raise _in_this_loop()

    def reset(self) -> None:
        raise _in_this_loop()


def _in_this_loop() -> RuntimeError:
    return RuntimeError(
        "the broker runs in this loop, by `async with`: await acreate_topic and areset"
    )


class _InThread:
    """The broker in a thread of its own, by plain `with`."""

    def __init__(self, thread: LoopThread[EmbeddedNode], messages: RecentMessages) -> None:
        self._thread = thread
        self._messages = messages
        assert thread.value.node is not None, "the node has started"
        self.node = thread.value.node
        self.bootstrap = str(self.node.endpoints[0].address)

    def check_alive(self) -> None:
        """Raise BrokerDied if the node or its loop has ended."""
        if not (self.node.stopped.is_set() or self._thread.is_over()):
            return
        self._thread.is_over(END_SECONDS)
        failure = self._thread.failure
        cause = "it was stopped" if failure is None else describe_error(failure)
        what = f"the broker on {self.bootstrap}"
        raise broker_died(what, cause, self._messages.lines) from failure

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        self.call(self._thread.value.create_topic, name, partitions, configs)

    def reset(self) -> None:
        self.call(self._thread.value.reset)

    def close(self) -> None:
        """Stop the node. Raises BrokerDied if it has ended by itself."""
        if self._thread.is_over():
            self.check_alive()
        self._thread.close()

    def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run an async function in the loop. Raises BrokerDied."""
        from trio import RunFinishedError

        try:
            return self._thread.call(function, *args)
        except RunFinishedError:
            self._thread.is_over(END_SECONDS)
            self.check_alive()
            raise


END_SECONDS = 5.0
"""Longest wait for the loop of a node that has failed."""


def _texts(configs: Configs | None) -> dict[str, str]:
    return {name: str(value) for name, value in (configs or {}).items()}
