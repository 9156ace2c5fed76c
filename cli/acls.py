"""`odradek acls`: list, add and remove access control lists."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from odradek.cli.cluster_connection import add_cluster_subcommand, run_cluster_subcommand
from odradek.cli.errors import WrongUsage
from odradek.cli.output import print_json, print_table
from odradek.client import acl_admin
from odradek.client.acl_admin import Acl, AclFilter
from odradek.client.metadata import Cluster
from odradek.protocol.acls import AclOperation, AclResource, PatternType, Permission
from odradek.seams import Seams

EPILOG = """\
examples:
  odradek acls list --topic orders
  odradek acls add --principal User:alice --operation read --topic orders
  odradek acls add --principal User:alice --operation read --group billing- --prefixed
  odradek acls add --principal 'User:*' --operation all --topic secrets --deny
  odradek acls remove --principal User:alice
"""
CLUSTER_NAME = "kafka-cluster"
OPERATIONS = {
    operation.name.lower().replace("_", "-"): operation
    for operation in AclOperation
    if operation > AclOperation.ANY
}


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "acls",
        help="list, add and remove access control lists",
        description="List, add and remove access control lists (ACLs). The brokers need an authorizer "
        "(authorizer.class.name).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND")

    listing = add_cluster_subcommand(commands, "list", "list the ACLs", list_acls)
    _filter_arguments(listing, "only ACLs")

    adding = add_cluster_subcommand(commands, "add", "add ACLs, one for each operation", add)
    adding.add_argument(
        "--principal", required=True, help="the principal, such as User:alice; 'User:*' matches all"
    )
    adding.add_argument("--host", default="*", help="the client's IP address (default: any)")
    adding.add_argument(
        "--operation",
        dest="operations",
        action="append",
        required=True,
        choices=sorted(OPERATIONS),
        metavar="OPERATION",
        help=f"{', '.join(sorted(OPERATIONS))}; can be repeated",
    )
    adding.add_argument("--deny", action="store_true", help="add ACLs that deny the operation")
    _resource_arguments(adding, required=True)

    removing = add_cluster_subcommand(
        commands, "remove", "remove all ACLs that match the options", remove
    )
    _filter_arguments(removing, "ACLs")
    return parser


def run(args: argparse.Namespace) -> int:
    return run_cluster_subcommand(args)


def _resource_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    resources = parser.add_mutually_exclusive_group(required=required)
    for name in ("topic", "group", "transactional-id"):
        resources.add_argument(
            f"--{name}", metavar="NAME", help=f"a {name.replace('-', ' ')}; '*' matches all"
        )
    resources.add_argument("--cluster", action="store_true", help="the cluster resource")
    parser.add_argument(
        "--prefixed", action="store_true", help="match every resource whose name starts with NAME"
    )


def _filter_arguments(parser: argparse.ArgumentParser, which: str) -> None:
    parser.add_argument("--principal", help=f"{which} of this principal, such as User:alice")
    parser.add_argument("--host", help=f"{which} of this client address")
    parser.add_argument(
        "--operation",
        choices=sorted(OPERATIONS),
        metavar="OPERATION",
        help=f"{which} for this operation",
    )
    _resource_arguments(parser, required=False)


def _resource(args: argparse.Namespace) -> tuple[AclResource, str | None]:
    if args.topic is not None:
        return AclResource.TOPIC, args.topic
    if args.group is not None:
        return AclResource.GROUP, args.group
    if args.transactional_id is not None:
        return AclResource.TRANSACTIONAL_ID, args.transactional_id
    if args.cluster:
        return AclResource.CLUSTER, CLUSTER_NAME
    return AclResource.ANY, None


def _filter(args: argparse.Namespace) -> AclFilter:
    resource, name = _resource(args)
    return AclFilter(
        resource,
        name,
        PatternType.PREFIXED if args.prefixed else PatternType.ANY,
        args.principal,
        args.host,
        AclOperation.ANY if args.operation is None else OPERATIONS[args.operation],
    )


async def list_acls(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    _print(await acl_admin.list_acls(cluster, _filter(args)), args)
    return 0


async def add(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    resource, name = _resource(args)
    assert name is not None
    acls = [
        Acl(
            resource,
            name,
            PatternType.PREFIXED if args.prefixed else PatternType.LITERAL,
            args.principal,
            args.host,
            OPERATIONS[operation],
            Permission.DENY if args.deny else Permission.ALLOW,
        )
        for operation in dict.fromkeys(args.operations)
    ]
    await acl_admin.create_acls(cluster, acls)
    _print(acls, args)
    return 0


async def remove(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    wanted = _filter(args)
    if wanted == AclFilter():
        raise WrongUsage(
            "odradek acls remove: specify a principal, a host, an operation or a resource"
        )
    _print(await acl_admin.delete_acls(cluster, wanted), args)
    return 0


def _print(acls: Sequence[Acl], args: argparse.Namespace) -> None:
    rows = [
        {
            "resource": _word(acl.resource_type),
            "name": acl.resource_name,
            "pattern": _word(acl.pattern_type),
            "principal": acl.principal,
            "host": acl.host,
            "operation": _word(acl.operation),
            "permission": _word(acl.permission),
        }
        for acl in acls
    ]
    if args.json:
        print_json(rows)
    else:
        columns = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
        print_table(
            [column.upper() for column in columns],
            [tuple(row[column] for column in columns) for row in rows],
        )


def _word(value: AclResource | PatternType | AclOperation | Permission) -> str:
    return value.name.lower().replace("_", "-")
