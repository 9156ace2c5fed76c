"""Runs a share of many seeds in one process; failing plans are shrunk and saved.

A world whose virtual time does not advance, or that waits for real time, would run forever: a
watchdog reports its position and ends the process. The parent then starts another process for the
remaining seeds.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from odradek.testing.simulation.history import Anomaly
from odradek.testing.simulation.plan import SimulationPlan, draw_plan, from_json, to_json
from odradek.testing.simulation.run import SimulationRun, simulate

STUCK_CPU_S = 60.0
STUCK_S = 900.0
"""A run takes less than a second, or two with tiering, but longer on a busy machine."""

Row = dict[str, Any]


def run_one(plan: SimulationPlan, keep: Path | None, report: Callable[[Row], None]) -> None:
    """Run one plan and report a row of plain values; a failing plan is shrunk and saved in `keep`."""
    began = time.process_time()

    def stuck(where: str) -> NoReturn:
        run = SimulationRun(
            plan, [Anomaly("stuck", f"virtual time or the run does not advance, at\n{where}")]
        )
        if keep is not None:
            save(run, keep)
        report(to_row(run, time.process_time() - began))
        os._exit(0)

    with _watched(stuck):
        run = _simulate(plan)
    row = to_row(run, time.process_time() - began)
    if not run.is_sound and keep is not None:
        save(run, keep)
        kinds = {each.kind for each in run.anomalies}

        def stuck_while_shrinking(where: str) -> NoReturn:
            report(row)
            os._exit(0)

        def fails(smaller: SimulationPlan) -> bool:
            with _watched(stuck_while_shrinking):
                return bool(kinds & _kinds(_simulate(smaller)))

        save(_simulate(shrink(plan, fails)), keep)
    report(row)


def to_row(run: SimulationRun, cpu_s: float = 0.0) -> Row:
    return {
        "seed": run.plan.seed,
        "anomalies": [str(each) for each in run.anomalies],
        "virtual_s": run.virtual_s,
        "cpu_s": cpu_s,
        "starts_cpu_s": run.starts_cpu_s,
        "healed_s": run.healed_s,
        "responded_s": run.responded_s,
        "messages": run.messages,
        "disk_calls": run.disk_calls,
        "done": dict(run.done),
        "coverage": [(kind, state, count) for (kind, state), count in run.coverage.items()],
    }


@contextmanager
def _watched(stuck: Callable[[str], NoReturn]) -> Iterator[None]:
    """Call `stuck` if the block takes longer than any run does."""

    def found(number: int, frame: FrameType | None) -> None:
        stuck("".join(traceback.format_stack(frame)))

    for number, timer, seconds in (
        (signal.SIGPROF, signal.ITIMER_PROF, STUCK_CPU_S),
        (signal.SIGALRM, signal.ITIMER_REAL, STUCK_S),
    ):
        signal.signal(number, found)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _simulate(plan: SimulationPlan) -> SimulationRun:
    """Run one world without garbage collection, and collect after it.

    A world is one large cycle; during its run, little of it is garbage.
    """
    try:
        return simulate(plan)
    finally:
        gc.collect()


def _kinds(run: SimulationRun) -> set[str]:
    return {each.kind for each in run.anomalies}


def save(run: SimulationRun, directory: Path) -> Path:
    """Save a plan, its anomalies and its trace; return the path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"seed-{run.plan.seed}.json"
    found = [str(each) for each in run.anomalies]
    content = {"plan": to_json(run.plan), "anomalies": found, "trace": run.trace}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def load(path: Path) -> SimulationPlan:
    """Load a plan that `save` wrote."""
    return from_json(json.loads(path.read_text())["plan"])


def _work(
    keep: str, nodes: str, tiered: str, disables_tiering: str, diskless: str, *seeds: str
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    gc.disable()
    for seed in seeds:
        # Exempt all existing objects (modules and what they keep) from the collection after a
        # world. This is done before each seed because worlds load modules, mostly the first one.
        gc.freeze()
        plan = draw_plan(
            int(seed),
            nodes=int(nodes),
            tiered=bool(tiered),
            disables_tiering=bool(disables_tiering),
            diskless=bool(diskless),
        )
        run_one(plan, Path(keep) if keep else None, _print_row)


def _print_row(row: Row) -> None:
    print(json.dumps(row), flush=True)


def shrink(plan: SimulationPlan, fails: Callable[[SimulationPlan], bool]) -> SimulationPlan:
    """Return a failing plan that fails with no element less; `plan` fails."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in plan.smaller():
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


if __name__ == "__main__":
    _work(*sys.argv[1:])
