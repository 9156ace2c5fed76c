"""A node in the current trio loop, for a test: started, with its topics, and stopped at the end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

import trio

from odradek.broker.config.diskless_option import diskless_settings
from odradek.broker.config.loggers import restore_levels
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.tiered_option import tiered_settings
from odradek.broker.node import Node
from odradek.replication.controller.image import MetadataImage
from odradek.seams import Seams
from odradek.seams.real import real_seams
from odradek.testing.reset import reset_node
from odradek.testing.trio_checks import check_trio, may_be_cancellation
from odradek.testing.unpatched_clock import UnpatchedClock

log = logging.getLogger("odradek.config")


class EmbeddedNode:
    """A node that runs inside `async with`."""

    def __init__(
        self,
        *,
        topics: Mapping[str, int],
        configs: Mapping[str, str],
        data: str,
        listen: str,
        tier: str | None,
        diskless: str | None = None,
        seams: Seams | None = None,
    ) -> None:
        """`data`: log directories, separated by commas. `tier` and `diskless`: directory or URL of the
        remote tier, and of the store of diskless topics."""
        self._topics = topics
        self._configs = configs
        self._data = data
        self._listen = listen
        self._tier = tier
        self._diskless = diskless
        self._seams = seams
        self._base: MetadataImage | None = None
        self._stack: AsyncExitStack | None = None
        self.node: Node | None = None

    async def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic if it does not exist."""
        assert self.node is not None, "the node is running"
        await self.node.ensure_topic(name, partitions, -1, configs)

    async def reset(self) -> None:
        """Undo everything that clients changed, and create the topics again."""
        assert self.node is not None, "the node is running"
        assert self._base is not None, "the node is running"
        await reset_node(self.node, self._base)
        await self._create_topics(self.node)

    async def __aenter__(self) -> EmbeddedNode:
        check_trio()
        failure: Exception | None = None
        async with AsyncExitStack() as stack:
            stack.callback(restore_levels)
            seams = self._seams or replace(real_seams(), clock=UnpatchedClock())
            node = Node(seams, self._config())
            nursery = await stack.enter_async_context(trio.open_nursery())
            try:
                await nursery.start(node.run)
                self.node, self._base = node, node.metadata.image
                await self._create_topics(node)
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
        stack, self._stack = self._stack, None
        if may_be_cancellation(error):
            await stack.__aexit__(kind, error, trace)
        else:  # a test's error is raised without the nursery's exception group
            await stack.__aexit__(None, None, None)

    async def _create_topics(self, node: Node) -> None:
        for name, partitions in self._topics.items():
            await node.ensure_topic(name, partitions)

    def _config(self) -> ServerConfig:
        properties = {"listeners": f"PLAINTEXT://{self._listen}", "log.dirs": self._data}
        if self._tier is not None:
            properties |= tiered_settings(self._tier, brokers=1, listener="PLAINTEXT")
        if self._diskless is not None:
            properties |= diskless_settings(self._diskless, brokers=1)
        config = ServerConfig.from_properties({**properties, **self._configs}, test_node=True)
        for warning in config.warnings:
            log.warning("%s", warning)
        return config
