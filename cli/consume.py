"""`odradek consume`: print the records of topics on stdout, with the options of kcat."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import trio

from odradek.cli.cluster_connection import (
    cluster_arguments,
    partition_list,
    record_count,
    with_cluster,
)
from odradek.cli.errors import WrongUsage
from odradek.cli.offset_arguments import (
    HELP,
    BeginningOffset,
    EndOffset,
    OffsetArgument,
    parse_offset,
    resolve_offsets,
)
from odradek.cli.record_format import compile_format, json_line, unescape
from odradek.cli.terminal import check_reader, hint, is_terminal, write_bytes
from odradek.client.consumer import (
    EARLIEST,
    LATEST,
    ConsumedRecord,
    IsolationLevel,
    Reader,
    ReaderOptions,
)
from odradek.client.errors import ClientError
from odradek.client.group import FORGOTTEN, REJOIN, GroupConsumer, GroupOptions
from odradek.client.metadata import Cluster
from odradek.protocol.errors import KafkaError
from odradek.protocol.topics import TopicPartition

DESCRIPTION = """\
Print the records of topics, one per line. Without -e or -c, wait for more records.

With --group, the group assigns the partitions. The offsets of printed records are committed. The next run
with the same group continues after them.
"""
EPILOG = """\
formats (-f):
  %s value     %S its length, -1 for null    %R its length as 4 bytes, big-endian
  %k key       %K its length, -1 for null    %T timestamp (ms)
  %t topic     %p partition    %o offset     %h headers     %%    \\n \\r \\t \\0 \\\\ \\xHH

examples:
  odradek consume -t greetings -o beginning -e
  odradek consume -t greetings -o -10 -f '%p/%o %T %k: %s\\n'
  odradek consume -t greetings -p 0 -o s@1700000000000 -c 5
  odradek consume -t greetings --group readers
  odradek consume -t greetings --json -e -o beginning | jq .value
"""
COMMIT_EVERY_S = 1.0
CLOSE_S = 3.0


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "consume",
        help="consume records to stdout",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cluster_arguments(parser)
    _add_position_arguments(parser)
    parser.add_argument(
        "-G", "--group", metavar="GROUP", help="consume as a member of this consumer group"
    )
    parser.add_argument(
        "-c", "--count", type=record_count, metavar="N", help="stop after N records"
    )
    parser.add_argument(
        "-e", "--exit", action="store_true", help="stop at the end of the partitions"
    )
    _add_output_arguments(parser)
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_committed",
        help="read_committed filters out transactional records that are not committed "
        "(default: read_committed)",
    )
    return parser


def _add_position_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-t",
        "--topic",
        dest="topics",
        action="append",
        required=True,
        help="a topic; can be repeated",
    )
    parser.add_argument(
        "-p",
        "--partitions",
        type=partition_list,
        metavar="LIST",
        help="partitions, such as 0,3,5-7 (default: all)",
    )
    parser.add_argument(
        "-o",
        "--offset",
        metavar="OFFSET",
        type=parse_offset,
        help=f"where to begin: {HELP} (default: end). With --group: beginning or end, for partitions without a "
        "committed offset (default: beginning)",
    )


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "-f",
        "--format",
        metavar="FORMAT",
        help="format of a record, as described below (default: %%s\\n)",
    )
    shape.add_argument(
        "-J", "--json", action="store_true", help="print one line of JSON per record"
    )
    parser.add_argument(
        "-K", "--key-delimiter", metavar="DELIM", help="print the key, followed by DELIM"
    )
    parser.add_argument(
        "-D", "--delimiter", metavar="DELIM", help="print DELIM after each record (default: \\n)"
    )
    parser.add_argument(
        "-Z", "--null", action="store_true", help="print null keys and values as NULL"
    )


def run(args: argparse.Namespace) -> int:
    if args.format is not None and (args.key_delimiter or args.delimiter):
        raise WrongUsage("--format cannot be used with -K or -D")
    if args.group is not None and args.partitions is not None:
        raise WrongUsage("-p cannot be used with --group: the group assigns the partitions")
    if args.group is not None and not isinstance(args.offset, BeginningOffset | EndOffset | None):
        raise WrongUsage(
            "with --group, -o is beginning or end, for partitions without a committed offset; "
            "`odradek groups reset` changes committed offsets"
        )
    format_record = _record_formatter(args)
    return with_cluster(args, lambda cluster, _: _consume(args, cluster, format_record))


def _record_formatter(args: argparse.Namespace) -> Callable[[ConsumedRecord], bytes]:
    """Compile the output options to a function that formats a record."""
    if args.json:
        return json_line
    null = b"NULL" if args.null else b""
    try:
        if args.format is not None:
            return compile_format(args.format, null=null)
        value = compile_format("%s", null=null)
        key = compile_format("%k", null=null)
        between = unescape(args.key_delimiter or "")
        after = unescape(args.delimiter if args.delimiter is not None else "\\n")
    except ValueError as error:
        raise WrongUsage(str(error)) from None
    if not between:
        return lambda record: value(record) + after
    return lambda record: key(record) + between + value(record) + after


async def _consume(
    args: argparse.Namespace, cluster: Cluster, format_record: Callable[[ConsumedRecord], bytes]
) -> int:
    options = ReaderOptions(
        isolation=IsolationLevel[args.isolation.upper()], unavailable_s=args.timeout
    )
    printer = _RecordPrinter(format_record, args.count)
    if args.group is not None:
        await _consume_as_member(args, cluster, options, printer)
    else:
        await _consume_partitions(args, cluster, options, printer)
    return 0


class _RecordPrinter:
    """Prints records, up to --count."""

    def __init__(self, format_record: Callable[[ConsumedRecord], bytes], count: int | None) -> None:
        self._format = format_record
        self._left = count

    @property
    def done(self) -> bool:
        return self._left is not None and self._left <= 0

    def print(self, records: Sequence[ConsumedRecord]) -> Sequence[ConsumedRecord]:
        """Print records up to --count, and return the printed ones."""
        if self._left is not None:
            records = records[: max(0, self._left)]
            self._left -= len(records)
        if records:
            write_bytes(map(self._format, records))
        else:
            check_reader()
        return records


async def _consume_partitions(
    args: argparse.Namespace, cluster: Cluster, options: ReaderOptions, printer: _RecordPrinter
) -> None:
    where = await _partitions(args, cluster)
    begin: OffsetArgument = args.offset if args.offset is not None else EndOffset()
    reader = Reader(cluster, options)
    reader.assign(await resolve_offsets(cluster, dict.fromkeys(where, begin)))
    if not args.exit and is_terminal():
        hint(f"reading {len(where)} partitions; Ctrl-C ends")
    while not printer.done:
        printer.print(await reader.poll())
        if args.exit and await reader.at_end():
            return


async def _partitions(args: argparse.Namespace, cluster: Cluster) -> list[TopicPartition]:
    found = []
    for name in args.topics:
        topic = await cluster.topic(name)
        wanted: Iterable[int] = args.partitions if args.partitions is not None else topic.partitions
        found += [TopicPartition(name, index) for index in wanted]
    return found


async def _consume_as_member(
    args: argparse.Namespace, cluster: Cluster, options: ReaderOptions, printer: _RecordPrinter
) -> None:
    for name in args.topics:
        await cluster.topic(name)  # report a missing topic instead of waiting for it
    reset = LATEST if isinstance(args.offset, EndOffset) else EARLIEST
    member = GroupConsumer(
        cluster, args.group, args.topics, options=GroupOptions(reset=reset), reader=options
    )
    printed: dict[TopicPartition, int] = {}
    commit_due = trio.current_time() + COMMIT_EVERY_S
    try:
        while not printer.done:
            for record in printer.print(await member.poll()):
                printed[TopicPartition(record.topic, record.partition)] = record.offset + 1
            if trio.current_time() >= commit_due:
                await _commit(member, printed)
                commit_due = trio.current_time() + COMMIT_EVERY_S
            if args.exit and await member.at_end():
                break
    finally:  # also after Ctrl-C and a broken pipe: printed records are not printed again
        with trio.move_on_after(CLOSE_S, shield=True), suppress(KafkaError, ClientError):
            await _commit(member, printed)
            await member.leave()


async def _commit(member: GroupConsumer, printed: dict[TopicPartition, int]) -> None:
    """Commit the offsets of printed records in partitions that are still assigned.

    No partition is assigned if the coordinator removed this member, for example because a pager
    blocked stdout for longer than the session timeout. The next poll rejoins the group.
    """
    mine = {where: offset for where, offset in printed.items() if where in member.assigned}
    printed.clear()
    try:
        if mine:
            await member.commit(mine)
    except KafkaError as error:
        if error.code not in REJOIN | FORGOTTEN:
            raise
