"""One process's share of many seeds; what fails is shrunk, and kept to be run again."""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from odradek.testing.simulation.plan import Plan, draw_plan, from_json, to_json
from odradek.testing.simulation.run import Run, simulate
from odradek.testing.simulation.shrink import shrink


def run_one(seed: int, nodes: int, tiered: bool, keep: Path | None) -> dict[str, Any]:
    """One seed, as a row of plain values; a failing plan is shrunk and put into `keep`."""
    began = time.process_time()
    plan = draw_plan(seed, nodes=nodes, tiered=tiered)
    run = _simulate(plan)
    row = {
        "seed": seed,
        "anomalies": [str(each) for each in run.anomalies],
        "virtual_s": run.virtual_s,
        "cpu_s": time.process_time() - began,
        "events": len(run.trace),
        "coverage": [(kind, state, count) for (kind, state), count in run.coverage.items()],
    }
    if not run.is_sound and keep is not None:
        kinds = {each.kind for each in run.anomalies}
        smallest = shrink(plan, lambda each: bool(kinds & _kinds(_simulate(each))))
        save(_simulate(smallest), keep)
    return row


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
        row = run_one(int(seed), int(nodes), bool(tiered), Path(keep) if keep else None)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    _work(*sys.argv[1:])
