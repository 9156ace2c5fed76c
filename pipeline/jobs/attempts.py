"""How what an attempt at a batch has written comes to count, in a directory of Parquet: the same for all who write.

    OUT/_staged-E-N-ATTEMPT/…                            where our tasks or Spark's write, and nobody reads
    OUT/topic=T/date=D/export=E/batch=N/part-….parquet   where the driver moves what counts

A driver may stand still at any step, and come back after another one has made the batch again. So whoever moves or
removes files knows them by name before it makes sure that it has the turn, and no name ever comes twice: what it goes
on to touch was there before the other one's turn began. That one removes first what former attempts have staged, so
that nothing is left to be moved, and then looks for what they had moved. Of what their tasks may stage meanwhile,
nothing is moved: by then their driver has lost the turn. On a store without renames a move is a copy, which finds
nothing to copy any more.

A driver that is killed leaves some files moved and some not; the batch is not done, and made again in the same way.
That it is not done is true until all of them are moved, even if a driver that comes back notes meanwhile that it is
(`checkpoint.py`).

Power may go at any moment, and a batch that Spark has noted as done is never made again: so what is moved is on the
disk before it is moved, and the directories after, those of which something was removed as well.

Files are moved and removed several at a time, for a store may take a second for each; none is any more when a call
returns or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

from odradek.pipeline.brokers import TopicPartition
from odradek.pipeline.errors import FilesUnavailable
from odradek.seams.entropy import Entropy, RealEntropy
from odradek.seams.values import value_class


@value_class
class BatchKey:
    """The `number`th of the `export` that is so called in its checkpoint; `offsets` are those that it is
    about, from the first on, before the second."""

    export: str
    number: int
    offsets: Mapping[TopicPartition, tuple[int, int]]


_T = TypeVar("_T")
_R = TypeVar("_R")

AT_ONCE = 16
"""That are moved, or removed, or looked into."""


class Files(Protocol):
    """As `HadoopFiles`."""

    def names(self, directory: str) -> list[str]: ...

    def make(self, directory: str) -> None: ...

    def move(self, file: str, directory: str) -> bool: ...

    def remove(self, path: str) -> None: ...

    def sync(self, path: str) -> None: ...


@value_class
class StagedFile:
    """A file that is whole: where it is, and which directory below the table's it is for."""

    file: str
    directory: str


def directory_of(batch: BatchKey) -> str:
    """Below those that its records have in the table."""
    return f"export={batch.export}/batch={batch.number}"


def staged_of(export: str) -> str:
    """What the names of its attempts begin with."""
    return f"_staged-{export}"


class BatchAttempts:
    """At batches of the table `out`, with a directory for each of the columns `levels`. `confirm` raises
    PipelineError if another driver has the turn."""

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
    def begun(self, batch: BatchKey) -> Iterator[str]:
        """A directory for what is written. It goes at the end, with what was not placed."""
        attempt = self._entropy.uuid().hex
        staged = f"{self._out}/{staged_of(batch.export)}-{batch.number}-{attempt}"
        self._files.make(staged)
        try:
            yield staged
        finally:
            with suppress(FilesUnavailable):  # whoever makes the batch again removes it
                self._files.remove(staged)

    def place(self, staged: Iterable[StagedFile]) -> None:
        """All that counts of a batch that was never tried. Raises PipelineError if another driver has the turn."""
        self._place(staged, ())

    def replace(self, staged: Iterable[StagedFile], batch: BatchKey) -> None:
        """The same, in place of what was moved before; after `end_former`."""
        self._place(staged, self._placed(batch))

    def end_former(self, batch: BatchKey) -> None:
        """None that was begun before moves anything after this. Raises as `place`."""
        prefix = staged_of(batch.export)
        former = [name for name in self._files.names(self._out) if name.startswith(prefix)]
        self._confirm()
        self._of_each(self._files.remove, [f"{self._out}/{name}" for name in former])

    def _place(self, staged: Iterable[StagedFile], former: Iterable[str]) -> None:
        staged, former = list(staged), list(former)
        self._of_each(self._files.sync, [each.file for each in staged])
        self._confirm()
        self._of_each(self._files.remove, former)
        directories = [f"{self._out}/{each}" for each in dict.fromkeys(e.directory for e in staged)]
        self._of_each(self._files.make, directories)
        self._of_each(self._move, staged)
        self._of_each(self._files.sync, self._above([*directories, *map(_parent, former)]))

    def _above(self, directories: Iterable[str]) -> list[str]:
        """They, and those that they are in, up to the table's own."""
        found = {self._out: None}
        for each in directories:
            while each not in found:
                found[each] = None
                each = _parent(each)
        return list(found)

    def _move(self, staged: StagedFile) -> None:
        if not self._files.move(staged.file, f"{self._out}/{staged.directory}"):
            raise FilesUnavailable(
                f"{staged.file}, which was written for {self._out}, is gone: only one run may write to it"
            )

    def _placed(self, batch: BatchKey) -> list[str]:
        above = [self._out]
        for level in self._levels:
            above = [each for each in self._within(above) if _name(each).startswith(f"{level}=")]
        return self._within([f"{each}/{directory_of(batch)}" for each in above])

    def _within(self, directories: Sequence[str]) -> list[str]:
        names = self._of_each(self._files.names, directories)
        return [
            f"{each}/{name}"
            for each, found in zip(directories, names, strict=True)
            for name in found
        ]

    def _of_each(self, act: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """At the first error no more are begun, and it is raised once none is under way."""
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="odradek-files") as pool:
            return list(pool.map(act, items))


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
