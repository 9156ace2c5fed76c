"""The ACLs that an authorizer goes by: those of the image, whichever it is.

A broker's listeners open when the image has all that was committed. A controller's open before, for by
them the node gets there: what the nodes of a quorum ask each other is decided by the ACLs that this one
knows so far (Kafka's lets super users alone do it), and all else waits until they are all there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from odradek.broker.dispatch import Route
from odradek.protocol import apis
from odradek.replication.controller.acls import acl_of
from odradek.replication.controller.image import MetadataDelta, MetadataImage

if TYPE_CHECKING:
    from odradek.broker.context import RequestContext
    from odradek.broker.security.authorizer import Authorizer
    from odradek.replication.raft.metadata import Metadata

ANSWERED_BEFORE: Final = frozenset(
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


def follow_acls(authorizer: Authorizer, metadata: Metadata) -> None:
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
        if ctx.authorizer is not None:
            loaded = ctx.broker.acls_loaded
            if not loaded.is_set():
                await ctx.flush()
                await loaded.wait()
        return await route.handler(request, ctx)

    return Route(handle, route.read, route.write, route.prompt)
