"""A broker in the process of a test: `async with` under trio, `with` anywhere else.

    with Broker(topics={"orders": 6}) as broker:
        client = MyClient(broker.bootstrap)

Under plain `with`, the broker runs in its own thread with a trio loop. Unless a directory is given,
its data is in a temporary directory that is removed at the end.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.tiered_option import absolute_target, tiered_settings
from odradek.broker.coordination.internal_topics import is_internal_topic
from odradek.broker.node import Node
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.topics import delete_topics
from odradek.seams import Seams
from odradek.seams.loop_thread import LoopThread
from odradek.seams.real import real_seams
from odradek.testing.trio_checks import check_trio, may_be_cancellation

T = TypeVar("T")
Topics = Mapping[str, int] | Iterable[str]
Configs = Mapping[str, str | int | float]
"""Kafka config names and values; values that are not strings are converted with `str`."""

START_SECONDS = 30.0

log = logging.getLogger("odradek.config")


class Broker:
    """A single-node broker on a free port of 127.0.0.1.

    `topics` are created before the broker is ready: names, or names with their partition counts.
    `configs` are Kafka broker configs. `data` is a directory to use and keep; directories separated
    by commas are log directories. `seams` replaces the broker's access to the operating system.
    `tiered` is the remote tier of tiered storage: a directory or a URL, or True for a temporary
    directory; topics use it with `remote.storage.enable`.
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
    ) -> None:
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, -1)
        self._configs = _texts(configs)
        self._data = None if data is None else str(data)
        self._listen = listen
        self._seams = seams
        self._tiered = tiered
        self._node: Node | None = None
        self._temporary: list[str] = []
        self._thread: LoopThread[Broker] | None = None
        self._stack: AsyncExitStack | None = None

    # The interface for tests

    @property
    def bootstrap(self) -> str:
        """`HOST:PORT` of the broker, for a client's bootstrap.servers."""
        return str(self.node.endpoints[0].address)

    @property
    def host(self) -> str:
        return self.node.endpoints[0].address.host

    @property
    def port(self) -> int:
        return self.node.endpoints[0].address.port

    @property
    def node(self) -> Node:
        """The running node, for tests of its internals. Use it only from the broker's own thread."""
        if self._node is None:
            raise RuntimeError("the broker is not running: enter it by `with` or `async with`")
        return self._node

    def create_topic(self, name: str, partitions: int = -1, configs: Configs | None = None) -> None:
        """Create a topic if it does not exist; for use under plain `with`."""
        self._call(self.acreate_topic, name, partitions, configs)

    async def acreate_topic(
        self, name: str, partitions: int = -1, configs: Configs | None = None
    ) -> None:
        """Create a topic if it does not exist; for use under trio."""
        await self.node.ensure_topic(name, partitions, -1, _texts(configs))

    def reset(self) -> None:
        """Remove all topics, groups and transactional ids, and create `topics` again, in
        milliseconds.

        For use under plain `with`.
        """
        self._call(self.areset)

    async def areset(self) -> None:
        """Remove all topics, groups and transactional ids, and create `topics` again; under trio."""
        node = self.node
        await node.services.coordinators.remove_all_state()
        names = [name for name in node.metadata.image.topics_by_name if not is_internal_topic(name)]
        if names:
            responses = await node.metadata.perform(lambda image: delete_topics(image, names))
            failed = [each for each in responses if each.error_code != ErrorCode.none]
            if failed:
                raise RuntimeError(f"the broker did not delete {failed}")
        for name, partitions in self._topics.items():
            await node.ensure_topic(name, partitions)

    # async with

    async def __aenter__(self) -> Broker:
        check_trio()
        if self._stack is not None:  # in this loop, or in its own thread
            raise RuntimeError("the broker runs already: make another one, or use it as it is")
        failure: Exception | None = None
        async with AsyncExitStack() as stack:
            stack.callback(self._remove_data)
            node = Node(self._seams or real_seams(), self._config())
            nursery = await stack.enter_async_context(trio.open_nursery())
            try:
                await nursery.start(node.run)
                self._node = node
                for name, partitions in self._topics.items():
                    await node.ensure_topic(name, partitions)
            except Exception as error:  # raised without the nursery's exception group
                failure = error
                nursery.cancel_scope.cancel()
            stack.callback(node.stop)
            self._stack = stack.pop_all()
        if failure is not None:
            await self.__aexit__(None, None, None)
            raise failure
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._stack is not None
        stack, self._stack, self._node = self._stack, None, None
        if may_be_cancellation(error):
            await stack.__aexit__(kind, error, trace)
        else:  # a test's error is raised without the nursery's exception group
            await stack.__aexit__(None, None, None)

    def _config(self) -> ServerConfig:
        data = self._data
        if data is None:
            data = self._new_directory("odradek-")
        properties = {"listeners": f"PLAINTEXT://{self._listen}", "log.dirs": data}
        if self._tiered is not False:
            properties |= tiered_settings(self._tier(), brokers=1, listener="PLAINTEXT")
        config = ServerConfig.from_properties({**properties, **self._configs}, test_node=True)
        for warning in config.warnings:
            log.warning("%s", warning)
        return config

    def _tier(self) -> str:
        if isinstance(self._tiered, bool):
            return self._new_directory("odradek-tier-")
        return absolute_target(str(self._tiered))

    def _new_directory(self, prefix: str) -> str:
        self._temporary.append(tempfile.mkdtemp(prefix=prefix))
        return self._temporary[-1]

    def _remove_data(self) -> None:
        while self._temporary:
            shutil.rmtree(self._temporary.pop(), ignore_errors=True)

    # with

    def __enter__(self) -> Broker:
        self._thread = LoopThread(lambda: self, name="odradek", start_s=START_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        _ = self.node  # raises RuntimeError if the broker is not running
        if self._thread is None:
            raise RuntimeError(
                "the broker runs in this loop, by `async with`: await acreate_topic and areset"
            )
        return self._thread.call(function, *args)


def _texts(configs: Configs | None) -> dict[str, str]:
    return {name: str(value) for name, value in (configs or {}).items()}
