"""Authorization of requests, and the authorized operations as bit fields (KIP-430).

`broker/security/required_operations.py` has the operation that each API needs. Without an authorizer every operation is
allowed, at the cost of one comparison. `may_*` return a bool; `check_*` raise the KafkaError for the response.
Both use the operation of the request's API unless another one is passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from odradek.broker.security.required_operations import RULES, Rule
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.acls import CLUSTER_NAME, AclOperation, AclResource

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext

NOT_REQUESTED = -(1 << 31)
"""Value of an authorized operations field that the client did not request."""

TOPIC_OPERATIONS: Final = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: Final = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
GROUP_OPERATIONS: Final = (
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)


class Denied(KafkaError):
    """Authorization failed; the message has no details."""

    what: str

    def __init__(self) -> None:
        super().__init__(f"{self.what} authorization failed.")


class TopicDenied(Denied):
    code = ErrorCode.topic_authorization_failed
    what = "Topic"


class GroupDenied(Denied):
    code = ErrorCode.group_authorization_failed
    what = "Group"


class ClusterDenied(Denied):
    code = ErrorCode.cluster_authorization_failed
    what = "Cluster"


class TransactionalIdDenied(Denied):
    code = ErrorCode.transactional_id_authorization_failed
    what = "Transactional Id"


def text_of(error: KafkaError) -> str | None:
    """Error message for responses in which Kafka sends the generic text of the authorization error."""
    return None if isinstance(error, Denied) else error.message or None


def _allows(
    ctx: RequestContext, operation: AclOperation | None, resource: AclResource, name: str
) -> bool:
    authorizer = ctx.authorizer
    if authorizer is None:
        return True
    assert operation is not None, f"{ctx.api.title} needs nothing on a {resource.name}"
    return authorizer.allows(ctx.principal, ctx.peer.host, operation, resource, name)


def _rule(ctx: RequestContext) -> Rule:
    return RULES[ctx.api]


def may_topic(ctx: RequestContext, name: str, operation: AclOperation | None = None) -> bool:
    if ctx.authorizer is None:
        return True
    return _allows(ctx, operation or _rule(ctx).topic, AclResource.TOPIC, name)


def may_group(ctx: RequestContext, name: str, operation: AclOperation | None = None) -> bool:
    if ctx.authorizer is None:
        return True
    return _allows(ctx, operation or _rule(ctx).group, AclResource.GROUP, name)


def may_transactional_id(
    ctx: RequestContext, name: str, operation: AclOperation | None = None
) -> bool:
    if ctx.authorizer is None:
        return True
    needed = operation or _rule(ctx).transactional_id
    return _allows(ctx, needed, AclResource.TRANSACTIONAL_ID, name)


def may_cluster(ctx: RequestContext, operation: AclOperation | None = None) -> bool:
    if ctx.authorizer is None:
        return True
    return _allows(ctx, operation or _rule(ctx).cluster, AclResource.CLUSTER, CLUSTER_NAME)


def check_topic(ctx: RequestContext, name: str, operation: AclOperation | None = None) -> None:
    """Check the operation on a topic. Raises TopicDenied."""
    if not may_topic(ctx, name, operation):
        raise TopicDenied


def check_topic_name_or_id(ctx: RequestContext, name: str | None, topic_id: UUID | None) -> None:
    """Check the operation on a topic given by id, or by name if it has no id. An unknown id passes: the lookup
    that follows returns UNKNOWN_TOPIC_ID. Raises TopicDenied."""
    if topic_id is not None:
        found = ctx.services.metadata.image.topics_by_id.get(topic_id)
        if found is None:
            return
        name = found.name
    check_topic(ctx, name or "")


def check_group(ctx: RequestContext, name: str, operation: AclOperation | None = None) -> None:
    """Check the operation on a group. Raises GroupDenied."""
    if not may_group(ctx, name, operation):
        raise GroupDenied


def check_transactional_id(
    ctx: RequestContext, name: str, operation: AclOperation | None = None
) -> None:
    """Check the operation on a transactional id. Raises TransactionalIdDenied."""
    if not may_transactional_id(ctx, name, operation):
        raise TransactionalIdDenied


def check_cluster(ctx: RequestContext, operation: AclOperation | None = None) -> None:
    """Check the operation on the cluster. Raises ClusterDenied."""
    if not may_cluster(ctx, operation):
        raise ClusterDenied


def check_producer(ctx: RequestContext, transactional_id: str | None) -> None:
    """Check that the client may obtain a producer id (InitProducerId).

    Without a transactional id it needs WRITE on any topic or IDEMPOTENT_WRITE on the cluster. Raises
    TransactionalIdDenied or ClusterDenied.
    """
    if transactional_id is not None:
        check_transactional_id(ctx, transactional_id)
    elif not (
        ctx.authorizer is None
        or may_cluster(ctx, AclOperation.IDEMPOTENT_WRITE)
        or ctx.authorizer.allows_any(
            ctx.principal, ctx.peer.host, AclOperation.WRITE, AclResource.TOPIC
        )
    ):
        raise ClusterDenied


def topic_operations(ctx: RequestContext, name: str) -> int:
    """Authorized operations on a topic, one bit per operation."""
    return _bits(ctx, TOPIC_OPERATIONS, AclResource.TOPIC, name)


def group_operations(ctx: RequestContext, name: str) -> int:
    return _bits(ctx, GROUP_OPERATIONS, AclResource.GROUP, name)


def cluster_operations(ctx: RequestContext) -> int:
    """Authorized operations on the cluster; 0 if the client may not describe it."""
    if not may_cluster(ctx, AclOperation.DESCRIBE):
        return 0
    return _bits(ctx, CLUSTER_OPERATIONS, AclResource.CLUSTER, CLUSTER_NAME)


def _bits(
    ctx: RequestContext, operations: Sequence[AclOperation], resource: AclResource, name: str
) -> int:
    return sum(1 << each for each in operations if _allows(ctx, each, resource, name))
