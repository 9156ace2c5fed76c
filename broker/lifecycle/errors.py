"""Errors that end a node: failed starts, and failed log directories or metadata log."""

from __future__ import annotations

import trio


class CannotStart(Exception):
    """The node can't start; the message has the reason and a remedy."""


class WrongConfig(CannotStart):
    """A config value is invalid, which only its use has shown."""


class Stopped(CannotStart):
    """The node was stopped during start-up, while it waited for other nodes."""


class NodeFailed(Exception):
    """All log directories or the metadata log have failed, or a failed log directory was not reported in time: the
    node shuts down."""


def is_cancellation(error: BaseException) -> bool:
    """Whether the error is a cancellation, a stop during start-up, or Ctrl-C, and no failure."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_cancellation(each) for each in error.exceptions)
    return isinstance(error, (trio.Cancelled, KeyboardInterrupt, Stopped))


def find_node_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the CannotStart or NodeFailed in the group, or the group if it has neither."""
    expected = group.subgroup((CannotStart, NodeFailed))
    while expected is not None:
        first = expected.exceptions[0]
        if not isinstance(first, BaseExceptionGroup):
            return first
        expected = first
    return group
