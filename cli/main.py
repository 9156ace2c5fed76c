"""The door of the command line: which command, and what its end looks like from outside.

A command is a module with `add_parser(subparsers)`, which declares its arguments, and `run(args)`,
which does the work and returns the exit code. Only the module of the chosen command is imported
(`odradek serve` must be up in a fraction of a second); of the others only the line of help is known
here. Other distributions, and floors above this one, add commands by an entry point in the group
`odradek.commands` (name = module); those are looked for only where a name is not one of ours, and for
the help that lists them all.

Exit codes: 0 done, 1 failed (one line on stderr says what and what to do), 2 wrong usage,
130 Ctrl-C, 141 the reader of our output went away; the last two say nothing.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, cast

from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.unused_modules import OF_TRIO, load_when_used

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
READER_GONE = 141

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Command(Protocol):
    """What a command's module offers."""

    def add_parser(self, subparsers: Subparsers) -> argparse.ArgumentParser: ...

    def run(self, args: argparse.Namespace) -> int: ...


# name -> (module, the line of help); in the order in which help shows them
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("odradek.cli.serve", "run a broker"),
    "storage": (
        "odradek.cli.storage",
        "format a node's directories for its cluster, and look at them",
    ),
    "cluster": ("odradek.cli.local_cluster", "run several brokers on this machine"),
    "topics": ("odradek.cli.topics", "list, describe, create, alter and delete topics"),
    "groups": ("odradek.cli.groups", "list, describe, reset and delete consumer groups"),
    "configs": ("odradek.cli.configs", "describe and alter configs"),
    "acls": ("odradek.cli.acls", "list, add and remove access control lists"),
    "quorum": (
        "odradek.cli.quorum",
        "describe the metadata quorum, add and remove its voters",
    ),
    "log-dirs": (
        "odradek.cli.log_dirs",
        "what lies in the log directories, and evening it out",
    ),
    "reassign": (
        "odradek.cli.reassign",
        "move partitions between brokers and between log directories",
    ),
    "remote": (
        "odradek.cli.remote",
        "list and verify what is in the remote tier, and remove garbage from it",
    ),
    "produce": ("odradek.cli.produce", "write records from stdin to a topic"),
    "consume": ("odradek.cli.consume", "print a topic's records"),
    "dump": ("odradek.cli.dump", "show and verify a broker's files, offline"),
}

ADDED_COMMANDS = "odradek.commands"
"""The group of entry points by which others add commands."""

EXAMPLES = """\
a first minute:
  odradek serve --topic greetings          # in one terminal: a broker on 127.0.0.1:9092
  echo hello | odradek produce -t greetings
  odradek consume -t greetings -o beginning -e

`odradek COMMAND --help` explains a command and shows examples.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names that the terminal has no letters for
            stream.reconfigure(errors="backslashreplace")
    load_when_used(*OF_TRIO)
    try:
        return _run(arguments)
    except SystemExit as end:  # argparse: --help, --version, wrong usage
        return end.code if isinstance(end.code, int) else FAILED
    except WrongUsage as wrong:
        _complain(str(wrong))
        return WRONG_USAGE
    except CommandFailed as failure:
        _complain(str(failure))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except RuntimeError as error:  # Python 3.11 wraps what interrupts the making of a class
        if isinstance(error.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        raise
    except BrokenPipeError:
        _forget_stdout()
        return READER_GONE
    except OSError as error:  # a full disk behind stdout, a file that can't be read
        _complain(f"{error.filename or 'input or output'}: {error.strerror or error}")
        _forget_stdout()
        return FAILED


def _run(arguments: list[str]) -> int:
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    command = _load(chosen) if chosen in COMMANDS else _load_added(chosen)
    parser = build_parser(chosen if command else None, command, alone=arguments[:1] == [chosen])
    args = parser.parse_args(arguments)
    if command is None:  # no command at all: the teaching page, as an error
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    code = command.run(args)
    sys.stdout.flush()  # here, where a broken pipe can still be met quietly
    return code


def build_parser(
    chosen: str | None, command: Command | None, *, alone: bool = False
) -> argparse.ArgumentParser:
    """The parser in which only the chosen command knows its arguments. `alone`: the others are not
    in it, since it is not asked for what comes before the command."""
    parser: argparse.ArgumentParser = _Parser(
        prog="odradek",
        description="A Kafka-wire-compatible broker, and the tools to talk to any Kafka cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command")
    for name, (_, line) in () if command is not None and alone else COMMANDS.items():
        if command is None or name != chosen:
            subparsers.add_parser(name, help=line)
    if command is not None:
        command.add_parser(subparsers)
    else:
        _show_added(subparsers)
    return parser


class _Parser(argparse.ArgumentParser):
    """And every command's. Options are written out: `--port 9092` is not a short `--port-file`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As ever, but what is left over is told by the command it was for, with that one's usage: not by
        the door, which argparse hands it up to."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


class _Version(argparse.Action):
    """`--version`, reading the distribution's metadata only when asked."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print(f"odradek {version('odradek')}")
        parser.exit(0)


def _load(name: str | None) -> Command:
    assert name is not None
    return cast(Command, importlib.import_module(COMMANDS[name][0]))


def _added(name: str | None = None) -> Iterable[EntryPoint]:
    """The commands that others add; those of ours by the same name win."""
    from importlib.metadata import entry_points

    return [
        entry
        for entry in entry_points(group=ADDED_COMMANDS)
        if entry.name not in COMMANDS and name in (None, entry.name)
    ]


def _load_added(name: str | None) -> Command | None:
    """The command of this name that others add, None if nobody does; CommandFailed if it is broken."""
    for entry in () if name is None else _added(name):
        try:
            return cast(Command, entry.load())
        except ImportError as error:
            raise CommandFailed(f"{name} ({entry.value}) can't be loaded: {error}") from None
    return None


def _show_added(subparsers: Subparsers) -> None:
    for entry in _added():
        try:
            cast(Command, entry.load()).add_parser(subparsers)
        except ImportError as error:
            subparsers.add_parser(entry.name, help=f"can't be loaded: {error}")


def _complain(message: str) -> None:
    sys.stderr.write(f"odradek: {message}\n")


def _open_streams() -> None:
    """Where whoever started us has closed a standard stream, nothing comes and nobody listens."""
    import os  # noqa: TID251 - the process's edge

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain either."""
    import os  # noqa: TID251 - the process's edge

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
