"""`odradek dump`: print and verify the files of a broker, without a running broker."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from odradek.cli.errors import WrongUsage

if TYPE_CHECKING:
    from odradek.cli.dump_files import DumpFile
    from odradek.cli.dump_output import DumpOutput, DumpRow, FileProblem
    from odradek.seams.files import Files, Path

HELP = "print and verify the files of a broker, without connecting to it"
DESCRIPTION = """\
Print the files of an Odradek or Apache Kafka broker: segments, indexes, producer snapshots, checkpoints,
metadata snapshots, cached remote log metadata, and meta.properties and the other small files of a log
directory. No file is changed. The broker may be running; then the last batch of a segment may be incomplete
in the output.

Directories are searched recursively. Records of __consumer_offsets, __transaction_state,
__cluster_metadata, __remote_log_metadata and __diskless_metadata are decoded, based on the topic in the
directory's name.
"""
EPILOG = """\
examples:
  odradek dump odradek-data/flights-0/00000000000000000000.log
  odradek dump --records --from 4700 --to 4711 odradek-data/flights-0/*.log
  odradek dump --records --json odradek-data/__consumer_offsets-12 | jq .key
  odradek dump --verify odradek-data
  odradek dump --remote-log-metadata odradek-data/__remote_log_metadata-12

exit status: 0 for success, 1 if a file is unreadable or corrupt, 2 for wrong usage
"""
DECODERS = ("auto", "none", "offsets", "transactions", "metadata", "remote", "diskless")
FAILED = 1


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "dump",
        help=HELP,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, or a directory")
    parser.add_argument(
        "--deep", action="store_true", help="print offset, timestamp and sizes of each record"
    )
    parser.add_argument(
        "--records", action="store_true", help="as --deep, with key, value and headers"
    )
    parser.add_argument(
        "--decode",
        choices=DECODERS,
        default="auto",
        help="decoder of keys and values (default: auto, which depends on the topic's name)",
    )
    parser.add_argument("--from", type=int, metavar="OFFSET", help="first offset that is printed")
    parser.add_argument("--to", type=int, metavar="OFFSET", help="last offset that is printed")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="verify checksums, the order of offsets, and the indexes; print only problems. With --deep, "
        "decode every record",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON per entry")
    _add_remote_metadata_arguments(parser)
    return parser


def _add_remote_metadata_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--remote-log-metadata",
        action="store_true",
        help="print the events of __remote_log_metadata in the format of Kafka's RemoteLogMetadataFormatter",
    )
    parser.add_argument(
        "--kip-405",
        action="store_true",
        help="with --remote-log-metadata: use the format of KIP-405",
    )
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=BOOL",
        help="with --kip-405: print.partition, print.message.offset, print.version or "
        "print.all.event.value.fields, each false by default; can be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Dump or verify files; return 1 if there is a problem. Raises WrongUsage."""
    from odradek.cli.dump_output import JsonDumpOutput, TextDumpOutput
    from odradek.seams.real_files import RealFiles

    _check(args)
    # Escape characters that the terminal's encoding does not have
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    files = RealFiles()
    if args.remote_log_metadata:
        return _dump_remote_events(files, list(_find(files, args.paths)), args)
    output: DumpOutput
    if args.json:
        output = JsonDumpOutput(sys.stdout)
    else:
        output = TextDumpOutput(sys.stdout, only_problems=args.verify)
    found = list(_find(files, args.paths))
    if args.verify:
        return _verify(files, found, output, deep=args.deep)
    return _dump(files, found, output, args)


def _check(args: argparse.Namespace) -> None:
    if args.verify and (args.records or vars(args)["from"] is not None or args.to is not None):
        raise WrongUsage(
            "--verify cannot be used with --records, --from or --to: it verifies whole files"
        )
    if args.remote_log_metadata and (args.verify or args.records or args.deep or args.json):
        raise WrongUsage("--remote-log-metadata has its own format: it allows only --from and --to")
    if (args.kip_405 and not args.remote_log_metadata) or (args.property and not args.kip_405):
        raise WrongUsage(
            "--property requires --kip-405, and --kip-405 requires --remote-log-metadata"
        )
    start, end = vars(args)["from"], args.to
    if min(start or 0, end or 0) < 0:
        raise WrongUsage("--from and --to must not be negative")
    if start is not None and end is not None and start > end:
        raise WrongUsage(f"--from {start} is greater than --to {end}")


def _find(files: Files, paths: Sequence[str]) -> Iterator[DumpFile]:
    from odradek.cli.dump_files import NAMES_SHOWN, identify, walk
    from odradek.seams.files import Path

    for text in paths:
        path = Path(text)
        if files.is_directory(path):
            yield from _walked(walk(files, path), path)
        elif not files.exists(path):
            raise WrongUsage(
                f"{path} does not exist: specify a file or a log directory of a broker"
            )
        elif (found := identify(path)) is None:
            raise WrongUsage(f"{path} does not have the name of a broker's file ({NAMES_SHOWN})")
        else:
            yield found


def _walked(found: Iterator[DumpFile], path: Path) -> Iterator[DumpFile]:
    first = next(found, None)
    if first is None:
        raise WrongUsage(f"{path} contains no files of a broker: specify a log directory")
    yield first
    yield from found


def _dump(
    files: Files, found: Sequence[DumpFile], output: DumpOutput, args: argparse.Namespace
) -> int:
    from odradek.cli.dump_output import FileProblem

    code = 0
    for each in found:
        rows = problems = 0
        try:
            output.begin(each, files.file_size(each.path))
            for item in _items(files, each, args):
                if isinstance(item, FileProblem):
                    output.problem(each, item)
                    problems += 1
                else:
                    output.row(item)
                    rows += 1
        except OSError as error:
            output.problem(each, FileProblem(f"cannot be read: {error.strerror or error}"))
            problems += 1
        output.end(each, rows, problems, verified=False)
        code = FAILED if problems else code
    return code


def _dump_remote_events(files: Files, found: Sequence[DumpFile], args: argparse.Namespace) -> int:
    from odradek.cli import dump_remote_log_metadata
    from odradek.cli.dump_files import FileKind
    from odradek.cli.dump_output import FileProblem

    show: dump_remote_log_metadata.Format = dump_remote_log_metadata.as_kafka
    if args.kip_405:
        show = dump_remote_log_metadata.as_kip_405(_kip_properties(args.property))
    wrong = 0
    for each in found:
        if each.kind is not FileKind.SEGMENT:
            continue
        try:
            start = vars(args)["from"] or 0
            for line in dump_remote_log_metadata.lines(files, each, show, start, args.to):
                if isinstance(line, FileProblem):
                    sys.stderr.write(f"{each.path}: {line.text}\n")
                    wrong += 1
                else:
                    sys.stdout.write(f"{line}\n")
        except BrokenPipeError:
            raise
        except OSError as error:
            sys.stderr.write(f"{each.path}: cannot be read: {error.strerror or error}\n")
            wrong += 1
    return FAILED if wrong else 0


def _kip_properties(wanted: Sequence[str]) -> set[str]:
    """Names of the properties that are set to true."""
    from odradek.cli.dump_remote_log_metadata import PROPERTIES

    chosen = set()
    for each in wanted:
        name, _, value = each.partition("=")
        if name not in PROPERTIES or value.lower() not in ("true", "false"):
            raise WrongUsage(
                f"--property {each}: specify one of {', '.join(PROPERTIES)} with =true or =false"
            )
        if value.lower() == "true":
            chosen.add(name)
    return chosen


def _items(
    files: Files, found: DumpFile, args: argparse.Namespace
) -> Iterator[DumpRow | FileProblem]:
    from odradek.cli import dump_indexes_and_checkpoints, dump_segments
    from odradek.cli.dump_files import FileKind

    if found.kind not in (FileKind.SEGMENT, FileKind.RAFT_SNAPSHOT):
        yield from dump_indexes_and_checkpoints.rows(found, files.read(found.path))
        return
    wanted = dump_segments.SegmentDumpOptions(
        deep=args.deep,
        records=args.records,
        decoder=_decoder(found, args.decode),
        start=vars(args)["from"] or 0,
        end=args.to,
    )
    with closing(files.open(found.path)) as file:
        yield from dump_segments.rows(file, file.size, wanted)


def _decoder(found: DumpFile, wanted: str) -> str:
    from odradek.cli.dump_decoders import BY_TOPIC
    from odradek.cli.dump_files import FileKind

    if wanted != "auto":
        return wanted
    if found.kind is FileKind.RAFT_SNAPSHOT:
        return "metadata"
    return BY_TOPIC.get(found.topic or "", "none")


def _verify(files: Files, found: Sequence[DumpFile], output: DumpOutput, *, deep: bool) -> int:
    from odradek.cli.dump_output import FileProblem
    from odradek.cli.dump_verify import FileVerifier

    verifier = FileVerifier(files, deep=deep)
    wrong = 0
    for each in found:
        problems = 0
        try:
            output.begin(each, files.file_size(each.path))
            for problem in verifier.verify(each):
                output.problem(each, problem)
                problems += 1
        except OSError as error:
            output.problem(each, FileProblem(f"cannot be read: {error.strerror or error}"))
            problems += 1
        output.end(each, verifier.entries, problems, verified=True)
        wrong += problems > 0
    if wrong:
        sys.stderr.write(f"odradek: {wrong} of {len(found)} files have problems\n")
    return FAILED if wrong else 0
