"""How a node ends, where it is not that it was told to and could."""

from __future__ import annotations

import trio


class CannotStart(Exception):
    """The node can't start; the text says why and what to do."""


class WrongConfig(CannotStart):
    """A config makes no sense, as is seen only where it is used."""


class Stopped(CannotStart):
    """The node was told to stop while it waited for others of its cluster."""


class StorageLost(Exception):
    """No log directory is left, or the metadata directory failed: the node had to end."""


def is_cancellation(error: BaseException) -> bool:
    """Whether nothing went wrong: the node's nurseries were cancelled, or Ctrl-C came."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_cancellation(each) for each in error.exceptions)
    return isinstance(error, (trio.Cancelled, KeyboardInterrupt, Stopped))


def unwrap_node_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What kept a node from starting, or stopped it, without the nurseries that it went through."""
    expected = group.subgroup((CannotStart, StorageLost))
    while expected is not None:
        first = expected.exceptions[0]
        if not isinstance(first, BaseExceptionGroup):
            return first
        expected = first
    return group
