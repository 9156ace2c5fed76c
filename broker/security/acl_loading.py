"""Keeps the authorizer's ACLs equal to those of the metadata image.

A broker opens its listeners after it has caught up with the committed metadata. A controller opens its
listeners earlier, because it needs them to catch up: quorum requests are authorized by the ACLs known so far
(in Kafka, only super users are allowed then). Super users never wait. Other requests wait for the ACLs for
TIMEOUT_SECONDS and are then disconnected, so the client can try another node.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import trio

from odradek.broker.requests.route import Route
from odradek.protocol import apis
from odradek.replication.controller.acls import acl_of
from odradek.replication.controller.image import MetadataDelta, MetadataImage
from odradek.seams.network import ConnectionLost

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext
    from odradek.broker.security.authorizer import Authorizer
    from odradek.replication.raft.metadata_manager import MetadataManager

_log = logging.getLogger("odradek.network")

TIMEOUT_SECONDS: Final = 5.0
"""Time that a request waits for the ACLs: enough for an election, less than request timeouts of clients."""
RESPONDED_BEFORE: Final = frozenset(
    {
        apis.API_VERSIONS,
        apis.VOTE,
        apis.BEGIN_QUORUM_EPOCH,
        apis.END_QUORUM_EPOCH,
        apis.FETCH,
        apis.FETCH_SNAPSHOT,
        apis.UPDATE_RAFT_VOTER,
    }
)
"""APIs of the quorum, which do not wait."""


def follow_acls(authorizer: Authorizer, metadata: MetadataManager) -> None:
    """Apply the ACLs of the current image and of all later images."""
    authorizer.load(acl_of(record) for record in metadata.image.acls.values())

    def changed(delta: MetadataDelta) -> None:
        if delta.image.acls is not delta.before.acls:
            _change(authorizer, delta.before, delta.image)

    metadata.subscribe(changed)


def _change(authorizer: Authorizer, before: MetadataImage, image: MetadataImage) -> None:
    """Add and remove the changed ACLs; the ACL of an id never changes."""
    old, new = before.acls, image.acls
    authorizer.change(
        [acl_of(record) for acl_id, record in new.items() if acl_id not in old],
        [acl_of(record) for acl_id, record in old.items() if acl_id not in new],
    )


def once_loaded(route: Route) -> Route:
    """Route on a controller listener that waits until the ACLs are loaded."""

    async def handle(request: Any, ctx: RequestContext) -> Any:
        authorizer, loaded = ctx.authorizer, ctx.services.acls_loaded
        if not (authorizer is None or loaded.is_set() or authorizer.is_super_user(ctx.principal)):
            await _wait_until(loaded, ctx)
        return await route.handler(request, ctx)

    return replace(route, handler=handle, handler_nowait=None)


async def _wait_until(loaded: trio.Event, ctx: RequestContext) -> None:
    """Wait until the ACLs are loaded. Raises ConnectionLost after TIMEOUT_SECONDS; a disconnect of the client
    is not noticed meanwhile."""
    await ctx.flush()
    with trio.move_on_after(TIMEOUT_SECONDS):
        await loaded.wait()
        return
    _log.warning(
        "closed %s: %s needs ACLs that are not loaded yet",
        ctx.peer,
        ctx.api.title,
    )
    raise ConnectionLost("the ACLs are not loaded yet")
