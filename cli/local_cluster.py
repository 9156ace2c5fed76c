"""`odradek cluster`: run a whole cluster on this machine, look at it, start one of its nodes again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path as LocalPath

import trio

from odradek.broker.config.tiered import absolute_target
from odradek.broker.config.types import ConfigError
from odradek.broker.local_cluster import control
from odradek.broker.local_cluster.nodes import NodeFailed
from odradek.broker.local_cluster.plan import HOST, ClusterPlan, Door, NodePlan, make_plan
from odradek.broker.local_cluster.ports import free_ports, is_free
from odradek.broker.local_cluster.supervisor import (
    LOCK_FILE,
    Supervisor,
    read_plan,
    status,
    write_plan,
)
from odradek.cli.cluster import key_value
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
"""What is asked for is known: who does not say it stands still."""

DESCRIPTION = """\
Run a cluster on this machine, one process a broker, until SIGTERM, SIGINT (Ctrl-C) or SIGHUP, which
stop it cleanly. What the nodes write is passed on, each line with its node before it.

Brokers are nodes 1, 2, …; the first three are the controllers, too, unless --controllers asks for nodes
that are nothing else. A node that dies stays dead until `odradek cluster restart NODE`. The same --data
again is the same cluster.
"""
EPILOG = """\
examples:
  odradek cluster
  odradek cluster --brokers 5 --controllers 3 --data /tmp/five --port-file ports
  odradek cluster status --data /tmp/five --json
  odradek cluster restart 2 --data /tmp/five

exit status: 0 after a clean end, 1 if a node did not start or had to be killed, 2 for bad usage
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "cluster",
        help="run several brokers on this machine",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _data_argument(parser)
    parser.add_argument(
        "--brokers",
        metavar="N",
        type=int,
        help=f"how many brokers a new cluster has (default: {DEFAULT_BROKERS})",
    )
    parser.add_argument(
        "--controllers",
        metavar="N",
        type=int,
        help="how many controllers of its own a new cluster has (default: 0, brokers are)",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="where the first broker of a new cluster listens, the others on the ports after it; port 0 "
        f"picks free ones (default: {HOST}:{DEFAULT_PORT}, or free ones if those are taken)",
    )
    parser.add_argument(
        "--port-file",
        metavar="FILE",
        help="gets HOST:PORT of each broker, one a line, whole, once every broker answers",
    )
    parser.add_argument(
        "--tiered",
        metavar="DIR|URL",
        help="tiered storage for a new cluster, in this directory or object store (s3://bucket/prefix, …)",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        type=key_value,
        action="append",
        default=[],
        help="a config of every node of a new cluster; may be given again",
    )
    commands = parser.add_subparsers(metavar="WHAT", dest="what")
    shown = commands.add_parser(
        "status",
        help="show the nodes of a cluster, running or not",
        description="Show the nodes of a cluster: their processes, addresses and states, whether anybody "
        "runs them or not.",
    )
    _data_argument(shown)
    shown.add_argument("--json", action="store_true", help="print JSON instead of a table")
    again = commands.add_parser(
        "restart",
        help="start a node, stopping it first if it runs",
        description="Start a node of a cluster that `odradek cluster` runs, stopping it first if it runs; "
        "ends once the node answers.",
    )
    again.add_argument("node", metavar="NODE", type=int, help="the node's id")
    _data_argument(again)
    return parser


def _data_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        metavar="DIR",
        default=DEFAULT_DATA,
        help=f"where the cluster is kept (default: ./{DEFAULT_DATA})",
    )


def run(args: argparse.Namespace) -> int:
    """Raises WrongUsage, CommandFailed."""
    directory = Path(LocalPath(args.data).absolute())
    seams = real_seams()
    if args.what == "status":
        return _status(seams, directory, as_json=args.json)
    if args.what == "restart":
        return _restart(seams, directory, args.node)
    return _run(args, seams, directory)


def _plan_of(seams: Seams, directory: Path) -> ClusterPlan | None:
    """Raises CommandFailed for a file that is none of ours."""
    try:
        return read_plan(seams.files, directory)
    except ValueError as error:
        raise CommandFailed(
            f"{directory} has a cluster.json that is not to be read: {error}"
        ) from None


def _status(seams: Seams, directory: Path, *, as_json: bool) -> int:
    plan = _plan_of(seams, directory)
    if plan is None:
        raise CommandFailed(f"no cluster in {directory}: `odradek cluster --data` makes one")
    try:
        asked = {"do": "status"}
        ask = partial(control.ask, timeout_s=STATUS_S)
        found = trio.run(ask, seams.network, seams.files, directory, asked)
    except control.NobodyRuns:
        found = status(plan, None)
    except trio.TooSlowError:
        raise CommandFailed(
            f"whoever runs the cluster in {directory} does not answer: if nobody does, remove "
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
        asked = {"do": "restart", "node": node}
        respond = trio.run(control.ask, seams.network, seams.files, directory, asked)
    except control.NobodyRuns:
        raise CommandFailed(
            f"nobody runs the cluster in {directory}: `odradek cluster --data {directory}` does"
        ) from None
    except control.Refused as refused:
        raise CommandFailed(str(refused)) from None
    row = respond["node"]
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
    """What a group is about, as what the command says of it."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return CommandFailed(str(group)) if isinstance(group, NodeFailed) else group


def _target(text: str) -> str:
    try:
        return absolute_target(text)
    except ConfigError as error:
        raise WrongUsage(str(error)) from None


async def _serve(args: argparse.Namespace, seams: Seams, directory: Path) -> None:
    from odradek.broker.local_cluster.odradek_nodes import OdradekNodes

    if args.port_file is not None:  # what the last run wrote says nothing of this one
        seams.files.remove(Path(args.port_file), missing_ok=True)
    plan = await _the_plan(args, seams, directory)
    addresses = [str(door.advertised) for node in plan.brokers if (door := node.clients)]

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
        say=lambda text: print_now(f"odradek: {text}"),
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
    """A node's line, marked; as it is, whatever letters it has."""
    sys.stdout.buffer.write(b"node-%d | %s\n" % (node.node_id, line))
    sys.stdout.buffer.flush()


async def _the_plan(args: argparse.Namespace, seams: Seams, directory: Path) -> ClusterPlan:
    """The directory's own, or a new one. Raises WrongUsage where the arguments want another."""
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
        addresses=await _doors(args.listen, seams, brokers, controllers or brokers),
        settings=dict(args.set),
        tiered=None if args.tiered is None else _target(args.tiered),
    )
    _check_configs(plan)
    write_plan(seams.files, directory, plan)
    return plan


def _check_configs(plan: ClusterPlan) -> None:
    """Raises WrongUsage for what no node would start with: the plan, once written, is the cluster's."""
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
                f"--{name} {getattr(args, name)}: the cluster in {args.data} has {count}; another --data "
                "is another cluster"
            )
    if args.listen is not None or args.set or args.tiered is not None:
        raise WrongUsage(
            f"--listen, --set and --tiered are for a new cluster; the configs of the one in {args.data} are in "
            "its cluster.json"
        )


async def _doors(listen: str | None, seams: Seams, brokers: int, more: int) -> Iterator[Door]:
    """Addresses, the brokers' first: consecutive from where `listen` says. Raises WrongUsage, CommandFailed."""
    host, first = (HOST, DEFAULT_PORT) if listen is None else _host_and_port(listen)
    ports = [first + number for number in range(brokers)] if first else []
    if ports and ports[-1] > PORT_MAX:
        raise WrongUsage(
            f"--listen {listen}: there is no port {PORT_MAX + 1}, for {brokers} brokers"
        )
    try:
        taken = [port for port in ports if not await is_free(seams.network, host, port)]
        if taken and listen is not None:
            raise CommandFailed(f"somebody listens on {Address(host, taken[0])} already")
        if taken:
            ports = []
        ports += await free_ports(seams.network, seams.entropy, host, brokers + more - len(ports))
    except OSError as error:
        raise CommandFailed(f"can't listen on {host}: {error.strerror or error}") from None
    addresses = [Address(host, port) for port in ports]
    return iter([Door(address, address) for address in addresses])


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) <= PORT_MAX):
        raise WrongUsage(f"--listen takes HOST:PORT, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
