"""`odradek configs`: list, describe and alter the configs of topics, brokers and groups."""

from __future__ import annotations

import argparse
from typing import Any

from odradek.cli.cluster_connection import add_cluster_subcommand, key_value, run_cluster_subcommand
from odradek.cli.errors import WrongUsage
from odradek.cli.output import print_json, print_lines, print_table
from odradek.client import admin
from odradek.client.admin import ConfigChange, ConfigOperation, ConfigSource, ResourceType
from odradek.client.metadata import Cluster
from odradek.seams import Seams

EPILOG = """\
examples:
  odradek configs list
  odradek configs describe topic orders            # configs that are set; --all shows every config
  odradek configs alter topic orders --set retention.ms=3600000 --unset cleanup.policy
  odradek configs describe broker 1 --all
  odradek configs alter broker default --set log.retention.ms=86400000
"""

TYPES = {
    "topic": ResourceType.TOPIC,
    "broker": ResourceType.BROKER,
    "broker-logger": ResourceType.BROKER_LOGGER,
    "client-metrics": ResourceType.CLIENT_METRICS,
    "group": ResourceType.GROUP,
}
EXPLICIT_SOURCES = frozenset(
    {
        ConfigSource.TOPIC,
        ConfigSource.BROKER,
        ConfigSource.STATIC_BROKER,
        ConfigSource.BROKER_DEFAULT,
        ConfigSource.CLIENT_METRICS,
        ConfigSource.GROUP,
    }
)
CLUSTER_WIDE = "default"
"""Name for the cluster-wide default configs of brokers, which are named "" in the protocol."""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "configs",
        help="list, describe and alter configs",
        description="List, describe and alter the configs of topics, brokers and groups.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND")

    listing = add_cluster_subcommand(
        commands, "list", "list the resources that have dynamic configs", list_resources
    )
    listing.add_argument("type", nargs="?", choices=TYPES, metavar="TYPE", help=", ".join(TYPES))

    describing = add_cluster_subcommand(
        commands,
        "describe",
        "show the configs of a resource with their values and sources",
        describe,
    )
    _resource_arguments(describing)
    describing.add_argument(
        "--all", action="store_true", help="include configs that have their default value"
    )
    describing.add_argument(
        "--key",
        action="append",
        dest="keys",
        metavar="KEY",
        help="only this config; can be repeated",
    )

    _add_alter_parser(commands)
    return parser


def _add_alter_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    altering = add_cluster_subcommand(commands, "alter", "alter configs of a resource", alter)
    _resource_arguments(altering)
    for flag, operation, line in (
        ("--set", ConfigOperation.SET, "set a config"),
        ("--append", ConfigOperation.APPEND, "add a value to a list"),
        ("--subtract", ConfigOperation.SUBTRACT, "remove a value from a list"),
    ):
        altering.add_argument(
            flag,
            dest=operation.name,
            type=key_value,
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help=f"{line}; can be repeated",
        )
    altering.add_argument(
        "--unset",
        action="append",
        default=[],
        metavar="KEY",
        help="restore the default value; can be repeated",
    )
    altering.add_argument(
        "--validate-only", action="store_true", help="validate the change without making it"
    )


def run(args: argparse.Namespace) -> int:
    return run_cluster_subcommand(args)


def _resource_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("type", choices=TYPES, metavar="TYPE", help=", ".join(TYPES))
    parser.add_argument(
        "name",
        metavar="NAME",
        help=f"name of the resource; for brokers, a node id, or {CLUSTER_WIDE} for the cluster-wide default",
    )


def _name(args: argparse.Namespace) -> str:
    name: str = args.name
    return "" if args.type == "broker" and name == CLUSTER_WIDE else name


async def list_resources(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    names = {int(number): name for name, number in TYPES.items()}
    types = [TYPES[args.type]] if args.type else []
    rows = [
        {"type": names.get(number, str(number)), "name": name or CLUSTER_WIDE}
        for number, name in await admin.list_config_resources(cluster, types)
    ]
    if args.json:
        print_json(rows)
    else:
        print_table(["TYPE", "NAME"], [(row["type"], row["name"]) for row in rows])
    return 0


async def describe(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    entries = await admin.describe_configs(cluster, TYPES[args.type], _name(args), keys=args.keys)
    if not (args.all or args.keys):
        entries = [entry for entry in entries if entry.source in EXPLICIT_SOURCES]
    if args.json:
        print_json([_row(entry) for entry in entries])
    elif not entries:
        print_lines([f"{args.type} {args.name}: no config is set; --all shows the defaults"])
    else:
        print_table(
            ["CONFIG", "VALUE", "SOURCE", "READ-ONLY"],
            [
                (e.name, _value(e), e.source.name.lower(), "yes" if e.read_only else "no")
                for e in entries
            ],
        )
    return 0


async def alter(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    changes = [
        ConfigChange(operation, key, value)
        for operation in (ConfigOperation.SET, ConfigOperation.APPEND, ConfigOperation.SUBTRACT)
        for key, value in getattr(args, operation.name)
    ] + [ConfigChange(ConfigOperation.DELETE, key) for key in args.unset]
    if not changes:
        raise WrongUsage("odradek configs alter: specify --set, --unset, --append or --subtract")
    await admin.alter_configs(
        cluster, TYPES[args.type], _name(args), changes, validate_only=args.validate_only
    )
    if args.json:
        print_json({"type": args.type, "name": args.name, "altered": not args.validate_only})
    else:
        print_lines([f"{args.type} {args.name} {'is valid' if args.validate_only else 'altered'}"])
    return 0


def _row(entry: admin.ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name.lower(),
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
    }


def _value(entry: admin.ConfigEntry) -> str | None:
    return "(hidden)" if entry.sensitive else entry.value
