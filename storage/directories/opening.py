"""Opens all log directories of a node that are usable and belong to it.

All directories are created and locked before any file in them is read, and all `meta.properties` are read before one
is written. A crash in between leaves some directories without the file; because there is no metadata log yet, the next
start writes it there with the cluster id of the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from odradek.protocol.topics import CLUSTER_METADATA
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, Lock, OutOfDescriptors, Path
from odradek.seams.values import value_class
from odradek.storage.directories import meta_properties, names
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.directories.meta_properties import (
    BadMetaProperties,
    MetaProperties,
    NodeIdentity,
    decide_identity,
)
from odradek.storage.errors import (
    DirectoryInUse,
    NoDirectory,
    NotFormatted,
    WrongDirectory,
)

_logger = logging.getLogger("odradek.log_directories")

LOCK_NAME = ".lock"
METADATA_LOG = "__cluster_metadata-0"


@value_class
class LogDirectories:
    """Directories of a node, in the order of `log.dirs`, including offline ones."""

    node_id: int
    cluster_id: str
    all: tuple[LogDirectory, ...]
    """Directories of `log.dirs`, which contain the partitions."""
    metadata: LogDirectory
    """Directory of `__cluster_metadata-0`; one of `all`, or a separate one."""

    @property
    def live(self) -> tuple[LogDirectory, ...]:
        return tuple(directory for directory in self.all if not directory.failed)

    @property
    def every(self) -> tuple[LogDirectory, ...]:
        """Return `all`, and the metadata directory if it is separate."""
        return self.all if self.metadata in self.all else (*self.all, self.metadata)

    def partitions_are_in(self) -> Path | None:
        """Return a directory that contains partitions, by their names, or None. Blocks.

        Directories that cannot be read are skipped, because they will not be served. Raises OutOfDescriptors.
        """
        for directory in self.live:
            try:
                if any(
                    _is_partition(directory, name) for name in directory.files.list(directory.path)
                ):
                    return directory.path
            except OutOfDescriptors:
                raise
            except OSError:
                continue
        return None

    def close(self) -> None:
        """Release all locks. Idempotent."""
        for directory in self.every:
            directory.close()


def open_directories(
    files: Files,
    entropy: Entropy,
    paths: Sequence[Path],
    *,
    node_id: int,
    cluster_id: str | None = None,
    metadata_path: Path | None = None,
    may_format: bool = True,
) -> LogDirectories:
    """Create and lock the directories, and check or write their `meta.properties`.

    `cluster_id`: the required cluster id; None uses that of the directories, or generates one at the first
    start. `metadata_path` defaults to the first of `paths`. A directory is offline from the start if it has an I/O
    error, belongs to another node or cluster, has the id of another directory, or is new although the node has a
    metadata log. The others are used, unless it is the metadata directory. A directory that contains a metadata log but
    is not the metadata directory is refused.
    `may_format`: a node without a cluster id may generate one.
    Raises DirectoryInUse, WrongDirectory, NoDirectory, NotFormatted.
    """
    if not paths:
        raise NoDirectory("no log directory is configured: set log.dirs")
    if len(set(paths)) < len(paths):
        raise WrongDirectory(
            f"log.dirs contains duplicate directories: {', '.join(map(str, paths))}"
        )
    metadata_path = metadata_path or paths[0]
    every = paths if metadata_path in paths else (*paths, metadata_path)
    opened: dict[Path, LogDirectory] = {}
    try:
        for path in every:
            opened[path] = _open(files, path)
        found = _read_properties(files, opened, metadata_path)
        if not may_format and cluster_id is None:
            _require_formatted(found, metadata_path)
        identity_cluster = _identify(
            files, entropy, opened, found, node_id, cluster_id, metadata_path
        )
        _require(opened[metadata_path], [opened[path] for path in paths])
    except BaseException:
        for directory in opened.values():
            directory.close()
        raise
    return LogDirectories(
        node_id, identity_cluster, tuple(opened[path] for path in paths), opened[metadata_path]
    )


def _is_partition(directory: LogDirectory, name: str) -> bool:
    try:
        found = names.parse(name)
    except names.NotAPartition:
        return False
    is_live = (
        found.state is names.PartitionDirectoryState.LIVE
        and found.topic_partition.topic != CLUSTER_METADATA
    )
    return is_live and directory.files.is_directory(directory.path / name)


def _open(files: Files, path: Path) -> LogDirectory:
    lock: Lock | None = None
    failure: OSError | None = None
    try:
        if not files.is_directory(path):
            files.make_directory(path)
            files.sync_directory(path.parent)
        lock = files.lock(path / LOCK_NAME)
    except BlockingIOError:
        raise DirectoryInUse(
            f"failed to acquire the lock of log directory {path}: another broker is using it. Stop that "
            f"broker, or configure another directory (--log-dirs)"
        ) from None
    except OutOfDescriptors as error:
        raise _no_descriptors(path) from error
    except OSError as error:
        failure = error
    directory = LogDirectory(files, path, None, lock)
    if failure is not None:
        directory.fail(failure)
    return directory


def _no_descriptors(path: Path) -> NoDirectory:
    return NoDirectory(
        f"no file descriptor left to open log directory {path}: raise the limit (ulimit -n)"
    )


PropertiesByPath = dict[Path, MetaProperties | None]
"""Properties of the usable directories; None: the file is missing."""


def _read_properties(
    files: Files, opened: dict[Path, LogDirectory], metadata_path: Path
) -> PropertiesByPath:
    found: PropertiesByPath = {}
    for path, directory in opened.items():
        if directory.failed:
            continue
        try:
            found[path] = meta_properties.parse(files.read(path / meta_properties.FILE_NAME))
        except FileNotFoundError:
            found[path] = None
        except BadMetaProperties as error:
            directory.fail(BadMetaProperties(f"its {meta_properties.FILE_NAME}: {error}"))
        except OutOfDescriptors as error:
            raise _no_descriptors(path) from error
        except OSError as error:
            directory.fail(error)
        if not directory.failed:
            try:
                _refuse_to_guess(directory, found[path], is_metadata=path == metadata_path)
            except OSError as error:
                directory.fail(error)
        if directory.failed:
            found.pop(path, None)
    return found


def _require_formatted(found: PropertiesByPath, metadata_path: Path) -> None:
    known = [each for each in found.values() if each is not None and each.cluster_id is not None]
    if not known and metadata_path in found:
        raise NotFormatted(
            f"{metadata_path} is not formatted: the configs contain other nodes, so format it with "
            f"the cluster id of the other nodes (odradek storage format --cluster-id …)"
        )


def _identify(
    files: Files,
    entropy: Entropy,
    opened: dict[Path, LogDirectory],
    found: PropertiesByPath,
    node_id: int,
    cluster_id: str | None,
    metadata_path: Path,
) -> str:
    """Decide the ids of the directories, write missing files, and return the cluster id."""
    has_run = False
    if metadata_path in found:
        try:
            has_run = files.is_directory(metadata_path / METADATA_LOG)
        except OSError as error:
            opened[metadata_path].fail(error)
            found.pop(metadata_path)
    identity = decide_identity(
        found,
        node_id=node_id,
        cluster_id=cluster_id,
        metadata=metadata_path,
        draw=entropy.uuid,
        has_run=has_run,
    )
    for path, wrong in identity.left_out.items():
        opened[path].fail(wrong)
        opened[path].close()  # another broker may own it
    for path in identity.properties:
        if path != metadata_path:
            _refuse_second_metadata(opened[path], metadata_path)
    for path, properties in identity.properties.items():
        opened[path].id = properties.directory_id
    _write_meta_properties(files, opened, found, identity)
    return identity.cluster_id


def _write_meta_properties(
    files: Files, opened: dict[Path, LogDirectory], found: PropertiesByPath, identity: NodeIdentity
) -> None:
    """Write the `meta.properties` files that are missing or incomplete. A directory with an I/O error fails."""
    for path in identity.to_write:
        text = meta_properties.format(identity.properties[path])
        try:
            files.write_new(path / meta_properties.FILE_NAME, text)
            if found[path] is not None:
                _logger.warning(
                    "%s: rewriting incomplete %s: %s",
                    path,
                    meta_properties.FILE_NAME,
                    identity.properties[path],
                )
        except OutOfDescriptors as error:
            raise _no_descriptors(path) from error
        except OSError as error:
            opened[path].fail(error)


def _refuse_to_guess(
    directory: LogDirectory, properties: MetaProperties | None, *, is_metadata: bool
) -> None:
    """Refuse a directory with a metadata log but no ids: new ids would not match the log."""
    path = directory.path
    known = properties is not None and properties.cluster_id is not None
    if known or not directory.files.is_directory(path / METADATA_LOG):
        return
    wrong = WrongDirectory(
        f"{path / meta_properties.FILE_NAME} is missing or damaged, but {METADATA_LOG} "
        f"belongs to a cluster: restore the file (cluster.id, node.id, directory.id), or "
        f"move the directory away to start with an empty one"
    )
    if is_metadata:
        raise wrong
    directory.fail(wrong)


def _refuse_second_metadata(directory: LogDirectory, metadata_path: Path) -> None:
    """Refuse a metadata log outside the metadata directory, as Kafka does: without it, all partitions would be stray."""
    try:
        if not directory.files.is_directory(directory.path / METADATA_LOG):
            return
    except OSError as error:
        directory.fail(error)
        return
    raise WrongDirectory(
        f"{directory.path} contains {METADATA_LOG}, but {metadata_path} is the metadata log "
        f"directory: set metadata.log.dir={directory.path}, or make it the first of log.dirs"
    )


def _require(metadata: LogDirectory, directories: Sequence[LogDirectory]) -> None:
    if metadata.failed:
        raise NoDirectory(
            f"the metadata directory {metadata.path} cannot be used: {metadata.failure}"
        )
    if all(directory.failed for directory in directories):
        reasons = "; ".join(f"{each.path}: {each.failure}" for each in directories)
        raise NoDirectory(f"no log directory can be used: {reasons}")
