"""`partition.metadata`, the topic id of a partition's directory (KIP-516)."""

from __future__ import annotations

from uuid import UUID

from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.files import Files, Path
from odradek.storage.errors import InconsistentTopicId
from odradek.storage.log.file_names import METADATA


class CorruptMetadata(Exception):
    """The content of a partition.metadata file is invalid."""


def format_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {uuid_to_text(topic_id)}".encode()


def parse_metadata(data: bytes) -> UUID:
    """Topic id in the content of the file. Raises CorruptMetadata."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
        if int(fields["version"]) != 0:
            raise CorruptMetadata(f"unrecognized version of {METADATA}: {fields['version']}")
        return uuid_from_text(fields["topic_id"].strip())
    except (ValueError, KeyError) as error:
        raise CorruptMetadata(f"{METADATA} is malformed: {error}") from error


def read_topic_id(files: Files, directory: Path) -> UUID | None:
    """Topic id of the directory; None if the file is missing. Raises CorruptMetadata, OSError."""
    try:
        return parse_metadata(files.read(directory / METADATA))
    except FileNotFoundError:
        return None


def ensure_topic_id(files: Files, directory: Path, topic_id: UUID | None) -> UUID | None:
    """Topic id of the directory; if the file is missing, `topic_id` is written to it, durably.

    Raises InconsistentTopicId if the ids differ.
    """
    found = read_topic_id(files, directory)
    if found is None:
        if topic_id is not None:
            files.write_new(directory / METADATA, format_metadata(topic_id))
        return topic_id
    if topic_id is not None and topic_id != found:
        raise InconsistentTopicId(
            f"tried to assign topic ID {uuid_to_text(topic_id)} to log {directory}, but log already "
            f"contained topic ID {uuid_to_text(found)}"
        )
    return found
