"""`odradek bench`: the arguments of its subcommands.

Each subcommand is a module that is imported when it runs. This module is imported whenever `odradek --help` is
shown, so it imports no libraries.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Callable, Mapping

from odradek.cli.errors import CommandFailed, WrongUsage

EXTRA = "pip install 'odradek[bench]'"
NEED_LINUX = ("run", "instructions")

DESCRIPTION = """\
Compare brokers on this machine. Workloads run over real sockets, and alternate between the brokers. The
results contain every sample, medians with their range, and the physical limits of the machine.
"""
EPILOG = """\
examples:
  odradek bench list
  odradek bench run                                     # all default workloads and available peers
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
        help="compare the performance of this broker with others",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", dest="bench_command")
    for name, (line, add_arguments) in COMMANDS.items():
        description = f"{line[0].upper()}{line[1:]}."
        add_arguments(commands.add_parser(name, help=line, description=description))
    return parser


def run(args: argparse.Namespace) -> int:
    name = args.bench_command
    if name is None:
        raise WrongUsage(f"specify a subcommand: {', '.join(COMMANDS)}; see odradek bench --help")
    if name in NEED_LINUX and sys.platform != "linux":
        raise CommandFailed(f"odradek bench {name} needs Linux: it reads /proc")
    try:
        code: int = importlib.import_module(f"odradek.bench.cli.{name}").run(args)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "odradek":
            raise
        raise CommandFailed(f"odradek bench requires {error.name}: {EXTRA}") from None
    return code


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("at least one name is required")
    return names


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peers",
        metavar="NAME,…",
        type=_names,
        help="brokers to measure (default: those marked in `odradek bench list`)",
    )
    parser.add_argument(
        "--workloads",
        metavar="PATTERN",
        nargs="+",
        help="workloads by name or shell pattern (default: those marked in `odradek bench list`)",
    )
    parser.add_argument(
        "--rounds",
        metavar="N",
        type=int,
        help="measured rounds of each workload (default: 5, or the number in `odradek bench list`)",
    )
    parser.add_argument(
        "--warm-ups",
        metavar="N",
        type=int,
        default=1,
        help="rounds that are not measured, so that a JVM can compile first (default: 1)",
    )
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=int,
        default=2,
        help="number of repetitions of a run that other processes disturbed (default: 2)",
    )
    _environment_arguments(parser)


def _environment_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="measure only the broker at this address"
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        help="directory for the brokers' data (default: a temporary one)",
    )
    parser.add_argument(
        "--warm-memory",
        metavar="GIB",
        type=gib,
        help="free memory to touch before the run, in GiB (default: nearly all; takes about a minute "
        "on a virtual machine)",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write the results as JSON, with every sample"
    )


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS.json")
    parser.add_argument("--markdown", metavar="FILE", help="write the page docs/performance.md")
    parser.add_argument(
        "--with",
        dest="further",
        action="append",
        default=[],
        metavar="RESULTS.json",
        help="another results file for the page: clusters-*, tiered-*, rebuild-*, diskless-* or tables-*",
    )


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD.json")
    parser.add_argument("new", metavar="NEW.json")
    parser.add_argument(
        "--peer", metavar="NAME", default="odradek", help="peer to compare (default: odradek)"
    )
    parser.add_argument(
        "--tolerance",
        metavar="PERCENT",
        type=float,
        default=10.0,
        help="change above which a result is a regression (default: 10); the exit status is then 1",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _instructions_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--update", action="store_true", help="store the counts instead of comparing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


# name -> (help, function that adds the arguments); the module of the same name runs the command
COMMANDS: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "run": ("run workloads and write the results", _run_arguments),
    "list": (
        "list the workloads, the peers and the physical limits of this machine",
        _list_arguments,
    ),
    "report": ("print results as tables, or write docs/performance.md", _report_arguments),
    "compare": ("compare two results files and report regressions", _compare_arguments),
    "instructions": (
        "count the instructions of the request path and compare them with stored counts",
        _instructions_arguments,
    ),
}


def gib(text: str) -> int:
    """Convert an argument in GiB to bytes."""
    size = float(text)
    if not 0 <= size < math.inf:
        raise argparse.ArgumentTypeError("must be 0 or more GiB")
    return int(size * (1 << 30))
