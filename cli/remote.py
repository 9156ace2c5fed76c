"""`odradek remote`: list and verify the remote tier, and remove garbage from it."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from odradek.cli import remote_output
from odradek.cli.cluster_connection import (
    cluster_arguments,
    command_error,
    first_exception,
    key_value,
    seconds,
    with_cluster,
)
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.output import ProgressLine
from odradek.cli.remote_give_up import find_losses, give_up
from odradek.cli.remote_inputs import (
    call,
    check_passed_over,
    listing,
    metadata_gaps,
    open_store,
    read_metadata,
)
from odradek.cli.remote_summaries import SummaryWriter
from odradek.cli.terminal import hint
from odradek.client.metadata import Cluster
from odradek.replication.tiered.whole_metadata_topic import WholeMetadataTopicReader
from odradek.seams import Seams
from odradek.seams.real import real_seams
from odradek.storage.tiered.audit import AuditFinding, RemoteStorageAudit, SegmentStatus
from odradek.storage.tiered.object_names import MANIFEST_SUFFIX
from odradek.storage.tiered.segment_metadata import TopicIdPartition
from odradek.storage.tiered.segment_verification import SegmentVerification, summary_problems

FAILED = 1
GARBAGE_AGE_S, GARBAGE_AGE_WITHOUT_METADATA_S = 3600.0, 86400.0
PARALLEL_READS = 4
OBJECTS_PER_DELETE = 500

DESCRIPTION = """\
Compare the objects of the remote tier with the cluster's __remote_log_metadata. With --without-metadata,
no cluster is needed: the manifests in the object store replace the metadata.
"""
EPILOG = """\
examples:
  odradek remote list --url s3://bucket/prefix --option aws_region=eu-central-1
  odradek remote verify --config server.properties        # read every byte
  odradek remote verify --url /var/lib/tiered --quick     # only existence and sizes
  odradek remote gc --config server.properties            # list garbage
  odradek remote gc --config server.properties --execute
  odradek remote summarize --url s3://bucket/prefix       # for segments that an older release copied
  odradek remote give-up --config server.properties --execute   # the store is lost

exit status: 0 for success, 1 if the command failed or found problems, 2 for wrong usage
"""
RemoteCommand = Callable[["RemoteCommandContext"], Awaitable[int]]
FindingsHandler = Callable[[list[AuditFinding]], Awaitable[None]]


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "remote",
        help="list and verify remote log segments, and remove garbage",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND")
    listed = _add_subcommand(
        commands,
        "list",
        "list the partitions with the numbers and states of their remote log segments",
        _list,
    )
    listed.add_argument(
        "--segments", action="store_true", help="list each segment instead of the partitions"
    )
    verified = _add_subcommand(
        commands,
        "verify",
        "verify the objects of remote log segments against the metadata",
        _verify,
    )
    verified.add_argument(
        "--quick", action="store_true", help="verify only the existence and sizes of objects"
    )
    collected = _add_subcommand(
        commands, "gc", "find and remove garbage: objects without metadata", _collect
    )
    collected.add_argument(
        "--execute",
        action="store_true",
        help="remove the garbage; without --execute, it is only listed",
    )
    _add_give_up_parser(commands)
    # SUM
    return parser


def _add_give_up_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    given_up = _add_subcommand(
        commands,
        "give-up",
        "recover from the permanent loss of the object store",
        _give_up,
        works_without_metadata=False,
        more="First replace the object store with an empty directory or bucket. For each topic that "
        "has no remote log segment in the object store, the log start offset of every partition becomes its "
        "local log start offset. The brokers then copy the local segments to the new object store, unless tiered "
        "storage of the topic is disabled: then its disablement completes, and retained data is given up.",
    )
    given_up.add_argument(
        "--execute",
        action="store_true",
        help="recover the topics; without --execute, the command only lists them",
    )
    _add_subcommand(
        commands,
        "summarize",
        "write a summary of the remote log segments of each partition",
        _summarize,
        more="A program that reads the object store without a broker then reads one summary per partition instead of "
        "one manifest per segment. Partitions with a summary written by their leader are not changed.",
    )


def _add_subcommand(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    line: str,
    action: RemoteCommand,
    *,
    more: str = "",
    works_without_metadata: bool = True,
) -> argparse.ArgumentParser:
    description = f"{line[0].upper()}{line[1:]}. {more}"
    parser = commands.add_parser(name, help=line, description=description)
    cluster_arguments(parser)
    _add_store_arguments(parser)
    parser.add_argument(
        "--without-metadata",
        action="store_true",
        help=(
            "use the manifests in the object store instead of the metadata of a cluster"
            if works_without_metadata
            else argparse.SUPPRESS
        ),
    )
    parser.add_argument(
        "--pass-over",
        dest="passed_over",
        action="append",
        default=[],
        type=_record,
        metavar="PARTITION:OFFSET",
        help="ignore this unreadable record of __remote_log_metadata; can be repeated",
    )
    parser.add_argument(
        "--older-than",
        type=seconds,
        metavar="SECONDS",
        help="minimum age of garbage; a younger object may belong to a copy in progress (default: "
        f"{GARBAGE_AGE_S:.0f}, or {GARBAGE_AGE_WITHOUT_METADATA_S:.0f} with --without-metadata)",
    )
    parser.add_argument(
        "-t", "--topic", dest="topics", action="append", metavar="NAME", help="only this topic"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(remote_command=action)
    return parser


def _add_store_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--config", metavar="FILE", help="server.properties of a broker that uses the object store"
    )
    where.add_argument(
        "--url", help="the object store: a directory, s3://bucket/prefix, gs://… or az://…"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=key_value,
        metavar="NAME=VALUE",
        help="with --url, an option of the object store: aws_endpoint, aws_region, …",
    )


def _record(text: str) -> tuple[int, int]:
    """Parse an argument PARTITION:OFFSET."""
    partition, colon, offset = text.partition(":")
    if not (colon and partition.isdecimal() and offset.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not PARTITION:OFFSET")
    return int(partition), int(offset)


def run(args: argparse.Namespace) -> int:
    if not hasattr(args, "remote_command"):
        raise WrongUsage("a subcommand is missing: see `odradek remote --help`")
    action: RemoteCommand = args.remote_command
    if not args.without_metadata:

        async def with_metadata(cluster: Cluster, seams: Seams) -> int:
            return await action(
                RemoteCommandContext(
                    args, seams, WholeMetadataTopicReader(cluster, args.passed_over), cluster
                )
            )

        return with_cluster(args, with_metadata)

    async def without_metadata() -> int:
        return await action(RemoteCommandContext(args, real_seams(), None))

    try:
        return trio.run(without_metadata, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as group:
        raise command_error(first_exception(group), args) from group


class RemoteCommandContext:
    """Arguments and services of one command, and its audit of the store."""

    def __init__(
        self,
        args: argparse.Namespace,
        seams: Seams,
        metadata: WholeMetadataTopicReader | None,
        cluster: Cluster | None = None,
    ) -> None:
        self.args = args
        self.seams = seams
        self.metadata = metadata
        self.cluster = cluster
        self.url, self.objects = open_store(
            args, seams, missing_is_empty=args.remote_command is _give_up
        )
        self.progress = ProgressLine(seams.clock.monotonic)
        old_s = args.older_than or (GARBAGE_AGE_S if metadata else GARBAGE_AGE_WITHOUT_METADATA_S)
        self.old_before_ms = seams.clock.wall_ms() - round(old_s * 1000)

    async def audit(self, on_findings: FindingsHandler | None = None) -> RemoteStorageAudit:
        """List all objects and audit them.

        `on_findings` is called with the first status of each segment. The metadata is read before the
        listing, and again after it.
        """
        if self.metadata is not None:
            self.progress.show("reading the metadata")
            await read_metadata(self.metadata)
        audit = RemoteStorageAudit(
            None if self.metadata is None else self.metadata.known,
            old_before_ms=self.old_before_ms,
            wanted=self._is_wanted,
            may_have_more_metadata=self._is_doubtful,
        )
        async for page in listing(self.objects, self.seams):
            found = audit.take(page)
            self.progress.show(f"{audit.objects} objects")
            if on_findings is not None:
                await on_findings(found)
        found = audit.end()
        if on_findings is not None:
            await on_findings(found)
        if self.metadata is not None:
            await read_metadata(self.metadata)
            check_passed_over(self.metadata)
            audit.recheck()
        return audit

    def print_gaps(self) -> None:
        """Print warnings about unreadable metadata to stderr."""
        for gap in [] if self.metadata is None else metadata_gaps(self.metadata):
            hint(f"odradek: {gap}")

    def _is_doubtful(self, partition: TopicIdPartition) -> bool:
        return self.metadata is not None and self.metadata.may_have_more_metadata(partition)

    def _is_wanted(self, partition: TopicIdPartition) -> bool:
        return not self.args.topics or partition.topic in self.args.topics


async def _list(context: RemoteCommandContext) -> int:
    found: list[AuditFinding] = []

    async def keep(findings: list[AuditFinding]) -> None:
        found.extend(findings)

    audit = await context.audit(keep if context.args.segments else None)
    context.progress.end()
    if context.args.segments:
        remote_output.print_segments(found, as_json=context.args.json)
    else:
        remote_output.print_partitions(audit, as_json=context.args.json)
    return 0


async def _verify(context: RemoteCommandContext) -> int:
    problems: list[str] = []
    audit = await (context.audit() if context.args.quick else _read_all(context, problems))
    context.progress.end()
    remote_output.print_verified(
        audit, problems, as_json=context.args.json, quick=context.args.quick
    )
    context.print_gaps()
    is_well = not problems and not any(
        each.status.is_loss or each.status.is_garbage or each.status is SegmentStatus.UNCLEAR
        for each in audit.findings
    )
    return 0 if is_well else FAILED


async def _read_all(context: RemoteCommandContext, problems: list[str]) -> RemoteStorageAudit:
    """Read complete segments in parallel to the listing, and add their problems to `problems`."""
    segments = size_bytes = 0
    send, receive = trio.open_memory_channel[AuditFinding](2 * PARALLEL_READS)

    async def pass_on(findings: list[AuditFinding]) -> None:
        for each in findings:
            if each.status is SegmentStatus.WHOLE:
                await send.send(each)

    async def read() -> None:
        nonlocal segments, size_bytes
        async for finding in receive:
            assert finding.stored is not None
            verification = SegmentVerification(context.objects, finding.stored, finding.metadata)
            steps = verification.steps()
            while (size := await call(context.seams, partial(next, steps, None))) is not None:
                size_bytes += size
                context.progress.show_rate(segments, size_bytes)
            segments += 1
            problems.extend(await _problems_of_existing(context, finding, verification.problems))

    async with trio.open_nursery() as nursery:
        for _ in range(PARALLEL_READS):
            nursery.start_soon(read)
        async with send:
            audit = await context.audit(pass_on)
    for each in audit.summaries:
        known = None if context.metadata is None else context.metadata.known
        verify_summary = partial(summary_problems, context.objects, each.key, known)
        problems += await call(context.seams, verify_summary)
    return audit


async def _problems_of_existing(
    context: RemoteCommandContext, finding: AuditFinding, problems: list[str]
) -> list[str]:
    """Drop the problems of a segment that retention deleted while it was read."""
    if not problems or context.metadata is None or finding.metadata is None:
        return problems
    await context.metadata.read_to_end()
    now = context.metadata.known.segment(finding.metadata.id)
    return problems if now is not None and now.state is finding.metadata.state else []


async def _summarize(context: RemoteCommandContext) -> int:
    made = SummaryWriter(context.objects, context.seams)
    await context.audit(made.take)
    await made.end()
    context.progress.end()
    remote_output.print_summarized(made, as_json=context.args.json)
    return FAILED if made.problems else 0


async def _collect(context: RemoteCommandContext) -> int:
    audit = await context.audit()
    garbage = [each for each in audit.findings if each.status.is_garbage]
    swept: list[str] = []
    if context.args.execute:
        await _remove(context, garbage)
        swept = list(
            await call(context.seams, partial(context.objects.sweep, context.old_before_ms))
        )
    context.progress.end()
    remote_output.print_collected(
        audit, garbage, swept, executed=context.args.execute, as_json=context.args.json
    )
    unclear = sum(each.status is SegmentStatus.UNCLEAR for each in audit.findings)
    if unclear and context.metadata is not None:
        raise CommandFailed(_why_unclear(unclear, context.metadata))
    context.print_gaps()
    return 0


def _why_unclear(segments: int, metadata: WholeMetadataTopicReader) -> str:
    lines = [
        f"{segments} segments are not removed, because brokers may still use them",
        *metadata_gaps(metadata),
        "--without-metadata uses only the manifests in the store",
    ]
    if metadata.unreadable:
        lines[-1] += (
            ". --pass-over PARTITION:OFFSET ignores a record that has nothing to do with tiered storage, as"
            " the brokers do"
        )
    return "\n".join(lines)


async def _give_up(context: RemoteCommandContext) -> int:
    if context.cluster is None or context.metadata is None:
        raise WrongUsage(
            "odradek remote give-up needs the metadata of the cluster to find lost segments"
        )
    audit = await context.audit()
    losses = await find_losses(audit, context.metadata.known, context.url, context.cluster)
    if context.args.execute:
        await give_up(
            losses, context.cluster, context.metadata, context.seams.clock, context.progress
        )
    context.progress.end()
    remote_output.print_given_up(losses, executed=context.args.execute, as_json=context.args.json)
    return FAILED if losses.left else 0


async def _remove(context: RemoteCommandContext, garbage: list[AuditFinding]) -> None:
    """Remove manifests first, so that the rest is still garbage after a crash."""
    keys = [key for each in garbage for key in each.removal_order()]
    keys.sort(key=lambda key: not key.endswith(MANIFEST_SUFFIX))
    for at in range(0, len(keys), OBJECTS_PER_DELETE):
        some = keys[at : at + OBJECTS_PER_DELETE]
        await call(context.seams, partial(context.objects.delete_all, some))
        context.progress.show(f"removed {at + len(some)} of {len(keys)} objects")
