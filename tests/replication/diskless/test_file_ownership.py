"""Owners of WAL files (KIP-1164, D-21)."""

from __future__ import annotations

import random
from collections import Counter

from odradek.replication.diskless.file_ownership import (
    next_owner,
    permuted_owners,
    preceding_owners,
)
from odradek.seams.entropy import SeededEntropy


def test_owners_follow_each_other() -> None:
    """D-21: each owner but the last has a next one, which all others precede."""
    owner_ids = (7, 2, 5)
    assert [next_owner(owner_ids, each) for each in owner_ids] == [2, 5, None]
    assert [preceding_owners(owner_ids, each) for each in owner_ids] == [(), (7,), (7, 2)]


def test_owners_are_permuted_randomly() -> None:
    """D-21: every permutation is equally likely, so that the coordinators own equal shares of the files."""
    entropy = SeededEntropy(random.Random(1))
    drawn = Counter(permuted_owners([3, 1, 2, 1], entropy) for _ in range(6000))
    assert len(drawn) == 6
    assert all(sorted(each) == [1, 2, 3] for each in drawn)
    assert all(850 < count < 1150 for count in drawn.values())


def test_one_owner_needs_no_permutation() -> None:
    assert permuted_owners([4, 4], SeededEntropy(random.Random(1))) == (4,)
