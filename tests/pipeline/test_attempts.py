"""A batch is in a table as it was made last, wherever the drivers that tried it died, or stood still and came back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from contextlib import suppress
from functools import partial
from itertools import count, product
from pathlib import Path

import pytest

from odradek.pipeline.errors import FilesUnavailable, PipelineError
from odradek.pipeline.jobs.batch_attempts import (
    BatchAttempts,
    BatchKey,
    StagedFile,
    batch_directory,
)

BATCH, NEXT = BatchKey("e", 0, {}), BatchKey("e", 1, {})
DAYS = ("topic=t/date=1", "topic=t/date=2")


class Local:
    """Files of this machine; `before` is called with a number before each step, of which there is one for each file
    that is removed on the way."""

    def __init__(self, before: Callable[[int], None] = lambda step: None) -> None:
        self._before = before
        self._numbers = count()

    def step(self) -> None:
        self._before(next(self._numbers))

    def names(self, directory: str) -> list[str]:
        self.step()
        path = Path(directory)
        return sorted(each.name for each in path.iterdir()) if path.exists() else []

    def make(self, directory: str) -> None:
        self.step()
        Path(directory).mkdir(parents=True, exist_ok=True)

    def move(self, file: str, directory: str) -> bool:
        self.step()
        try:
            Path(file).rename(Path(directory) / Path(file).name)
        except FileNotFoundError:
            return False
        return True

    def remove(self, path: str) -> None:
        self.step()
        at = Path(path)
        while at.is_dir():
            for each in sorted(at.iterdir()):
                self.remove(str(each))
            with suppress(OSError):  # where something new has come
                at.rmdir()
        at.unlink(missing_ok=True)

    def sync(self, path: str) -> None:
        """No step: no driver sees anything of it."""


class ExportTable:
    """One that drivers write to, one after the other: `holder` is the last that has taken its turn."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.holder = ""
        self.written = 0

    def drives(
        self, name: str, batch: BatchKey, before: Callable[[int], None], *, again: bool
    ) -> None:
        """All that the driver does for a batch that it begins with its turn, of a file for each day."""
        files = Local(before)
        self.holder = name

        def confirm() -> None:
            files.step()
            if self.holder != name:
                raise PipelineError("taken over")
            files.step()

        attempts = BatchAttempts(
            files, str(self.out), ("topic", "date"), confirm, run_concurrently=1
        )
        if again:
            attempts.remove_earlier_staging(batch)
        with attempts.begun(batch) as directory:
            files.step()
            staged = [self._write(files, directory, name, day, batch) for day in DAYS]
            if again:
                attempts.replace(staged, batch)
            else:
                attempts.place(staged)

    def _write(
        self, files: Local, directory: str, name: str, day: str, batch: BatchKey
    ) -> StagedFile:
        """As Spark's tasks do, which make their directory where it is gone."""
        files.step()
        Path(directory).mkdir(parents=True, exist_ok=True)
        self.written += 1
        path = Path(directory) / f"part-{self.written}"
        path.write_text(name)
        files.step()
        return StagedFile(str(path), f"{day}/{batch_directory(batch)}")

    def found(self, batch: BatchKey) -> list[tuple[str, str]]:
        """Who has written what is in the table, by day."""
        return sorted(
            (day, path.read_text())
            for day in DAYS
            for path in (self.out / day / batch_directory(batch)).glob("*")
        )

    @property
    def staged(self) -> list[Path]:
        return [path for path in self.out.glob("_staged-*/**/*") if path.is_file()]


def whole(name: str) -> list[tuple[str, str]]:
    return [(day, name) for day in DAYS]


class Died(Exception):
    pass


Before = Callable[[int], None]


def nothing(step: int) -> None:
    pass


def at(step: int, act: Callable[[], None]) -> Before:
    return lambda number: act() if number == step else None


def die() -> None:
    raise Died


def tries(table: ExportTable, name: str, before: Before, *, again: bool) -> None:
    """At BATCH, and may fail; or not, where all that counts was done before."""
    with suppress(PipelineError, Died):
        table.drives(name, BATCH, before, again=again)


def steps(tmp_path: Path, *, again: bool) -> range:
    """That a driver takes at most."""
    taken: list[int] = []
    table = ExportTable(tmp_path / "counted")
    table.drives("killed", BATCH, nothing, again=False)
    table.drives("A", BATCH, taken.append, again=again)
    assert taken == list(range(len(taken)))
    return range(len(taken))


@pytest.mark.parametrize("again", [False, True])
def test_a_driver_that_stood_still_at_any_step_changes_nothing(tmp_path: Path, again: bool) -> None:
    """Another one makes the batch again meanwhile, and the next one, and is done."""

    def others_turn(table: ExportTable) -> None:
        table.drives("B", BATCH, nothing, again=True)
        table.drives("B", NEXT, nothing, again=False)

    for step in steps(tmp_path, again=again):
        table = ExportTable(tmp_path / str(step))
        if again:
            table.drives("killed", BATCH, nothing, again=False)
        tries(table, "A", at(step, partial(others_turn, table)), again=again)
        assert table.found(BATCH) == whole("B"), f"stood at {step}"
        assert table.found(NEXT) == whole("B")
        assert not table.staged


@pytest.mark.parametrize("again", [False, True])
def test_whoever_dies_at_any_step_leaves_nothing_that_counts(tmp_path: Path, again: bool) -> None:
    for step in steps(tmp_path, again=again):
        table = ExportTable(tmp_path / str(step))
        tries(table, "A", at(step, die), again=again)
        table.drives("B", BATCH, nothing, again=True)
        assert table.found(BATCH) == whole("B"), f"died at {step}"
        assert not table.staged


def test_who_comes_back_in_the_midst_of_anothers_turn_does_not_disturb_it(tmp_path: Path) -> None:
    """From any step, at any of the other's."""
    many = steps(tmp_path, again=True)
    for stood, came in product(many, many):
        table = ExportTable(tmp_path / f"{stood}-{came}")
        table.drives("killed", BATCH, nothing, again=False)
        with Still(table, stood) as still:
            table.drives("B", BATCH, at(came, still.come_back), again=True)
        assert table.found(BATCH) == whole("B"), f"stood at {stood}, came back at {came}"
        assert not table.staged


class Still:
    """A driver that stands still at a step, until it comes back, or the context ends, and then goes on to its end."""

    def __init__(self, table: ExportTable, step: int) -> None:
        self._stands, self._comes = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._drive, args=(table, at(step, self._stand)))

    def __enter__(self) -> Still:
        self._thread.start()
        assert self._stands.wait(10)
        return self

    def __exit__(self, *rest: object) -> None:
        self.come_back()

    def come_back(self) -> None:
        self._comes.set()
        self._thread.join(10)

    def _drive(self, table: ExportTable, before: Before) -> None:
        tries(table, "A", before, again=True)
        self._stands.set()

    def _stand(self) -> None:
        self._stands.set()
        assert self._comes.wait(10)


def test_of_two_that_stood_still_neither_changes_anything(tmp_path: Path) -> None:
    """At any two steps."""

    def others_turn(table: ExportTable, step: int) -> None:
        tries(
            table, "B", at(step, partial(table.drives, "C", BATCH, nothing, again=True)), again=True
        )

    many = steps(tmp_path, again=True)
    for first, second in product(many, many):
        table = ExportTable(tmp_path / f"{first}-{second}")
        tries(table, "A", at(first, partial(others_turn, table, second)), again=True)
        assert table.found(BATCH) == whole(table.holder), f"stood at {first} and {second}"


class Together(Local):
    """As many moves as there are files are under way at the same time; the first fails while the others go on."""

    def __init__(self, many: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(many)
        self.goes_on = threading.Event()

    def move(self, file: str, directory: str) -> bool:
        if self.barrier.wait(30):
            assert self.goes_on.wait(30)
            return True
        return False


class Syncing(Local):
    """Knows what a power cut would undo, or leave without its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[Path] = set()
        self.synced: set[Path] = set()

    def make(self, directory: str) -> None:
        at = Path(directory)
        self.changed |= {each.parent for each in (at, *at.parents) if not each.exists()}
        super().make(directory)

    def move(self, file: str, directory: str) -> bool:
        assert Path(file) in self.synced
        self.changed.add(Path(directory))
        return super().move(file, directory)

    def remove(self, path: str) -> None:
        self.changed.add(Path(path).parent)
        super().remove(path)

    def sync(self, path: str) -> None:
        self.synced.add(Path(path))
        self.changed.discard(Path(path))


def test_what_counts_stays_when_the_power_is_cut(tmp_path: Path) -> None:
    """The second time the other day has nothing any more."""
    files, out = Syncing(), tmp_path / "out"
    out.mkdir()
    attempts = BatchAttempts(files, str(out), ("topic", "date"), lambda: None)
    for number, days in enumerate((DAYS, DAYS[1:])):
        with attempts.begun(BATCH) as directory:
            staged = []
            for day in days:
                path = Path(directory) / f"part-{number}-{day[-1]}"
                path.write_text("")
                staged.append(StagedFile(str(path), f"{day}/{batch_directory(BATCH)}"))
            files.changed.clear()  # where nobody reads
            attempts.replace(staged, BATCH)
            assert not files.changed
    assert [path.name for path in out.rglob("part-*")] == ["part-1-2"]


def test_files_are_moved_together_and_none_is_any_more_when_one_has_failed(tmp_path: Path) -> None:
    files = Together(4)
    attempts = BatchAttempts(files, str(tmp_path), (), lambda: None, run_concurrently=4)
    with ThreadPoolExecutor(1) as pool:
        placed = pool.submit(attempts.place, [StagedFile(f"file-{n}", "") for n in range(4)])
        with pytest.raises(StillRunning):
            placed.result(0.1)
        files.goes_on.set()
        with pytest.raises(
            FilesUnavailable, match=r"file-\d, which was written for .*, does not exist"
        ):
            placed.result(30)
