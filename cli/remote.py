"""`odradek remote`: what is in the remote tier, whether all of it is right, and what is garbage."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from odradek.cli import remote_output
from odradek.cli.cluster import (
    cluster_arguments,
    explained,
    first_cause,
    key_value,
    seconds,
    with_cluster,
)
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.remote_give_up import find_losses, give_up
from odradek.cli.remote_output import Progress
from odradek.cli.remote_store import MetadataTopicConsumer, call, listing, open_store
from odradek.cli.remote_summaries import Summaries
from odradek.cli.terminal import hint
from odradek.client.metadata import Cluster
from odradek.seams import Seams
from odradek.seams.real import real_seams
from odradek.storage.tiered.audit import AuditFinding, RemoteStorageAudit, SegmentStatus
from odradek.storage.tiered.metadata import TopicIdPartition
from odradek.storage.tiered.object_names import MANIFEST_SUFFIX
from odradek.storage.tiered.segment_verification import SegmentVerification, summary_problems

FAILED = 1
OLD_S, OLD_WITHOUT_METADATA_S = 3600.0, 86400.0
AT_ONCE = 4
REMOVED_AT_ONCE = 500

DESCRIPTION = """\
Look through the whole store of the remote tier, and account for every object by what the cluster's
__remote_log_metadata says of it; or by the manifests in the store alone.
"""
EPILOG = """\
examples:
  odradek remote list --url s3://bucket/prefix --option aws_region=eu-central-1
  odradek remote verify --config server.properties        # reads every byte
  odradek remote verify --url /var/lib/tiered --quick     # only what there is, and its sizes
  odradek remote gc --config server.properties            # what would be removed
  odradek remote gc --config server.properties --execute
  odradek remote summarize --url s3://bucket/prefix       # for readers of a store of old
  odradek remote give-up --config server.properties --execute   # where the store is lost

exit status: 0 if all is well, 1 if something failed or is not as it should be, 2 for bad usage
"""
Action = Callable[["Look"], Awaitable[int]]
Judged = Callable[[list[AuditFinding]], Awaitable[None]]


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "remote",
        help="list and verify what is in the remote tier, and remove garbage from it",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="WHAT")
    listed = _leaf(
        commands, "list", "list the partitions in the store, with what is not whole", _list
    )
    listed.add_argument("--segments", action="store_true", help="every segment, not a sum of them")
    verified = _leaf(commands, "verify", "compare the objects with what they should be", _verify)
    verified.add_argument(
        "--quick", action="store_true", help="do not read them: only what there is, and its sizes"
    )
    collected = _leaf(
        commands, "gc", "find objects that belong to nothing, and remove them", _collect
    )
    collected.add_argument(
        "--execute", action="store_true", help="remove them; else they are only shown"
    )
    given_up = _leaf(
        commands,
        "give-up",
        "where a store is lost for good: have the brokers go on without what was in it. A directory or bucket "
        "has to be in its place, empty. Of topics that have lost all of their segments there, the log begins "
        "on the disk then, and what is on the disk is copied anew",
        _give_up,
    )
    given_up.add_argument(
        "--execute", action="store_true", help="do it; else it is only shown what would be"
    )
    _leaf(
        commands,
        "summarize",
        "put a summary beside the segments of each partition that has none of a leader's: who reads the "
        "store without brokers need not open a manifest for each segment then",
        _summarize,
    )
    return parser


def _leaf(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    line: str,
    action: Action,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
    cluster_arguments(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--config", metavar="FILE", help="a broker's properties say where the store is"
    )
    where.add_argument("--url", help="where it is: a directory, s3://bucket/prefix, gs://…, az://…")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=key_value,
        metavar="NAME=VALUE",
        help="with --url, of the store: aws_endpoint, aws_region, …",
    )
    parser.add_argument(
        "--without-metadata",
        action="store_true",
        help="ask no cluster: go by the manifests in the store alone",
    )
    parser.add_argument(
        "--pass-over",
        dest="passed_over",
        action="append",
        default=[],
        type=_record,
        metavar="PARTITION:OFFSET",
        help="a record of __remote_log_metadata that cannot be read, and is nothing; may be given again",
    )
    parser.add_argument(
        "--older-than",
        type=seconds,
        metavar="SECONDS",
        help="what is younger may be of a copy under way, and is no garbage "
        f"(default: {OLD_S:.0f}; {OLD_WITHOUT_METADATA_S:.0f} --without-metadata)",
    )
    parser.add_argument(
        "-t", "--topic", dest="topics", action="append", metavar="NAME", help="only this topic"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(look=action)
    return parser


def _record(text: str) -> tuple[int, int]:
    """An argument PARTITION:OFFSET."""
    partition, colon, offset = text.partition(":")
    if not (colon and partition.isdecimal() and offset.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not PARTITION:OFFSET")
    return int(partition), int(offset)


def run(args: argparse.Namespace) -> int:
    if not hasattr(args, "look"):
        raise WrongUsage("odradek remote what? See `odradek remote --help`")
    action: Action = args.look
    if not args.without_metadata:

        async def beside(cluster: Cluster, seams: Seams) -> int:
            return await action(
                Look(args, seams, MetadataTopicConsumer(cluster, args.passed_over), cluster)
            )

        return with_cluster(args, beside)

    async def alone() -> int:
        return await action(Look(args, real_seams(), None))

    try:
        return trio.run(alone, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as group:
        raise explained(first_cause(group), args) from group


class Look:
    """One look through the store: the arguments, the doors, and what is known when it is over."""

    def __init__(
        self,
        args: argparse.Namespace,
        seams: Seams,
        metadata: MetadataTopicConsumer | None,
        cluster: Cluster | None = None,
    ) -> None:
        self.args = args
        self.seams = seams
        self.metadata = metadata
        self.cluster = cluster
        self.url, self.objects = open_store(args, seams, missing_is_empty=args.look is _give_up)
        self.progress = Progress(seams.clock.monotonic)
        old_s = args.older_than or (OLD_S if metadata else OLD_WITHOUT_METADATA_S)
        self.old_before_ms = seams.clock.wall_ms() - round(old_s * 1000)

    async def through(self, judged: Judged | None = None) -> RemoteStorageAudit:
        """List everything, and account for it; `judged` gets how each segment stands at first. The
        metadata is read before, and to its end after."""
        if self.metadata is not None:
            self.progress.say("reading the metadata")
            await self.metadata.read_on()
        audit = RemoteStorageAudit(
            None if self.metadata is None else self.metadata.known,
            old_before_ms=self.old_before_ms,
            wanted=self._is_wanted,
            may_have_more_metadata=self._is_doubtful,
        )
        async for page in listing(self.objects, self.seams):
            found = audit.take(page)
            self.progress.say(f"{audit.objects} objects")
            if judged is not None:
                await judged(found)
        found = audit.end()
        if judged is not None:
            await judged(found)
        if self.metadata is not None:
            await self.metadata.read_on()
            self.metadata.check_passed_over()
            audit.recheck()
        return audit

    def tell_gaps(self) -> None:
        """What of the metadata is not known, to who looks on."""
        for gap in [] if self.metadata is None else self.metadata.gaps:
            hint(f"odradek: {gap}")

    def _is_doubtful(self, partition: TopicIdPartition) -> bool:
        return self.metadata is not None and self.metadata.may_have_more_metadata(partition)

    def _is_wanted(self, partition: TopicIdPartition) -> bool:
        return not self.args.topics or partition.topic in self.args.topics


async def _list(look: Look) -> int:
    found: list[AuditFinding] = []

    async def keep(findings: list[AuditFinding]) -> None:
        found.extend(findings)

    audit = await look.through(keep if look.args.segments else None)
    look.progress.end()
    if look.args.segments:
        remote_output.print_segments(found, as_json=look.args.json)
    else:
        remote_output.print_partitions(audit, as_json=look.args.json)
    return 0


async def _verify(look: Look) -> int:
    problems: list[str] = []
    audit = await (look.through() if look.args.quick else _read_all(look, problems))
    look.progress.end()
    remote_output.print_verified(audit, problems, as_json=look.args.json, quick=look.args.quick)
    look.tell_gaps()
    is_well = not problems and not any(
        each.status.is_loss or each.status.is_garbage or each.status is SegmentStatus.UNCLEAR
        for each in audit.findings
    )
    return 0 if is_well else FAILED


async def _read_all(look: Look, problems: list[str]) -> RemoteStorageAudit:
    """Read the whole segments while the rest is listed, several at once; what is wrong with them goes
    to `problems`."""
    segments = size_bytes = 0
    send, receive = trio.open_memory_channel[AuditFinding](2 * AT_ONCE)

    async def pass_on(findings: list[AuditFinding]) -> None:
        for each in findings:
            if each.status is SegmentStatus.WHOLE:
                await send.send(each)

    async def read() -> None:
        nonlocal segments, size_bytes
        async for finding in receive:
            assert finding.stored is not None
            verification = SegmentVerification(look.objects, finding.stored, finding.metadata)
            steps = verification.steps()
            while (size := await call(look.seams, partial(next, steps, None))) is not None:
                size_bytes += size
                look.progress.verified(segments, size_bytes)
            segments += 1
            problems.extend(await _still_there(look, finding, verification.problems))

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(read)
        async with send:
            audit = await look.through(pass_on)
    for each in audit.summaries:
        known = None if look.metadata is None else look.metadata.known
        problems += await call(look.seams, lambda: summary_problems(look.objects, each.key, known))  # noqa: B023
    return audit


async def _still_there(look: Look, finding: AuditFinding, problems: list[str]) -> list[str]:
    """What retention removed while it was being read is no problem."""
    if not problems or look.metadata is None or finding.metadata is None:
        return problems
    await look.metadata.read_on()
    now = look.metadata.known.segment(finding.metadata.id)
    return problems if now is not None and now.state is finding.metadata.state else []


async def _summarize(look: Look) -> int:
    made = Summaries(look.objects, look.seams)
    await look.through(made.take)
    await made.end()
    look.progress.end()
    remote_output.print_summarized(made, as_json=look.args.json)
    return FAILED if made.problems else 0


async def _collect(look: Look) -> int:
    audit = await look.through()
    garbage = [each for each in audit.findings if each.status.is_garbage]
    swept: list[str] = []
    if look.args.execute:
        await _remove(look, garbage)
        swept = list(await call(look.seams, partial(look.objects.sweep, look.old_before_ms)))
    look.progress.end()
    remote_output.print_collected(
        audit, garbage, swept, executed=look.args.execute, as_json=look.args.json
    )
    unclear = sum(each.status is SegmentStatus.UNCLEAR for each in audit.findings)
    if unclear and look.metadata is not None:
        raise CommandFailed(_why_unclear(unclear, look.metadata))
    look.tell_gaps()
    return 0


def _why_unclear(segments: int, metadata: MetadataTopicConsumer) -> str:
    lines = [
        f"{segments} segments are left alone: what brokers still use of them cannot be told from garbage",
        *metadata.gaps,
        "--without-metadata goes by the manifests in the store alone",
    ]
    if metadata.has_unreadable:
        lines[-1] += (
            ". A record that has nothing to do with tiered storage brokers pass over; --pass-over"
            " PARTITION:OFFSET does it here"
        )
    return "\n".join(lines)


async def _give_up(look: Look) -> int:
    if look.cluster is None or look.metadata is None:
        raise WrongUsage(
            "give-up goes by the metadata of the cluster: without it nothing is known to be lost"
        )
    audit = await look.through()
    losses = await find_losses(audit, look.url, look.cluster)
    if look.args.execute:
        await give_up(losses, look.cluster, look.metadata, look.seams.clock, look.progress)
    look.progress.end()
    remote_output.print_given_up(losses, executed=look.args.execute, as_json=look.args.json)
    return FAILED if losses.left else 0


async def _remove(look: Look, garbage: list[AuditFinding]) -> None:
    """Manifests first, so that what is left by a crash is garbage still."""
    keys = [key for each in garbage for key in each.removal_order()]
    keys.sort(key=lambda key: not key.endswith(MANIFEST_SUFFIX))
    for at in range(0, len(keys), REMOVED_AT_ONCE):
        some = keys[at : at + REMOVED_AT_ONCE]
        await call(look.seams, partial(look.objects.delete_all, some))
        look.progress.say(f"removed {at + len(some)} of {len(keys)} objects")
