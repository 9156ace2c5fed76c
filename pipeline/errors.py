"""What can go wrong with history that is read as a table; each says which object or partition it is."""

from __future__ import annotations

import re


class PipelineError(Exception):
    """The text says what to do."""


class Unread(PipelineError):
    """Offsets that were asked for, and can't be had."""

    key: str | None = None
    """The object's that should have them; None where it is a broker."""
    unread_from: int | None = None
    """The first of them; None for all that were asked for."""
    goes_on_at: int | None = None
    """Behind the last of them; None where nothing is to be had of those that were asked for after it."""


class UnreadableSegment(Unread):
    """An object is not read whole until somebody sees to it (`onCorruptSegment`)."""


class CorruptSegment(UnreadableSegment):
    """An object's bytes are not what was put there."""


class MissingSegment(UnreadableSegment):
    """An object that should be in the store is not."""


class DeniedSegment(UnreadableSegment):
    """The store does not let us read an object."""


class StoreUnavailable(PipelineError):
    """The store does not answer, or throttles, however often it was asked; the next run may do better."""


class FilesUnavailable(PipelineError):
    """Files of a job's own, where Spark keeps them, cannot be read or written."""


class BadOption(PipelineError):
    """An option of the query is missing, unknown, or means nothing."""


class JobRunning(PipelineError):
    """Another run of the same job goes on; once it has ended the next one may."""


class DataLoss(Unread):
    """Offsets that a query asked for are not there any more (`failOnDataLoss`)."""


class BrokersUnavailable(PipelineError):
    """No broker answered, or one refused."""


OR_WITHOUT = "onCorruptSegment=skip or report reads what is left"


def or_without(error: UnreadableSegment) -> UnreadableSegment:
    """The error that ends a query, with how not to."""
    error.args = (f"{error} ({OR_WITHOUT})",)
    return error


def in_words(error: Exception) -> str:
    """What an error says, without the name of Kafka's code for it, unless that is all there is."""
    from odradek.protocol.errors import KafkaError

    if isinstance(error, KafkaError):
        return error.message or error.code.name.replace("_", " ")
    return str(error)


GAP_FOUND = "odradek: offsets that can't be read"
"""In the error that ends an attempt to export which met some."""


def from_spark(error: Exception) -> PipelineError:
    """What Spark raised, as an error of ours: BadOption where that is what a process of its own found, of what was
    asked for."""
    is_option = [name for name, _ in _ours(str(error))][-1:] == [BadOption.__name__]
    return (BadOption if is_option else PipelineError)(said_by_spark(error))


def said_by_spark(error: Exception) -> str:
    """What went wrong, in a line where that can be told: one of our errors, of which Spark hands on a traceback
    of another process, or else the first of a chain of Java's; else all that Spark said."""
    text = str(error)
    if ours := _ours(text):
        return ours[-1][1]
    causes = re.findall(r"^Caused by: (?:[\w$]+\.)*([\w$]+(?:: .*)?)$", text, re.MULTILINE)
    return str(causes[-1]) if causes else text


def _ours(text: str) -> list[tuple[str, str]]:
    """Names and texts."""
    found: list[tuple[str, str]] = re.findall(r"odradek\.pipeline\.errors\.(\w+): (.*)", text)
    return found
