"""`odradek bench report RESULTS.json`: on the terminal, or as a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from odradek.bench.cli.loading import load_results
from odradek.bench.summary import remarks
from odradek.bench.table import workload_lines
from odradek.broker.cli.output import print_lines


def run(args: argparse.Namespace) -> int:
    results = load_results(args.results)
    if args.html is not None:
        from odradek.bench.report import page

        Path(args.html).write_text(page(results), encoding="utf-8")
        return 0
    for workload in results.workloads:
        print_lines([*workload_lines(results, workload), ""])
    print_lines(f"! {line}" for line in remarks(results))
    return 0
