"""What can go wrong with history that is read as a table; each says which object or partition it is."""

from __future__ import annotations

import re


class PipelineError(Exception):
    """The text says what to do."""


class CorruptSegment(PipelineError):
    """An object's bytes are not what was put there."""


class BadOption(PipelineError):
    """An option of the query is missing, unknown, or means nothing."""


class DataLoss(PipelineError):
    """Offsets that a query asked for are not there any more (`failOnDataLoss`)."""


class MissingSegment(PipelineError):
    """An object that should be in the store is not, or can't be read."""


class BrokersUnavailable(PipelineError):
    """No broker answered, or one refused."""


def said_by_spark(error: Exception) -> str:
    """What went wrong in one of our errors, where Spark hands on a traceback of another process; else all
    that Spark said."""
    ours = re.findall(r"odradek\.pipeline\.errors\.\w+: (.*)", str(error))
    return ours[-1] if ours else str(error)
