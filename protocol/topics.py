"""TopicPartition, and rules for topic names (Kafka's `Topic.validate` and `Topic.hasCollision`)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_LENGTH: Final = 249
CLUSTER_METADATA: Final = "__cluster_metadata"
DISKLESS_METADATA: Final = "__diskless_metadata"
"""Topic whose leaders are the coordinators of diskless topics (KIP-1164, D-13)."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """Topic name and partition number, without the topic id."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def name_error(name: str) -> str | None:
    """Kafka's error message for an invalid topic name; None if the name is valid."""
    if name == "":
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_LENGTH:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed "
            f"length {MAX_LENGTH}"
        )
    if not _LEGAL.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def collision_key(name: str) -> str | None:
    """The name with '.' replaced by '_', as in metric names; None if it has neither.

    Two topics with the same key would have the same metrics, so only one of them may exist.
    """
    if "." in name or "_" in name:
        return name.replace(".", "_")
    return None
