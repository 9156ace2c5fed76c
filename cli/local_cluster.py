"""`odradek cluster`: run a cluster on this machine, print its status, restart a node."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path as LocalPath

import trio

from odradek.broker.config.tiered_option import absolute_target
from odradek.broker.config.types import ConfigError
from odradek.broker.local_cluster import control
from odradek.broker.local_cluster.nodes import NodeFailed
from odradek.broker.local_cluster.plan import (
    HOST,
    ClusterPlan,
    ListenerAddress,
    NodePlan,
    make_plan,
)
from odradek.broker.local_cluster.ports import free_ports, is_free
from odradek.broker.local_cluster.supervisor import (
    LOCK_FILE,
    Supervisor,
    read_plan,
    status,
    write_plan,
)
from odradek.cli.cluster_connection import key_value
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.output import print_json, print_now, print_table
from odradek.cli.terminal import ending_signals
from odradek.protocol.uuids import uuid_to_text
from odradek.seams import Seams
from odradek.seams.files import Path
from odradek.seams.network import Address
from odradek.seams.real import real_seams

DEFAULT_DATA = "odradek-cluster"
DEFAULT_BROKERS = 3
DEFAULT_PORT = 9092
PORT_MAX = 65535
STATUS_S = 5.0
"""Timeout of a status request. The supervisor responds at once unless it hangs."""

DESCRIPTION = """\
Run a cluster on this machine, with one process per node. SIGTERM, SIGINT (Ctrl-C) and SIGHUP shut the
cluster down cleanly. The node id is printed before each log line.

The brokers have the node ids 1, 2, …. By default, the first three brokers are also
controllers. With --controllers N, N further nodes are controllers, and no broker is a controller. A node that exits stays down until `odradek cluster restart NODE`. The next run with
the same --data starts the same cluster again.
"""
EPILOG = """\
examples:
  odradek cluster
  odradek cluster --brokers 5 --controllers 3 --data /tmp/five --port-file ports
  odradek cluster status --data /tmp/five --json
  odradek cluster restart 2 --data /tmp/five

exit status: 0 after a clean shutdown, 1 if a node did not start or was killed, 2 for invalid options
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "cluster",
        help="run a cluster on this machine",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _data_argument(parser, DEFAULT_DATA)
    _add_options(parser)
    _add_subcommands(parser)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--brokers",
        metavar="N",
        type=int,
        help=f"number of brokers of a new cluster (default: {DEFAULT_BROKERS})",
    )
    parser.add_argument(
        "--controllers",
        metavar="N",
        type=int,
        help="number of controllers of a new cluster that are not brokers (default: 0, the first three brokers are "
        "controllers)",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address of the first broker of a new cluster; the other nodes use the next ports; port 0 "
        f"selects free ports (default: {HOST}:{DEFAULT_PORT}, or free ports if a port is in use)",
    )
    parser.add_argument(
        "--port-file",
        metavar="FILE",
        help="write HOST:PORT of each broker to this file, one per line, when all brokers accept clients",
    )
    parser.add_argument(
        "--tiered",
        metavar="DIR|URL",
        help="enable tiered storage of a new cluster in this directory or object store (s3://bucket/prefix, gs://…, "
        "az://…)",
    )
    parser.add_argument(
        "--diskless",
        metavar="DIR|URL",
        help="enable diskless topics of a new cluster in this directory or object store",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        type=key_value,
        action="append",
        default=[],
        help="a config of every node of a new cluster; can be repeated",
    )


def _add_subcommands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="SUBCOMMAND", dest="what")
    shown = commands.add_parser(
        "status",
        help="print the state of each node",
        description="Print the state, process id and addresses of each node of a cluster, whether or not it is "
        "running.",
    )
    _data_argument(shown)
    shown.add_argument("--json", action="store_true", help="print JSON instead of a table")
    again = commands.add_parser(
        "restart",
        help="restart or start a node",
        description="Restart a node of a cluster, or start it if it has exited. The cluster must be running. "
        "The command ends when the node accepts clients.",
    )
    again.add_argument("node", metavar="NODE", type=int, help="the node id")
    _data_argument(again)


def _data_argument(parser: argparse.ArgumentParser, default: str = argparse.SUPPRESS) -> None:
    """Add `--data`. A default of a subcommand would replace the value before the subcommand."""
    parser.add_argument(
        "--data",
        metavar="DIR",
        default=default,
        help=f"directory of the cluster (default: ./{DEFAULT_DATA})",
    )


def run(args: argparse.Namespace) -> int:
    """Run the subcommand. Raises WrongUsage and CommandFailed."""
    directory = Path(LocalPath(args.data).absolute())
    seams = real_seams()
    if args.what == "status":
        return _status(seams, directory, as_json=args.json)
    if args.what == "restart":
        return _restart(seams, directory, args.node)
    return _run(args, seams, directory)


def _plan_of(seams: Seams, directory: Path) -> ClusterPlan | None:
    """Read cluster.json; None if there is none. Raises CommandFailed if it is invalid."""
    try:
        return read_plan(seams.files, directory)
    except ValueError as error:
        raise CommandFailed(f"{directory} has an invalid cluster.json: {error}") from None


def _status(seams: Seams, directory: Path, *, as_json: bool) -> int:
    plan = _plan_of(seams, directory)
    if plan is None:
        raise CommandFailed(f"no cluster in {directory}: `odradek cluster --data` creates one")
    try:
        request = {"do": "status"}
        send = partial(control.request, timeout_s=STATUS_S)
        found = trio.run(send, seams.network, seams.files, directory, request)
    except control.ClusterNotRunning:
        found = status(plan, None)
    except trio.TooSlowError:
        raise CommandFailed(
            f"the process that runs the cluster in {directory} does not respond: if it has ended, remove "
            f"{directory / control.FILE_NAME}"
        ) from None
    if as_json:
        print_json(found)
    else:
        rows = [*found["brokers"], *found.get("controllers", ())]
        columns = ("id", "pid", "address", "state")
        print_table(columns, [[row[name] for name in columns] for row in rows])
    return 0


def _restart(seams: Seams, directory: Path, node: int) -> int:
    try:
        request = {"do": "restart", "node": node}
        response = trio.run(control.request, seams.network, seams.files, directory, request)
    except control.ClusterNotRunning:
        raise CommandFailed(
            f"the cluster in {directory} is not running: `odradek cluster --data {directory}` starts it"
        ) from None
    except control.ControlRequestFailed as refused:
        raise CommandFailed(str(refused)) from None
    row = response["node"]
    print_now(f"odradek: node {row['id']} is {row['state']}, process {row['pid']}")
    return 0


def _run(args: argparse.Namespace, seams: Seams, directory: Path) -> int:
    if not seams.files.is_directory(directory):
        seams.files.make_directory(directory)
    try:
        lock = seams.files.lock(directory / LOCK_FILE)
    except BlockingIOError:
        raise CommandFailed(f"the cluster in {directory} is running already") from None
    try:
        trio.run(_serve, args, seams, directory)
    except BaseExceptionGroup as group:
        raise _first(group) from group
    except NodeFailed as failed:
        raise CommandFailed(str(failed)) from None
    finally:
        lock.release()
    return 0


def _first(group: BaseException) -> BaseException:
    """Return the first error of a group, as CommandFailed if a node failed."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return CommandFailed(str(group)) if isinstance(group, NodeFailed) else group


def _target(text: str, what: str) -> str:
    try:
        return absolute_target(text, what)
    except ConfigError as error:
        raise WrongUsage(str(error)) from None


async def _serve(args: argparse.Namespace, seams: Seams, directory: Path) -> None:
    from odradek.broker.local_cluster.odradek_nodes import OdradekNodes

    if args.port_file is not None:  # the file may be from an earlier run
        seams.files.remove(Path(args.port_file), missing_ok=True)
    plan = await _the_plan(args, seams, directory)
    addresses = [str(listener.advertised) for node in plan.brokers if (listener := node.clients)]

    def ready() -> None:
        if args.port_file is not None:
            text = "".join(f"{address}\n" for address in addresses)
            seams.files.write_new(Path(args.port_file), text.encode())
        count = f"{len(addresses)} brokers" if len(addresses) > 1 else "1 broker"
        print_now(f"odradek: {count} at {','.join(addresses)}, data in {directory}")

    supervisor = Supervisor(
        seams,
        plan,
        OdradekNodes(seams),
        directory,
        line=_print_line,
        report=lambda text: print_now(f"odradek: {text}"),
    )
    with trio.open_signal_receiver(*ending_signals()) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, signals, supervisor)
            await supervisor.run(ready)
            nursery.cancel_scope.cancel()


async def _stop_on_signal(signals: object, supervisor: Supervisor) -> None:
    async for _ in signals:  # type: ignore[attr-defined]
        supervisor.stop()


def _print_line(node: NodePlan, line: bytes) -> None:
    """Print a node's log line as bytes, after the node id."""
    sys.stdout.buffer.write(b"node-%d | %s\n" % (node.node_id, line))
    sys.stdout.buffer.flush()


async def _the_plan(args: argparse.Namespace, seams: Seams, directory: Path) -> ClusterPlan:
    """Return the plan of the directory, or create it. Raises WrongUsage if the options differ from it."""
    plan = _plan_of(seams, directory)
    if plan is not None:
        _check_same(args, plan)
        return plan
    brokers = DEFAULT_BROKERS if args.brokers is None else args.brokers
    controllers = args.controllers or 0
    if brokers < 1 or controllers < 0:
        raise WrongUsage("--brokers is at least 1, and --controllers at least 0")
    plan = make_plan(
        brokers=brokers,
        controllers=controllers,
        directory=str(directory),
        new_id=lambda: uuid_to_text(seams.entropy.uuid()),
        addresses=await _addresses(args.listen, seams, brokers, controllers or brokers),
        settings=dict(args.set),
        tiered=None if args.tiered is None else _target(args.tiered, "tiered storage"),
        diskless=None if args.diskless is None else _target(args.diskless, "diskless topics"),
    )
    _check_configs(plan)
    write_plan(seams.files, directory, plan)
    return plan


def _check_configs(plan: ClusterPlan) -> None:
    """Raise WrongUsage for invalid configurations, before the plan is written."""
    from odradek.broker.config.server_config import ServerConfig

    try:
        for node in plan.nodes:
            ServerConfig.from_properties(plan.properties(node))
    except ConfigError as error:
        raise WrongUsage(str(error)) from None


def _check_same(args: argparse.Namespace, plan: ClusterPlan) -> None:
    has: Mapping[str, object] = {
        "brokers": len(plan.brokers),
        "controllers": sum(not node.is_broker for node in plan.nodes),
    }
    for name, count in has.items():
        if getattr(args, name) not in (None, count):
            raise WrongUsage(
                f"--{name} {getattr(args, name)}: the cluster in {args.data} has {count}; use another --data "
                "for another cluster"
            )
    for_new = (args.listen, args.tiered, args.diskless)
    if args.set or any(each is not None for each in for_new):
        raise WrongUsage(
            f"--listen, --set, --tiered and --diskless apply to new clusters only; cluster.json in {args.data} has the "
            "configurations of this one"
        )


async def _addresses(
    listen: str | None, seams: Seams, brokers: int, more: int
) -> Iterator[ListenerAddress]:
    """Choose the addresses, brokers first, with consecutive ports from `listen`.

    Raises WrongUsage and CommandFailed.
    """
    host, first = (HOST, DEFAULT_PORT) if listen is None else _host_and_port(listen)
    ports = [first + number for number in range(brokers)] if first else []
    if ports and ports[-1] > PORT_MAX:
        raise WrongUsage(f"--listen {listen}: {brokers} brokers would need port {PORT_MAX + 1}")
    try:
        taken = [port for port in ports if not await is_free(seams.network, host, port)]
        if taken and listen is not None:
            raise CommandFailed(f"{Address(host, taken[0])} is already in use")
        if taken:
            ports = []
        ports += await free_ports(seams.network, seams.entropy, host, brokers + more - len(ports))
    except OSError as error:
        raise CommandFailed(f"can't listen on {host}: {error.strerror or error}") from None
    addresses = [Address(host, port) for port in ports]
    return iter([ListenerAddress(address, address) for address in addresses])


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) <= PORT_MAX):
        raise WrongUsage(f"--listen takes HOST:PORT, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
