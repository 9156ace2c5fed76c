"""Errors that end a command, with their exit codes."""

from __future__ import annotations


class CommandFailed(Exception):
    """The command failed; the text is printed and contains what to do about it. Exit code 1."""


class WrongUsage(Exception):
    """The arguments do not fit together; the text is printed. Exit code 2."""
