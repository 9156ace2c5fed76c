"""`odradek log-dirs balance`: what moves would even out each broker's directories, and making them.

The plan (`balance_plan`) is made from what the brokers report. A replica that is on its way already
counts where it goes to, so nothing has to be remembered: interrupted and run again, it finds the moves
that go on and plans what is missing. All moves are asked for at once; a broker makes as many at a time
as it has threads for it, and goes on with them whether we watch or not, through a restart, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from odradek.cli.balance_plan import plan
from odradek.cli.balance_progress import Copied, Progress
from odradek.cli.errors import CommandFailed
from odradek.cli.move_throttles import MOVE_RATE, throttle_moves
from odradek.cli.output import human_bytes, print_lines, print_now, print_table
from odradek.cli.reassignment_file import dump
from odradek.cli.reassignment_states import Move, places
from odradek.cli.terminal import hint, is_terminal
from odradek.client.admin import (
    ConfigChange,
    ConfigOperation,
    ConfigSource,
    ResourceType,
    alter_configs,
    describe_configs,
)
from odradek.client.consumer import TopicPartition
from odradek.client.errors import ClientError
from odradek.client.log_dir_admin import (
    LogDirectory,
    Replica,
    alter_replica_log_dirs,
    describe_log_dirs,
)
from odradek.client.metadata import Cluster
from odradek.protocol.errors import ErrorCode
from odradek.seams import Seams
from odradek.seams.values import value_class

LOOK_EVERY_S = 1.0
TELL_EVERY_S = 10.0
"""How often progress is told where nobody sees a line change."""
SILENCE_MAX_S = 300.0
"""How long a broker may not answer (it is being restarted) before watching it is given up."""
ASKED_AGAIN = 3
"""How often a move that the broker has lost is asked for again."""


@value_class
class Balance:
    """A broker's moves: from where to where, and how large."""

    directories: Sequence[LogDirectory]
    moves: Mapping[Replica, tuple[str, str, int]]
    """Source, target, bytes."""
    under_way: Mapping[Replica, tuple[str, str, int]]
    """Those that go on already."""

    def after(self, path: str) -> tuple[int, int]:
        """Bytes and replicas in a directory once all moves are made."""
        everything = {**self.under_way, **self.moves}
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


def balance_of(found: Sequence[LogDirectory], *, tolerance_percent: int) -> Balance:
    """The plan for one broker: of its directories that work and are not cordoned."""
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
    under_way: dict[Replica, tuple[str, str, int]] = {}
    for each in found:
        for kept in each.replicas:
            if kept.is_future:
                continue
            replica = Replica(each.broker, kept.topic, kept.partition)
            home = targets.get(replica, each.path)
            if replica in targets:
                under_way[replica] = (each.path, home, kept.size_bytes)
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
    return Balance(found, moves, {r: each for r, each in under_way.items() if r not in moves})


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
    _check_room(balances)
    under_way = {replica: each for one in balances for replica, each in one.under_way.items()}
    if not moves and not under_way:
        print_lines([_even(balances)])
        # Of a run that was interrupted, and whose moves have come to their end by themselves.
        await _end_throttle(cluster, brokers, ours=args.throttle is not None)
        return 0
    moving = {replica.broker for replica in (*moves, *under_way)}
    if args.throttle is not None:
        await _set_throttle(cluster, moving, args.throttle)
    _say_what_happens(moves, under_way)
    await _begin(cluster, {replica: target for replica, (_, target, _) in moves.items()})
    try:
        await _watch(cluster, seams, {**under_way, **moves})
    except KeyboardInterrupt:
        hint(
            "\nThe moves go on. `odradek log-dirs balance --execute` watches them again, "
            "`odradek log-dirs describe` shows them."
        )
        raise
    await _end_throttle(cluster, moving, ours=args.throttle is not None)
    return 0


# What is shown


async def _show(
    args: argparse.Namespace,
    cluster: Cluster,
    balances: Sequence[Balance],
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
    print_lines(["", f"{_summary(moves)}; `odradek log-dirs balance --execute` makes these moves"])


def _directory_rows(one: Balance) -> list[tuple[Any, ...]]:
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
    """The file that `odradek reassign` and kafka-reassign-partitions execute."""
    wanted = dict.fromkeys(TopicPartition(each.topic, each.partition) for each in moves)
    await cluster.refresh_existing({where.topic for where in wanted})
    partitions = {
        where: cluster.topics[where.topic].partitions[where.partition].replicas
        for where in wanted
        if where.topic in cluster.topics
    }
    return dump(partitions, {replica: target for replica, (_, target, _) in moves.items()})


def _even(balances: Sequence[Balance]) -> str:
    if any(one.under_way for one in balances):
        return "nothing to add: with the moves under way the log directories will be even"
    return "nothing to do: the log directories are as even as they can be"


def _summary(moves: Mapping[Replica, tuple[str, str, int]]) -> str:
    size = human_bytes(sum(size for _, _, size in moves.values()))
    return f"{len(moves)} {'replica' if len(moves) == 1 else 'replicas'}, {size}"


def _say_what_happens(
    moves: Mapping[Replica, tuple[str, str, int]],
    under_way: Mapping[Replica, tuple[str, str, int]],
) -> None:
    if under_way:
        print_lines([f"under way already: {_summary(under_way)}"])
    if moves:
        print_lines([f"moving: {_summary(moves)}"])


# What is done


def _check_room(balances: Sequence[Balance]) -> None:
    """Raises CommandFailed where a disk can't take what is to come."""
    for one in balances:
        for directory in one.directories:
            coming = sum(size for _, target, size in one.moves.values() if target == directory.path)
            if coming and 0 <= directory.usable_bytes < coming:
                raise CommandFailed(
                    f"{human_bytes(coming)} are to move to {directory.path} of broker "
                    f"{directory.broker}, where {human_bytes(directory.usable_bytes)} are free"
                )


async def _begin(cluster: Cluster, wanted: Mapping[Replica, str]) -> None:
    """Raises CommandFailed for the first that is refused; those before it have begun."""
    if not wanted:
        return
    for replica, code in sorted((await alter_replica_log_dirs(cluster, wanted)).items()):
        if code != ErrorCode.none:
            raise CommandFailed(
                f"{replica} can't be moved to {wanted[replica]} [{code.name.upper()}]; what has "
                "begun goes on, run the same command again to plan anew"
            )


async def _set_throttle(cluster: Cluster, brokers: Iterable[int], rate: int) -> None:
    await throttle_moves(cluster, brokers, rate)
    print_lines([f"the brokers' limit for these moves is {human_bytes(rate)}/s"])


async def _end_throttle(cluster: Cluster, brokers: Iterable[int], *, ours: bool) -> None:
    """Remove the limit, if it was asked for; else tell of one that is there."""
    for broker in sorted(brokers):
        if ours:
            unset = [ConfigChange(ConfigOperation.DELETE, MOVE_RATE)]
            await alter_configs(cluster, ResourceType.BROKER, str(broker), unset)
            continue
        found = await describe_configs(cluster, ResourceType.BROKER, str(broker), keys=[MOVE_RATE])
        for each in found:
            if each.source is ConfigSource.BROKER:
                hint(
                    f"broker {broker} is limited to {each.value} bytes/s for such moves; "
                    f"`odradek configs alter broker {broker} --unset {MOVE_RATE}` removes that"
                )


async def _watch(
    cluster: Cluster, seams: Seams, wanted: Mapping[Replica, tuple[str, str, int]]
) -> None:
    """Show how far the moves are until all are made. Raises CommandFailed for those that stopped."""
    watcher = _Watcher(cluster, wanted)
    progress = Progress()
    clock = seams.clock
    told_at, heard_at, is_silent = -inf, clock.monotonic(), False
    while True:
        now = clock.monotonic()
        try:
            progress.saw(now, (await watcher.look()).values())
            heard_at, is_silent = now, False
        except ClientError as error:
            if now - heard_at > SILENCE_MAX_S:
                raise
            if not is_silent:
                hint(f"{error}; the moves go on when the broker is back")
            is_silent = True
        else:
            if is_terminal():
                hint_over(str(progress), last=progress.is_done)
            elif progress.is_done or now - told_at >= TELL_EVERY_S:
                print_now(str(progress))
                told_at = now
            if progress.is_done:
                break
        await clock.sleep(LOOK_EVERY_S)


def hint_over(text: str, *, last: bool) -> None:
    """A line on stderr that takes the place of the one before."""
    hint(f"\r\x1b[K{text}", end="\n" if last else "")


class _Watcher:
    """What has become of the moves; asks again for those that the broker has lost."""

    def __init__(self, cluster: Cluster, wanted: Mapping[Replica, tuple[str, str, int]]) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._lost = dict.fromkeys(wanted, 0)
        self._done: dict[Replica, Copied] = {}

    async def look(self) -> dict[Replica, Copied]:
        copied = dict(self._done)
        for broker in sorted({replica.broker for replica in self._wanted}):
            its = [r for r in self._wanted if r.broker == broker and r not in self._done]
            if its:
                partitions = [TopicPartition(r.topic, r.partition) for r in its]
                found = await describe_log_dirs(
                    self._cluster, brokers=[broker], partitions=partitions
                )
                copied |= await self._judge(its, found)
        return copied

    async def _judge(
        self, its: Sequence[Replica], found: Sequence[LogDirectory]
    ) -> dict[Replica, Copied]:
        sizes = {
            (Replica(directory.broker, each.topic, each.partition), each.is_future): each.size_bytes
            for directory in found
            for each in directory.replicas
        }
        copied: dict[Replica, Copied] = {}
        for replica, place in places(its, found).items():
            _, target, planned = self._wanted[replica]
            total = sizes.get((replica, False), planned)
            state = place.towards(target)
            if state is Move.COMPLETED:
                copied[replica] = self._done[replica] = Copied(total, total, done=True)
            elif state is Move.ACTIVE:
                copied[replica] = Copied(sizes.get((replica, True), 0), total)
            elif state is Move.CANCELLED and self._lost[replica] < ASKED_AGAIN:
                self._lost[replica] += 1
                await _begin(self._cluster, {replica: target})
                copied[replica] = Copied(0, total)
            else:
                raise CommandFailed(
                    f"{replica} does not move to {target} any more ({_where(place.current, place.future)}"
                    "); the other moves go on, run the same command again to plan anew"
                )
        return copied


def _where(current: str | None, future: str | None) -> str:
    if current is None:
        return "it is in no log directory that works"
    return f"it is in {current}" + (f", on its way to {future}" if future else "")
