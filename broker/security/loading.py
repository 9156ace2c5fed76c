"""The ACLs that an authorizer goes by: those of the image, whichever it is.

A broker's listeners open when the image has all that was committed. A controller's open before, for by
them the node gets there: what the nodes of a quorum ask each other is decided by the ACLs that this one
knows so far (Kafka's lets super users alone do it). About super users no ACL decides, ever. All else waits a
while for the ACLs to be all there, and then loses its connection: they may be long in coming, where too few
controllers run, and a client that is told so can ask another node, or again.
"""

from __future__ import annotations

import logging
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

_log = logging.getLogger("odradek.connection")

TIMEOUT_SECONDS: Final = 5.0
"""How long a request waits for the ACLs: as an election may take, and less than clients wait for answers."""
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
"""What a quorum is made by."""


def follow_acls(authorizer: Authorizer, metadata: MetadataManager) -> None:
    """Go by the image's ACLs from now on."""
    authorizer.load(acl_of(record) for record in metadata.image.acls.values())

    def changed(delta: MetadataDelta) -> None:
        if delta.image.acls is not delta.before.acls:
            _change(authorizer, delta.before, delta.image)

    metadata.subscribe(changed)


def _change(authorizer: Authorizer, before: MetadataImage, image: MetadataImage) -> None:
    """An id's ACL never changes."""
    old, new = before.acls, image.acls
    authorizer.change(
        [acl_of(record) for acl_id, record in new.items() if acl_id not in old],
        [acl_of(record) for acl_id, record in old.items() if acl_id not in new],
    )


def once_loaded(route: Route) -> Route:
    """The same API on a controller's listener, where it may be asked for too soon."""

    async def handle(request: Any, ctx: RequestContext) -> Any:
        authorizer, loaded = ctx.authorizer, ctx.services.acls_loaded
        if not (authorizer is None or loaded.is_set() or authorizer.is_super_user(ctx.principal)):
            await _wait_until(loaded, ctx)
        return await route.handler(request, ctx)

    return Route(handle, route.read, route.write, route.batches_responses)


async def _wait_until(loaded: trio.Event, ctx: RequestContext) -> None:
    """Raises ConnectionLost: nobody reads meanwhile, nor sees whether the client is still there."""
    await ctx.flush()
    with trio.move_on_after(TIMEOUT_SECONDS):
        await loaded.wait()
        return
    _log.warning(
        "closed %s: %s is for those that ACLs allow it, which are not known yet",
        ctx.peer,
        ctx.api.title,
    )
    raise ConnectionLost("the ACLs are not known yet")
