"""`odradek bench instructions`: the exit code is 1 if a count differs by more than the tolerance."""

from __future__ import annotations

import argparse

from odradek.bench import instructions
from odradek.cli.errors import CommandFailed
from odradek.cli.output import print_json, print_lines, print_table


def run(args: argparse.Namespace) -> int:
    try:
        counts = instructions.count()
        stored = instructions.load().get(instructions.interpreter(), {})
    except instructions.CannotCount as reason:
        raise CommandFailed(str(reason)) from None
    if args.update:
        instructions.store(counts)
        stored = counts
    found = instructions.differences(counts, stored)
    if args.json:
        print_json({each.case: {"counted": each.counted, "stored": each.stored} for each in found})
    else:
        print_lines([f"instructions per operation, {instructions.interpreter()}"])
        print_table(
            ["CASE", "COUNTED", "STORED", "CHANGE"],
            [
                (
                    each.case,
                    "removed" if each.counted is None else each.counted,
                    each.stored,
                    each.part is not None and f"{each.part:+.1%}",
                )
                for each in found
            ],
        )
    off = [each.case for each in found if each.is_off]
    if off:
        raise CommandFailed(
            f"changed by more than {instructions.TOLERANCE:.0%}, not stored, or removed: {', '.join(off)}; "
            "to accept the counts, run odradek bench instructions --update"
        )
    return 0
