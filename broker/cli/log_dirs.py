"""`odradek log-dirs`: the brokers' log directories and what lies in them."""

from __future__ import annotations

import argparse
from typing import Any

from odradek.broker.cli.cluster import leaf, partition_list, run_leaf
from odradek.broker.cli.errors import CommandFailed
from odradek.broker.cli.output import human_bytes, print_json, print_table
from odradek.client import admin
from odradek.client.consumer import TopicPartition
from odradek.client.metadata import Cluster
from odradek.seams import Seams

EPILOG = """\
examples:
  odradek log-dirs list
  odradek log-dirs describe --topic orders
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "log-dirs",
        help="what lies in the log directories",
        description="The brokers' log directories.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="WHAT")
    listing = leaf(commands, "list", "list the log directories and their disks", list_directories)
    describing = leaf(commands, "describe", "show every replica's place and size", describe)
    describing.add_argument(
        "-t", "--topic", dest="topics", action="append", help="only this one; may be given again"
    )
    for command in (listing, describing):
        command.add_argument(
            "--broker", dest="brokers", type=partition_list, metavar="LIST", help="1,3,5-7"
        )
        command.add_argument(
            "--dir",
            dest="directories",
            action="append",
            metavar="PATH",
            help="only this log directory; may be given again",
        )
    return parser


def run(args: argparse.Namespace) -> int:
    return run_leaf(args)


async def list_directories(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    found = _chosen(args, await admin.describe_log_dirs(cluster, brokers=args.brokers))
    rows: list[dict[str, Any]] = [
        {
            "broker": directory.broker,
            "path": directory.path,
            "error": directory.error.name if directory.error else None,
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
                row["error"] or "ok",
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
    wanted = None
    if args.topics:
        wanted = [
            TopicPartition(name, index)
            for name in args.topics
            for index in (await cluster.topic(name)).partitions
        ]
    found = await admin.describe_log_dirs(cluster, brokers=args.brokers, partitions=wanted)
    found = _chosen(args, found)
    rows: list[dict[str, Any]] = [
        {
            "broker": directory.broker,
            "path": directory.path,
            "topic": replica.topic,
            "partition": replica.partition,
            "size_bytes": replica.size_bytes,
            "offset_lag": replica.offset_lag,
            "future": replica.is_future,
        }
        for directory in found
        for replica in directory.replicas
    ]
    if args.json:
        print_json(rows)
        return 0
    print_table(
        ["BROKER", "DIRECTORY", "TOPIC", "PARTITION", "SIZE", "LAG"],
        [
            (
                row["broker"],
                row["path"] + (" (moving here)" if row["future"] else ""),
                row["topic"],
                row["partition"],
                human_bytes(row["size_bytes"]),
                row["offset_lag"],
            )
            for row in rows
        ],
    )
    return 0


def _chosen(args: argparse.Namespace, found: list[admin.LogDirectory]) -> list[admin.LogDirectory]:
    """Those that --dir names: the request itself has no such filter (J-17)."""
    if not args.directories:
        return found
    there = {directory.path for directory in found}
    missing = [path for path in args.directories if path not in there]
    if missing:
        raise CommandFailed(
            f"no broker has the log directory {missing[0]}; `odradek log-dirs list` shows them"
        )
    return [directory for directory in found if directory.path in args.directories]
