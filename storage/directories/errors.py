"""Why a node cannot start on its directories. The texts say what to do; none is a Kafka error."""

from __future__ import annotations


class DirectoryError(Exception):
    """The node must not start on these directories as they are."""


class DirectoryInUse(DirectoryError):
    """Another process holds the directory's `.lock`."""


class WrongDirectory(DirectoryError):
    """A directory belongs to another node or cluster, or its `meta.properties` makes no sense."""


class NoDirectory(DirectoryError):
    """None of the directories could be opened."""


class NotFormatted(DirectoryError):
    """The node belongs to a cluster, and no directory says to which."""
