"""After readiness: load what the first clients will ask for, while nobody waits for it.

A start loads no more than its first answer needs. The rest, such as kio's schemas of the requests
that every client sends and the coordinator of groups, would be loaded by the first client's first
requests, a few milliseconds each. Here it is loaded one module at a time, with a pause after each in
which whoever is ready runs. What the node follows comes first: as long as it is behind, clients are with
the leaders, and every turn that this takes is one more in which a replica is missing.
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
PATIENCE_SECONDS = 5.0
"""How long those go first who catch up."""

SCHEMAS = (
    # what librdkafka asks in the order in which it asks, then what Java's client does
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
"""An API and the version that current clients pick."""

MODULES = (
    "odradek.broker.apis.metadata",
    "odradek.protocol.schemas.topic_records",
    "odradek.replication.controller.topics",
    "odradek.broker.replicas.topic_creation",
    "odradek.broker.apis.topics",
    "odradek.broker.apis.produce",
    "odradek.broker.apis.fetch",
    "odradek.broker.apis.offsets",
    "odradek.broker.apis.producer_ids",
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
"""In order of dependence, so that none brings more than itself."""


async def warm_up(clock: Clock, *, is_catching_up: Callable[[], bool]) -> None:
    """Load all of these, a step at a time, once the node has caught up with those that it follows.

    Where files can't be read (out of descriptors, say), the rest is left to those who ask for it.
    """
    with trio.move_on_after(PATIENCE_SECONDS):
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
        log.warning("the first clients wait for what was not loaded ahead of them: %s", error)


__all__ = ["warm_up"]
