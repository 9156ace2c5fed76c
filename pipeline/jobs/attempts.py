"""How what an attempt at a batch has written comes to count, in a directory of Parquet: the same for all who write.

    OUT/_staged-E-N-ATTEMPT/…                            where our tasks or Spark's write, and nobody reads
    OUT/topic=T/date=D/export=E/batch=N/part-….parquet   where the driver moves what counts

A driver may stand still at any step, and come back after another one has made the batch again. So whoever moves or
removes files knows them by name before it makes sure that it has the turn, and no name ever comes twice: what it goes
on to touch was there before the other one's turn began. That one takes away first what former attempts have staged,
so that nothing is left to be moved, and then looks for what they had moved. On a store without renames a move is a
copy, which finds nothing to copy any more.

A driver that is killed leaves some files moved and some not; the batch is not done, and made again in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from odradek.pipeline.brokers import TopicPartition
from odradek.pipeline.errors import FilesUnavailable
from odradek.seams.entropy import Entropy, RealEntropy
from odradek.seams.values import value_class


class Files(Protocol):
    """As `HadoopFiles`."""

    def names(self, directory: str) -> list[str]: ...

    def make(self, directory: str) -> None: ...

    def move(self, file: str, directory: str) -> bool: ...

    def remove(self, directory: str) -> None: ...

    def take_away(self, directory: str) -> None: ...


@value_class
class Batch:
    """The `number`th of the `export` that is so called in its checkpoint; `offsets` are those that it is
    about, from the first on, before the second."""

    export: str
    number: int
    offsets: Mapping[TopicPartition, tuple[int, int]]


@value_class
class Staged:
    """A file that is whole: where it is, and which directory below the table's it is for."""

    file: str
    directory: str


def directory_of(batch: Batch) -> str:
    """Below those that its records have in the table."""
    return f"export={batch.export}/batch={batch.number}"


def staged_of(export: str) -> str:
    """What the names of its attempts begin with."""
    return f"_staged-{export}"


class Attempts:
    """At batches of the table `out`, with a directory for each of the columns `levels`. `confirm` raises
    PipelineError if another driver has the turn."""

    def __init__(
        self,
        files: Files,
        out: str,
        levels: Sequence[str],
        confirm: Callable[[], None],
        entropy: Entropy | None = None,
    ) -> None:
        self._files = files
        self._out = out
        self._levels = levels
        self._confirm = confirm
        self._entropy = entropy or RealEntropy()

    @contextmanager
    def begun(self, batch: Batch) -> Iterator[str]:
        """A directory for what is written. It goes at the end, with what was not placed."""
        attempt = self._entropy.uuid().hex
        staged = f"{self._out}/{staged_of(batch.export)}-{batch.number}-{attempt}"
        self._files.make(staged)
        try:
            yield staged
        finally:
            with suppress(FilesUnavailable):  # whoever makes the batch again takes it away
                self._files.remove(staged)

    def place(self, staged: Iterable[Staged]) -> None:
        """All that counts of a batch that was never tried. Raises PipelineError if another driver has the turn."""
        self._place(staged, ())

    def replace(self, staged: Iterable[Staged], batch: Batch) -> None:
        """The same, in place of what was moved before; after `end_former`."""
        self._place(staged, self._placed(batch))

    def end_former(self, batch: Batch) -> None:
        """None that was begun before moves anything after this. Raises as `place`."""
        prefix = staged_of(batch.export)
        former = [name for name in self._files.names(self._out) if name.startswith(prefix)]
        self._confirm()
        for name in former:
            self._files.take_away(f"{self._out}/{name}")

    def _place(self, staged: Iterable[Staged], former: Iterable[str]) -> None:
        staged = list(staged)
        self._confirm()
        for file in former:
            self._files.remove(file)
        for directory in {each.directory: None for each in staged}:
            self._files.make(f"{self._out}/{directory}")
        for each in staged:
            if not self._files.move(each.file, f"{self._out}/{each.directory}"):
                raise FilesUnavailable(
                    f"{each.file}, which a task has written, is not there: driver and tasks have to share"
                    " the directory, and only one run may write to it"
                )

    def _placed(self, batch: Batch) -> list[str]:
        above = [self._out]
        for level in self._levels:
            above = [
                f"{each}/{child}"
                for each in above
                for child in self._files.names(each)
                if child.startswith(f"{level}=")
            ]
        places = (f"{each}/{directory_of(batch)}" for each in above)
        return [f"{place}/{name}" for place in places for name in self._files.names(place)]
