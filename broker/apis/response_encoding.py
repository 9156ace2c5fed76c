"""Answers of many items, written a few at a time while others have their turns on the loop.

Making an item, and its bytes, takes some microseconds: what is nothing for the answers that clients ask
for every day is a tenth of a second for tens of thousands of items. What is told must stay as it is
meanwhile: an image, or a list of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from odradek.broker.timers import Turn
from odradek.protocol.messages import Encoded
from odradek.seams.clock import Clock


async def written(items: Iterable[Any], write: Callable[[Any], bytes], clock: Clock) -> Encoded:
    """The items, made one by one as `items` yields them (None: nothing to tell, only time that passed)
    and written with a `response_item_writer`."""
    turn = Turn(clock)
    found = Encoded()
    for item in items:
        if item is not None:
            found.append(write(item))
        await turn.pass_on()
    return found
