"""`odradek remote`: what is in the remote tier, whether all of it is right, and what is garbage."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from odradek.broker.cli import remote_output
from odradek.broker.cli.cluster import (
    cluster_arguments,
    explained,
    first_cause,
    key_value,
    seconds,
    with_cluster,
)
from odradek.broker.cli.errors import CommandFailed, WrongUsage
from odradek.broker.cli.remote_output import Progress
from odradek.broker.cli.remote_store import MetadataReading, call, listing, open_store
from odradek.broker.cli.remote_summaries import Summaries
from odradek.client.metadata import Cluster
from odradek.seams import Seams
from odradek.seams.objects import Objects
from odradek.seams.real import real_seams
from odradek.storage.tiered.audit import Audit, Finding, Standing
from odradek.storage.tiered.metadata import TopicIdPartition
from odradek.storage.tiered.object_names import MANIFEST_SUFFIX
from odradek.storage.tiered.verification import Verification, summary_problems

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

exit status: 0 if all is well, 1 if something failed or is not as it should be, 2 for bad usage
"""
Action = Callable[["Look"], Awaitable[int]]
Judged = Callable[[list[Finding]], Awaitable[None]]


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


def run(args: argparse.Namespace) -> int:
    if not hasattr(args, "look"):
        raise WrongUsage("odradek remote what? See `odradek remote --help`")
    action: Action = args.look
    if not args.without_metadata:

        async def beside(cluster: Cluster, seams: Seams) -> int:
            return await action(Look(args, seams, MetadataReading(cluster)))

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
        self, args: argparse.Namespace, seams: Seams, metadata: MetadataReading | None
    ) -> None:
        self.args = args
        self.seams = seams
        self.metadata = metadata
        self.objects: Objects = open_store(args, seams)
        self.progress = Progress(seams.clock.monotonic)
        old_s = args.older_than or (OLD_S if metadata else OLD_WITHOUT_METADATA_S)
        self.old_before_ms = seams.clock.wall_ms() - round(old_s * 1000)

    async def through(self, judged: Judged | None = None) -> Audit:
        """List everything, and account for it; `judged` gets how each segment stands at first. The
        metadata is read before, and to its end after."""
        if self.metadata is not None:
            self.progress.say("reading the metadata")
            await self.metadata.read_on()
        audit = Audit(
            None if self.metadata is None else self.metadata.known,
            old_before_ms=self.old_before_ms,
            wanted=self._is_wanted,
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
            audit.settle()
        return audit

    def _is_wanted(self, partition: TopicIdPartition) -> bool:
        return not self.args.topics or partition.topic in self.args.topics


async def _list(look: Look) -> int:
    found: list[Finding] = []

    async def keep(findings: list[Finding]) -> None:
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
    is_well = not problems and not any(
        each.standing.is_loss or each.standing.is_garbage for each in audit.findings
    )
    return 0 if is_well else FAILED


async def _read_all(look: Look, problems: list[str]) -> Audit:
    """Read the whole segments while the rest is listed, several at once; what is wrong with them goes
    to `problems`."""
    segments = size_bytes = 0
    send, receive = trio.open_memory_channel[Finding](2 * AT_ONCE)

    async def pass_on(findings: list[Finding]) -> None:
        for each in findings:
            if each.standing is Standing.WHOLE:
                await send.send(each)

    async def read() -> None:
        nonlocal segments, size_bytes
        async for finding in receive:
            assert finding.stored is not None
            verification = Verification(look.objects, finding.stored, finding.metadata)
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


async def _still_there(look: Look, finding: Finding, problems: list[str]) -> list[str]:
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
    if look.metadata is not None and look.metadata.gap is not None:
        raise CommandFailed(
            f"{look.metadata.gap}: what brokers still use cannot be told from garbage."
            " --without-metadata goes by the manifests in the store alone"
        )
    garbage = [each for each in audit.findings if each.standing.is_garbage]
    swept: list[str] = []
    if look.args.execute:
        await _remove(look, garbage)
        swept = list(await call(look.seams, partial(look.objects.sweep, look.old_before_ms)))
    look.progress.end()
    remote_output.print_collected(
        audit, garbage, swept, executed=look.args.execute, as_json=look.args.json
    )
    return 0


async def _remove(look: Look, garbage: list[Finding]) -> None:
    """Manifests first, so that what is left by a crash is garbage still."""
    keys = [key for each in garbage for key in each.removal_order()]
    keys.sort(key=lambda key: not key.endswith(MANIFEST_SUFFIX))
    for at in range(0, len(keys), REMOVED_AT_ONCE):
        some = keys[at : at + REMOVED_AT_ONCE]
        await call(look.seams, partial(look.objects.delete_all, some))
        look.progress.say(f"removed {at + len(some)} of {len(keys)} objects")
