"""`odradek log-dirs`: list, describe, balance and format log directories."""

from __future__ import annotations

import argparse
from typing import Any

from odradek.cli.cluster_connection import (
    add_cluster_subcommand,
    partition_list,
    run_cluster_subcommand,
)
from odradek.cli.errors import CommandFailed
from odradek.cli.log_dirs_balance import balance
from odradek.cli.log_dirs_balance_plan import TOLERANCE_PERCENT
from odradek.cli.log_dirs_output import (
    COLUMNS,
    LogDirFilter,
    kafka_json,
    kip_113_json,
    table,
)
from odradek.cli.output import human_bytes, print_json, print_table
from odradek.cli.terminal import hint
from odradek.client.log_dir_admin import LogDirectory, describe_log_dirs
from odradek.client.metadata import Cluster
from odradek.seams import Seams
from odradek.seams.files import Path
from odradek.seams.real import real_seams

EPILOG = """\
examples:
  odradek log-dirs list
  odradek log-dirs describe --topic orders
  odradek log-dirs balance                             # print the plan
  odradek log-dirs balance --execute --throttle 50000000
  odradek log-dirs describe --json --broker 1 --log-dirs /disk1,/disk2 --topics orders,bills
  odradek log-dirs format /disk3 --like /disk1         # a new disk
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "log-dirs",
        help="list, describe, balance and format log directories",
        description="List, describe and balance the log directories of brokers, or format a new one.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND")
    listing = add_cluster_subcommand(
        commands, "list", "list the log directories and their disks", list_directories
    )
    describing = _add_describe_parser(commands)
    balancing = _add_balance_parser(commands)
    _add_format_parser(commands)
    for command in (listing, describing, balancing):
        command.add_argument(
            "--broker",
            "--broker-list",
            dest="brokers",
            type=partition_list,
            metavar="LIST",
            help="only these brokers, such as 1,3,5-7",
        )
    for command in (listing, describing):
        command.add_argument(
            "--dir",
            "--log-dirs",
            dest="directories",
            action="extend",
            type=_names,
            metavar="LIST",
            help="only these log directories, separated by commas",
        )
    return parser


def _add_describe_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    describing = add_cluster_subcommand(
        commands,
        "describe",
        "list the replicas with their log directories, sizes, lags and moves",
        describe,
        epilog="--json prints the JSON of KIP-113. With several brokers, each directory has a broker id.",
    )
    describing.add_argument(
        "--kafka-json", action="store_true", help="print the JSON of kafka-log-dirs"
    )
    describing.add_argument(
        "-t",
        "--topic",
        "--topics",
        "--topic-list",
        dest="topics",
        action="extend",
        type=_names,
        metavar="LIST",
        help="only these topics, separated by commas",
    )
    return describing


def _add_balance_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    balancing = add_cluster_subcommand(
        commands,
        "balance",
        "balance the log directories of each broker",
        balance,
        epilog="The plan moves as little data as possible. --json prints it in the format of `odradek reassign`.\nIf "
        "the command is interrupted, the moves continue. Run it again to wait for them.",
    )
    what = balancing.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="print the plan (default)")
    what.add_argument(
        "--execute", action="store_true", help="start the moves and print their progress"
    )
    balancing.add_argument(
        "--tolerance",
        metavar="PERCENT",
        type=_percent,
        default=TOLERANCE_PERCENT,
        help=f"allowed deviation of a log directory from the mean (default: {TOLERANCE_PERCENT})",
    )
    balancing.add_argument(
        "--throttle",
        metavar="BYTES/S",
        type=_rate,
        help="rate limit per broker for the moves; it is removed when the moves are complete",
    )
    return balancing


def _add_format_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    formatting = commands.add_parser(
        "format",
        help="format a new log directory (write its meta.properties)",
        description="Format a new log directory: write the node's meta.properties to it. Then add the directory to "
        "log.dirs and restart the broker. A broker formats its log directories only at its first start.",
    )
    formatting.add_argument(
        "directory", metavar="NEW", help="the new directory; created if it does not exist"
    )
    formatting.add_argument(
        "--like",
        metavar="DIRECTORY",
        required=True,
        help="an existing log directory of the node",
    )
    formatting.set_defaults(offline=format_directory)


def run(args: argparse.Namespace) -> int:
    if hasattr(args, "offline"):
        code: int = args.offline(args)
        return code
    return run_cluster_subcommand(args)


def _names(text: str) -> list[str]:
    """Parse an argument such as one,two."""
    return [name for name in text.split(",") if name]


def _percent(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 100):
        raise argparse.ArgumentTypeError(f"{text} is not a percentage from 0 to 100")
    return int(text)


def _rate(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 63):
        raise argparse.ArgumentTypeError(f"{text} is not a number of bytes from 1 to 2^63-1")
    return int(text)


def format_directory(args: argparse.Namespace) -> int:
    """Format a log directory on this machine; no broker is needed."""
    from odradek.storage.directories.formatting import format_like
    from odradek.storage.errors import DirectoryError

    seams = real_seams()
    try:
        made = format_like(seams.files, seams.entropy, Path(args.directory), Path(args.like))
    except DirectoryError as error:
        raise CommandFailed(str(error)) from None
    print(
        f"{args.directory} is now a log directory of node {made.node_id}: add it to log.dirs and "
        f"restart the broker"
    )
    return 0


async def list_directories(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    found = _chosen(args, await _described(args, cluster))
    rows: list[dict[str, Any]] = [
        {
            "broker": directory.broker,
            "path": directory.path,
            "error": directory.error.name if directory.error else None,
            "is_cordoned": directory.cordoned,
            "replicas": len(directory.replicas),
            "size_bytes": sum(replica.size_bytes for replica in directory.replicas),
            "usable_bytes": directory.usable_bytes,
            "total_bytes": directory.total_bytes,
        }
        for directory in found
    ]
    if args.json:
        print_json(rows)
        return 0
    print_table(
        ["BROKER", "DIRECTORY", "STATE", "REPLICAS", "SIZE", "FREE", "DISK"],
        [
            (
                row["broker"],
                row["path"],
                row["error"] or ("cordoned" if row["is_cordoned"] else "ok"),
                row["replicas"],
                human_bytes(row["size_bytes"]),
                human_bytes(row["usable_bytes"]),
                human_bytes(row["total_bytes"]),
            )
            for row in rows
        ],
    )
    return 0


async def describe(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    found = await _described(args, cluster)
    _chosen(args, found)
    only = LogDirFilter(
        None if args.topics is None else frozenset(args.topics),
        None if args.directories is None else frozenset(args.directories),
    )
    if args.kafka_json:
        print_json(kafka_json(found, only))
    elif args.json:
        print_json(kip_113_json(found, only))
    else:
        print_table(COLUMNS, table(found, only))
    _report_missing(args, found)
    return 0


def _report_missing(args: argparse.Namespace, found: list[LogDirectory]) -> None:
    there = {replica.topic for directory in found for replica in directory.replicas}
    for name in args.topics or ():
        if name not in there:
            hint(
                f"no log directory has a replica of {name}; `odradek topics list` lists the topics"
            )


async def _described(args: argparse.Namespace, cluster: Cluster) -> list[LogDirectory]:
    """Describe the directories of the brokers in --broker, or of all brokers."""
    await cluster.refresh()
    unknown = sorted(set(args.brokers or ()) - set(cluster.nodes))
    if unknown:
        raise CommandFailed(
            f"The given brokers do not exist from --broker-list: {','.join(map(str, unknown))}. "
            f"Current existent brokers: {','.join(map(str, sorted(cluster.nodes)))}"
        )
    return await describe_log_dirs(cluster, brokers=args.brokers)


def _chosen(args: argparse.Namespace, found: list[LogDirectory]) -> list[LogDirectory]:
    """Filter by --dir, because the request has no such filter (J-17)."""
    if not args.directories:
        return found
    there = {directory.path for directory in found}
    missing = [path for path in args.directories if path not in there]
    if missing:
        raise CommandFailed(
            f"no broker has the log directory {missing[0]}; `odradek log-dirs list` lists them"
        )
    return [directory for directory in found if directory.path in args.directories]
