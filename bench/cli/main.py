"""`odradek bench`: the arguments of its subcommands. Each one's work is a module of its own, imported
when it is chosen: this one is imported whenever the help of `odradek` is shown."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping

from odradek.broker.cli.errors import CommandFailed, WrongUsage

EXTRA = "pip install 'odradek[bench]'"

DESCRIPTION = """\
Measure brokers side by side: medians with their range, every sample kept.
"""
EPILOG = """\
examples:
  odradek bench report new.json --html report.html
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


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS.json")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")
    parser.add_argument(
        "--markdown", metavar="FILE", help="write docs/performance.md ('-': stdout)"
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
    "report": ("results as tables, or as a page with plots", _report_arguments),
    "compare": ("two results against each other: what got worse", _compare_arguments),
    "instructions": (
        "count the instructions of the request path, against stored figures",
        _instructions_arguments,
    ),
}
