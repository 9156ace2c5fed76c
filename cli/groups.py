"""`odradek groups`: list, describe, reset and delete consumer groups and their offsets."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from odradek.cli.cluster_connection import (
    add_cluster_subcommand,
    partition_list,
    run_cluster_subcommand,
)
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.offset_arguments import HELP, parse_offset, resolve_offsets
from odradek.cli.output import print_json, print_lines, print_table
from odradek.cli.terminal import hint
from odradek.client import group_admin
from odradek.client.assignors import read_assignment
from odradek.client.consumer import EARLIEST, LATEST, list_offsets
from odradek.client.metadata import Cluster
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams import Seams

EPILOG = """\
examples:
  odradek groups list
  odradek groups describe billing              # members, offsets and lag
  odradek groups reset billing -t orders --to beginning --dry-run
  odradek groups reset billing -t orders --to s@1700000000000
  odradek groups delete billing
"""
DEAD = "Dead"


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "groups",
        help="list, describe, reset and delete consumer groups",
        description="List, describe and delete consumer groups, and reset or delete their committed offsets.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND")

    listing = add_cluster_subcommand(commands, "list", "list the groups", list_groups)
    listing.add_argument(
        "--state", action="append", default=[], help="only groups in this state (Stable, Empty, …)"
    )

    describing = add_cluster_subcommand(
        commands, "describe", "show the members, committed offsets and lag of groups", describe
    )
    describing.add_argument("groups", nargs="+", metavar="GROUP")

    _add_reset_parsers(commands)

    deleting = add_cluster_subcommand(
        commands, "delete", "delete groups and their committed offsets", delete
    )
    deleting.add_argument("groups", nargs="+", metavar="GROUP")

    forgetting = add_cluster_subcommand(
        commands, "forget", "delete a group's committed offsets of topics", forget
    )
    forgetting.add_argument("group", metavar="GROUP")
    _partition_arguments(forgetting, "can be repeated")
    return parser


def _add_reset_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, line in (
        ("reset", "reset the committed offsets of a group"),
        ("alter", "the same as reset"),
    ):
        resetting = add_cluster_subcommand(
            commands, name, line, reset, epilog="The group must have no members."
        )
        resetting.add_argument("group", metavar="GROUP")
        _partition_arguments(
            resetting, "can be repeated (default: all topics with committed offsets)"
        )
        resetting.add_argument(
            "--to", metavar="OFFSET", type=parse_offset, required=True, help=HELP
        )
        resetting.add_argument(
            "--dry-run", action="store_true", help="print the new offsets without committing them"
        )


def run(args: argparse.Namespace) -> int:
    return run_cluster_subcommand(args)


def _partition_arguments(parser: argparse.ArgumentParser, more: str) -> None:
    parser.add_argument(
        "-t", "--topic", dest="topics", action="append", default=[], help=f"a topic; {more}"
    )
    parser.add_argument(
        "-p",
        "--partitions",
        type=partition_list,
        metavar="LIST",
        help="partitions, such as 0,3,5-7 (default: all)",
    )


async def list_groups(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    groups = await group_admin.list_groups(cluster, states=args.state)
    if args.json:
        print_json(
            [
                {"group": g.group, "state": g.state, "type": g.type, "protocol": g.protocol_type}
                for g in groups
            ]
        )
    else:
        print_table(
            ["GROUP", "STATE", "TYPE", "PROTOCOL"],
            [(g.group, g.state, g.type, g.protocol_type) for g in groups],
        )
    return 0


async def describe(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    described = [await _description(cluster, group) for group in args.groups]
    if args.json:
        print_json(described)
        return 0
    for number, group in enumerate(described):
        if number:
            print_lines([""])
        protocol = f", assignor {group['assignor']}" if group["assignor"] else ""
        count = len(group["members"])
        print_lines([f"{group['group']}: {group['state']}, {count} members{protocol}", ""])
        print_table(
            ["TOPIC", "PARTITION", "COMMITTED", "FIRST", "END", "LAG", "MEMBER", "HOST"],
            [
                tuple(
                    row[key]
                    for key in (
                        "topic", "partition", "committed", "first", "end", "lag", "member", "host"
                    )
                )
                for row in group["partitions"]
            ],
        )  # fmt: skip
    return 0


async def reset(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    where = await _wanted(cluster, args)
    before = await group_admin.committed_offsets(cluster, args.group, where)
    after = await _within_logs(
        cluster, await resolve_offsets(cluster, dict.fromkeys(where, args.to))
    )
    if not args.dry_run:
        await _without_members(cluster, args.group)
        await group_admin.reset_offsets(cluster, args.group, after)
    rows = [
        {
            "topic": part.topic,
            "partition": part.partition,
            "before": _offset(before[part].offset) if part in before else None,
            "after": after[part],
        }
        for part in where
    ]
    if args.json:
        print_json(rows)
    else:
        print_table(["TOPIC", "PARTITION", "BEFORE", "AFTER"], [tuple(r.values()) for r in rows])
    return 0


async def _within_logs(
    cluster: Cluster, wanted: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Clamp offsets to their logs, and print a line for each one that was changed, as in Kafka."""
    first = await list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    end = await list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    found = {}
    for where, offset in wanted.items():
        found[where] = min(max(offset, first[where].offset), end[where].offset)
        if found[where] != offset:
            hint(f"offset {offset} of {where} is out of range; using {found[where]}")
    return found


async def delete(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    await group_admin.delete_groups(cluster, args.groups)
    if args.json:
        print_json({"deleted": args.groups})
    else:
        print_lines([f"deleted: {', '.join(args.groups)}"])
    return 0


async def forget(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    if not args.topics:
        raise WrongUsage("odradek groups forget: specify --topic")
    where = await _wanted(cluster, args)
    await group_admin.delete_offsets(cluster, args.group, where)
    if args.json:
        print_json([{"topic": part.topic, "partition": part.partition} for part in where])
    else:
        print_lines([f"deleted the committed offsets of {len(where)} partitions of {args.group}"])
    return 0


async def _wanted(cluster: Cluster, args: argparse.Namespace) -> list[TopicPartition]:
    """Partitions of --topic and --partitions, or all with a committed offset."""
    if not args.topics:
        if args.partitions is not None:
            raise WrongUsage("--partitions requires --topic")
        committed = await group_admin.committed_offsets(cluster, args.group)
        if not committed:
            raise CommandFailed(f"group {args.group} has no committed offsets; specify --topic")
        return sorted(committed)
    where = []
    for name in args.topics:
        topic = await cluster.topic(name)
        wanted = args.partitions if args.partitions is not None else topic.partitions
        where += [TopicPartition(name, index) for index in wanted]
    return where


async def _without_members(cluster: Cluster, group: str) -> None:
    """Raise CommandFailed if the group has members: their next commits would overwrite the reset."""
    try:
        found = await group_admin.describe_group(cluster, group)
    except KafkaError as error:
        if error.code != ErrorCode.group_id_not_found:
            raise
        return  # the commit creates the group
    if found.members:
        raise CommandFailed(
            f"group {group} has {len(found.members)} members and is {found.state}; stop its members first"
        )


async def _description(cluster: Cluster, group: str) -> dict[str, Any]:
    found = await group_admin.describe_group(cluster, group)
    if found.state == DEAD:
        raise CommandFailed(f"group {group} does not exist; `odradek groups list` lists the groups")
    owners = {part: member for member in found.members for part in _assignment(member.assignment)}
    committed = await group_admin.committed_offsets(cluster, group)
    where = sorted({*committed, *owners})
    there = await _existing(cluster, where)
    first = await list_offsets(cluster, dict.fromkeys(there, EARLIEST))
    end = await list_offsets(cluster, dict.fromkeys(there, LATEST))
    return {
        "group": group,
        "state": found.state,
        "protocol": found.protocol_type,
        "assignor": found.protocol,
        "members": [_member_description(member) for member in found.members],
        "partitions": [
            _partition_description(
                part,
                committed=_offset(committed[part].offset) if part in committed else None,
                first=first[part].offset if part in first else None,
                end=end[part].offset if part in end else None,
                owner=owners.get(part),
            )
            for part in where
        ],
    }


def _member_description(member: group_admin.GroupMember) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "partitions": [
            {"topic": part.topic, "partition": part.partition}
            for part in _assignment(member.assignment)
        ],
    }


def _partition_description(
    part: TopicPartition,
    *,
    committed: int | None,
    first: int | None,
    end: int | None,
    owner: group_admin.GroupMember | None,
) -> dict[str, Any]:
    return {
        "topic": part.topic,
        "partition": part.partition,
        "committed": committed,
        "first": first,
        "end": end,
        "lag": None if committed is None or end is None else max(0, end - committed),
        "member": owner.member_id if owner else None,
        "client": owner.client_id if owner else None,
        "host": owner.client_host if owner else None,
    }


async def _existing(cluster: Cluster, where: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Filter out partitions of deleted topics, whose committed offsets may still exist."""
    wanted = list(where)
    await cluster.refresh(None)
    return [
        part
        for part in wanted
        if part.topic in cluster.topics and part.partition in cluster.topics[part.topic].partitions
    ]


def _assignment(data: bytes) -> list[TopicPartition]:
    """Partitions assigned to a member; empty if its protocol type is not `consumer`."""
    try:
        return read_assignment(data)
    except InvalidFrame:
        return []


def _offset(offset: int) -> int | None:
    return offset if offset >= 0 else None
