"""Errors of the pipeline; the text of each names the object or partition and what to do about it."""

from __future__ import annotations

import re


class PipelineError(Exception):
    """Base of all errors; the text includes what to do."""


class OffsetsUnreadable(PipelineError):
    """Requested offsets that cannot be read."""

    key: str | None = None
    """Key of the object that should have the offsets; None for a broker."""
    unread_from: int | None = None
    """First unreadable offset; None if none of the requested offsets was read."""
    resumes_at: int | None = None
    """First offset after the unreadable ones; None if no later requested offset can be read."""


class UnreadableSegment(OffsetsUnreadable):
    """An object is corrupt, missing or denied (`onCorruptSegment`)."""


class CorruptSegment(UnreadableSegment):
    """The content of an object is corrupt."""


class MissingSegment(UnreadableSegment):
    """An object is missing in the store."""


class DeniedSegment(UnreadableSegment):
    """The store denies read access to an object."""


class StoreUnavailable(PipelineError):
    """The store did not respond, or throttled, after all retries; a later run may succeed."""


class FilesUnavailable(PipelineError):
    """A job could not read or write its own files in Spark's file system."""


class BadOption(PipelineError):
    """An option is missing, unknown or invalid."""


class JobRunning(PipelineError):
    """Another run of the same job is active."""


class DataLoss(OffsetsUnreadable):
    """Requested offsets were deleted (`failOnDataLoss`)."""


class BrokersUnavailable(PipelineError):
    """No broker responded, or one refused the request."""


SKIP_HINT = "onCorruptSegment=skip or report skips or reports such objects"


def with_skip_hint(error: UnreadableSegment) -> UnreadableSegment:
    """Add the hint how to skip unreadable objects to the error, and return it."""
    error.args = (f"{error} ({SKIP_HINT})",)
    return error


def error_text(error: Exception) -> str:
    """Return an error's text; of a Kafka error without the code's name, unless there is no message."""
    from odradek.protocol.errors import KafkaError

    if isinstance(error, KafkaError):
        return error.message or error.code.name.replace("_", " ")
    return str(error)


GAP_FOUND = "odradek: offsets that cannot be read"
"""Prefix of the error that ends an export attempt at a gap."""


def translate_spark_error(error: Exception) -> PipelineError:
    """Convert an error of Spark to BadOption, if a pipeline process raised that, or to PipelineError."""
    is_option = [name for name, _ in _pipeline_errors(str(error))][-1:] == [BadOption.__name__]
    return (BadOption if is_option else PipelineError)(spark_error_message(error))


def spark_error_message(error: Exception) -> str:
    """Return the cause in one line: the pipeline error in the traceback, or the last "Caused by" of Java, or
    Spark's text.
    """
    text = str(error)
    if found := _pipeline_errors(text):
        return found[-1][1]
    causes = re.findall(r"^Caused by: (?:[\w$]+\.)*([\w$]+(?:: .*)?)$", text, re.MULTILINE)
    return str(causes[-1]) if causes else text


def _pipeline_errors(text: str) -> list[tuple[str, str]]:
    """Return class names and texts of the pipeline errors in a traceback."""
    found: list[tuple[str, str]] = re.findall(r"odradek\.pipeline\.errors\.(\w+): (.*)", text)
    return found
