"""Loads modules that the first clients need, after start-up.

Start-up loads only what serving requires. Other modules, such as kio's schemas of common requests and the group
coordinator, take milliseconds each in the first request that needs them. They are loaded here one at a time,
with pauses in which other tasks run. Replication goes first: while this node catches up, clients use other
leaders, and loading would delay its replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module

import trio

from odradek.protocol import apis, messages
from odradek.seams.clock import Clock

log = logging.getLogger("odradek.warm_up")

PAUSE_SECONDS = 0.002
LOOK_SECONDS = 0.02
CATCH_UP_SECONDS_MAX = 5.0
"""Maximum time that loading waits for replicas to catch up."""

SCHEMAS = (
    # in the order of the requests of librdkafka, then of the Java client
    (apis.API_VERSIONS, 3),
    (apis.METADATA, 12),
    (apis.INIT_PRODUCER_ID, 4),
    (apis.PRODUCE, 10),
    (apis.FIND_COORDINATOR, 2),
    (apis.JOIN_GROUP, 5),
    (apis.SYNC_GROUP, 3),
    (apis.OFFSET_FETCH, 7),
    (apis.LIST_OFFSETS, 7),
    (apis.FETCH, 16),
    (apis.HEARTBEAT, 3),
    (apis.OFFSET_COMMIT, 9),
    (apis.CREATE_TOPICS, 4),
    (apis.API_VERSIONS, 4),
    (apis.METADATA, 13),
    (apis.PRODUCE, 13),
    (apis.FETCH, 18),
)
"""Pairs of an API and the version that current clients use."""

MODULES = (
    "odradek.broker.apis.metadata",
    "odradek.protocol.schemas.topic_records",
    "odradek.replication.controller.topics",
    "odradek.broker.replicas.topic_creation",
    "odradek.broker.apis.topics",
    "odradek.broker.apis.produce",
    "odradek.broker.apis.fetch",
    "odradek.broker.apis.list_offsets",
    "odradek.broker.apis.init_producer_id",
    "odradek.broker.apis.find_coordinator",
    "odradek.broker.groups.messages",
    "odradek.broker.groups.offset_store",
    "odradek.broker.groups.classic_group",
    "odradek.broker.groups.coordinator_shard",
    "odradek.protocol.schemas.group_records",
    "odradek.broker.groups.coordinator",
    "odradek.broker.apis.groups",
    "odradek.broker.apis.group_offsets",
)
"""In the order of their imports, so each step loads one module."""


async def warm_up(clock: Clock, *, is_catching_up: Callable[[], bool]) -> None:
    """Load the modules step by step, once the replicas of this node have caught up.

    After an error, for example too many open files, the rest is loaded on demand.
    """
    with trio.move_on_after(CATCH_UP_SECONDS_MAX):
        while is_catching_up():
            await clock.sleep(LOOK_SECONDS)
    try:
        for name in MODULES:
            import_module(name)
            await clock.sleep(PAUSE_SECONDS)
        for api, version in SCHEMAS:
            messages.warm(api.key, version)
            await clock.sleep(PAUSE_SECONDS)
    except OSError as error:
        log.warning("modules could not be loaded in advance: %s", error)


__all__ = ["warm_up"]
