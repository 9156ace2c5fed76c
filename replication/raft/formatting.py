"""Formats a node's log directories (`odradek storage format`; Kafka's `Formatter`).

Every directory gets `bootstrap.checkpoint` and `meta.properties`. The metadata directory of a dynamic
quorum also gets the snapshot `0-0` with the first voters (KIP-853).

Crash order in each directory: bootstrap file (1), snapshot (2), meta.properties (3), each durable
before the next. A directory without meta.properties is not formatted, and formatting repeats all
steps. The metadata directory is formatted last, so that it implies the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from odradek.replication.controller.features import KRAFT_VERSION, METADATA_VERSION
from odradek.replication.controller.release_versions import RELEASE_VERSIONS
from odradek.replication.raft.bootstrap import (
    feature_records,
    write_bootstrap_file,
    write_first_snapshot,
)
from odradek.replication.raft.metadata_log import DIRECTORY
from odradek.replication.raft.voters import Voter
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, Path
from odradek.seams.values import value_class
from odradek.storage.directories import meta_properties
from odradek.storage.directories.meta_properties import (
    FILE_NAME,
    RESERVED_IDS,
    BadMetaProperties,
    MetaProperties,
    fresh_id,
)

MetaPropertiesByDirectory = Mapping[Path, MetaProperties | OSError | BadMetaProperties | None]
"""Contents of meta.properties by log directory, or the error; None if there is no such file."""


class CannotFormat(Exception):
    """The directories cannot be formatted; nothing has been written."""


@value_class
class NodeFormat:
    """Ids, feature levels and voters that the directories are formatted with."""

    node_id: int
    cluster_id: str
    directories: tuple[Path, ...]
    metadata: Path
    """The metadata log directory, one of `directories`."""
    levels: Mapping[str, int]
    """Level of every feature, kraft.version included."""
    records: Sequence[Any] = ()
    """Further bootstrap records, such as SCRAM credentials."""
    voters: tuple[Voter, ...] = ()
    """First voters of a dynamic quorum; empty for a static quorum, and for a node that joins one."""
    ignore_formatted: bool = False

    def kind(self, directory: Path) -> str:
        """Kind of directory, as in Kafka's message."""
        if directory != self.metadata:
            return "data directory"
        if not self.voters:
            return "metadata directory"
        if self._me is None:
            return "dynamic metadata directory"
        return "dynamic metadata voter directory"

    @property
    def _me(self) -> Voter | None:
        return next((each for each in self.voters if each.id == self.node_id), None)

    def assign_directory_ids(
        self, empty: Sequence[Path], taken: set[UUID], draw: Callable[[], UUID]
    ) -> Any:
        """Directory ids by path: the metadata directory of a voter gets the voter's, others a random one."""
        ids: dict[Path, UUID] = {}
        for path in empty:
            me = self._me if path == self.metadata else None
            ids[path] = fresh_id(draw, taken) if me is None else me.directory_id
            taken = taken | {ids[path]}
        return ids


def format_node(
    files: Files,
    entropy: Entropy,
    wanted: NodeFormat,
    *,
    now_ms: int,
    report: Callable[[str], None],
) -> None:
    """Format the unformatted directories, and `report` each step. Durable when it returns.

    Raises CannotFormat before anything is written, OSError if a directory cannot be written.
    """
    found = {path: _read(files, path) for path in sorted(wanted.directories, key=str)}
    empty = directories_to_format(found, wanted)
    for path in empty:
        _refuse_log(files, path)
    for path, known in found.items():
        if isinstance(known, OSError | BadMetaProperties):
            report(f"I/O error trying to read log directory {path}. Ignoring...")
    if not empty:
        report("All of the log directories are already formatted.")
        return
    shown = ", ".join(f"{name}={level}" for name, level in wanted.levels.items())
    report(f"Bootstrap metadata: {shown}")
    taken = {each.directory_id for each in found.values() if isinstance(each, MetaProperties)}
    ids = wanted.assign_directory_ids(
        empty, {each for each in taken if each is not None}, entropy.uuid
    )
    for path in empty:
        release = RELEASE_VERSIONS[wanted.levels[METADATA_VERSION]]
        report(f"Formatting {wanted.kind(path)} {path} with {METADATA_VERSION} {release}.")
        _format(files, path, wanted, ids[path], now_ms)


def directories_to_format(found: MetaPropertiesByDirectory, wanted: NodeFormat) -> list[Path]:
    """Directories to format, the metadata directory last. Raises CannotFormat."""
    known = {path: each for path, each in found.items() if isinstance(each, MetaProperties)}
    for reason in _contradictions(known, wanted):
        raise CannotFormat(reason)
    if known and not wanted.ignore_formatted:
        raise CannotFormat(
            f"Log directory {next(iter(known))} is already formatted. Use --ignore-formatted to "
            "ignore this directory and format the others."
        )
    empty = [path for path, each in found.items() if each is None]
    if not empty and not known:
        raise CannotFormat("No available log directories to format.")
    return sorted(empty, key=lambda path: path == wanted.metadata)


def _contradictions(known: Mapping[Path, MetaProperties], wanted: NodeFormat) -> Iterator[str]:
    """Errors of formatted directories: other cluster, other node, or bad directory ids."""
    owners: dict[UUID, Path] = {}
    for path, each in known.items():
        if each.cluster_id not in (None, wanted.cluster_id):
            yield (
                f"Invalid cluster.id in: {path / FILE_NAME}. Expected {wanted.cluster_id}, but read "
                f"{each.cluster_id}"
            )
        if each.node_id not in (None, wanted.node_id):
            yield (
                f"Stored node id {each.node_id} doesn't match previous node id {wanted.node_id} in "
                f"{path / FILE_NAME}. If you moved your data, make sure your configured node id "
                "matches. If you intend to create a new node, you should remove all data in your "
                "data directories."
            )
        if each.directory_id is None:
            continue
        if each.directory_id.int < RESERVED_IDS:
            yield f"Invalid reserved directory ID {each.directory_id} found in {path}"
        if owners.setdefault(each.directory_id, path) != path:
            yield (
                f"Duplicate directory ID {each.directory_id} found. It was the ID of "
                f"{owners[each.directory_id]}, but also of {path}"
            )


def _read(files: Files, path: Path) -> MetaProperties | OSError | BadMetaProperties | None:
    try:
        return meta_properties.parse(files.read(path / FILE_NAME))
    except FileNotFoundError:
        return None
    except (OSError, BadMetaProperties) as error:
        return error


def _refuse_log(files: Files, path: Path) -> None:
    """Raise CannotFormat if the directory contains a metadata log with segments.

    An interrupted format leaves no segments.
    """
    log = path / DIRECTORY
    if files.is_directory(log) and any(name.endswith(".log") for name in files.list(log)):
        raise CannotFormat(
            f"{path} has no {FILE_NAME}, but {DIRECTORY} in it belongs to a cluster: restore the file, "
            "or move the directory away to format a new one"
        )


def _format(files: Files, path: Path, wanted: NodeFormat, directory_id: UUID, now_ms: int) -> None:
    if not files.is_directory(path):
        files.make_directory(path)
        files.sync_directory(path.parent)
    levels = {
        name: level
        for name, level in wanted.levels.items()
        if level > 0 and name != KRAFT_VERSION  # the snapshot contains it
    }
    write_bootstrap_file(files, path, [*feature_records(levels), *wanted.records], now_ms)  # 1
    if path == wanted.metadata and wanted.voters:
        version = wanted.levels[KRAFT_VERSION]
        write_first_snapshot(  # 2
            files, path, wanted.voters, now_ms=now_ms, kraft_version=version
        )
    properties = MetaProperties(1, wanted.cluster_id, wanted.node_id, directory_id)
    files.write_new(path / FILE_NAME, meta_properties.format(properties))  # 3
