"""`odradek bench`: the arguments of its subcommands. Each one's work is a module of its own, imported
when it is chosen: this one is imported whenever the help of `odradek` is shown."""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable, Mapping

from odradek.cli.errors import CommandFailed, WrongUsage

EXTRA = "pip install 'odradek[bench]'"

DESCRIPTION = """\
Measure brokers side by side: real workloads over real sockets, peers in turns, medians with their
range, every sample kept, and what the machine could do with no broker in between.
"""
EPILOG = """\
examples:
  odradek bench list
  odradek bench run                                     # everything, against every peer that can be had
  odradek bench run --peers odradek,kafka --workloads 'latency*' --rounds 3 --out new.json
  odradek bench run --bootstrap broker.example:9092 --workloads 'topics*'
  odradek bench report new.json
  odradek bench compare old.json new.json
  odradek bench instructions
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "bench",
        help="measure this broker beside others",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="WHAT", dest="bench_command")
    for name, (line, add_arguments) in COMMANDS.items():
        description = f"{line[0].upper()}{line[1:]}."
        add_arguments(commands.add_parser(name, help=line, description=description))
    return parser


def run(args: argparse.Namespace) -> int:
    name = args.bench_command
    if name is None:
        raise WrongUsage(f"bench what? One of {', '.join(COMMANDS)}; see odradek bench --help")
    try:
        code: int = importlib.import_module(f"odradek.bench.cli.{name}").run(args)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "odradek":
            raise
        raise CommandFailed(f"the bench needs {error.name}: {EXTRA}") from None
    return code


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("names none")
    return names


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peers", metavar="NAME,…", type=_names, help="which brokers (default: those list stars)"
    )
    parser.add_argument(
        "--workloads",
        metavar="PATTERN",
        nargs="+",
        help="which workloads, by name or shell pattern (default: those that list stars)",
    )
    parser.add_argument(
        "--rounds",
        metavar="N",
        type=int,
        help="runs of each that count (default: 5, of those that list says 3)",
    )
    parser.add_argument(
        "--warm-ups",
        metavar="N",
        type=int,
        default=1,
        help="rounds before them that don't, so that a JVM may compile (default: 1)",
    )
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=int,
        default=2,
        help="how often a run is repeated that others disturbed (default: 2)",
    )
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="measure the broker that runs there, nothing else"
    )
    parser.add_argument(
        "--directory", metavar="DIR", help="where the brokers' data lies (default: a temporary one)"
    )
    parser.add_argument(
        "--warm-memory",
        metavar="GIB",
        type=gib,
        help="how much free memory is touched before (default: all but one; about a minute on a "
        "virtual machine)",
    )
    parser.add_argument("--out", metavar="FILE", help="results as JSON, with every sample")


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS.json")
    parser.add_argument("--markdown", metavar="FILE", help="write what docs/performance.md is")
    parser.add_argument(
        "--with",
        dest="further",
        action="append",
        default=[],
        metavar="RESULTS.json",
        help="a further part of that page: clusters-*, tiered-*, rebuild-* or tables-*",
    )


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD.json")
    parser.add_argument("new", metavar="NEW.json")
    parser.add_argument(
        "--peer", metavar="NAME", default="odradek", help="whose (default: odradek)"
    )
    parser.add_argument(
        "--tolerance",
        metavar="PERCENT",
        type=float,
        default=10.0,
        help="what is no regression yet (default: 10); one beyond it makes the exit code 1",
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def _instructions_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--update", action="store_true", help="store what is counted instead of comparing"
    )
    parser.add_argument("--json", action="store_true", help="for programs")


# name -> (the line of help, its arguments); the module of the same name does the work
COMMANDS: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "run": ("measure, and say what was found", _run_arguments),
    "list": ("show the workloads, the peers and the limits", _list_arguments),
    "report": ("print results as tables, or write docs/performance.md", _report_arguments),
    "compare": ("two results against each other: what got worse", _compare_arguments),
    "instructions": (
        "count the instructions of the request path, against stored figures",
        _instructions_arguments,
    ),
}


def gib(text: str) -> int:
    """Bytes, of an argument in GiB."""
    size = float(text)
    if not 0 <= size < math.inf:
        raise argparse.ArgumentTypeError("it is 0 or more GiB")
    return int(size * (1 << 30))
