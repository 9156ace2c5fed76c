"""`odradek bench report RESULTS.json`: prints tables, or writes docs/performance.md."""

from __future__ import annotations

import argparse
from pathlib import Path

from odradek.bench.cli.arguments import load_results
from odradek.bench.page_sections import UnknownSection
from odradek.bench.performance_page import performance_page
from odradek.bench.summary import remarks, workload_lines
from odradek.cli.errors import WrongUsage
from odradek.cli.output import print_lines


def run(args: argparse.Namespace) -> int:
    if args.further and args.markdown is None:
        raise WrongUsage("--with requires --markdown")
    results = load_results(args.results)
    if args.markdown is not None:
        further = {Path(each).name: load_results(each) for each in args.further}
        try:
            text = performance_page(results, Path(args.results).name, further)
        except UnknownSection as error:
            raise WrongUsage(str(error)) from None
        Path(args.markdown).write_text(text, encoding="utf-8")
        return 0
    for workload in results.workloads:
        print_lines([*workload_lines(results, workload), ""])
    print_lines(f"! {line}" for line in remarks(results))
    return 0
