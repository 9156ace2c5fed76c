"""Makes the files of a batch visible in a directory of Parquet files, so that each batch counts once.

    OUT/_staged-E-N-ATTEMPT/…                            where tasks write; readers ignore it
    OUT/topic=T/date=D/export=E/batch=N/part-….parquet   where the driver moves complete files

A driver may be suspended at any step, and continue after another driver has repeated the batch. So a driver that
moves or removes files determines their names before it confirms its lease, and no name is used twice: everything it
touches afterwards existed before the other driver's lease began. The other driver first removes what earlier
attempts have staged, so that nothing is left to move, and then looks for what they have moved. Files that their
tasks stage later are never moved, because their driver no longer has the lease. On a store without renames a move
is a copy, which fails when its source is removed.

If a driver is killed, some files are moved and others are not. The batch is not committed and is repeated in the
same way. It is not committed until all files are moved, even if a suspended driver commits it meanwhile
(`export_checkpoint.py`).

After a power failure, a batch that Spark has committed is never repeated. So files are synced before they are
moved, and the directories after, including those from which files were removed.

Files are moved and removed concurrently, because a store may take a second for each. When a call returns or raises,
none is still in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

from odradek.pipeline.errors import FilesUnavailable
from odradek.protocol.topics import TopicPartition
from odradek.seams.entropy import Entropy, RealEntropy
from odradek.seams.values import value_class


@value_class
class BatchKey:
    """Identifies a batch: the export's id in its checkpoint, the batch number, and the offsets (low, exclusive
    high) of each partition.
    """

    export: str
    number: int
    offsets: Mapping[TopicPartition, tuple[int, int]]


_T = TypeVar("_T")
_R = TypeVar("_R")

AT_ONCE = 16
"""Maximum number of concurrent moves, removals and listings."""


class Files(Protocol):
    """The part of `HadoopFiles` that attempts use."""

    def names(self, directory: str) -> list[str]: ...

    def make(self, directory: str) -> None: ...

    def move(self, file: str, directory: str) -> bool: ...

    def remove(self, path: str) -> None: ...

    def sync(self, path: str) -> None: ...


@value_class
class StagedFile:
    """A complete file: its path, and its target directory relative to the table's."""

    file: str
    directory: str


def batch_directory(batch: BatchKey) -> str:
    """Return the batch's directory below those of the partition columns."""
    return f"export={batch.export}/batch={batch.number}"


def staging_prefix(export: str) -> str:
    """Return the prefix of the staging directories of an export's attempts."""
    return f"_staged-{export}"


class BatchAttempts:
    """Attempts at batches of the table `out`, with a directory level for each of the columns `levels`. `confirm`
    raises PipelineError if another driver has the lease.
    """

    def __init__(
        self,
        files: Files,
        out: str,
        levels: Sequence[str],
        confirm: Callable[[], None],
        entropy: Entropy | None = None,
        run_concurrently: int = AT_ONCE,
    ) -> None:
        self._files = files
        self._out = out
        self._levels = levels
        self._confirm = confirm
        self._entropy = entropy or RealEntropy()
        self._at_once = run_concurrently

    @contextmanager
    def staging_directory(self, batch: BatchKey) -> Iterator[str]:
        """Create a staging directory for one attempt, and remove it at the end with files that were not moved."""
        attempt = self._entropy.uuid().hex
        staged = f"{self._out}/{staging_prefix(batch.export)}-{batch.number}-{attempt}"
        self._files.make(staged)
        try:
            yield staged
        finally:
            with suppress(FilesUnavailable):  # the next attempt at the batch removes it
                self._files.remove(staged)

    def place(self, staged: Iterable[StagedFile]) -> None:
        """Move the files of a batch that was not attempted before. Raises PipelineError if another driver has the
        lease.
        """
        self._place(staged, ())

    def replace(self, staged: Iterable[StagedFile], batch: BatchKey) -> None:
        """Move the files of a batch in place of those of earlier attempts; call `remove_earlier_staging` first."""
        self._place(staged, self._visible_files(batch))

    def remove_earlier_staging(self, batch: BatchKey) -> None:
        """Remove the staging directories of earlier attempts, so that these can no longer move files. Raises as
        `place`.
        """
        prefix = staging_prefix(batch.export)
        former = [name for name in self._files.names(self._out) if name.startswith(prefix)]
        self._confirm()
        self._run_for_each(self._files.remove, [f"{self._out}/{name}" for name in former])

    def _place(self, staged: Iterable[StagedFile], former: Iterable[str]) -> None:
        staged, former = list(staged), list(former)
        self._run_for_each(self._files.sync, [each.file for each in staged])
        self._confirm()
        self._run_for_each(self._files.remove, former)
        directories = [f"{self._out}/{each}" for each in dict.fromkeys(e.directory for e in staged)]
        self._run_for_each(self._files.make, directories)
        self._run_for_each(self._move, staged)
        self._run_for_each(
            self._files.sync, self._with_parents([*directories, *map(_parent, former)])
        )

    def _with_parents(self, directories: Iterable[str]) -> list[str]:
        """Return these directories and their parents up to the table's directory."""
        found = {self._out: None}
        for each in directories:
            while each not in found:
                found[each] = None
                each = _parent(each)
        return list(found)

    def _move(self, staged: StagedFile) -> None:
        if not self._files.move(staged.file, f"{self._out}/{staged.directory}"):
            raise FilesUnavailable(
                f"{staged.file}, which was written for {self._out}, does not exist: only one"
                " run may write to this table"
            )

    def _visible_files(self, batch: BatchKey) -> list[str]:
        above = [self._out]
        for level in self._levels:
            above = [each for each in self._list_all(above) if _name(each).startswith(f"{level}=")]
        return self._list_all([f"{each}/{batch_directory(batch)}" for each in above])

    def _list_all(self, directories: Sequence[str]) -> list[str]:
        names = self._run_for_each(self._files.names, directories)
        return [
            f"{each}/{name}"
            for each, found in zip(directories, names, strict=True)
            for name in found
        ]

    def _run_for_each(self, act: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """Call `act` concurrently. After an error no more calls are started; it is raised when none is in progress."""
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="odradek-files") as pool:
            return list(pool.map(act, items))


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
