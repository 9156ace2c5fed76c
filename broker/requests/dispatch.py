"""From a frame to its handler and back: one row an API.

Each module of `broker/apis` ends in its `HANDLERS`, and is loaded for the first request of one of
the APIs that `MODULES` says it has. A row is a handler, `async (request, ctx) -> values`, or a `Route`
where the API reads or writes its messages by other means than kio's schemas (Produce and Fetch, whose
records must not be copied). Which listeners an API is spoken on is in the table of APIs: those of
brokers, those of controllers, or both; ApiVersions shows what is served where it is asked.

What only the active controller can do (`FORWARDED`) is sent on to it by a broker that is not (KIP-590);
no handler knows of that. On a controller's own listener nothing is sent on: NOT_CONTROLLER says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module

from odradek.broker.requests.route import Handler, Route
from odradek.protocol import apis
from odradek.protocol.apis import Api, Listeners

MODULES: Mapping[str, Sequence[Api]] = {
    "acls": (apis.DESCRIBE_ACLS, apis.CREATE_ACLS, apis.DELETE_ACLS),
    "api_versions": (apis.API_VERSIONS,),
    "client_quotas": (apis.ALTER_CLIENT_QUOTAS, apis.DESCRIBE_CLIENT_QUOTAS),
    "cluster": (apis.DESCRIBE_CLUSTER,),
    "configs": (
        apis.DESCRIBE_CONFIGS,
        apis.ALTER_CONFIGS,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.LIST_CONFIG_RESOURCES,
    ),
    "consumer_groups": (apis.CONSUMER_GROUP_HEARTBEAT, apis.CONSUMER_GROUP_DESCRIBE),
    "delegation_tokens": (
        apis.CREATE_DELEGATION_TOKEN,
        apis.RENEW_DELEGATION_TOKEN,
        apis.EXPIRE_DELEGATION_TOKEN,
        apis.DESCRIBE_DELEGATION_TOKEN,
    ),
    "fetch": (apis.FETCH,),
    "find_coordinator": (apis.FIND_COORDINATOR,),
    "group_offsets": (apis.OFFSET_COMMIT, apis.OFFSET_FETCH, apis.OFFSET_DELETE),
    "groups": (
        apis.JOIN_GROUP,
        apis.SYNC_GROUP,
        apis.HEARTBEAT,
        apis.LEAVE_GROUP,
        apis.LIST_GROUPS,
        apis.DESCRIBE_GROUPS,
        apis.DELETE_GROUPS,
    ),
    "log_dirs": (apis.ALTER_REPLICA_LOG_DIRS, apis.DESCRIBE_LOG_DIRS),
    "metadata": (apis.METADATA,),
    "offsets": (apis.LIST_OFFSETS, apis.OFFSET_FOR_LEADER_EPOCH, apis.DELETE_RECORDS),
    "produce": (apis.PRODUCE,),
    "producer_ids": (apis.INIT_PRODUCER_ID,),
    "quorum": (apis.DESCRIBE_QUORUM, apis.UPDATE_FEATURES, apis.UNREGISTER_BROKER),
    "reassignments": (
        apis.ELECT_LEADERS,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
    ),
    "scram": (apis.DESCRIBE_USER_SCRAM_CREDENTIALS, apis.ALTER_USER_SCRAM_CREDENTIALS),
    "topics": (
        apis.CREATE_TOPICS,
        apis.DELETE_TOPICS,
        apis.CREATE_PARTITIONS,
        apis.DESCRIBE_TOPIC_PARTITIONS,
    ),
    "transactions": (
        apis.ADD_PARTITIONS_TO_TXN,
        apis.ADD_OFFSETS_TO_TXN,
        apis.END_TXN,
        apis.LIST_TRANSACTIONS,
        apis.DESCRIBE_TRANSACTIONS,
    ),
    "txn_markers": (apis.WRITE_TXN_MARKERS, apis.DESCRIBE_PRODUCERS),
    "txn_offsets": (apis.TXN_OFFSET_COMMIT,),
    "voters": (apis.ADD_RAFT_VOTER, apis.REMOVE_RAFT_VOTER),
}
"""Which module of `broker/apis` has the handlers of which APIs: what is served, without loading it."""
CONTROLLER_MODULES: Mapping[str, Sequence[Api]] = {
    "controller": (
        apis.BROKER_REGISTRATION,
        apis.BROKER_HEARTBEAT,
        apis.CONTROLLER_REGISTRATION,
        apis.ALLOCATE_PRODUCER_IDS,
        apis.ALTER_PARTITION,
        apis.ASSIGN_REPLICAS_TO_DIRS,
    ),
    "envelope": (apis.ENVELOPE,),
    "raft": (
        apis.VOTE,
        apis.BEGIN_QUORUM_EPOCH,
        apis.END_QUORUM_EPOCH,
        apis.FETCH,
        apis.FETCH_SNAPSHOT,
        apis.UPDATE_RAFT_VOTER,
    ),
}
"""Modules whose APIs are served on the listeners of controllers alone; there they win over the others."""
FORWARDED: frozenset[Api] = frozenset(
    (
        apis.CREATE_TOPICS,
        apis.DELETE_TOPICS,
        apis.CREATE_PARTITIONS,
        apis.CREATE_ACLS,
        apis.DELETE_ACLS,
        apis.ELECT_LEADERS,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
        apis.ALTER_CLIENT_QUOTAS,
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        apis.UPDATE_FEATURES,
        apis.DESCRIBE_QUORUM,
        apis.UNREGISTER_BROKER,
        apis.ADD_RAFT_VOTER,
        apis.REMOVE_RAFT_VOTER,
    )
)
"""What a broker has the active controller do for its clients."""
FORWARDABLE: frozenset[Api] = FORWARDED | {apis.ALTER_CONFIGS, apis.INCREMENTAL_ALTER_CONFIGS}
"""What comes in envelopes. Of alterations of configs, brokers do a part by themselves."""


def _served_on(listener: Listeners) -> dict[int, str]:
    return {
        api.key: module
        for module, served in MODULES.items()
        for api in served
        if listener in api.listeners
    }


SERVED: Mapping[int, str] = _served_on(apis.BROKER)
"""API key to module, of every API that brokers serve."""
SERVED_BY_CONTROLLERS: Mapping[int, str] = {
    **_served_on(apis.CONTROLLER),
    **{api.key: module for module, served in CONTROLLER_MODULES.items() for api in served},
}
"""API key to module, of every API that controllers serve."""


@cache
def find_route(api_key: int) -> Route | None:
    """How an API is served on a broker's listeners, None if it is not; loads its module."""
    module = SERVED.get(api_key)
    if module is None:
        return None
    route = _load(module, MODULES[module], api_key)
    if apis.APIS[api_key] not in FORWARDED:
        return route
    from odradek.broker.requests.forwarding import forwarded

    return forwarded(route)


@cache
def find_controller_route(api_key: int) -> Route | None:
    """As `find_route`, on the listeners of controllers."""
    module = SERVED_BY_CONTROLLERS.get(api_key)
    if module is None:
        return None
    rows = CONTROLLER_MODULES.get(module) or MODULES[module]
    route = _load(module, rows, api_key)
    from odradek.broker.security.loading import RESPONDED_BEFORE, once_loaded

    return route if apis.APIS[api_key] in RESPONDED_BEFORE else once_loaded(route)


def _load(module: str, rows: Sequence[Api], api_key: int) -> Route:
    handlers: Mapping[Api, Handler | Route] = import_module(
        f"odradek.broker.apis.{module}"
    ).HANDLERS
    assert handlers.keys() == set(rows), f"{module} serves other APIs than the table says"
    row = handlers[apis.APIS[api_key]]
    return row if isinstance(row, Route) else Route(row)
