"""`odradek storage`: format and describe the directories of a node, with kafka-storage's commands."""

from __future__ import annotations

import argparse

from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.output import print_lines
from odradek.cli.storage_info import storage_info
from odradek.protocol.uuids import uuid_to_text
from odradek.replication.controller.features import METADATA_VERSION
from odradek.replication.controller.release_versions import (
    DEFAULT_SINCE,
    RELEASE_VERSIONS,
    UnknownReleaseVersion,
    default_level,
    dependencies,
    parse_level,
    release_version_level,
)
from odradek.seams.real import real_seams

OLDEST, NEWEST = min(RELEASE_VERSIONS), max(RELEASE_VERSIONS)

EPILOG = """\
examples:
  odradek storage random-uuid
  odradek storage format -t CLUSTER -c server.properties --standalone
  odradek storage format -t CLUSTER -c server.properties \\
      --initial-controllers 1@h1:9093:UUID1,2@h2:9093:UUID2,3@h3:9093:UUID3
  odradek storage format -t CLUSTER -c broker.properties --no-initial-controllers
  odradek storage info -c server.properties
  odradek storage version-mapping -r 4.0

A node without process.roles in its config, or with both roles and no other controller, formats its log
directories at its first start.
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "storage",
        help="format and describe the log directories of a node",
        description="Format the log directories of a node, show their meta.properties, and look up "
        "feature levels.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND")
    _add_format(commands)
    info = _add_subcommand(
        commands, "info", "show the meta.properties of the log directories", storage_info
    )
    _add_config(info)
    mapping = _add_subcommand(
        commands, "version-mapping", "show the feature levels of a release version", _mapping
    )
    mapping.add_argument("-r", "--release-version", metavar="RELEASE", help=_release_help())
    needs = _add_subcommand(
        commands,
        "feature-dependencies",
        "show the feature levels that a feature level requires",
        _needs,
    )
    _add_feature(needs, required=True)
    _add_subcommand(
        commands,
        "random-uuid",
        "print a random UUID for a cluster id or a directory id",
        _random_uuid,
    )
    return parser


def _add_subcommand(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    line: str,
    action: object,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
    parser.set_defaults(action=action)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="the node's server.properties"
    )


def _add_feature(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "-f",
        "--feature",
        dest="features",
        metavar="FEATURE=LEVEL",
        action="append",
        default=[],
        required=required,
        help="a feature level; can be repeated",
    )


def _release_help() -> str:
    newest = RELEASE_VERSIONS[NEWEST]
    return f"a release version from {RELEASE_VERSIONS[OLDEST]} to {newest} (default: {newest})"


def _add_format(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_subcommand(
        commands, "format", "format the log directories for a cluster", _format
    )
    _add_config(parser)
    parser.add_argument(
        "-t",
        "--cluster-id",
        metavar="ID",
        required=True,
        help="the cluster id: any text, the same for every node",
    )
    parser.add_argument(
        "-g",
        "--ignore-formatted",
        action="store_true",
        help="skip directories that are already formatted",
    )
    parser.add_argument("-r", "--release-version", metavar="RELEASE", help=_release_help())
    _add_feature(parser)
    parser.add_argument(
        "-S",
        "--add-scram",
        metavar="CREDENTIAL",
        action="append",
        default=[],
        help="a SCRAM credential: 'SCRAM-SHA-256=[name=alice,password=secret]' or "
        '\'SCRAM-SHA-512=[name=alice,iterations=8192,salt="N3E=",saltedpassword="YCE="]\'',
    )
    _add_initial_voters(parser)


def _add_initial_voters(parser: argparse.ArgumentParser) -> None:
    voters = parser.add_mutually_exclusive_group()
    voters.add_argument(
        "-s",
        "--standalone",
        action="store_true",
        help="make this controller the only initial voter",
    )
    voters.add_argument(
        "-N",
        "--no-initial-controllers",
        action="store_true",
        help="do not set initial voters: the controller finds them with controller.quorum.bootstrap.servers",
    )
    voters.add_argument(
        "-I",
        "--initial-controllers",
        metavar="ID@HOST:PORT:DIRECTORY,…",
        help="the initial voters, each with its metadata directory id; the same list for "
        "every node",
    )


def run(args: argparse.Namespace) -> int:
    if not hasattr(args, "action"):
        raise WrongUsage("a subcommand is missing: see `odradek storage --help`")
    try:
        code: int = args.action(args)
    except UnknownReleaseVersion as error:
        raise CommandFailed(str(error)) from None
    return code


def _format(args: argparse.Namespace) -> int:
    from odradek.cli.storage_format import format_storage

    return format_storage(args)


def _mapping(args: argparse.Namespace) -> int:
    name = args.release_version or RELEASE_VERSIONS[NEWEST]
    level = release_version_level(name)
    print_lines([f"{METADATA_VERSION}={level} ({name})"])
    print_lines(f"{feature}={default_level(feature, level)}" for feature in DEFAULT_SINCE)
    return 0


def _needs(args: argparse.Namespace) -> int:
    for text in args.features:
        feature, level = parse_level(text)
        shown = _shown(feature, level)
        if not (needed := dependencies(feature, level)):
            print_lines([f"{shown} has no dependencies."])
            continue
        print_lines([f"{shown} requires:"])
        print_lines(f"    {_shown(other, least)}" for other, least in needed.items())
    return 0


def _shown(feature: str, level: int) -> str:
    if feature == METADATA_VERSION and level in RELEASE_VERSIONS:
        return f"{feature}={level} ({RELEASE_VERSIONS[level]})"
    return f"{feature}={level}"


def _random_uuid(args: argparse.Namespace) -> int:
    print_lines([uuid_to_text(real_seams().entropy.uuid())])
    return 0
