"""`odradek reassign`: move partitions between brokers, and replicas between log directories (KIP-455, KIP-113).

The file format, the order of requests and the output are those of kafka-reassign-partitions, except for
J-21: AlterReplicaLogDirs is sent before AlterPartitionReassignments. A broker keeps the directory of a
replica that it does not have yet and creates the replica there, and an invalid directory is reported before
any replica moves. `--verify` exits with 1 if a partition or replica neither has its target nor moves to it.

With `--json` an action prints one document when it ends. If it fails after it may have changed something, the
document has what was done, including the assignment for a rollback.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from odradek.cli.cluster_connection import bootstrap_argument, with_cluster
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.move_throttles import clear_throttles, throttle_moves, throttle_replication
from odradek.cli.output import print_json, print_lines
from odradek.cli.reassignment_file import ReassignmentFile, as_json, check_executable, dump, parse
from odradek.cli.reassignment_states import (
    DirectoryMoveState,
    PartitionReassignment,
    ReplicaDirectories,
    move_line,
    replica_directories,
    status_lines,
)
from odradek.client.log_dir_admin import Replica, alter_replica_log_dirs, describe_log_dirs
from odradek.client.metadata import Cluster
from odradek.client.reassignment_admin import alter_reassignments, list_reassignments
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams import Seams
from odradek.seams.clock import Clock
from odradek.seams.files import Path

EPILOG = """\
examples:
  odradek reassign --execute --file moves.json
  odradek reassign --verify --file moves.json
  odradek reassign --cancel --file moves.json

moves.json:
  {"version": 1, "partitions": [
    {"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": ["/disk2"]}]}

log_dirs is optional. It has one entry per replica: "any", or an absolute path.
"""
EXISTING = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override "
    "this and create a new partition assignment in addition to the existing one. The --additional flag "
    "can also be used to change the throttle by resubmitting the current reassignment."
)
VERIFY_PERIODICALLY = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the "
    "throttle is removed."
)
TIMEOUT_MS = 10_000
RETRY_S = 0.1
RESPONSE_S = 10.0
REPLICA_NOT_YET_CREATED = frozenset({ErrorCode.replica_not_available})


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "reassign",
        help="move replicas between brokers and between log directories",
        description="Move replicas between brokers, and between the log directories of a broker.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_actions(parser)
    bootstrap_argument(parser)
    parser.add_argument(
        "-f",
        "--file",
        "--reassignment-json-file",
        metavar="FILE",
        help="the reassignment as JSON",
    )
    parser.add_argument(
        "--timeout",
        dest="timeout_ms",
        metavar="MS",
        type=int,
        default=TIMEOUT_MS,
        help="timeout for the start of all moves to log directories (default: 10000)",
    )
    parser.add_argument(
        "--additional", action="store_true", help="execute even if other reassignments are active"
    )
    _add_limit_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.set_defaults(timeout=RESPONSE_S)
    return parser


def _add_actions(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    for name, action, line in (
        ("--execute", execute, "start the reassignment in --file"),
        (
            "--verify",
            verify,
            "show the status of the reassignment, and remove its throttles if it is complete",
        ),
        ("--cancel", cancel, "cancel the moves of the reassignment that are not complete"),
        ("--list", list_all, "list the active reassignments between brokers"),
    ):
        what.add_argument(name, dest="action", action="store_const", const=action, help=line)


def _add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--throttle", metavar="BYTES/S", type=rate, help="limit for replication between brokers"
    )
    parser.add_argument(
        "--replica-alter-log-dirs-throttle",
        dest="move_throttle",
        metavar="BYTES/S",
        type=rate,
        help="limit for moves between the log directories of a broker",
    )
    parser.add_argument(
        "--preserve-throttles", action="store_true", help="do not change existing throttles"
    )
    parser.add_argument(
        "--disallow-replication-factor-change",
        action="store_true",
        help="fail if the reassignment changes a replication factor",
    )


def rate(text: str) -> int:
    """Parse a rate in bytes/s; as in Kafka, a negative rate sets no throttle."""
    value = int(text)
    if value >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text} is more than 2^63-1 bytes/s")
    return value


def run(args: argparse.Namespace) -> int:
    with _output(args.json) as output:
        code: int = with_cluster(
            args, lambda cluster, seams: args.action(args, cluster, seams, output)
        )
    return code


class Output:
    """Output of an action: lines, or with --json a document that grows until the action ends."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self.document: Any = None
        """None before the action has a result."""

    def lines(self, *lines: str) -> None:
        """Print lines unless the output is JSON."""
        if not self._is_json:
            print_lines(lines)

    def print_document(self) -> None:
        if self._is_json and self.document is not None:
            print_json(self.document)


@contextmanager
def _output(is_json: bool) -> Iterator[Output]:
    output = Output(is_json)
    try:
        yield output
    finally:
        output.print_document()


def _file(args: argparse.Namespace, seams: Seams) -> ReassignmentFile:
    if args.file is None:
        raise WrongUsage("odradek reassign: --file is missing")
    try:
        text = seams.files.read(Path(args.file))
    except OSError as error:
        raise CommandFailed(f"{args.file}: {error.strerror}") from error
    return parse(text)


# Execute


async def execute(args: argparse.Namespace, cluster: Cluster, seams: Seams, output: Output) -> int:
    file = _file(args, seams)
    check_executable(file)
    active = await list_reassignments(cluster)
    if active and not args.additional:
        raise CommandFailed(EXISTING)
    current = await _current_replicas(cluster, file)
    await _show_current(cluster, current, output)
    throttles = [each for each in (args.throttle, args.move_throttle) if each is not None]
    if any(each >= 0 for each in throttles):
        output.lines(VERIFY_PERIODICALLY)
    if args.throttle is not None and args.throttle >= 0:
        await throttle_replication(cluster, file.partitions, current, active, args.throttle)
        output.document["throttle"] = args.throttle
        output.lines(f"The inter-broker throttle limit was set to {args.throttle} B/s")
    if args.move_throttle is not None and args.move_throttle >= 0:
        brokers = {replica.broker for replica in file.directories}
        await throttle_moves(cluster, brokers, args.move_throttle)
        output.document["replica_alter_log_dirs_throttle"] = args.move_throttle
        output.lines(f"The replica-alter-dir throttle limit was set to {args.move_throttle} B/s")
    moves = DirectoryMoves(cluster, seams.clock, file.directories, output)
    await moves.attempt()
    await _reassign(args, cluster, file, output)
    moves.print_started()
    await moves.wait_until_started(args.timeout_ms)
    return 0


async def _reassign(
    args: argparse.Namespace, cluster: Cluster, file: ReassignmentFile, output: Output
) -> None:
    errors = await alter_reassignments(
        cluster,
        file.partitions,
        allow_replication_factor_change=not args.disallow_replication_factor_change,
    )
    if errors:
        raise CommandFailed("Error reassigning partition(s):\n" + _error_lines(errors))
    wanted = sorted(file.partitions)
    plural = "" if len(wanted) == 1 else "s"
    names = ",".join(str(where) for where in wanted)
    output.document["partitions"] = [
        {**_partition(where), "replicas": list(file.partitions[where])} for where in wanted
    ]
    output.lines(f"Successfully started partition reassignment{plural} for {names}")


def _partition(where: TopicPartition) -> dict[str, Any]:
    return {"topic": where.topic, "partition": where.partition}


def _error_lines(errors: Mapping[TopicPartition, KafkaError]) -> str:
    return "\n".join(f"{where}: {errors[where].message}" for where in sorted(errors))


async def _current_replicas(
    cluster: Cluster, file: ReassignmentFile
) -> dict[TopicPartition, tuple[int, ...]]:
    """Current replicas of each partition. Raises CommandFailed for an unknown partition or broker."""
    await cluster.refresh_existing(file.topics)
    unknown = sorted({b for each in file.assignments for b in each.replicas} - set(cluster.nodes))
    if unknown:
        raise CommandFailed(f"Unknown broker id {unknown[0]}")
    found = _known_replicas(cluster, file.partitions)
    missing = [str(where) for where in sorted(file.partitions) if where not in found]
    if missing:
        raise CommandFailed(f"Unable to find partition: {', '.join(missing)}")
    return found


def _known_replicas(
    cluster: Cluster, wanted: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, ...]]:
    return {
        where: topic.partitions[where.partition].replicas
        for where in wanted
        if (topic := cluster.topics.get(where.topic)) is not None
        and where.partition in topic.partitions
    }


async def _show_current(
    cluster: Cluster, current: Mapping[TopicPartition, tuple[int, ...]], output: Output
) -> None:
    """Output the current assignment, which is the input for a rollback."""
    replicas = [Replica(broker, *where) for where, brokers in current.items() for broker in brokers]
    alive = [replica for replica in replicas if replica.broker in cluster.nodes]
    found = await _describe_replicas(cluster, alive)
    directories = {
        replica: place.current for replica, place in found.items() if place.current is not None
    }
    output.document = {
        "current": as_json(current, directories),
        "throttle": None,
        "replica_alter_log_dirs_throttle": None,
        "partitions": [],
        "log_dir_moves": [],
    }
    output.lines(
        "Current partition replica assignment",
        "",
        dump(current, directories),
        "",
        "Save this to use as the --reassignment-json-file option during rollback",
    )


class DirectoryMoves:
    """Sends AlterReplicaLogDirs, and retries for replicas that their broker does not have yet."""

    def __init__(
        self, cluster: Cluster, clock: Clock, wanted: Mapping[Replica, str], output: Output
    ) -> None:
        """Started moves are added to `log_dir_moves` of the output's document."""
        self._cluster = cluster
        self._clock = clock
        self._output = output
        self._pending = dict(wanted)
        self._started: dict[Replica, str] = {}

    async def attempt(self) -> None:
        """Send one request per broker for the moves that have not started.

        Raises CommandFailed for the first replica with an error that is not retriable.
        """
        if not self._pending:
            return
        results = await alter_replica_log_dirs(self._cluster, self._pending)
        for replica, code in sorted(results.items()):
            if code == ErrorCode.none:
                self._started[replica] = path = self._pending.pop(replica)
                self._output.document["log_dir_moves"].append(
                    {**_replica(replica), "log_dir": path}
                )
            elif code not in REPLICA_NOT_YET_CREATED:
                path = self._pending[replica]
                raise CommandFailed(
                    f"Failed to alter dir for {replica} to {path} [{code.name.upper()}]"
                    + _advice(code)
                )

    def print_started(self) -> None:
        """Print the moves that started since the last call."""
        for replica, path in sorted(self._started.items()):
            name = f"replica {replica.topic}-{replica.partition} with broker {replica.broker}"
            self._output.lines(f"Successfully started moving log directory to {path} for {name}")
        self._started.clear()

    async def wait_until_started(self, timeout_ms: int) -> None:
        """Retry until every move has started. Raises CommandFailed at the timeout."""
        end = self._clock.monotonic() + timeout_ms / 1000
        while self._pending:
            if self._clock.monotonic() >= end:
                plural = "" if len(self._pending) == 1 else "s"
                names = ",".join(str(replica) for replica in sorted(self._pending))
                raise CommandFailed(
                    f"Timed out before log directory move{plural} could be started for: {names}"
                )
            await self._clock.sleep(RETRY_S)
            await self.attempt()
            self.print_started()


def _replica(replica: Replica) -> dict[str, Any]:
    return {
        "topic": replica.topic,
        "partition": replica.partition,
        "broker": replica.broker,
    }


def _advice(code: ErrorCode) -> str:
    if code == ErrorCode.log_dir_not_found:
        return "\nthe broker has no such log directory; `odradek log-dirs list` shows them"
    if code == ErrorCode.invalid_replica_assignment:
        return "\nthat log directory is cordoned; `odradek log-dirs list` shows which are"
    if code == ErrorCode.kafka_storage_error:
        return "\na log directory of the broker is offline; `odradek log-dirs list` shows which"
    return ""


# Verify


async def verify(args: argparse.Namespace, cluster: Cluster, seams: Seams, output: Output) -> int:
    file = _file(args, seams)
    active = await list_reassignments(cluster)
    await cluster.refresh_existing({*file.topics, *(where.topic for where in active)})
    known = _known_replicas(cluster, file.partitions)
    states = {
        where: PartitionReassignment(known.get(where, ()), target, where in active)
        for where, target in file.partitions.items()
    }
    output.lines(*status_lines(states))
    found = await _describe_replicas(cluster, file.directories)
    targets = file.directories
    output.lines(
        *(move_line(replica, targets[replica], found[replica]) for replica in sorted(found))
    )
    moves = [place.state_of_move_to(targets[replica]) for replica, place in found.items()]
    output.document = _status(states, found, targets)
    if not active and all(move.done for move in moves) and not args.preserve_throttles:
        await _clear_throttles(cluster, file, output)
    is_on_target = [state.is_on_target for state in states.values()] + [
        move.is_on_target for move in moves
    ]
    return 0 if all(is_on_target) else 1


def _status(
    states: Mapping[TopicPartition, PartitionReassignment],
    found: Mapping[Replica, ReplicaDirectories],
    targets: Mapping[Replica, str],
) -> dict[str, Any]:
    return {
        "partitions": [
            {
                **_partition(where),
                "state": states[where].state,
                "replicas": list(states[where].current),
                "target_replicas": list(states[where].target),
            }
            for where in sorted(states)
        ],
        "log_dir_moves": [
            {
                **_replica(replica),
                "state": found[replica].state_of_move_to(targets[replica]).name.lower(),
                "log_dir": found[replica].current,
                "future_log_dir": found[replica].future,
                "target_log_dir": targets[replica],
            }
            for replica in sorted(found)
        ],
        "throttles_removed": False,
    }


async def _describe_replicas(
    cluster: Cluster, replicas: Iterable[Replica]
) -> dict[Replica, ReplicaDirectories]:
    """Look up the directories of replicas with DescribeLogDirs, on the broker of each replica (J-22)."""
    by_broker: dict[int, list[Replica]] = {}
    for replica in replicas:
        by_broker.setdefault(replica.broker, []).append(replica)
    found: dict[Replica, ReplicaDirectories] = {}
    for broker, of_broker in by_broker.items():
        wanted = [TopicPartition(replica.topic, replica.partition) for replica in of_broker]
        described = await describe_log_dirs(cluster, brokers=[broker], partitions=wanted)
        found |= replica_directories(of_broker, described)
    return found


async def _clear_throttles(cluster: Cluster, file: ReassignmentFile, output: Output) -> None:
    brokers = sorted(cluster.nodes)
    plural = "" if len(brokers) == 1 else "s"
    topics = [topic for topic in file.topics if topic in cluster.topics]
    of_topics = f"topic{'' if len(topics) == 1 else 's'} {','.join(topics)}"
    output.lines(
        f"Clearing broker-level throttles on broker{plural} {','.join(map(str, brokers))}",
        f"Clearing topic-level throttles on {of_topics}",
    )
    await clear_throttles(cluster, brokers, topics)
    output.document["throttles_removed"] = True


# Cancel and list


async def cancel(args: argparse.Namespace, cluster: Cluster, seams: Seams, output: Output) -> int:
    file = _file(args, seams)
    await _cancel_reassignments(cluster, file, output)
    found = await _describe_replicas(cluster, file.directories)
    moving = {
        replica: place.current
        for replica, place in found.items()
        if place.current is not None
        and place.state_of_move_to(file.directories[replica])
        in (DirectoryMoveState.ACTIVE, DirectoryMoveState.ELSEWHERE)
    }
    if moving:
        moves = DirectoryMoves(cluster, seams.clock, moving, output)
        await moves.attempt()
        moves.print_started()
        await moves.wait_until_started(args.timeout_ms)
    else:
        output.lines("None of the specified partition moves are active.")
    if not args.preserve_throttles:
        await cluster.refresh_existing(file.topics)
        await _clear_throttles(cluster, file, output)
    return 0


async def _cancel_reassignments(cluster: Cluster, file: ReassignmentFile, output: Output) -> None:
    active = [
        where
        for where, each in (await list_reassignments(cluster, file.partitions)).items()
        if each.adding or each.removing
    ]
    output.document = {"partitions": [], "log_dir_moves": [], "throttles_removed": False}
    if not active:
        output.lines("None of the specified partition reassignments are active.")
        return
    errors = await alter_reassignments(cluster, dict.fromkeys(active))
    plural = "" if len(errors or active) == 1 else "s"
    if errors:
        raise CommandFailed(
            f"Error cancelling partition reassignment{plural} for:\n{_error_lines(errors)}"
        )
    names = ",".join(str(where) for where in sorted(active))
    output.document["partitions"] = [_partition(where) for where in sorted(active)]
    output.lines(f"Successfully cancelled partition reassignment{plural} for: {names}")


async def list_all(args: argparse.Namespace, cluster: Cluster, seams: Seams, output: Output) -> int:
    active = await list_reassignments(cluster)
    output.document = [
        {
            **_partition(where),
            "replicas": list(each.replicas),
            "adding": list(each.adding),
            "removing": list(each.removing),
        }
        for where, each in sorted(active.items())
    ]
    if not active:
        output.lines("No partition reassignments found.")
        return 0
    output.lines("Current partition reassignments:")
    for where, each in sorted(active.items()):
        parts = [f"replicas: {','.join(map(str, each.replicas))}."]
        parts += [f"adding: {','.join(map(str, each.adding))}."] if each.adding else []
        parts += [f"removing: {','.join(map(str, each.removing))}."] if each.removing else []
        output.lines(f"{where}: {' '.join(parts)}")
    return 0
