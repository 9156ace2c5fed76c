"""A batch is in a Delta table as it was made last, also when a driver that tried it stood still and came back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count, product
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from odradek.pipeline.brokers import TopicPartition
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.batch_attempts import BatchKey
from odradek.pipeline.jobs.export_tables import DeltaTable

A_BATCH = 10


def batch(number: int) -> BatchKey:
    return BatchKey(
        "e", number, {TopicPartition("t", 0): (number * A_BATCH, (number + 1) * A_BATCH)}
    )


class Log:
    """Delta's: what each commit has appended, or put in place of the rows that it names, and the last version of each
    application, of which earlier ones, and the same once more, are passed over."""

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


class Frame:
    """As Spark's, and as its writer, of one batch."""

    def __init__(self, log: Log, number: int, names: list[str], step: Callable[[], None]) -> None:
        self._log, self._number, self._names, self._step = log, number, names, step
        self._mode, self._options = "", dict[str, str]()

    @property
    def write(self) -> Frame:
        return self

    def withColumns(  # noqa: N802 - Spark's name
        self, columns: dict[str, Any]
    ) -> Frame:
        return self

    def limit(self, most: int) -> Frame:
        return Frame(self._log, self._number, self._names[:most], self._step)

    def format(self, name: str) -> Frame:
        return self

    def partitionBy(  # noqa: N802 - Spark's name
        self, *names: str
    ) -> Frame:
        return self

    def mode(self, name: str) -> Frame:
        self._mode = name
        return self

    def option(self, name: str, value: str) -> Frame:
        return self.options(**{name: value})

    def options(self, **given: str) -> Frame:
        self._options |= given
        return self

    def save(self, out: str) -> None:
        self._step()
        self._log.commit({self._number: self._names}, self._mode, self._options)


class Files:
    """Where the table is, if it is; or where it was not yet when that was looked for, with no `log`."""

    def __init__(self, log: Log | None, step: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._step = step

    def exists(self, path: str) -> bool:
        self._step()
        return self._log is not None and self._log.is_there


class World:
    """Drivers of one table, of whom the last that began has the turn, on clocks that agree."""

    def __init__(self, *, exists: bool) -> None:
        self.log = Log(exists=exists)
        self.holder = ""
        self._time = count(1)

    def drives(self, name: str, number: int, before: Callable[[int], None], *, again: bool) -> None:
        """`before` is called with a number before each step."""
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

        files = Files(self.log, step)
        table = DeltaTable(cast(Any, None), files, "out", "none", confirm, wall_ms)
        frame: Any = Frame(self.log, number, [name], step)
        (table.replace if again else table.write)(frame, batch(number))


def nothing(step: int) -> None:
    pass


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_a_driver_that_stood_still_at_any_step_changes_nothing(again: bool, exists: bool) -> None:
    """Another one makes the batch again meanwhile, and may have got on to the next."""
    steps: list[int] = []
    World(exists=exists).drives("A", 0, steps.append, again=again)
    for stood, gets_on in product(steps, (False, True)):
        cluster_view = World(exists=exists)

        def others_turn(
            step: int,
            cluster_view: World = cluster_view,
            stood: int = stood,
            gets_on: bool = gets_on,
        ) -> None:
            if step == stood:
                cluster_view.drives("B", 0, nothing, again=True)
                if gets_on:
                    cluster_view.drives("B", 1, nothing, again=False)

        with suppress(PipelineError):
            cluster_view.drives("A", 0, others_turn, again=again)
        assert cluster_view.log.rows.pop(0) == ["B"], f"stood at {stood}"
        assert cluster_view.log.rows == ({1: ["B"]} if gets_on else {})


def test_one_that_stood_still_does_not_write_first_what_another_makes_again() -> None:
    """A table that is not there yet may be made by either: at any step of the other's."""
    steps: list[int] = []
    World(exists=False).drives("B", 0, steps.append, again=True)
    for came in steps:
        cluster_view = World(exists=False)

        def late(step: int, cluster_view: World = cluster_view, came: int = came) -> None:
            if step == came:
                table = DeltaTable(cast(Any, None), Files(None), "out", "none", lambda: None)
                frame: Any = Frame(cluster_view.log, 0, ["A"], lambda: None)
                table.write(frame, batch(0))

        cluster_view.drives("B", 0, late, again=True)
        assert cluster_view.log.rows == {0: ["B"]}, f"came back at {came}"
