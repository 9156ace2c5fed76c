"""Encodes responses of many items in steps, between which the event loop runs other tasks.

Building and encoding an item takes some microseconds, which adds up to a tenth of a second for tens of thousands of
items. The source of the items must not change meanwhile: use a metadata image or a copied list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from odradek.broker.timers import EventLoopYield
from odradek.protocol.messages import Encoded
from odradek.seams.clock import Clock


async def written(items: Iterable[Any], write: Callable[[Any], bytes], clock: Clock) -> Encoded:
    """Encode the items that `items` yields with a `response_item_writer`. A None has no bytes; it only lets other
    tasks run."""
    event_loop = EventLoopYield(clock)
    found = Encoded()
    for item in items:
        if item is not None:
            found.append(write(item))
        await event_loop.yield_if_due()
    return found
