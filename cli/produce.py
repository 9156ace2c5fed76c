"""`odradek produce`: produce records from stdin or files, with the options of kcat."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator

import trio

from odradek.cli.cluster_connection import cluster_arguments, record_count, with_cluster
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.record_format import as_given, unescape
from odradek.cli.terminal import hint, is_terminal, split_stream, stdin_chunks
from odradek.client.metadata import Cluster
from odradek.client.producer import Header, Producer, ProducerOptions, open_producer
from odradek.protocol.records.compression import NAMES as CODECS
from odradek.seams import Seams
from odradek.seams.files import Path

DESCRIPTION = """\
Produce records to a topic. Each line of stdin, or each FILE, is the value of a record.

A record with a key goes to the same partition as with Kafka's Java producer. Records without a key are
distributed over the partitions. Nothing is printed. The exit status is 0 if every record was acknowledged.
"""
EPILOG = """\
examples:
  echo hello | odradek produce -t greetings
  printf 'k1:v1\\nk2:v2\\n' | odradek produce -t greetings -K :
  odradek produce -t pictures -k cat -H type=png -z zstd cat.png
  printf 'k1:\\n' | odradek produce -t greetings -K : -Z       # a tombstone: the value is null
"""
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "produce",
        help="produce records from stdin",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cluster_arguments(parser)
    parser.add_argument("-t", "--topic", required=True, help="the topic")
    parser.add_argument(
        "-p", "--partition", type=int, metavar="N", help="the partition of every record"
    )
    _add_record_arguments(parser)
    _add_delivery_arguments(parser)
    return parser


def _add_record_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-K",
        "--key-delimiter",
        metavar="DELIM",
        type=_delimiter,
        help="separates key and value of a record; \\t and \\xHH are escapes",
    )
    parser.add_argument("-k", "--key", metavar="KEY", help="the key of every record")
    parser.add_argument(
        "-D",
        "--delimiter",
        metavar="DELIM",
        type=_delimiter,
        default=b"\n",
        help="separates records on stdin (default: \\n)",
    )
    parser.add_argument(
        "-H",
        "--header",
        dest="headers",
        metavar="NAME[=VALUE]",
        type=_header,
        action="append",
        default=[],
        help="a header of every record; without '=' its value is null; can be repeated",
    )
    parser.add_argument(
        "-Z", "--null", action="store_true", help="produce empty keys and values as null"
    )


def _add_delivery_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-z", "--compression", choices=CODECS, default="none", help="the compression codec"
    )
    parser.add_argument(
        "-c", "--count", type=record_count, metavar="N", help="stop after N records"
    )
    parser.add_argument(
        "--acks",
        choices=ACKS,
        default="all",
        help="acknowledgements: all in-sync replicas (all), only the leader (1), none (0)",
    )
    parser.add_argument(
        "--no-idempotence",
        action="store_true",
        help="disable the idempotent producer: a retry can duplicate records",
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="a file with the value of one record"
    )


def run(args: argparse.Namespace) -> int:
    if args.key is not None and args.key_delimiter is not None:
        raise WrongUsage("--key cannot be used with --key-delimiter")
    return with_cluster(args, lambda cluster, seams: _produce(args, cluster, seams))


async def _produce(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    acks = ACKS[args.acks]
    options = ProducerOptions(
        acks=acks,
        compression=CODECS.index(args.compression),
        idempotent=acks == -1 and not args.no_idempotence,
        request_timeout_s=args.timeout,
        delivery_timeout_s=args.timeout,
    )
    if not args.files and is_terminal():
        hint(f"one record of {args.topic} a line; Ctrl-D ends")
    values = _file_values(args.files, seams) if args.files else _stdin_values(args)
    async with (
        open_producer(cluster, seams.clock, seams.entropy, options) as producer,
        trio.open_nursery() as nursery,
    ):
        # Report a failure at once, because stdin may never end
        nursery.start_soon(producer.raise_failure)
        count = 0
        async for batch in values:
            for key, value in _records(args, batch):
                if args.count is not None and count >= args.count:
                    break
                count += 1
                await _enqueue(args, producer, key, value)
            if args.count is not None and count >= args.count:
                break
        await producer.flush()
        nursery.cancel_scope.cancel()
    return 0


async def _enqueue(
    args: argparse.Namespace, producer: Producer, key: bytes | None, value: bytes | None
) -> None:
    await producer.enqueue(
        args.topic, value, key=key, headers=args.headers, partition=args.partition
    )


async def _stdin_values(args: argparse.Namespace) -> AsyncIterator[list[bytes]]:
    async for parts in split_stream(stdin_chunks(), args.delimiter):
        yield parts


async def _file_values(names: list[str], seams: Seams) -> AsyncIterator[list[bytes]]:
    for name in names:
        try:
            yield [seams.files.read(Path(name))]
        except OSError as error:
            raise CommandFailed(f"{name}: {error.strerror}") from error


def _records(
    args: argparse.Namespace, parts: list[bytes]
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield the key and value of each part."""
    fixed = None if args.key is None else as_given(args.key)
    for part in parts:
        key, value = fixed, part
        if args.key_delimiter is not None and not args.files:
            before, found, after = part.partition(args.key_delimiter)
            if found:
                key, value = before, after
        if args.null:
            yield key or None, value or None
        else:
            yield key, value


def _delimiter(text: str) -> bytes:
    try:
        data = unescape(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not data:
        raise argparse.ArgumentTypeError("a delimiter cannot be empty")
    return data


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    return name, as_given(value) if equals else None
