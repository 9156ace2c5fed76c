"""`meta.properties`, the ids of a log directory (Kafka's version 1), and the check that they fit the node.

The file is Java properties text with `version`, `cluster.id`, `node.id` and `directory.id` (KIP-858). Version 0,
from before KRaft, has `broker.id` for the node and may lack any property; it is read, and rewritten as version 1.
Properties of other programs are ignored, and lost when the file is rewritten.

`decide_identity` decides without disk access which directories belong to the node. The metadata directory and the
node's configs must agree. Other directories that differ are excluded. Directories without the file are also excluded
once the node has a metadata log, because an unmounted disk is an empty directory. (Kafka does not start in either
case.) `odradek log-dirs format` adds a directory (formatting.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from uuid import UUID

from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.files import Path
from odradek.seams.values import value_class
from odradek.storage.errors import WrongDirectory

FILE_NAME = "meta.properties"
RESERVED_IDS = 100
"""Directory ids below this number are reserved (0 migrating, 1 unassigned, 2 lost; KIP-858)."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class BadMetaProperties(ValueError):
    """The text is not a valid meta.properties."""


@value_class
class MetaProperties:
    """Content of a meta.properties; None: the property is missing."""

    version: int = 1
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: UUID | None = None


def parse(data: bytes) -> MetaProperties:
    """Parse a meta.properties. Raises BadMetaProperties with the reason."""
    values = dict(_properties(data.decode("utf-8", "replace")))
    version = _number(values.get("version", "0"), "version")
    if version not in (0, 1):
        raise BadMetaProperties(f"unrecognized version {version}, expected 0 or 1")
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
    """Return the text of version 1; no property may be missing."""
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
    """Parse Java's properties format: separators `=`, `:` and space, comments `#` and `!`, escapes."""
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
        if backslashes % 2:  # the line continues
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


@value_class
class NodeIdentity:
    """The ids of the node and its directories, and the files to be written."""

    cluster_id: str
    properties: Mapping[Path, MetaProperties]
    """Complete properties of every directory that may be used."""
    to_write: tuple[Path, ...]
    """Directories whose file must be written, in this order. The metadata directory is the first: a crash must not
    leave it without the file while others have one."""
    left_out: Mapping[Path, WrongDirectory]
    """Excluded directories with the reason; their files are not changed."""


def decide_identity(
    found: Mapping[Path, MetaProperties | None],
    *,
    node_id: int,
    cluster_id: str | None,
    metadata: Path,
    draw: Callable[[], UUID],
    has_run: bool = False,
) -> NodeIdentity:
    """Decide the ids of the node from the properties that were found (None: no file, a new directory).

    The metadata directory takes precedence: directories that differ from it are excluded. Of directories with the same
    id (a copied disk), only the metadata directory is used; if it is not one of them, none is used. If the node
    `has_run`, which means that a metadata log exists, new directories are excluded. `draw` returns random UUIDs.
    Raises WrongDirectory if the metadata directory belongs to another node or cluster, or if it is new and other
    directories are not (its disk may not be mounted).
    """
    named = {path: each for path, each in found.items() if each is not None}
    agreed = cluster_id or _cluster_of(named, metadata)
    left_out: dict[Path, WrongDirectory] = {}
    for path, properties in named.items():
        wrong = _belongs_to_another(path, properties, node_id, agreed)
        if wrong is not None:
            left_out[path] = wrong
    left_out |= _copies({path: named[path] for path in named if path not in left_out}, metadata)
    if metadata in left_out:
        raise left_out[metadata]
    if metadata in found and metadata not in named and agreed is not None:
        _refuse_fresh_metadata(metadata, [path for path in named if path not in left_out])
    if has_run:
        left_out |= {
            path: _not_formatted(path, metadata)
            for path, properties in found.items()
            if properties is None and path != metadata
        }
    agreed = agreed or uuid_to_text(draw())
    complete: dict[Path, MetaProperties] = {}
    for path, known in found.items():
        if path not in left_out:
            taken = {each.directory_id for each in (*complete.values(), *named.values())}
            complete[path] = _completed(known or MetaProperties(), node_id, agreed, draw, taken)
    to_write = [path for path in complete if complete[path] != found[path]]
    to_write.sort(key=lambda path: path != metadata)
    return NodeIdentity(agreed, complete, tuple(to_write), left_out)


def _cluster_of(named: Mapping[Path, MetaProperties], metadata: Path) -> str | None:
    """Return the cluster id of the metadata directory, else that of all others. Raises WrongDirectory."""
    if metadata in named and named[metadata].cluster_id is not None:
        return named[metadata].cluster_id
    by_cluster: dict[str, Path] = {}
    for path, properties in named.items():
        if properties.cluster_id is not None:
            by_cluster.setdefault(properties.cluster_id, path)
    if len(by_cluster) > 1:
        (one, first), (other, second), *_ = by_cluster.items()
        raise WrongDirectory(
            f"log directories {first} and {second} have different cluster ids, '{one}' and "
            f"'{other}': configure only the directories of one cluster"
        )
    return next(iter(by_cluster), None)


def _belongs_to_another(
    path: Path, properties: MetaProperties, node_id: int, cluster_id: str | None
) -> WrongDirectory | None:
    if properties.node_id not in (None, node_id):
        return WrongDirectory(
            f"log directory {path} has node.id={properties.node_id} in its {FILE_NAME}, but this node "
            f"has node.id={node_id}: start with node.id={properties.node_id}, or configure another "
            f"log directory"
        )
    if cluster_id is not None and properties.cluster_id not in (None, cluster_id):
        return WrongDirectory(
            f"log directory {path} has cluster.id={properties.cluster_id} in its {FILE_NAME}, but this "
            f"cluster has cluster.id={cluster_id}: configure another log directory"
        )
    return None


def _copies(named: Mapping[Path, MetaProperties], metadata: Path) -> dict[Path, WrongDirectory]:
    """Return the directories that have the id of another one, except the metadata directory."""
    owners: dict[UUID, list[Path]] = {}
    for path, properties in named.items():
        if properties.directory_id is not None:
            owners.setdefault(properties.directory_id, []).append(path)
    return {
        path: WrongDirectory(
            f"log directories {' and '.join(map(str, paths))} have the same directory.id: one is a "
            f"copy of the other; configure only one of them, or remove the directory.id line from "
            f"the {FILE_NAME} of the copy"
        )
        for paths in owners.values()
        if len(paths) > 1
        for path in paths
        if path != metadata
    }


def _not_formatted(path: Path, metadata: Path) -> WrongDirectory:
    return WrongDirectory(
        f"no {FILE_NAME} found in {path}, but this node has run before: mount the disk; or, if the "
        f"log directory is new, run `odradek log-dirs format {path} --like {metadata}` and restart"
    )


def _refuse_fresh_metadata(metadata: Path, known: Iterable[Path]) -> None:
    for path in known:
        raise WrongDirectory(
            f"the metadata log directory {metadata} is not formatted, but {path} belongs to a cluster: "
            f"mount the disk of the metadata log, or set metadata.log.dir to its directory (the "
            f"default is the first directory of log.dirs)"
        )


def _completed(
    known: MetaProperties,
    node_id: int,
    cluster_id: str,
    draw: Callable[[], UUID],
    taken: Collection[UUID | None],
) -> MetaProperties:
    return replace(
        known,
        version=1,
        cluster_id=cluster_id,
        node_id=node_id,
        directory_id=known.directory_id or fresh_id(draw, taken),
    )


def fresh_id(draw: Callable[[], UUID], taken: Collection[UUID | None]) -> UUID:
    """Draw a directory id that is neither in `taken` nor reserved."""
    while True:
        drawn = draw()
        if drawn.int >= RESERVED_IDS and drawn not in taken:
            return drawn
