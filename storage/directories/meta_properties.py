"""`meta.properties`: whose directory this is (Kafka's version 1), and what all of a node's must say.

The file is Java properties text: `version`, `cluster.id`, `node.id` and `directory.id` (KIP-858).
Version 0, from before KRaft, calls the node `broker.id` and may lack anything; it is read, and
written back as version 1. What other programs added is ignored when read and lost when rewritten.

Who the directories belong to is decided by `decide_identity`, without touching a disk: they must
agree on node and cluster, with each other and with what the node was told. Fresh ones join in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.files import Path
from odradek.storage.directories.errors import WrongDirectory

FILE_NAME = "meta.properties"
RESERVED_IDS = 100
"""Directory ids below it mean something else (0 migrating, 1 unassigned, 2 lost; KIP-858)."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class BadMetaProperties(ValueError):
    """The file's text is not a meta.properties."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    version: int = 1
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: UUID | None = None


def parse(data: bytes) -> MetaProperties:
    """Raises BadMetaProperties, with what is wrong with the text."""
    values = dict(_properties(data.decode("utf-8", "replace")))
    version = _number(values.get("version", "0"), "version")
    if version not in (0, 1):
        raise BadMetaProperties(f"version={version} is unknown, 0 and 1 are not")
    node = values.get("node.id" if version else "broker.id")
    directory = values.get("directory.id")
    try:
        directory_id = uuid_from_text(directory) if directory is not None else None
    except ValueError as error:
        raise BadMetaProperties(f"directory.id: {error}") from None
    found = MetaProperties(
        version,
        values.get("cluster.id"),
        None if node is None else _number(node, "node.id"),
        directory_id,
    )
    if version and (found.cluster_id is None or found.node_id is None):
        missing = "cluster.id" if found.cluster_id is None else "node.id"
        raise BadMetaProperties(f"{missing} is missing")
    return found


def _number(text: str, name: str) -> int:
    text = text.strip()
    if not re.fullmatch("-?[0-9]{1,10}", text):
        raise BadMetaProperties(f"{name}={text} is not a number")
    return int(text)


def format(properties: MetaProperties) -> bytes:
    """The text of version 1; every field must be known."""
    assert properties.cluster_id is not None
    assert properties.node_id is not None
    assert properties.directory_id is not None
    lines = [
        f"cluster.id={properties.cluster_id}",
        f"directory.id={uuid_to_text(properties.directory_id)}",
        f"node.id={properties.node_id}",
        "version=1",
    ]
    return "".join(f"{line}\n" for line in lines).encode("utf-8")


def _properties(text: str) -> Iterator[tuple[str, str]]:
    """Java's properties format: `=`, `:` or space between, `#` and `!` comments, escapes."""
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
        if match is not None:
            yield _unescape(match[1]), _unescape(match[2])


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:  # the line goes on
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        body = match[1]
        return chr(int(body[1:], 16)) if len(body) == 5 else _ESCAPES.get(body, body)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class Identity:
    """What the directories agree on, and which files are to be written for it."""

    cluster_id: str
    properties: Mapping[Path, MetaProperties]
    """Every readable directory's, complete."""
    to_write: tuple[Path, ...]


def decide_identity(
    found: Mapping[Path, MetaProperties | None],
    *,
    node_id: int,
    cluster_id: str | None,
    draw: Callable[[], UUID],
) -> Identity:
    """Who the node is, from what its directories say (None: no file, a fresh directory).

    `draw` gives random UUIDs. Raises WrongDirectory where they differ from the node, from each
    other, or where two have one directory id (a copied disk).
    """
    agreed = cluster_id
    named_by: Path | None = None
    for path, properties in found.items():
        if properties is None:
            continue
        _check_node(path, properties, node_id)
        if properties.cluster_id is None:
            continue
        if agreed is not None and properties.cluster_id != agreed:
            raise _other_cluster(path, properties.cluster_id, agreed, named_by)
        if agreed is None:
            agreed, named_by = properties.cluster_id, path
    _check_copies(found)
    if agreed is None:
        agreed = uuid_to_text(draw())
    complete: dict[Path, MetaProperties] = {}
    for path, properties in found.items():
        known = properties or MetaProperties()
        taken = {each.directory_id for each in complete.values()} | _ids(found)
        complete[path] = replace(
            known,
            version=1,
            cluster_id=agreed,
            node_id=node_id,
            directory_id=known.directory_id or _fresh_id(draw, taken),
        )
    to_write = tuple(path for path in found if complete[path] != found[path])
    return Identity(agreed, complete, to_write)


def _ids(found: Mapping[Path, MetaProperties | None]) -> set[UUID | None]:
    return {properties.directory_id for properties in found.values() if properties is not None}


def _fresh_id(draw: Callable[[], UUID], taken: set[UUID | None]) -> UUID:
    while True:
        drawn = draw()
        if drawn.int >= RESERVED_IDS and drawn not in taken:
            return drawn


def _check_node(path: Path, properties: MetaProperties, node_id: int) -> None:
    if properties.node_id not in (None, node_id):
        raise WrongDirectory(
            f"log directory {path} belongs to node {properties.node_id}, but this is node "
            f"{node_id}: start with node.id={properties.node_id}, or give another directory "
            f"(its {FILE_NAME} says so)"
        )


def _other_cluster(path: Path, theirs: str, ours: str, named_by: Path | None) -> WrongDirectory:
    if named_by is None:
        return WrongDirectory(
            f"log directory {path} belongs to cluster '{theirs}', not '{ours}': give another "
            f"directory, or do not insist on the cluster id"
        )
    return WrongDirectory(
        f"log directories {named_by} and {path} belong to different clusters, '{ours}' and "
        f"'{theirs}': give only those of one"
    )


def _check_copies(found: Mapping[Path, MetaProperties | None]) -> None:
    owner: dict[UUID, Path] = {}
    for path, properties in found.items():
        if properties is None or properties.directory_id is None:
            continue
        if properties.directory_id in owner:
            raise WrongDirectory(
                f"log directories {owner[properties.directory_id]} and {path} have the same "
                f"directory.id: one is a copy of the other; give only one of them, or remove the "
                f"directory.id line from the {FILE_NAME} of the one that is new"
            )
        owner[properties.directory_id] = path
