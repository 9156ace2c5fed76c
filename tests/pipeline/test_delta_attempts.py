"""The Delta table has the last attempt's output of a batch, also if an earlier driver was suspended and resumes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count, product
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.batch_attempts import BatchKey
from odradek.pipeline.jobs.export_tables import DeltaTable
from odradek.protocol.topics import TopicPartition

A_BATCH = 10


def batch(number: int) -> BatchKey:
    return BatchKey(
        "e", number, {TopicPartition("t", 0): (number * A_BATCH, (number + 1) * A_BATCH)}
    )


class DeltaLog:
    """Delta log: the rows that each commit appends or replaces, and the last version of each application. Commits
    with the same or an earlier version are ignored.
    """

    def __init__(self, *, exists: bool) -> None:
        self.is_there = exists
        self.versions: dict[str, int] = {}
        self.rows: dict[int, list[str]] = {}
        """By batch: who has written them."""

    def commit(self, rows: dict[int, list[str]], mode: str, options: dict[str, str]) -> None:
        version = int(options["txnVersion"])
        if version <= self.versions.get(options["txnAppId"], -1):
            return
        self.versions[options["txnAppId"]], self.is_there = version, True
        for number, names in rows.items():
            where = f"offset >= {number * A_BATCH} AND"
            kept = [] if where in options.get("replaceWhere", "") else self.rows.get(number, [])
            assert mode == "append" or "replaceWhere" in options
            self.rows[number] = [*kept, *names]


class BatchFrame:
    """Frame and writer of one batch, as in Spark."""

    def __init__(
        self, log: DeltaLog, number: int, names: list[str], step: Callable[[], None]
    ) -> None:
        self._log, self._number, self._names, self._step = log, number, names, step
        self._mode, self._options = "", dict[str, str]()

    @property
    def write(self) -> BatchFrame:
        return self

    def withColumns(  # noqa: N802 - Spark's name
        self, columns: dict[str, Any]
    ) -> BatchFrame:
        return self

    def limit(self, most: int) -> BatchFrame:
        return BatchFrame(self._log, self._number, self._names[:most], self._step)

    def format(self, name: str) -> BatchFrame:
        return self

    def partitionBy(  # noqa: N802 - Spark's name
        self, *names: str
    ) -> BatchFrame:
        return self

    def mode(self, name: str) -> BatchFrame:
        self._mode = name
        return self

    def option(self, name: str, value: str) -> BatchFrame:
        return self.options(**{name: value})

    def options(self, **given: str) -> BatchFrame:
        self._options |= given
        return self

    def save(self, out: str) -> None:
        self._step()
        self._log.commit({self._number: self._names}, self._mode, self._options)


class TableFiles:
    """Existence of the table; without `log`, it did not exist yet when it was checked."""

    def __init__(self, log: DeltaLog | None, step: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._step = step

    def exists(self, path: str) -> bool:
        self._step()
        return self._log is not None and self._log.is_there


class DriverWorld:
    """Drivers of one table on synchronous clocks; the last one that started has the lease."""

    def __init__(self, *, exists: bool) -> None:
        self.log = DeltaLog(exists=exists)
        self.holder = ""
        self._time = count(1)

    def write_batch(
        self, name: str, number: int, before: Callable[[int], None], *, again: bool
    ) -> None:
        """Write a batch; `before` is called with a number before each step."""
        self.holder = name
        numbers = count()

        def step() -> None:
            before(next(numbers))

        def confirm() -> None:
            step()
            if self.holder != name:
                raise PipelineError("taken over")
            step()

        def wall_ms() -> int:
            step()
            return next(self._time)

        files = TableFiles(self.log, step)
        table = DeltaTable(cast(Any, None), files, "out", "none", confirm, wall_ms)
        frame: Any = BatchFrame(self.log, number, [name], step)
        (table.replace if again else table.write)(frame, batch(number))


def nothing(step: int) -> None:
    pass


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_driver_suspended_at_any_step_changes_nothing(again: bool, exists: bool) -> None:
    """Another driver repeats the batch meanwhile, and may have started the next one."""
    steps: list[int] = []
    DriverWorld(exists=exists).write_batch("A", 0, steps.append, again=again)
    for stood, starts_next in product(steps, (False, True)):
        drivers = DriverWorld(exists=exists)

        def others_batches(
            step: int,
            drivers: DriverWorld = drivers,
            stood: int = stood,
            starts_next: bool = starts_next,
        ) -> None:
            if step == stood:
                drivers.write_batch("B", 0, nothing, again=True)
                if starts_next:
                    drivers.write_batch("B", 1, nothing, again=False)

        with suppress(PipelineError):
            drivers.write_batch("A", 0, others_batches, again=again)
        assert drivers.log.rows.pop(0) == ["B"], f"suspended at {stood}"
        assert drivers.log.rows == ({1: ["B"]} if starts_next else {})


def test_suspended_driver_does_not_write_a_batch_that_another_repeats() -> None:
    """If the table does not exist, either driver may create it, at any step of the other."""
    steps: list[int] = []
    DriverWorld(exists=False).write_batch("B", 0, steps.append, again=True)
    for came in steps:
        drivers = DriverWorld(exists=False)

        def late(step: int, drivers: DriverWorld = drivers, came: int = came) -> None:
            if step == came:
                table = DeltaTable(cast(Any, None), TableFiles(None), "out", "none", lambda: None)
                frame: Any = BatchFrame(drivers.log, 0, ["A"], lambda: None)
                table.write(frame, batch(0))

        drivers.write_batch("B", 0, late, again=True)
        assert drivers.log.rows == {0: ["B"]}, f"resumed at {came}"
