"""Truncation of a follower: the decision table, and random logs that are truncated until they are equal."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import takewhile

import pytest

from odradek.replication.partition.truncation import (
    Truncation,
    decide_truncation,
    find_divergence,
)
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.leader_epoch_cache import EpochEnd
from tests.replication.partition.memory_log import MemoryLog, Record


def _log(epochs: str) -> MemoryLog:
    """Return a log with a record per digit, which is its leader epoch."""
    log = MemoryLog()
    for offset, epoch in enumerate(epochs):
        log.append((int(epoch), str(offset)))
    return log


@pytest.mark.parametrize(
    ("own", "leader", "decided"),
    [
        ("0012", EpochEnd(-1, -1), Truncation(1, True)),
        ("0012", EpochEnd(-1, 3), Truncation(3, True)),
        ("0012", EpochEnd(-1, 9), Truncation(4, True)),
        ("0012", EpochEnd(2, 9), Truncation(4, True)),
        ("0022", EpochEnd(2, 3), Truncation(3, True)),
        ("0033", EpochEnd(2, 3), Truncation(2, False)),
        ("0033", EpochEnd(0, 1), Truncation(1, True)),
        ("3333", EpochEnd(2, 3), Truncation(0, True)),
        ("0012", EpochEnd(7, 9), Truncation(4, True)),
        ("", EpochEnd(2, 3), Truncation(0, True)),
    ],
    ids=[
        "nothing known: the high watermark",
        "no epoch",
        "no epoch, past the end",
        "the leader has more of it",
        "the leader has less of it",
        "an epoch between the follower's",
        "the one before",
        "before all of the follower's",
        "after all of the follower's",
        "nothing to cut",
    ],
)
def test_truncation_matches_decision_table(own: str, leader: EpochEnd, decided: Truncation) -> None:
    log = _log(own)
    found = decide_truncation(
        log.epochs, end_offset=log.end_offset, high_watermark=1, leader=leader
    )
    assert found == decided


@pytest.mark.parametrize(
    ("leader", "offset", "epoch", "described"),
    [
        ("0012", 4, 2, None),
        ("0012", 2, 0, None),
        ("0012", 3, -1, None),
        ("0012", 3, 0, EpochEnd(0, 2)),
        ("0022", 4, 1, EpochEnd(0, 2)),
    ],
)
def test_find_divergence_returns_diverging_epoch(
    leader: str, offset: int, epoch: int, described: EpochEnd | None
) -> None:
    found = find_divergence(
        _log(leader).epochs, start_offset=0, fetch_offset=offset, last_fetched_epoch=epoch
    )
    assert found == described


@pytest.mark.parametrize(("start", "offset", "epoch"), [(0, 4, 3), (3, 2, 0)])
def test_incomparable_logs_are_out_of_range(start: int, offset: int, epoch: int) -> None:
    log = _log("0012")
    with pytest.raises(OffsetOutOfRange):
        find_divergence(
            log.epochs, start_offset=start, fetch_offset=offset, last_fetched_epoch=epoch
        )


class Cluster:
    """Three logs after a random history of leaders, none of which has followed the last one yet.

    A leader is of the ISR; what all of the ISR have is committed; who joins the ISR has that.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.logs = [MemoryLog() for _ in range(3)]
        self.in_sync = set(range(3))
        self.committed: list[Record] = []
        for epoch in range(chance.randint(1, 12)):
            self.leader = self.logs[chance.choice(sorted(self.in_sync))]
            self.leader.epochs.assign(epoch, self.leader.end_offset)
            start = self.leader.end_offset
            for _ in range(chance.randint(0, 3)):
                self._turn(epoch, start)

    def _turn(self, epoch: int, start: int) -> None:
        leader, chance = self.leader, self.chance
        leader.write(epoch, *(f"{leader.end_offset}" for _ in range(chance.randint(0, 2))))
        for node, log in enumerate(self.logs):
            if log is leader or chance.random() < 0.4:
                continue
            same = common(leader, log)
            log.truncate_to(same)
            log.append(*leader.records[same : chance.randint(same, leader.end_offset)])
            if log.end_offset >= max(len(self.committed), start):
                self.in_sync.add(node)
            elif chance.random() < 0.3:
                self.in_sync.discard(node)
        reached = min(common(leader, self.logs[node]) for node in self.in_sync)
        if reached > len(self.committed):
            self.committed = leader.records[:reached]
        for log in self.logs:
            known = min(log.end_offset, len(self.committed))
            log.high_watermark = chance.randint(min(log.high_watermark, known), known)


def common(one: MemoryLog, other: MemoryLog) -> int:
    """Return the number of equal records from the start."""
    pairs = zip(one.records, other.records, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _cut_by_fetching(leader: MemoryLog, follower: MemoryLog) -> int:
    for rounds in range(20):
        latest = follower.epochs.latest
        described = find_divergence(
            leader.epochs,
            start_offset=0,
            fetch_offset=follower.end_offset,
            last_fetched_epoch=-1 if latest is None else latest,
        )
        if described is None:
            return rounds
        follower.truncate_to(_decide(follower, described).offset)
    raise AssertionError("it never ends")


def _cut_by_asking(leader: MemoryLog, follower: MemoryLog) -> int:
    for rounds in range(20):
        if follower.epochs.latest is None:
            return rounds
        described = leader.epochs.end_offset_for(follower.epochs.latest)
        decided = _decide(follower, described)
        follower.truncate_to(decided.offset)
        if decided.done:
            return rounds + 1
    raise AssertionError("it never ends")


def _decide(follower: MemoryLog, described: EpochEnd) -> Truncation:
    return decide_truncation(
        follower.epochs,
        end_offset=follower.end_offset,
        high_watermark=follower.high_watermark,
        leader=described,
    )


@pytest.mark.parametrize("cut", [_cut_by_fetching, _cut_by_asking], ids=["fetch", "ask"])
def test_truncation_removes_only_diverging_records(
    cut: Callable[[MemoryLog, MemoryLog], int],
) -> None:
    rounds: Counter[int] = Counter()
    for seed in range(3000):
        cluster = Cluster(random.Random(seed))
        leader = cluster.leader
        for log in cluster.logs:
            if log is leader:
                continue
            same = common(leader, log)
            rounds[cut(leader, log)] += 1
            assert log.end_offset == same, seed
            assert log.records == leader.records[:same], seed
        for node in cluster.in_sync:
            kept = cluster.logs[node].records
            assert kept[: len(cluster.committed)] == cluster.committed, seed
    assert rounds[1] > 100
    assert rounds[2] > 5, "KIP-279's case never came about"
