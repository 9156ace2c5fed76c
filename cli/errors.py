"""How a command ends badly."""

from __future__ import annotations


class CommandFailed(Exception):
    """The command could not do its work; the text says what happened and what to do. Exit code 1."""


class WrongUsage(Exception):
    """The arguments make no sense together; the text says which ones would. Exit code 2."""
