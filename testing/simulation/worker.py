"""One process's share of many seeds; what fails is shrunk, and kept to be run again.

A world in which virtual time stands still, or that waits for real time, would be run for ever: a watchdog
ends the process in the middle of it, and says where it was. Whoever has started the process starts
another one for the seeds that are left.
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
from odradek.testing.simulation.plan import Plan, draw_plan, from_json, to_json
from odradek.testing.simulation.run import Run, simulate
from odradek.testing.simulation.shrink import shrink

STUCK_CPU_S = 60.0
STUCK_S = 900.0
"""A run takes less than a second, of a tiered topic two, and a busy machine makes many of these."""

Row = dict[str, Any]


def run_one(
    seed: int, nodes: int, tiered: bool, keep: Path | None, say: Callable[[Row], None]
) -> None:
    """One seed, as a row of plain values; a failing plan is shrunk and put into `keep`."""
    plan = draw_plan(seed, nodes=nodes, tiered=tiered)
    began = time.process_time()

    def stuck(where: str) -> NoReturn:
        run = Run(
            plan, [Anomaly("stuck", f"in no virtual time, or in none at all; it was at\n{where}")]
        )
        if keep is not None:
            save(run, keep)
        say(row_of(run, time.process_time() - began))
        os._exit(0)

    with _watched(stuck):
        run = _simulate(plan)
    row = row_of(run, time.process_time() - began)
    if not run.is_sound and keep is not None:
        save(run, keep)
        kinds = {each.kind for each in run.anomalies}

        def stuck_while_shrinking(where: str) -> NoReturn:
            say(row)
            os._exit(0)

        def fails(smaller: Plan) -> bool:
            with _watched(stuck_while_shrinking):
                return bool(kinds & _kinds(_simulate(smaller)))

        save(_simulate(shrink(plan, fails)), keep)
    say(row)


def row_of(run: Run, cpu_s: float = 0.0) -> Row:
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
    """Nothing that is run in it goes on for longer than any run does."""

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


def _simulate(plan: Plan) -> Run:
    """A world at a time: each is one large cycle, and looked for while it goes on, little of it is garbage."""
    try:
        return simulate(plan)
    finally:
        gc.collect()


def _kinds(run: Run) -> set[str]:
    return {each.kind for each in run.anomalies}


def save(run: Run, directory: Path) -> Path:
    """Write down what is needed to run it again, what it found, and what happened."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"seed-{run.plan.seed}.json"
    found = [str(each) for each in run.anomalies]
    content = {"plan": to_json(run.plan), "anomalies": found, "trace": run.trace}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def load(path: Path) -> Plan:
    """A plan that `save` wrote."""
    return from_json(json.loads(path.read_text())["plan"])


def _work(keep: str, nodes: str, tiered: str, *seeds: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever has started this
    gc.disable()
    for seed in seeds:
        # All that there is by now (modules, what they keep) stays: the collection after a world need not
        # look through it. Before each seed, for worlds load modules, the first of them most.
        gc.freeze()
        run_one(int(seed), int(nodes), bool(tiered), Path(keep) if keep else None, _say)


def _say(row: Row) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    _work(*sys.argv[1:])
