"""`odradek diskless`: coordinators, files and batches of diskless topics, and the verification of their objects
(KIP-1164)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from odradek.cli.cluster_connection import (
    add_cluster_subcommand,
    key_value,
    run_cluster_subcommand,
    seconds,
)
from odradek.cli.dump_output import time_text
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.output import human_bytes, print_json, print_lines, print_table
from odradek.client.diskless_admin import (
    CoordinatorDescription,
    DisklessAdmin,
    FoundBatches,
    is_not_diskless,
)
from odradek.client.metadata import Cluster
from odradek.protocol.errors import KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessDescribedCoordinator,
    DisklessFindBatchesBatchInfo,
    DisklessListedFile,
)
from odradek.protocol.topics import DISKLESS_METADATA
from odradek.seams import Seams
from odradek.storage.diskless.state import FileStatus

FAILED = 1
BATCHES_SHOWN = 100
OLD_S = 600.0
"""Age in seconds after which an object cannot be committed any more."""

DESCRIPTION = """\
Describe the coordinators of diskless topics, the files (objects) that they track, and the batches of partitions;
verify the objects. The requests need CLUSTER_ACTION on the cluster.
"""
EPILOG = """\
examples:
  odradek diskless coordinators
  odradek diskless files --coordinator 3 --status deleting
  odradek diskless batches -t orders -p 0 --offset 4700
  odradek diskless verify --config server.properties       # read every live batch
  odradek diskless verify --url s3://bucket/prefix --option aws_region=eu-central-1 --quick
"""
VERIFY_EPILOG = """\
For each file with live batches: its object exists and has the committed size, and each batch has a valid header and
CRC. The batches of each partition have no gaps. Objects that no coordinator tracks are orphans, which the brokers delete
after diskless.coordinator.orphan.scan.grace.period.ms.

exit status: 0 for success, 1 if the command failed or found problems or orphans, 2 for wrong usage
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "diskless",
        help="list coordinators, files and batches of diskless topics, and verify objects",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND")
    add_cluster_subcommand(
        commands, "coordinators", "describe the coordinators of diskless topics", list_coordinators
    )
    _add_files_parser(commands)
    _add_batches_parser(commands)
    _add_verify_parser(commands)
    return parser


def _add_files_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    files = add_cluster_subcommand(
        commands, "files", "list the files that coordinators track", list_files
    )
    files.add_argument(
        "-n",
        "--coordinator",
        type=int,
        metavar="N",
        help=f"only coordinator N, which is partition N of {DISKLESS_METADATA}",
    )
    files.add_argument(
        "--status",
        choices=[status.name.lower() for status in FileStatus],
        help="only files with this status at the coordinator",
    )


def _add_batches_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    batches = add_cluster_subcommand(
        commands, "batches", "list batches of a partition with their objects", list_batches
    )
    batches.add_argument("-t", "--topic", required=True, metavar="NAME")
    batches.add_argument("-p", "--partition", type=int, required=True, metavar="N")
    batches.add_argument(
        "--offset",
        type=int,
        default=0,
        metavar="OFFSET",
        help="first offset (default: the log start offset)",
    )
    batches.add_argument(
        "--max",
        type=int,
        default=BATCHES_SHOWN,
        metavar="COUNT",
        help=f"largest number of batches (default: {BATCHES_SHOWN})",
    )


def _add_verify_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = add_cluster_subcommand(
        commands,
        "verify",
        "verify the objects of diskless topics",
        verify_objects,
        epilog=VERIFY_EPILOG,
    )
    where = verify.add_mutually_exclusive_group()
    where.add_argument("--config", metavar="FILE", help="server.properties of a broker")
    where.add_argument(
        "--url", help="the object store: a directory, s3://bucket/prefix, gs://… or az://…"
    )
    verify.add_argument(
        "--option",
        action="append",
        default=[],
        type=key_value,
        metavar="NAME=VALUE",
        help="with --url, an option of the object store: aws_endpoint, aws_region, …",
    )
    verify.add_argument(
        "--quick", action="store_true", help="verify only the existence and sizes of objects"
    )
    verify.add_argument(
        "--older-than",
        type=seconds,
        default=OLD_S,
        metavar="SECONDS",
        help="minimum age of an orphan; a younger object may still be committed "
        f"(default: {OLD_S:.0f})",
    )


def run(args: argparse.Namespace) -> int:
    return run_cluster_subcommand(args)


async def verify_objects(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    from odradek.cli import diskless_verify

    return await diskless_verify.verify(args, cluster, seams)


async def list_coordinators(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    found = await DisklessAdmin(cluster).describe_coordinators()
    if args.json:
        print_json({"coordinators": [_coordinator_json(each) for each in found]})
    elif not found:
        print_lines([f"the cluster has no topic {DISKLESS_METADATA}: it has no diskless topics"])
    else:
        _print_coordinators(found)
    return FAILED if any(each.error is not None for each in found) else 0


def _print_coordinators(found: Sequence[CoordinatorDescription]) -> None:
    columns = (
        "COORDINATOR", "LEADER", "EPOCH", "START", "END", "LAG", "SNAPSHOT", "PARTITIONS", "BATCHES",
        "LIVE", "FILES", "TO-HAND-OVER", "TO-DELETE", "OLDEST-FILE", "STATE",
    )  # fmt: skip
    print_table(columns, (_coordinator_row(each) for each in found))
    print_lines(
        f"coordinator {each.coordinator_id}: {each.error}"
        for each in found
        if each.error is not None
    )


def _coordinator_row(coordinator: CoordinatorDescription) -> tuple[Any, ...]:
    leader = None if coordinator.leader < 0 else coordinator.leader
    state = coordinator.state
    if state is None:
        return (coordinator.coordinator_id, leader, *[None] * 13)
    return (
        coordinator.coordinator_id,
        leader,
        state.leader_epoch,
        state.log_start_offset,
        state.log_end_offset,
        state.log_end_offset - state.applied_offset - 1,
        None if state.snapshot_offset < 0 else state.snapshot_offset,
        state.partitions,
        state.batches,
        human_bytes(state.live_bytes),
        state.files,
        state.files_to_hand_over,
        state.files_to_delete,
        _oldest_file(state),
        human_bytes(state.state_bytes),
    )


def _oldest_file(state: DisklessDescribedCoordinator) -> str:
    return time_text(state.oldest_file_ms if state.files else -1)


def _coordinator_json(coordinator: CoordinatorDescription) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "coordinator": coordinator.coordinator_id,
        "leader": None if coordinator.leader < 0 else coordinator.leader,
        "error": coordinator.error,
    }
    state = coordinator.state
    if state is None:
        return shown
    return shown | {
        "leader_epoch": state.leader_epoch,
        "log_start_offset": state.log_start_offset,
        "applied_offset": state.applied_offset,
        "log_end_offset": state.log_end_offset,
        "snapshot_offset": None if state.snapshot_offset < 0 else state.snapshot_offset,
        "state_bytes": None if state.state_bytes < 0 else state.state_bytes,
        "partitions": state.partitions,
        "batches": state.batches,
        "live_bytes": state.live_bytes,
        "files": state.files,
        "files_to_hand_over": state.files_to_hand_over,
        "files_to_delete": state.files_to_delete,
        "oldest_file_ms": state.oldest_file_ms if state.files else None,
    }


async def list_files(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    admin = DisklessAdmin(cluster)
    ids = await admin.coordinator_ids()
    if args.coordinator is not None:
        if args.coordinator not in ids:
            raise WrongUsage(
                f"the cluster has no coordinator {args.coordinator} (it has {len(ids)}, from 0)"
            )
        ids = [args.coordinator]
    found = [
        (coordinator_id, file)
        for coordinator_id in ids
        async for page in admin.list_files(coordinator_id)
        for file in page
        if args.status is None or status_name(file) == args.status
    ]
    if args.json:
        print_json({"files": [_file_json(coordinator_id, file) for coordinator_id, file in found]})
    else:
        columns = (
            "COORDINATOR", "FILE", "SIZE", "STATUS", "BATCHES", "LIVE", "OWNERS", "UPLOADER", "UPLOADED",
        )  # fmt: skip
        print_table(columns, (_file_row(coordinator_id, file) for coordinator_id, file in found))
    return 0


def status_name(file: DisklessListedFile) -> str:
    """Status of a file at one coordinator; the number if this version does not know it."""
    try:
        return FileStatus(file.status).name.lower()
    except ValueError:
        return str(file.status)


def _file_row(coordinator_id: int, file: DisklessListedFile) -> tuple[Any, ...]:
    return (
        coordinator_id,
        file.object_key,
        human_bytes(file.file_size),
        status_name(file),
        file.live_batches,
        human_bytes(file.live_bytes),
        ",".join(map(str, file.owner_ids)),
        file.uploader_broker_id,
        time_text(file.uploaded_ms),
    )


def _file_json(coordinator_id: int, file: DisklessListedFile) -> dict[str, Any]:
    return {
        "coordinator": coordinator_id,
        "key": file.object_key,
        "size": file.file_size,
        "status": status_name(file),
        "live_batches": file.live_batches,
        "live_bytes": file.live_bytes,
        "owners": list(file.owner_ids),
        "uploader": file.uploader_broker_id,
        "uploaded_ms": file.uploaded_ms,
    }


async def list_batches(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    topic = await cluster.topic(args.topic)
    if args.partition not in topic.partitions:
        raise WrongUsage(f"topic {args.topic} has no partition {args.partition}")
    if topic.topic_id is None or args.offset < 0 or args.max < 1:
        raise WrongUsage("--offset must not be negative, and --max must be at least 1")
    try:
        found = await DisklessAdmin(cluster).find_batches(
            topic.topic_id, args.partition, args.offset, max_batches=args.max
        )
    except KafkaError as error:
        if not is_not_diskless(error):
            raise
        raise CommandFailed(
            f"no coordinator has topic {args.topic}: it is not diskless, or has just been created"
        ) from None
    if args.json:
        print_json(_batches_json(found))
    else:
        _print_batches(found)
    return 0


def _print_batches(found: FoundBatches) -> None:
    columns = ("BASE", "LAST", "BYTES", "POSITION", "MAX-TIMESTAMP", "APPENDED", "FILE")
    print_table(columns, (_batch_row(batch) for batch in found.batches))
    print_lines(
        [f"log start offset {found.log_start_offset}, high watermark {found.high_watermark}"]
    )


def _batch_row(batch: DisklessFindBatchesBatchInfo) -> tuple[Any, ...]:
    return (
        batch.base_offset,
        batch.last_offset,
        batch.byte_size,
        batch.byte_offset,
        time_text(batch.batch_max_timestamp),
        time_text(batch.log_append_timestamp),
        batch.object_key,
    )


def _batches_json(found: FoundBatches) -> dict[str, Any]:
    return {
        "log_start_offset": found.log_start_offset,
        "high_watermark": found.high_watermark,
        "batches": [
            {
                "id": batch.batch_id,
                "key": batch.object_key,
                "magic": batch.magic,
                "byte_offset": batch.byte_offset,
                "byte_size": batch.byte_size,
                "base_offset": batch.base_offset,
                "last_offset": batch.last_offset,
                "log_append_timestamp": batch.log_append_timestamp,
                "max_timestamp": batch.batch_max_timestamp,
                "timestamp_type": "LogAppendTime" if batch.timestamp_type else "CreateTime",
            }
            for batch in found.batches
        ],
    }
