"""`odradek log-dirs balance`: plan and start the moves that balance the log directories of each broker.

`log_dirs_balance_plan` computes the plan from the sizes that the brokers report. A moving replica counts in its
destination. The command therefore keeps no state: if it is interrupted and run again, it includes the
running moves and plans the missing ones. It starts all moves at once. A broker runs as many of them
concurrently as it has threads for moves, and continues after a restart and after this command ends.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from odradek.cli.errors import CommandFailed
from odradek.cli.log_dirs_balance_plan import plan
from odradek.cli.log_dirs_output import percent
from odradek.cli.move_throttles import MOVE_RATE, throttle_moves
from odradek.cli.output import human_bytes, print_lines, print_now, print_table
from odradek.cli.reassignment_file import dump
from odradek.cli.reassignment_states import DirectoryMoveState, replica_directories
from odradek.cli.terminal import hint, is_terminal
from odradek.client.admin import (
    ConfigChange,
    ConfigOperation,
    ConfigSource,
    ResourceType,
    alter_configs,
    describe_configs,
)
from odradek.client.errors import ClientError
from odradek.client.log_dir_admin import (
    LogDirectory,
    Replica,
    alter_replica_log_dirs,
    describe_log_dirs,
)
from odradek.client.metadata import Cluster
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition
from odradek.seams import Seams
from odradek.seams.values import value_class

POLL_EVERY_S = 1.0
PROGRESS_EVERY_S = 10.0
"""Interval of progress lines if stderr is not a terminal."""
UNREACHABLE_MAX_S = 300.0
"""How long a broker may be unreachable, for example during a restart, before the command fails."""
WINDOW_S = 30.0
"""Seconds over which the rate of moves is computed."""
RESTARTS_MAX = 3
"""How often a move that the broker has dropped is started again."""


@value_class
class BrokerBalance:
    """Planned and running moves of a broker."""

    directories: Sequence[LogDirectory]
    moves: Mapping[Replica, tuple[str, str, int]]
    """Source path, destination path and bytes of each planned move."""
    in_progress: Mapping[Replica, tuple[str, str, int]]
    """Source path, destination path and bytes of each running move."""

    def after(self, path: str) -> tuple[int, int]:
        """Bytes and number of replicas in a directory after all moves."""
        everything = {**self.in_progress, **self.moves}
        size_bytes = count = 0
        for directory in self.directories:
            for each in directory.replicas:
                replica = Replica(directory.broker, each.topic, each.partition)
                if each.is_future:
                    continue
                if everything.get(replica, (None, directory.path))[1] == path:
                    size_bytes += each.size_bytes
                    count += 1
        return size_bytes, count


def balance_of(found: Sequence[LogDirectory], *, tolerance_percent: int) -> BrokerBalance:
    """Plan the moves of one broker between its directories that are online and not cordoned."""
    usable = [each for each in found if not each.error and not each.cordoned]
    number = {each.path: index for index, each in enumerate(usable)}
    targets = {
        Replica(each.broker, copy.topic, copy.partition): each.path
        for each in found
        for copy in each.replicas
        if copy.is_future
    }
    sizes: list[int] = []
    homes: list[int] = []
    replicas: list[tuple[Replica, str]] = []
    in_progress: dict[Replica, tuple[str, str, int]] = {}
    for each in found:
        for kept in each.replicas:
            if kept.is_future:
                continue
            replica = Replica(each.broker, kept.topic, kept.partition)
            home = targets.get(replica, each.path)
            if replica in targets:
                in_progress[replica] = (each.path, home, kept.size_bytes)
            if home in number:
                sizes.append(kept.size_bytes)
                homes.append(number[home])
                replicas.append((replica, each.path))
    wanted = plan(sizes, homes, len(usable), tolerance_percent=tolerance_percent)
    moves = {
        replica: (source, usable[place].path, size)
        for (replica, source), size, home, place in zip(replicas, sizes, homes, wanted, strict=True)
        if place != home
    }
    return BrokerBalance(
        found, moves, {r: each for r, each in in_progress.items() if r not in moves}
    )


async def balance(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    await cluster.refresh()
    brokers = sorted(cluster.nodes) if args.brokers is None else args.brokers
    balances = [
        balance_of(
            await describe_log_dirs(cluster, brokers=[broker]), tolerance_percent=args.tolerance
        )
        for broker in brokers
    ]
    moves = {replica: each for one in balances for replica, each in one.moves.items()}
    if not args.execute:
        await _show(args, cluster, balances, moves)
        return 0
    _check_free_space(balances)
    in_progress = {replica: each for one in balances for replica, each in one.in_progress.items()}
    if not moves and not in_progress:
        print_lines([_even(balances)])
        # The moves of an interrupted run may have completed.
        await _end_throttle(cluster, brokers, remove=args.throttle is not None)
        return 0
    moving = {replica.broker for replica in (*moves, *in_progress)}
    if args.throttle is not None:
        await _set_throttle(cluster, moving, args.throttle)
    _print_start(moves, in_progress)
    await _begin(cluster, {replica: target for replica, (_, target, _) in moves.items()})
    try:
        await _watch(cluster, seams, {**in_progress, **moves})
    except KeyboardInterrupt:
        hint(
            "\nThe moves continue. `odradek log-dirs balance --execute` waits for them, "
            "`odradek log-dirs describe` lists them."
        )
        raise
    await _end_throttle(cluster, moving, remove=args.throttle is not None)
    return 0


# Output


async def _show(
    args: argparse.Namespace,
    cluster: Cluster,
    balances: Sequence[BrokerBalance],
    moves: Mapping[Replica, tuple[str, str, int]],
) -> None:
    if args.json:
        print_lines([await _as_reassignment(cluster, moves)])
        return
    print_table(
        ["BROKER", "DIRECTORY", "SIZE", "REPLICAS", "SIZE AFTER", "REPLICAS AFTER"],
        [row for one in balances for row in _directory_rows(one)],
    )
    print_lines([""])
    if not moves:
        print_lines([_even(balances)])
        return
    print_table(
        ["BROKER", "TOPIC", "PARTITION", "SIZE", "FROM", "TO"],
        [
            (*replica, human_bytes(size), source, target)
            for replica, (source, target, size) in sorted(moves.items())
        ],
    )
    print_lines(["", f"{_summary(moves)}; `odradek log-dirs balance --execute` starts these moves"])


def _directory_rows(one: BrokerBalance) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for directory in one.directories:
        if directory.error:
            state = f"offline [{directory.error.name.upper()}]"
            rows.append((directory.broker, directory.path, state, None, None, None))
            continue
        kept = [replica for replica in directory.replicas if not replica.is_future]
        size_bytes, count = one.after(directory.path)
        now = sum(replica.size_bytes for replica in kept)
        rows.append(
            (
                directory.broker,
                directory.path,
                human_bytes(now),
                len(kept),
                human_bytes(size_bytes),
                count,
            )
        )
    return rows


async def _as_reassignment(cluster: Cluster, moves: Mapping[Replica, tuple[str, str, int]]) -> str:
    """Format the moves as a file for `odradek reassign` and kafka-reassign-partitions."""
    wanted = dict.fromkeys(TopicPartition(each.topic, each.partition) for each in moves)
    await cluster.refresh_existing({where.topic for where in wanted})
    partitions = {
        where: cluster.topics[where.topic].partitions[where.partition].replicas
        for where in wanted
        if where.topic in cluster.topics
    }
    return dump(partitions, {replica: target for replica, (_, target, _) in moves.items()})


def _even(balances: Sequence[BrokerBalance]) -> str:
    if any(one.in_progress for one in balances):
        return "nothing to add: the running moves balance the log directories"
    return "nothing to do: the log directories are balanced"


def _summary(moves: Mapping[Replica, tuple[str, str, int]]) -> str:
    size = human_bytes(sum(size for _, _, size in moves.values()))
    return f"{len(moves)} {'replica' if len(moves) == 1 else 'replicas'}, {size}"


def _print_start(
    moves: Mapping[Replica, tuple[str, str, int]],
    in_progress: Mapping[Replica, tuple[str, str, int]],
) -> None:
    if in_progress:
        print_lines([f"already in progress: {_summary(in_progress)}"])
    if moves:
        print_lines([f"moving: {_summary(moves)}"])


# Execution


def _check_free_space(balances: Sequence[BrokerBalance]) -> None:
    """Raise CommandFailed if a destination does not have enough free space."""
    for one in balances:
        for directory in one.directories:
            coming = sum(size for _, target, size in one.moves.values() if target == directory.path)
            if coming and 0 <= directory.usable_bytes < coming:
                raise CommandFailed(
                    f"the moves to {directory.path} of broker {directory.broker} need {human_bytes(coming)}, "
                    f"and {human_bytes(directory.usable_bytes)} are free"
                )


async def _begin(cluster: Cluster, wanted: Mapping[Replica, str]) -> None:
    """Start moves. Raises CommandFailed for the first one that a broker refuses; others may have started."""
    if not wanted:
        return
    for replica, code in sorted((await alter_replica_log_dirs(cluster, wanted)).items()):
        if code != ErrorCode.none:
            raise CommandFailed(
                f"{replica} can't be moved to {wanted[replica]} [{code.name.upper()}]; moves that have "
                "started continue, run the same command again to plan the others"
            )


async def _set_throttle(cluster: Cluster, brokers: Iterable[int], rate: int) -> None:
    await throttle_moves(cluster, brokers, rate)
    print_lines([f"the brokers' limit for these moves is {human_bytes(rate)}/s"])


async def _end_throttle(cluster: Cluster, brokers: Iterable[int], *, remove: bool) -> None:
    """Remove the limit if this command set it; otherwise print a hint about an existing limit."""
    for broker in sorted(brokers):
        if remove:
            unset = [ConfigChange(ConfigOperation.DELETE, MOVE_RATE)]
            await alter_configs(cluster, ResourceType.BROKER, str(broker), unset)
            continue
        found = await describe_configs(cluster, ResourceType.BROKER, str(broker), keys=[MOVE_RATE])
        for each in found:
            if each.source is ConfigSource.BROKER:
                hint(
                    f"broker {broker} limits moves between log directories to {each.value} bytes/s; "
                    f"`odradek configs alter broker {broker} --unset {MOVE_RATE}` removes the limit"
                )


async def _watch(
    cluster: Cluster, seams: Seams, wanted: Mapping[Replica, tuple[str, str, int]]
) -> None:
    """Print progress until all moves are complete. Raises CommandFailed if a move stops."""
    watcher = _MoveWatcher(cluster, wanted)
    progress = MoveProgress()
    clock = seams.clock
    printed_at, responded_at, is_unreachable = -inf, clock.monotonic(), False
    while True:
        now = clock.monotonic()
        try:
            progress.add_sample(now, (await watcher.look()).values())
            responded_at, is_unreachable = now, False
        except ClientError as error:
            if now - responded_at > UNREACHABLE_MAX_S:
                raise
            if not is_unreachable:
                hint(f"{error}; the moves continue when the broker is back")
            is_unreachable = True
        else:
            if is_terminal():
                hint_over(str(progress), last=progress.is_done)
            elif progress.is_done or now - printed_at >= PROGRESS_EVERY_S:
                print_now(str(progress))
                printed_at = now
            if progress.is_done:
                break
        await clock.sleep(POLL_EVERY_S)


def hint_over(text: str, *, last: bool) -> None:
    """Print a line to stderr that replaces the previous one."""
    hint(f"\r\x1b[K{text}", end="\n" if last else "")


class _MoveWatcher:
    """Reads the progress of moves, and restarts moves that the broker has dropped."""

    def __init__(self, cluster: Cluster, wanted: Mapping[Replica, tuple[str, str, int]]) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._lost = dict.fromkeys(wanted, 0)
        self._done: dict[Replica, CopyProgress] = {}

    async def look(self) -> dict[Replica, CopyProgress]:
        copied = dict(self._done)
        for broker in sorted({replica.broker for replica in self._wanted}):
            its = [r for r in self._wanted if r.broker == broker and r not in self._done]
            if its:
                partitions = [TopicPartition(r.topic, r.partition) for r in its]
                found = await describe_log_dirs(
                    self._cluster, brokers=[broker], partitions=partitions
                )
                copied |= await self._check(its, found)
        return copied

    async def _check(
        self, its: Sequence[Replica], found: Sequence[LogDirectory]
    ) -> dict[Replica, CopyProgress]:
        sizes = {
            (Replica(directory.broker, each.topic, each.partition), each.is_future): each.size_bytes
            for directory in found
            for each in directory.replicas
        }
        copied: dict[Replica, CopyProgress] = {}
        for replica, place in replica_directories(its, found).items():
            _, target, planned = self._wanted[replica]
            total = sizes.get((replica, False), planned)
            state = place.state_of_move_to(target)
            if state is DirectoryMoveState.COMPLETED:
                copied[replica] = self._done[replica] = CopyProgress(total, total, done=True)
            elif state is DirectoryMoveState.ACTIVE:
                copied[replica] = CopyProgress(sizes.get((replica, True), 0), total)
            elif state is DirectoryMoveState.CANCELLED and self._lost[replica] < RESTARTS_MAX:
                self._lost[replica] += 1
                await _begin(self._cluster, {replica: target})
                copied[replica] = CopyProgress(0, total)
            else:
                raise CommandFailed(
                    f"{replica} is no longer moving to {target} ({_describe_place(place.current, place.future)}"
                    "); the other moves continue, run the same command again to plan the rest"
                )
        return copied


def _describe_place(current: str | None, future: str | None) -> str:
    if current is None:
        return "it is not in an online log directory"
    return f"it is in {current}" + (f", moving to {future}" if future else "")


# Progress


@value_class
class CopyProgress:
    """Progress of one replica: copied bytes and total bytes."""

    size_bytes: int
    total_bytes: int
    done: bool = False


class MoveProgress:
    """Progress and rate of all moves, from samples of the last `WINDOW_S`."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._replicas = self._replicas_done = 0
        self._bytes = self._bytes_done = 0

    def add_sample(self, now: float, copied: Collection[CopyProgress]) -> None:
        """Add a sample of all replicas, at a monotonic time in seconds."""
        self._replicas = len(copied)
        self._replicas_done = sum(each.done for each in copied)
        self._bytes = sum(each.total_bytes for each in copied)
        self._bytes_done = sum(
            each.total_bytes if each.done else min(each.size_bytes, each.total_bytes)
            for each in copied
        )
        self._samples.append((now, self._bytes_done))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()

    @property
    def is_done(self) -> bool:
        return self._replicas_done == self._replicas

    @property
    def bytes_per_s(self) -> float:
        """Rate in bytes/s; 0 while it is unknown."""
        (began, first), (now, last) = self._samples[0], self._samples[-1]
        return max(0.0, (last - first) / (now - began)) if now > began else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds; None while nothing has moved."""
        left = self._bytes - self._bytes_done
        if left == 0:
            return 0.0
        rate = self.bytes_per_s
        return left / rate if rate > 0 else None

    def __str__(self) -> str:
        done = f"{human_bytes(self._bytes_done)} of {human_bytes(self._bytes)}"
        parts = [
            f"{self._replicas_done} of {self._replicas} replicas",
            f"{done} ({percent(self._bytes_done, self._bytes)} %)",
        ]
        if not self.is_done:
            left = self.seconds_left
            parts.append(f"{human_bytes(int(self.bytes_per_s))}/s")
            parts.append(
                "remaining time unknown" if left is None else f"{duration(left)} remaining"
            )
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds, rounded up: 75 is '1:15', 3700 is '1:01:40'."""
    whole = int(-(-seconds // 1))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
