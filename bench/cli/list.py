"""`odradek bench list`: prints the workloads, the peers and the physical limits."""

from __future__ import annotations

import argparse

from odradek.bench.limits import LIMITS
from odradek.bench.peers import PEERS
from odradek.bench.workloads import ROUNDS_MOST, WORKLOADS
from odradek.cli.output import print_json, print_lines, print_table


def run(args: argparse.Namespace) -> int:
    if args.json:
        _print_json()
    else:
        _print_tables()
    return 0


def _print_json() -> None:
    print_json(
        {
            "workloads": [
                {
                    "name": each.name,
                    "title": each.title,
                    "default": each.default,
                    "rounds_most": ROUNDS_MOST.get(each.name),
                    "parameters": dict(each.parameters),
                    "metrics": [metric.name for metric in each.metrics],
                }
                for each in WORKLOADS
            ],
            "peers": [
                {"name": each.name, "title": each.title, "default": each.default}
                for each in PEERS.values()
            ],
            "limits": [{"name": each.name, "title": each.title} for each in LIMITS],
        }
    )


def _print_tables() -> None:
    print_table(
        ["WORKLOAD", "", "ROUNDS", "TITLE", "METRICS"],
        [
            (
                each.name,
                _star(each.default),
                ROUNDS_MOST.get(each.name, ""),
                each.title,
                ", ".join(m.name for m in each.metrics),
            )
            for each in WORKLOADS
        ],
    )
    print_lines([""])
    print_table(
        ["PEER", "", "TITLE"],
        [(each.name, _star(each.default), each.title) for each in PEERS.values()],
    )
    print_lines([""])
    print_table(
        ["LIMIT", "UNIT", "TITLE"],
        [(each.name, each.metric.unit, each.title) for each in LIMITS],
    )
    print_lines(["", "* selected by default; ROUNDS: default number of rounds, if it is not 5"])


def _star(is_default: bool) -> str:
    return "*" if is_default else " "
