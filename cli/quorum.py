"""`odradek quorum`: describe the metadata quorum, add and remove voters, as kafka-metadata-quorum does."""

from __future__ import annotations

import argparse
from typing import Any
from uuid import UUID

from odradek.cli.cluster_connection import add_cluster_subcommand, run_cluster_subcommand
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.output import print_json, print_lines, print_table
from odradek.cli.storage_info import load_config
from odradek.client import quorum_admin
from odradek.client.metadata import Cluster
from odradek.client.quorum_admin import QuorumReplica, QuorumState, VoterListener
from odradek.protocol.uuids import ZERO_UUID, uuid_from_text, uuid_to_text
from odradek.seams import Seams
from odradek.seams.files import Files
from odradek.storage.directories import meta_properties
from odradek.storage.directories.meta_properties import FILE_NAME, BadMetaProperties

EPILOG = """\
examples:
  odradek quorum describe
  odradek quorum describe --bootstrap 127.0.0.1:9093       # also a controller's listener
  odradek quorum add --config controller.properties        # a running controller that is an observer
  odradek quorum remove 3
"""
COLUMNS = ("NODE", "ROLE", "DIRECTORY", "END", "LAG", "FETCHED", "CAUGHT UP", "LISTENERS")


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "quorum",
        help="describe the metadata quorum, add and remove voters",
        description="Describe the metadata quorum, and add or remove voters.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND")
    add_cluster_subcommand(
        commands,
        "describe",
        "show the leader, and the log end offset and lag of each voter and observer",
        describe,
        epilog="FETCHED and CAUGHT UP are the ms since the last fetch of the replica, and since it was last caught up.",
    )
    _add_change_parsers(commands)
    return parser


def _add_change_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    adding = add_cluster_subcommand(commands, "add", "add a running controller to the voters", add)
    adding.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        required=True,
        help="server.properties of the new voter; its metadata directory must be on this machine",
    )
    removing = add_cluster_subcommand(
        commands, "remove", "remove a controller from the voters", remove
    )
    removing.add_argument("controller", type=int, metavar="NODE", help="the controller's node id")
    removing.add_argument(
        "-d",
        "--directory",
        type=_uuid,
        metavar="ID",
        help="the controller's metadata directory id (default: from the current voter set)",
    )
    for command in (adding, removing):
        command.add_argument(
            "--dry-run", action="store_true", help="print the change without making it"
        )


def run(args: argparse.Namespace) -> int:
    return run_cluster_subcommand(args)


def _uuid(text: str) -> UUID:
    try:
        return uuid_from_text(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


async def describe(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    quorum = await quorum_admin.describe_quorum(cluster)
    if args.json:
        print_json(_as_json(quorum))
        return 0
    behind = "unknown" if quorum.max_lag is None else f"{quorum.max_lag} ({quorum.max_lag_ms} ms)"
    print_lines(
        [
            f"leader {quorum.leader_id}, epoch {quorum.leader_epoch}, "
            f"high watermark {quorum.high_watermark}, largest lag of a voter {behind}"
        ]
    )
    now_ms = seams.clock.wall_ms()
    print_table(
        COLUMNS,
        [
            (
                each.id,
                role,
                _directory(each),
                each.log_end_offset,
                quorum.lag(each),
                _ago(now_ms, each.last_fetch_ms),
                _ago(now_ms, each.last_caught_up_ms),
                ",".join(map(str, each.listeners)),
            )
            for role, each in _by_role(quorum)
        ],
    )
    return 0


def _by_role(quorum: QuorumState) -> list[tuple[str, QuorumReplica]]:
    """Replicas with their roles: the leader, then the other voters, then the observers."""
    leader = [("leader", each) for each in quorum.voters if each.id == quorum.leader_id]
    others = [("follower", each) for each in quorum.voters if each.id != quorum.leader_id]
    return [*leader, *others, *(("observer", each) for each in quorum.observers)]


def _directory(replica: QuorumReplica) -> str | None:
    return None if replica.directory_id == ZERO_UUID else uuid_to_text(replica.directory_id)


def _ago(now_ms: int, then_ms: int) -> int | None:
    return None if then_ms < 0 else max(now_ms - then_ms, 0)


def _as_json(quorum: QuorumState) -> dict[str, Any]:
    return {
        "leader": quorum.leader_id,
        "epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "max_lag": quorum.max_lag,
        "max_lag_ms": quorum.max_lag_ms,
        "replicas": [
            {
                "node": each.id,
                "role": role,
                "directory": _directory(each),
                "end": each.log_end_offset,
                "lag": quorum.lag(each),
                "last_fetch_ms": each.last_fetch_ms,
                "last_caught_up_ms": each.last_caught_up_ms,
                "listeners": [str(listener) for listener in each.listeners],
            }
            for role, each in _by_role(quorum)
        ],
    }


async def add(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    voter_id, directory_id, listeners = _new_voter(args.config, seams.files)
    if not args.dry_run:
        await quorum_admin.add_voter(cluster, voter_id, directory_id, listeners)
    if args.json:
        shown = [str(each) for each in listeners]
        print_json({**_change(args, voter_id, directory_id), "listeners": shown})
        return 0
    print_lines(
        [
            f"{'DRY RUN of adding' if args.dry_run else 'Added'} controller {voter_id} with directory "
            f"id {uuid_to_text(directory_id)} and endpoints: {', '.join(map(str, listeners))}"
        ]
    )
    return 0


def _change(args: argparse.Namespace, voter_id: int, directory_id: UUID) -> dict[str, Any]:
    """Return the added or removed voter as JSON."""
    return {"node": voter_id, "directory": uuid_to_text(directory_id), "dry_run": args.dry_run}


def _new_voter(path: str, files: Files) -> tuple[int, UUID, list[VoterListener]]:
    """Read node id, metadata directory id and listeners of a voter from its config and directory."""
    config = load_config(files, path)
    if "controller" not in config.process_roles or config.standalone:
        raise WrongUsage(f"{path}: process.roles does not contain controller")
    listeners = [
        VoterListener(each.name, each.host or "localhost", each.port)
        for each in config.advertised_controller_listeners
    ]
    directory = config.metadata_log_dir
    try:
        found = meta_properties.parse(files.read(directory / FILE_NAME))
    except FileNotFoundError:
        raise CommandFailed(
            f"{directory} is not formatted: run `odradek storage format --no-initial-controllers`"
        ) from None
    except BadMetaProperties as error:
        raise CommandFailed(f"{directory / FILE_NAME}: {error}") from None
    if found.directory_id is None:
        raise CommandFailed(f"{directory / FILE_NAME} has no directory.id: start the node once")
    return config.node_id, found.directory_id, listeners


async def remove(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    directory_id = args.directory
    if directory_id is None:
        directory_id = await _directory_of(args.controller, cluster)
    if not args.dry_run:
        await quorum_admin.remove_voter(cluster, args.controller, directory_id)
    if args.json:
        print_json(_change(args, args.controller, directory_id))
        return 0
    print_lines(
        [
            f"{'DRY RUN of removing' if args.dry_run else 'Removed'} KRaft controller "
            f"{args.controller} with directory id {uuid_to_text(directory_id)}"
        ]
    )
    return 0


async def _directory_of(voter_id: int, cluster: Cluster) -> UUID:
    quorum = await quorum_admin.describe_quorum(cluster)
    for each in quorum.voters:
        if each.id == voter_id:
            return each.directory_id
    voters = ", ".join(str(each.id) for each in quorum.voters)
    raise CommandFailed(f"controller {voter_id} is not a voter; the voters are: {voters}")
