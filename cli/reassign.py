"""`odradek reassign`: move partitions between brokers, and replicas between log directories (KIP-455, KIP-113).

The file format, the order of requests and the output are those of kafka-reassign-partitions, except for
J-21: AlterReplicaLogDirs is sent before AlterPartitionReassignments. A broker keeps the directory of a
replica that it does not have yet and creates the replica there, and an invalid directory is reported before
any replica moves. `--verify` exits with 1 if a partition or replica neither has its target nor moves to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from odradek.cli.cluster_connection import bootstrap_argument, with_cluster
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.move_throttles import clear_throttles, throttle_moves, throttle_replication
from odradek.cli.output import print_lines
from odradek.cli.reassignment_file import ReassignmentFile, check_executable, dump, parse
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
    code: int = with_cluster(args, lambda cluster, seams: args.action(args, cluster, seams))
    return code


def _file(args: argparse.Namespace, seams: Seams) -> ReassignmentFile:
    if args.file is None:
        raise WrongUsage("odradek reassign: --file is missing")
    try:
        text = seams.files.read(Path(args.file))
    except OSError as error:
        raise CommandFailed(f"{args.file}: {error.strerror}") from error
    return parse(text)


# Execute


async def execute(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    file = _file(args, seams)
    check_executable(file)
    active = await list_reassignments(cluster)
    if active and not args.additional:
        raise CommandFailed(EXISTING)
    current = await _current_replicas(cluster, file)
    await _show_current(cluster, current)
    throttles = [each for each in (args.throttle, args.move_throttle) if each is not None]
    if any(each >= 0 for each in throttles):
        print_lines([VERIFY_PERIODICALLY])
    if args.throttle is not None and args.throttle >= 0:
        await throttle_replication(cluster, file.partitions, current, active, args.throttle)
        print_lines([f"The inter-broker throttle limit was set to {args.throttle} B/s"])
    if args.move_throttle is not None and args.move_throttle >= 0:
        brokers = {replica.broker for replica in file.directories}
        await throttle_moves(cluster, brokers, args.move_throttle)
        print_lines([f"The replica-alter-dir throttle limit was set to {args.move_throttle} B/s"])
    moves = DirectoryMoves(cluster, seams.clock, file.directories)
    await moves.attempt()
    await _reassign(args, cluster, file)
    moves.print_started()
    await moves.wait_until_started(args.timeout_ms)
    return 0


async def _reassign(args: argparse.Namespace, cluster: Cluster, file: ReassignmentFile) -> None:
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
    print_lines([f"Successfully started partition reassignment{plural} for {names}"])


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
    cluster: Cluster, current: Mapping[TopicPartition, tuple[int, ...]]
) -> None:
    """Print the current assignment, which is the input for a rollback."""
    replicas = [Replica(broker, *where) for where, brokers in current.items() for broker in brokers]
    alive = [replica for replica in replicas if replica.broker in cluster.nodes]
    found = await _describe_replicas(cluster, alive)
    directories = {
        replica: place.current for replica, place in found.items() if place.current is not None
    }
    print_lines(
        [
            "Current partition replica assignment",
            "",
            dump(current, directories),
            "",
            "Save this to use as the --reassignment-json-file option during rollback",
        ]
    )


class DirectoryMoves:
    """Sends AlterReplicaLogDirs, and retries for replicas that their broker does not have yet."""

    def __init__(self, cluster: Cluster, clock: Clock, wanted: Mapping[Replica, str]) -> None:
        self._cluster = cluster
        self._clock = clock
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
                self._started[replica] = self._pending.pop(replica)
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
            print_lines([f"Successfully started moving log directory to {path} for {name}"])
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


def _advice(code: ErrorCode) -> str:
    if code == ErrorCode.log_dir_not_found:
        return "\nthe broker has no such log directory; `odradek log-dirs list` shows them"
    if code == ErrorCode.invalid_replica_assignment:
        return "\nthat log directory is cordoned; `odradek log-dirs list` shows which are"
    if code == ErrorCode.kafka_storage_error:
        return "\na log directory of the broker is offline; `odradek log-dirs list` shows which"
    return ""


# Verify


async def verify(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    file = _file(args, seams)
    active = await list_reassignments(cluster)
    await cluster.refresh_existing({*file.topics, *(where.topic for where in active)})
    known = _known_replicas(cluster, file.partitions)
    states = {
        where: PartitionReassignment(known.get(where, ()), target, where in active)
        for where, target in file.partitions.items()
    }
    print_lines(status_lines(states))
    found = await _describe_replicas(cluster, file.directories)
    targets = file.directories
    print_lines(move_line(replica, targets[replica], found[replica]) for replica in sorted(found))
    moves = [place.state_of_move_to(targets[replica]) for replica, place in found.items()]
    if not active and all(move.done for move in moves) and not args.preserve_throttles:
        await _clear_throttles(cluster, file)
    is_on_target = [state.is_on_target for state in states.values()] + [
        move.is_on_target for move in moves
    ]
    return 0 if all(is_on_target) else 1


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


async def _clear_throttles(cluster: Cluster, file: ReassignmentFile) -> None:
    brokers = sorted(cluster.nodes)
    plural = "" if len(brokers) == 1 else "s"
    topics = [topic for topic in file.topics if topic in cluster.topics]
    of_topics = f"topic{'' if len(topics) == 1 else 's'} {','.join(topics)}"
    print_lines(
        [
            f"Clearing broker-level throttles on broker{plural} {','.join(map(str, brokers))}",
            f"Clearing topic-level throttles on {of_topics}",
        ]
    )
    await clear_throttles(cluster, brokers, topics)


# Cancel and list


async def cancel(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    file = _file(args, seams)
    await _cancel_reassignments(cluster, file)
    found = await _describe_replicas(cluster, file.directories)
    moving = {
        replica: place.current
        for replica, place in found.items()
        if place.current is not None
        and place.state_of_move_to(file.directories[replica])
        in (DirectoryMoveState.ACTIVE, DirectoryMoveState.ELSEWHERE)
    }
    if moving:
        moves = DirectoryMoves(cluster, seams.clock, moving)
        await moves.attempt()
        moves.print_started()
        await moves.wait_until_started(args.timeout_ms)
    else:
        print_lines(["None of the specified partition moves are active."])
    if not args.preserve_throttles:
        await cluster.refresh_existing(file.topics)
        await _clear_throttles(cluster, file)
    return 0


async def _cancel_reassignments(cluster: Cluster, file: ReassignmentFile) -> None:
    active = [
        where
        for where, each in (await list_reassignments(cluster, file.partitions)).items()
        if each.adding or each.removing
    ]
    if not active:
        print_lines(["None of the specified partition reassignments are active."])
        return
    errors = await alter_reassignments(cluster, dict.fromkeys(active))
    plural = "" if len(errors or active) == 1 else "s"
    if errors:
        raise CommandFailed(
            f"Error cancelling partition reassignment{plural} for:\n{_error_lines(errors)}"
        )
    names = ",".join(str(where) for where in sorted(active))
    print_lines([f"Successfully cancelled partition reassignment{plural} for: {names}"])


async def list_all(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    active = await list_reassignments(cluster)
    if not active:
        print_lines(["No partition reassignments found."])
        return 0
    print_lines(["Current partition reassignments:"])
    for where, each in sorted(active.items()):
        parts = [f"replicas: {','.join(map(str, each.replicas))}."]
        parts += [f"adding: {','.join(map(str, each.adding))}."] if each.adding else []
        parts += [f"removing: {','.join(map(str, each.removing))}."] if each.removing else []
        print_lines([f"{where}: {' '.join(parts)}"])
    return 0
