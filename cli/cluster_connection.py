"""Options, subcommands and error messages of the commands that connect to a cluster."""

from __future__ import annotations

import argparse
import re
import struct
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.terminal import environment
from odradek.client.errors import ClientError, NoSuchNode, Unreachable
from odradek.client.metadata import Cluster, open_cluster, parse_bootstrap
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams import Seams
from odradek.seams.real import real_seams

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

HINTS = {
    ErrorCode.unknown_topic_or_partition: "`odradek topics list` lists the topics",
    ErrorCode.topic_already_exists: "`odradek topics describe` shows it; "
    "--if-not-exists accepts an existing topic",
    ErrorCode.group_id_not_found: "`odradek groups list` lists the groups",
    ErrorCode.non_empty_group: "stop its members first, or wait for their session timeout",
    ErrorCode.unknown_member_id: "if the group has members, stop them first",
    ErrorCode.group_subscribed_to_topic: "stop the members that consume the topic first",
    ErrorCode.offset_out_of_range: "`odradek topics offsets TOPIC` prints the offsets",
    ErrorCode.message_too_large: "the topic's max.message.bytes limits the size of a batch",
    ErrorCode.kafka_storage_error: "a disk is full or has failed: see the broker's log",
    ErrorCode.unknown_server_error: "see the broker's log for the reason",
    ErrorCode.security_disabled: "start the broker with --set authorizer.class.name="
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    ErrorCode.cluster_authorization_failed: "the principal is not authorized: `odradek acls list` lists the ACLs",
    ErrorCode.topic_authorization_failed: "the principal is not authorized: `odradek acls list` lists the ACLs",
    ErrorCode.group_authorization_failed: "the principal is not authorized: `odradek acls list` lists the ACLs",
}
"""Advice that is printed after an error, by error code."""

_CORDONED = (
    "`odradek log-dirs list` shows the log directories that are cordoned (config cordoned.log.dirs)"
)
REPLICATION_FACTOR_HINTS = {
    "All brokers are currently fenced": f"no broker can get a new replica: {_CORDONED}",
    "cannot be reached": "the replication factor is larger than the number of brokers with a log directory that is "
    f"not cordoned: {_CORDONED}",
}
"""Advice for INVALID_REPLICATION_FACTOR, by a part of the error message."""


def add_cluster_subcommand(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    line: str,
    action: Callable[[argparse.Namespace, Cluster, Seams], Awaitable[int]],
    *,
    epilog: str = "",
) -> argparse.ArgumentParser:
    """Add a subcommand that connects to a cluster; `run_cluster_subcommand` runs its `action`."""
    parser = subparsers.add_parser(
        name,
        help=line,
        description=line[0].upper() + line[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cluster_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(action=action)
    return parser


def cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options --bootstrap and --timeout."""
    bootstrap_argument(parser)
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=10.0,
        help="request timeout (default: 10)",
    )


def bootstrap_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-b",
        "--bootstrap",
        "--bootstrap-server",
        metavar="HOST:PORT",
        default=environment("ODRADEK_BOOTSTRAP", DEFAULT_BOOTSTRAP),
        help="bootstrap servers, separated by commas "
        f"(default: the environment variable ODRADEK_BOOTSTRAP, or {DEFAULT_BOOTSTRAP})",
    )


def seconds(text: str) -> float:
    """Parse an argument of seconds above 0."""
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def record_count(text: str) -> int:
    """Parse an argument that is a number of records."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of records")
    return int(text)


def run_cluster_subcommand(args: argparse.Namespace) -> int:
    """Run the selected subcommand. Raises WrongUsage if there is none."""
    if not hasattr(args, "action"):
        raise WrongUsage(f"a subcommand is missing: see `odradek {args.command} --help`")
    code: int = with_cluster(args, lambda cluster, seams: args.action(args, cluster, seams))
    return code


def with_cluster(args: argparse.Namespace, action: Callable[[Cluster, Seams], Awaitable[T]]) -> T:
    """Run `action` with the cluster at --bootstrap, and add hints to its errors.

    Ctrl-C interrupts `action` only at checkpoints. A KeyboardInterrupt inside a function of trio, such as
    `start_soon`, would leave a nursery that never ends.
    """
    try:
        addresses = parse_bootstrap(args.bootstrap)
    except ValueError as error:
        raise WrongUsage(f"--bootstrap: {error}") from None

    async def main() -> T:
        seams = real_seams()
        opened = open_cluster(seams.network, addresses, timeout_s=args.timeout)
        async with opened as cluster:
            return await action(cluster, seams)

    try:
        return trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as group:
        raise command_error(first_exception(group), args) from group
    except (KafkaError, ClientError, UnicodeEncodeError, struct.error) as error:
        raise command_error(error, args) from error


def command_error(error: BaseException, args: argparse.Namespace) -> BaseException:
    """Convert an expected error to CommandFailed with a hint; return other errors unchanged."""
    if isinstance(error, NoSuchNode):
        return CommandFailed(f"{error}\n`odradek configs list broker` lists the brokers")
    if isinstance(error, Unreachable):
        return CommandFailed(
            f"{error}\nIs a broker running at {args.bootstrap}? --bootstrap HOST:PORT or ODRADEK_BOOTSTRAP "
            "selects another bootstrap server"
        )
    if isinstance(error, ClientError):
        return CommandFailed(str(error))
    if isinstance(error, UnicodeEncodeError):  # an argument is not text
        return WrongUsage(f"{error.object!r} is not UTF-8")
    if isinstance(error, struct.error):  # an argument exceeds the range of its field in the request
        return WrongUsage(f"a number is too large, or too small: {error}")
    if isinstance(error, KafkaError):
        text = error.message or str(error)
        found = _hint(error.code, text)
        return CommandFailed(
            f"{text} [{error.code.name.upper()}]" + (f"\n{found}" if found else "")
        )
    return error


def _hint(code: ErrorCode, text: str) -> str | None:
    """Advice for an error, unless its text has it. INVALID_REPLICATION_FACTOR has several causes, which only
    its text distinguishes."""
    if code is ErrorCode.invalid_replication_factor:
        return next((hint for part, hint in REPLICATION_FACTOR_HINTS.items() if part in text), None)
    if "odradek topics tiering" in text:  # the broker's text has the advice
        return None
    return HINTS.get(code)


def first_exception(group: BaseException) -> BaseException:
    """Select the exception of a group to report: Ctrl-C and broken pipes first."""
    leaves = list(_leaves(group))
    for error in leaves:
        if isinstance(error, KeyboardInterrupt | BrokenPipeError):
            return error
    return leaves[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


def key_value(text: str) -> tuple[str, str]:
    """Parse an argument KEY=VALUE."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def partition_list(text: str) -> list[int]:
    """Parse an argument such as 0,3,5-7."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,3,5-7")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def base64_uuid(value: Any) -> str | None:
    """Format a topic id like Kafka's tools."""
    if value is None:
        return None
    import base64

    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
