"""What the client of a request may do: asked of the authorizer, told as bits (KIP-430).

Which operation an API needs is in `broker/security/rules.py`. Without an authorizer everybody may do
everything, at the price of one comparison. `may_*` answer, `check_*` raise the KafkaError that the
client is told; each is about the request's own API unless another operation is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from odradek.broker.security.rules import RULES, Rule
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.acls import CLUSTER_NAME, AclOperation, AclResource

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext

NOT_ASKED = -(1 << 31)
"""As a bit field: the client did not ask for it."""

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
    """The client may not do that, and is told no more than that."""

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
    """An error's text for answers in which Kafka says nothing more of what is denied than that it is."""
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
    """Raises TopicDenied."""
    if not may_topic(ctx, name, operation):
        raise TopicDenied


def check_topic_called(ctx: RequestContext, name: str | None, topic_id: UUID | None) -> None:
    """For a topic that is called by its id, if it has one; an unknown id is nobody's to allow.

    Raises TopicDenied.
    """
    if topic_id is not None:
        found = ctx.services.metadata.image.topics_by_id.get(topic_id)
        if found is None:
            return
        name = found.name
    check_topic(ctx, name or "")


def check_group(ctx: RequestContext, name: str, operation: AclOperation | None = None) -> None:
    """Raises GroupDenied."""
    if not may_group(ctx, name, operation):
        raise GroupDenied


def check_transactional_id(
    ctx: RequestContext, name: str, operation: AclOperation | None = None
) -> None:
    """Raises TransactionalIdDenied."""
    if not may_transactional_id(ctx, name, operation):
        raise TransactionalIdDenied


def check_cluster(ctx: RequestContext, operation: AclOperation | None = None) -> None:
    """Raises ClusterDenied."""
    if not may_cluster(ctx, operation):
        raise ClusterDenied


def check_producer(ctx: RequestContext, transactional_id: str | None) -> None:
    """Whether the client may have a producer id (InitProducerId).

    Without a transactional id it must be allowed to write to some topic, or to write idempotently,
    which is the cluster's to allow. Raises TransactionalIdDenied or ClusterDenied.
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


# As bits


def topic_operations(ctx: RequestContext, name: str) -> int:
    """What may be done with a topic, a bit for each operation."""
    return _bits(ctx, TOPIC_OPERATIONS, AclResource.TOPIC, name)


def group_operations(ctx: RequestContext, name: str) -> int:
    return _bits(ctx, GROUP_OPERATIONS, AclResource.GROUP, name)


def cluster_operations(ctx: RequestContext) -> int:
    """Nothing is told to whoever may not describe the cluster."""
    if not may_cluster(ctx, AclOperation.DESCRIBE):
        return 0
    return _bits(ctx, CLUSTER_OPERATIONS, AclResource.CLUSTER, CLUSTER_NAME)


def _bits(
    ctx: RequestContext, operations: Sequence[AclOperation], resource: AclResource, name: str
) -> int:
    return sum(1 << each for each in operations if _allows(ctx, each, resource, name))
