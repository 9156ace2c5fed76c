"""Checks of `async with`: that trio's loop is running, and whether an error contains a
cancellation."""

from __future__ import annotations

import trio


def check_trio() -> None:
    """Raise RuntimeError outside trio: asyncio would enter such a block, and then hang."""
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "`async with` needs trio's loop: under asyncio, and without a loop, it is plain `with`"
        )


def may_be_cancellation(error: BaseException | None) -> bool:
    """Whether `error` may contain a Cancelled, which must propagate to the nursery that cancelled."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[0] is not None
    return isinstance(error, trio.Cancelled)
