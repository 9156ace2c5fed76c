"""Opening all of a node's directories, which must agree on the node and the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, Path
from odradek.storage.directories.directory import LogDirectory


@dataclass(frozen=True, slots=True)
class Directories:
    """A node's directories, in the order of `log.dirs`, offline ones among them."""

    node_id: int
    cluster_id: str
    all: tuple[LogDirectory, ...]
    """Those of `log.dirs`: where partitions live."""
    metadata: LogDirectory
    """Where `__cluster_metadata-0` lives; one of `all`, or one of its own."""

    @property
    def live(self) -> tuple[LogDirectory, ...]:
        return tuple(directory for directory in self.all if not directory.failed)

    def close(self) -> None:
        raise NotImplementedError


def open_directories(
    files: Files,
    entropy: Entropy,
    paths: Sequence[Path],
    *,
    node_id: int,
    cluster_id: str | None = None,
    metadata_path: Path | None = None,
) -> Directories:
    """Create and lock the directories, check or write their `meta.properties`.

    `cluster_id`: the one to insist on; None takes the directories' own, or draws a new one on a
    first start. A directory that meets an I/O error is offline from the start and takes nothing
    else down, unless it is the metadata directory. Raises DirectoryInUse, WrongDirectory,
    NoDirectory.
    """
    raise NotImplementedError
