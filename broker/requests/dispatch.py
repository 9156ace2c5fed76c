"""Table of handlers: finds the route of an API and loads its module.

Each module of `broker/apis` ends with `HANDLERS` and is loaded by the first request of one of the APIs that
`MODULES` lists for it. An entry is a handler, `async (request, ctx) -> values`, or a `Route` for an API that
does not use kio's schemas (Produce and Fetch, whose records are not copied). The table of APIs has the
listeners of each API: broker, controller, or both; ApiVersions reports them per listener.

`handle_locally` calls the handler of a request that a node sends to its own active controller.

Brokers forward the APIs in `FORWARDED` to the active controller (KIP-590). `RequestContext.is_forwarded` is set for
a request that another node forwarded. A controller listener does not forward: an inactive controller returns NOT_CONTROLLER.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from odradek.broker.network.listeners import BoundListener
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.route import Handler, Route
from odradek.protocol import apis, messages
from odradek.protocol.apis import Api, Listeners
from odradek.protocol.errors import ErrorCode
from odradek.seams.files import Buffer
from odradek.seams.network import Address

if TYPE_CHECKING:
    from odradek.broker.services import Services

MODULES: Mapping[str, Sequence[Api]] = {
    "acls": (apis.DESCRIBE_ACLS, apis.CREATE_ACLS, apis.DELETE_ACLS),
    "api_versions": (apis.API_VERSIONS,),
    "client_quotas": (apis.ALTER_CLIENT_QUOTAS, apis.DESCRIBE_CLIENT_QUOTAS),
    "cluster": (apis.DESCRIBE_CLUSTER, apis.UPDATE_FEATURES, apis.UNREGISTER_BROKER),
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
    "delete_records": (apis.DELETE_RECORDS,),
    "describe_topic_partitions": (apis.DESCRIBE_TOPIC_PARTITIONS,),
    "describe_topic_tiering": (apis.DESCRIBE_TOPIC_TIERING,),
    "disable_remote_topic": (apis.DISABLE_REMOTE_TOPIC,),
    "diskless": tuple(apis.DISKLESS_APIS.values()),
    "elect_leaders": (apis.ELECT_LEADERS,),
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
    "init_producer_id": (apis.INIT_PRODUCER_ID,),
    "list_offsets": (apis.LIST_OFFSETS, apis.OFFSET_FOR_LEADER_EPOCH),
    "log_dirs": (apis.ALTER_REPLICA_LOG_DIRS, apis.DESCRIBE_LOG_DIRS),
    "metadata": (apis.METADATA,),
    "partition_reassignments": (
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
    ),
    "produce": (apis.PRODUCE,),
    "quorum": (apis.DESCRIBE_QUORUM, apis.ADD_RAFT_VOTER, apis.REMOVE_RAFT_VOTER),
    "scram": (apis.DESCRIBE_USER_SCRAM_CREDENTIALS, apis.ALTER_USER_SCRAM_CREDENTIALS),
    "topics": (apis.CREATE_TOPICS, apis.DELETE_TOPICS, apis.CREATE_PARTITIONS),
    "transactions": (
        apis.ADD_PARTITIONS_TO_TXN,
        apis.ADD_OFFSETS_TO_TXN,
        apis.END_TXN,
        apis.LIST_TRANSACTIONS,
        apis.DESCRIBE_TRANSACTIONS,
    ),
    "txn_markers": (apis.WRITE_TXN_MARKERS, apis.DESCRIBE_PRODUCERS),
    "txn_offset_commit": (apis.TXN_OFFSET_COMMIT,),
}
"""Modules of `broker/apis` and the APIs that each serves, known without loading them."""
CONTROLLER_MODULES: Mapping[str, Sequence[Api]] = {
    "node_to_controller": (
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
"""Modules of APIs on controller listeners only; there they override the others."""
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
"""APIs that brokers forward to the active controller."""
FORWARDABLE: frozenset[Api] = FORWARDED | {
    apis.ALTER_CONFIGS,
    apis.INCREMENTAL_ALTER_CONFIGS,
    apis.DESCRIBE_TOPIC_TIERING,
}
"""APIs that an Envelope may contain. Brokers handle a part of config alterations and of the tiered state themselves."""


def _served_on(listener: Listeners) -> dict[int, str]:
    return {
        api.key: module
        for module, served in MODULES.items()
        for api in served
        if listener in api.listeners
    }


SERVED: Mapping[int, str] = _served_on(apis.BROKER)
"""Module by API key, for broker listeners."""
SERVED_BY_CONTROLLERS: Mapping[int, str] = {
    **_served_on(apis.CONTROLLER),
    **{api.key: module for module, served in CONTROLLER_MODULES.items() for api in served},
}
"""Module by API key, for controller listeners."""


@cache
def find_route(api_key: int) -> Route | None:
    """Route of an API on broker listeners, None if it is not supported; loads its module."""
    module = SERVED.get(api_key)
    if module is None:
        return None
    route = _load(module, MODULES[module], api_key)
    if apis.find_api(api_key) not in FORWARDED:
        return route
    from odradek.broker.requests.forwarding import forwarded

    return forwarded(route)


@cache
def find_controller_route(api_key: int) -> Route | None:
    """Route of an API on controller listeners, None if it is not supported; loads its module."""
    module = SERVED_BY_CONTROLLERS.get(api_key)
    if module is None:
        return None
    rows = CONTROLLER_MODULES.get(module) or MODULES[module]
    route = _load(module, rows, api_key)
    from odradek.broker.security.acl_loading import RESPONDED_BEFORE, once_loaded

    return route if apis.find_api(api_key) in RESPONDED_BEFORE else once_loaded(route)


def _load(module: str, rows: Sequence[Api], api_key: int) -> Route:
    handlers: Mapping[Api, Handler | Route] = import_module(
        f"odradek.broker.apis.{module}"
    ).HANDLERS
    assert handlers.keys() == set(rows), (
        f"{module} does not serve the APIs that MODULES lists for it"
    )
    api = apis.find_api(api_key)
    assert api is not None
    row = handlers[api]
    return row if isinstance(row, Route) else Route.of(row)


def version_range(api: Api) -> dict[str, int]:
    """Item of an API in the ApiVersions response."""
    return {
        "api_key": api.key,
        "min_version": api.advertised_min,
        "max_version": api.max_version,
    }


def unsupported_version_response() -> bytes:
    """Response to ApiVersions of an unsupported version, in version 0: it has the supported versions of
    ApiVersions, so the client can retry with one of them (KIP-511)."""
    return messages.write_response(
        apis.API_VERSIONS.key,
        0,
        {
            "error_code": ErrorCode.unsupported_version,
            "api_keys": [version_range(apis.API_VERSIONS)],
        },
    )


HERE: Final = Address("localhost", 0)
IN_PROCESS: Final = BoundListener("", "PLAINTEXT", HERE, None, of_controller=True)


async def handle_locally(services: Services, api: Api, values: Mapping[str, Any]) -> Any:
    """Handle the request and return the response as kio's entity of the newest version.

    Request and response are encoded and decoded, so the result is the same as from another node. The node is
    authorized for all operations.
    """
    route = find_controller_route(api.key)
    assert route is not None, f"{api.title} is not an API of controllers"
    version = api.max_version
    frame = memoryview(messages.write_request(api.key, version, values))
    ctx = RequestContext(
        services, api, version, 0, f"node-{services.node_id}", IN_PROCESS, HERE, _nothing_to_flush
    )
    response = await route.handler(route.read(api.key, version, frame, 0), ctx)
    body = cast(Buffer, route.write(api.key, version, response))
    return messages.read_response(api.key, version, memoryview(body))


async def _nothing_to_flush() -> None:
    pass
