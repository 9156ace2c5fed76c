"""What `async with` needs of the loop it is in, and what of a test's errors is the loop's own business."""

from __future__ import annotations

import trio


def check_trio() -> None:
    """Raises RuntimeError outside trio: asyncio runs such a block, too, and gets nowhere in it."""
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "`async with` needs trio's loop: under asyncio, and without a loop, it is plain `with`"
        )


def may_be_cancellation(error: BaseException | None) -> bool:
    """Whether there may be a Cancelled in it, which a nursery has to see: its scope may be whose it is."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[0] is not None
    return isinstance(error, trio.Cancelled)
