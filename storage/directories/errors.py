"""Errors that prevent a node from starting with its directories. None is a Kafka error code."""

from __future__ import annotations


class DirectoryError(Exception):
    """The node must not start with these directories; the message states how to correct this."""


class DirectoryInUse(DirectoryError):
    """Another process holds the directory's `.lock`."""


class WrongDirectory(DirectoryError):
    """A directory belongs to another node or cluster, or its `meta.properties` is invalid."""


class NoDirectory(DirectoryError):
    """None of the directories could be opened."""


class NotFormatted(DirectoryError):
    """The node is part of a cluster, and no directory contains the cluster id."""
