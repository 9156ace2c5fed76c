"""Batch attempts: the table has the last attempt's output, at whatever step earlier drivers died or were suspended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
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


class LocalFiles:
    """Files of this machine. `before` is called with a number before each step, including each file that is removed."""

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
            with suppress(OSError):  # a new file appeared meanwhile
                at.rmdir()
        at.unlink(missing_ok=True)

    def sync(self, path: str) -> None:
        """Not a step, because other drivers cannot observe it."""


class DriverTable:
    """Table to which drivers write one after the other; `holder` is the driver with the lease."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.holder = ""
        self.written = 0

    def write_batch(
        self, name: str, batch: BatchKey, before: Callable[[int], None], *, again: bool
    ) -> None:
        """Do what the driver does for a batch after it has taken the lease, with one file per day."""
        files = LocalFiles(before)
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
        with attempts.staging_directory(batch) as directory:
            files.step()
            staged = [self._write(files, directory, name, day, batch) for day in DAYS]
            if again:
                attempts.replace(staged, batch)
            else:
                attempts.place(staged)

    def _write(
        self, files: LocalFiles, directory: str, name: str, day: str, batch: BatchKey
    ) -> StagedFile:
        """Write as Spark's tasks do, which create their directory if it does not exist."""
        files.step()
        Path(directory).mkdir(parents=True, exist_ok=True)
        self.written += 1
        path = Path(directory) / f"part-{self.written}"
        path.write_text(name)
        files.step()
        return StagedFile(str(path), f"{day}/{batch_directory(batch)}")

    def contents(self, batch: BatchKey) -> list[tuple[str, str]]:
        """Return the writer of each day's file in the table."""
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


class DriverDied(Exception):
    pass


Before = Callable[[int], None]


def nothing(step: int) -> None:
    pass


def at(step: int, act: Callable[[], None]) -> Before:
    return lambda number: act() if number == step else None


def die() -> None:
    raise DriverDied


def run_attempt(table: DriverTable, name: str, before: Before, *, again: bool) -> None:
    """Attempt BATCH; False if the driver died, unless everything that counts was done before."""
    with suppress(PipelineError, DriverDied):
        table.write_batch(name, BATCH, before, again=again)


def steps(tmp_path: Path, *, again: bool) -> range:
    """Return the maximum number of steps of a driver."""
    taken: list[int] = []
    table = DriverTable(tmp_path / "counted")
    table.write_batch("killed", BATCH, nothing, again=False)
    table.write_batch("A", BATCH, taken.append, again=again)
    assert taken == list(range(len(taken)))
    return range(len(taken))


@pytest.mark.parametrize("again", [False, True])
def test_driver_suspended_at_any_step_changes_nothing(tmp_path: Path, again: bool) -> None:
    """Another driver repeats the batch meanwhile, and writes the next one."""

    def others_batches(table: DriverTable) -> None:
        table.write_batch("B", BATCH, nothing, again=True)
        table.write_batch("B", NEXT, nothing, again=False)

    for step in steps(tmp_path, again=again):
        table = DriverTable(tmp_path / str(step))
        if again:
            table.write_batch("killed", BATCH, nothing, again=False)
        run_attempt(table, "A", at(step, partial(others_batches, table)), again=again)
        assert table.contents(BATCH) == whole("B"), f"suspended at {step}"
        assert table.contents(NEXT) == whole("B")
        assert not table.staged


@pytest.mark.parametrize("again", [False, True])
def test_driver_killed_at_any_step_leaves_no_visible_output(tmp_path: Path, again: bool) -> None:
    for step in steps(tmp_path, again=again):
        table = DriverTable(tmp_path / str(step))
        run_attempt(table, "A", at(step, die), again=again)
        table.write_batch("B", BATCH, nothing, again=True)
        assert table.contents(BATCH) == whole("B"), f"died at {step}"
        assert not table.staged


def test_driver_resuming_at_any_step_of_another_changes_nothing(tmp_path: Path) -> None:
    """For each step of the one and each step of the other."""
    many = steps(tmp_path, again=True)
    for stood, came in product(many, many):
        table = DriverTable(tmp_path / f"{stood}-{came}")
        table.write_batch("killed", BATCH, nothing, again=False)
        with SuspendedDriver(table, stood) as still:
            table.write_batch("B", BATCH, at(came, still.resume), again=True)
        assert table.contents(BATCH) == whole("B"), f"suspended at {stood}, resumed at {came}"
        assert not table.staged


class SuspendedDriver:
    """Driver that is suspended at a step until `resume`, or the end of the context, and then finishes."""

    def __init__(self, table: DriverTable, step: int) -> None:
        self._stands, self._comes = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._drive, args=(table, at(step, self._stand)))

    def __enter__(self) -> SuspendedDriver:
        self._thread.start()
        assert self._stands.wait(10)
        return self

    def __exit__(self, *rest: object) -> None:
        self.resume()

    def resume(self) -> None:
        self._comes.set()
        self._thread.join(10)

    def _drive(self, table: DriverTable, before: Before) -> None:
        run_attempt(table, "A", before, again=True)
        self._stands.set()

    def _stand(self) -> None:
        self._stands.set()
        assert self._comes.wait(10)


def test_two_suspended_drivers_change_nothing(tmp_path: Path) -> None:
    """For each pair of steps."""

    def others_batches(table: DriverTable, step: int) -> None:
        run_attempt(
            table,
            "B",
            at(step, partial(table.write_batch, "C", BATCH, nothing, again=True)),
            again=True,
        )

    many = steps(tmp_path, again=True)
    for first, second in product(many, many):
        table = DriverTable(tmp_path / f"{first}-{second}")
        run_attempt(table, "A", at(first, partial(others_batches, table, second)), again=True)
        assert table.contents(BATCH) == whole(table.holder), f"suspended at {first} and {second}"


class ConcurrentMoves(LocalFiles):
    """Files whose moves wait until all are in progress. The first move fails while the others continue."""

    def __init__(self, many: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(many)
        self.goes_on = threading.Event()

    def move(self, file: str, directory: str) -> bool:
        if self.barrier.wait(30):
            assert self.goes_on.wait(30)
            return True
        return False


class SyncTracking(LocalFiles):
    """Files that record what a power failure would undo, and which files would lose their bytes."""

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


def test_visible_output_survives_power_failure(tmp_path: Path) -> None:
    """The second attempt has no file of the other day."""
    files, out = SyncTracking(), tmp_path / "out"
    out.mkdir()
    attempts = BatchAttempts(files, str(out), ("topic", "date"), lambda: None)
    for number, days in enumerate((DAYS, DAYS[1:])):
        with attempts.staging_directory(BATCH) as directory:
            staged = []
            for day in days:
                path = Path(directory) / f"part-{number}-{day[-1]}"
                path.write_text("")
                staged.append(StagedFile(str(path), f"{day}/{batch_directory(BATCH)}"))
            files.changed.clear()  # readers ignore this directory
            attempts.replace(staged, BATCH)
            assert not files.changed
    assert [path.name for path in out.rglob("part-*")] == ["part-1-2"]


def test_moves_run_concurrently_and_none_is_in_progress_after_error(tmp_path: Path) -> None:
    files = ConcurrentMoves(4)
    attempts = BatchAttempts(files, str(tmp_path), (), lambda: None, run_concurrently=4)
    with ThreadPoolExecutor(1) as pool:
        placed = pool.submit(attempts.place, [StagedFile(f"file-{n}", "") for n in range(4)])
        with pytest.raises(FutureTimeoutError):
            placed.result(0.1)
        files.goes_on.set()
        with pytest.raises(
            FilesUnavailable, match=r"file-\d, which was written for .*, does not exist"
        ):
            placed.result(30)
