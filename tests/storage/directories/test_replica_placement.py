"""Where a new partition goes: the fewest bytes, then the fewest partitions, then the first.

KIP-113 asks for "a better solution than round-robin"; Kafka counts partitions.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.storage.directories.replica_placement import (
    MEASUREMENT_SECONDS_MAX,
    PAUSE_SECONDS,
    DirectoryUsage,
    PlacementCandidate,
    PlacementEstimate,
    order_candidates,
)

CONTENTS = st.lists(
    st.builds(DirectoryUsage, st.integers(0, 10**12), st.integers(1, 50)), min_size=1, max_size=6
)


def place(contents: list[DirectoryUsage], count: int) -> list[int]:
    """Where `count` partitions go that are made in one go; directories are their numbers."""
    estimate: PlacementEstimate[int] = PlacementEstimate()
    estimate.measured(dict(enumerate(contents)), now=0)
    partitions = [each.partitions for each in contents]
    chosen = []
    for _ in range(count):
        best = order_candidates(
            PlacementCandidate(number, estimate.size_bytes(number), partitions[number])
            for number in range(len(contents))
        )[0]
        estimate.reserved(best, now=0)
        partitions[best] += 1
        chosen.append(best)
    return chosen


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_order_is_by_bytes_then_replicas_then_log_dirs(
    directories: list[tuple[int, int]],
) -> None:
    order = order_candidates(
        PlacementCandidate(number, *each) for number, each in enumerate(directories)
    )
    assert order == sorted(
        range(len(directories)), key=lambda number: (*directories[number], number)
    )


@given(CONTENTS)
def test_single_replica_goes_to_directory_with_most_even_result(
    contents: list[DirectoryUsage],
) -> None:
    """By the sum of squares, whatever it will weigh."""
    (chosen,) = place(contents, 1)
    sizes = [each.size_bytes for each in contents]
    for weight in (1, 10**6, 10**13):
        outcomes = [
            sum((size + weight * (number == there)) ** 2 for number, size in enumerate(sizes))
            for there in range(len(sizes))
        ]
        assert outcomes[chosen] == min(outcomes)


def test_bytes_take_precedence_over_replica_count() -> None:
    """Kafka would take the first."""
    assert place([DirectoryUsage(10**9, 1), DirectoryUsage(10**6, 200)], 1) == [1]


def test_empty_directories_alternate() -> None:
    nothing = [DirectoryUsage(0, 0)] * 3
    assert place(nothing, 7) == [0, 1, 2, 0, 1, 2, 0]


@given(CONTENTS, st.integers(1, 300))
def test_replicas_created_together_are_spread(contents: list[DirectoryUsage], count: int) -> None:
    """As if each were as large as the average: none could go elsewhere and leave it more even."""
    chosen = place(contents, count)
    total = sum(each.size_bytes for each in contents)
    average = max(1, total // sum(each.partitions for each in contents))
    sizes = [each.size_bytes for each in contents]
    for directory in chosen:
        sizes[directory] += average
    for directory in set(chosen):
        assert sizes[directory] - average <= min(sizes)


def test_emptier_directory_gets_more_replicas_until_even() -> None:
    chosen = place([DirectoryUsage(100, 5), DirectoryUsage(0, 5)], 20)  # the average is 10
    assert chosen.count(1) == 15
    assert chosen[:10] == [1] * 10


def test_cordoned_directories_are_used_only_if_all_are_cordoned() -> None:
    candidates = [
        PlacementCandidate("a", 0, 0, cordoned=True),
        PlacementCandidate("b", 9, 9),
        PlacementCandidate("c", 3, 9),
    ]
    assert order_candidates(candidates) == ["c", "b"]
    assert order_candidates(
        [PlacementCandidate("a", 5, 5, True), PlacementCandidate("b", 0, 0, True)]
    ) == ["a"]
    assert order_candidates([]) == []


def test_usage_is_measured_again_after_pause_or_maximum_age() -> None:
    estimate: PlacementEstimate[str] = PlacementEstimate()
    assert estimate.is_stale(0)
    estimate.measured({"a": DirectoryUsage(50, 5)}, now=10)
    estimate.reserved("a", now=10 + PAUSE_SECONDS)
    assert not estimate.is_stale(10 + 2 * PAUSE_SECONDS)
    assert estimate.size_bytes("a") == 60
    assert estimate.is_stale(10.1 + 2 * PAUSE_SECONDS)
    now = 10.0
    while not estimate.is_stale(now := now + PAUSE_SECONDS / 2):
        estimate.reserved("a", now)
    assert now - 10 > MEASUREMENT_SECONDS_MAX
    estimate.measured({"a": DirectoryUsage(70, 6)}, now)
    assert estimate.size_bytes("a") == 70
    assert estimate.size_bytes("a directory that has come back") == 0


def test_failed_creation_releases_reservation() -> None:
    estimate: PlacementEstimate[str] = PlacementEstimate()
    estimate.measured({"a": DirectoryUsage(50, 5)}, now=0)
    estimate.reserved("a", now=0)
    estimate.released("a")
    estimate.released("a")  # after a measurement
    assert estimate.size_bytes("a") == 50
