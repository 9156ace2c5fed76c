"""Entry point of the command line: selects the command and maps errors to exit codes.

A command is a module with `add_parser(subparsers)`, which declares its arguments, and `run(args)`,
which runs it and returns the exit code. Only the module of the selected command is imported, because
`odradek serve` must start in a fraction of a second. Other distributions, and layers above this one,
add commands with an entry point in the group `odradek.commands` (name = module). Entry points are read
only for names that are not built in, and for the list of all commands.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 Ctrl-C, 141 the reader of stdout ended.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, cast

from odradek.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
READER_GONE = 141

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Command(Protocol):
    """Interface of the module of a command."""

    def add_parser(self, subparsers: Subparsers) -> argparse.ArgumentParser: ...

    def run(self, args: argparse.Namespace) -> int: ...


# name -> (module, help line), in the order of `odradek --help`
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("odradek.cli.serve", "run a broker, a controller, or both"),
    "storage": (
        "odradek.cli.storage",
        "format and describe the log directories of a node",
    ),
    "cluster": ("odradek.cli.local_cluster", "run a cluster on this machine"),
    "topics": ("odradek.cli.topics", "list, describe, create, alter and delete topics"),
    "groups": ("odradek.cli.groups", "list, describe, reset and delete consumer groups"),
    "configs": ("odradek.cli.configs", "describe and alter configs"),
    "acls": ("odradek.cli.acls", "list, add and remove access control lists"),
    "quorum": (
        "odradek.cli.quorum",
        "describe the metadata quorum, add and remove voters",
    ),
    "log-dirs": (
        "odradek.cli.log_dirs",
        "list, describe, balance and format log directories",
    ),
    "reassign": (
        "odradek.cli.reassign",
        "move replicas between brokers and log directories",
    ),
    "remote": (
        "odradek.cli.remote",
        "list and verify remote log segments, and remove garbage",
    ),
    "diskless": (
        "odradek.cli.diskless",
        "list coordinators, files and batches of diskless topics, and verify objects",
    ),
    "produce": ("odradek.cli.produce", "produce records from stdin"),
    "consume": ("odradek.cli.consume", "consume records to stdout"),
    "dump": (
        "odradek.cli.dump",
        "print and verify the files of a broker, without connecting to it",
    ),
}

ADDED_COMMANDS = "odradek.commands"
"""Entry point group of commands of other distributions."""

EXAMPLES = """\
getting started:
  odradek serve --topic greetings          # in one terminal: a broker on 127.0.0.1:9092
  echo hello | odradek produce -t greetings
  odradek consume -t greetings -o beginning -e

`odradek COMMAND --help` describes a command and has examples.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: `sys.argv`) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    if sys.platform == "win32":
        return _refuse_platform()
    for stream in (sys.stdout, sys.stderr):
        # The terminal may not support all characters of a name
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
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
    except RuntimeError as error:  # Python 3.11 wraps an interrupt during the creation of a class
        if isinstance(error.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        raise
    except BrokenPipeError:
        _forget_stdout()
        return READER_GONE
    except OSError as error:  # for example a full disk or an unreadable file
        _complain(f"{error.filename or 'input or output'}: {error.strerror or error}")
        _forget_stdout()
        return FAILED


def _refuse_platform() -> int:
    try:
        importlib.import_module("odradek.seams")
    except ImportError as error:
        sys.stderr.write(f"odradek: {error}\n")
    return FAILED


def _run(arguments: list[str]) -> int:
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    command = _load(chosen) if chosen in COMMANDS else _load_added(chosen)
    parser = build_parser(chosen if command else None, command, alone=arguments[:1] == [chosen])
    args = parser.parse_args(arguments)
    if command is None:  # without a command, print the help as an error
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    code = command.run(args)
    sys.stdout.flush()  # a broken pipe is handled by the caller
    return code


def build_parser(
    chosen: str | None, command: Command | None, *, alone: bool = False
) -> argparse.ArgumentParser:
    """Build a parser that has the arguments of the selected command only.

    With `alone`, the parser does not contain the other commands, because no option precedes the command.
    """
    parser: argparse.ArgumentParser = _CommandParser(
        prog="odradek",
        description="A Kafka-compatible broker, and tools for any Kafka cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_VersionAction, help="show the version and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command")
    for name, (_, line) in () if command is not None and alone else COMMANDS.items():
        if command is None or name != chosen:
            subparsers.add_parser(name, help=line)
    if command is not None:
        command.add_parser(subparsers)
    else:
        _show_added(subparsers)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """Parser without abbreviated options: `--port 9092` is not accepted for `--port-file`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Report unknown arguments with the usage of the command, not of `odradek`."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


class _VersionAction(argparse.Action):
    """Action of `--version`: reads the distribution's metadata only when it is used."""

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
    """Entry points of other distributions; built-in commands take precedence."""
    from importlib.metadata import entry_points

    return [
        entry
        for entry in entry_points(group=ADDED_COMMANDS)
        if entry.name not in COMMANDS and name in (None, entry.name)
    ]


def _load_added(name: str | None) -> Command | None:
    """Load a command of another distribution; None if there is none.

    Raises CommandFailed if its module cannot be imported.
    """
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
    from odradek.protocol.codec.primitives import cut_error_message

    sys.stderr.write(f"odradek: {cut_error_message(message)}\n")


def _open_streams() -> None:
    """Replace standard streams that the parent process closed by /dev/null."""
    import os  # noqa: TID251 - the process's edge

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _forget_stdout() -> None:
    """Redirect stdout to /dev/null, so that the flush at exit does not fail."""
    import os  # noqa: TID251 - the process's edge

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
