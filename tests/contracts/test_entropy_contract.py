"""Contract of `Entropy`, for the system's source and a seeded one."""

from __future__ import annotations

import base64
import random

import pytest

from odradek.seams.entropy import Entropy, RealEntropy, SeededEntropy


@pytest.fixture(params=["real", "seeded"])
def entropy(request: pytest.FixtureRequest) -> Entropy:
    return RealEntropy() if request.param == "real" else SeededEntropy(random.Random(1))


def test_uuid_text_does_not_begin_with_a_dash(entropy: Entropy) -> None:
    drawn = [entropy.uuid() for _ in range(2000)]
    assert len(set(drawn)) == 2000
    assert all(uuid.version == 4 for uuid in drawn)
    assert not any(base64.urlsafe_b64encode(uuid.bytes).startswith(b"-") for uuid in drawn)


def test_numbers_stay_in_bounds(entropy: Entropy) -> None:
    assert {entropy.below(3) for _ in range(200)} == {0, 1, 2}
    assert all(1.5 <= entropy.uniform(1.5, 2.0) <= 2.0 for _ in range(200))


def test_bytes_have_the_requested_length(entropy: Entropy) -> None:
    assert entropy.bytes(0) == b""
    assert len(entropy.bytes(33)) == 33


def test_same_seed_gives_same_values() -> None:
    one, two = (SeededEntropy(random.Random(5)) for _ in range(2))
    for draw in ("uuid", "below", "uniform", "bytes"):
        args = {"uuid": (), "below": (99,), "uniform": (0.0, 1.0), "bytes": (9,)}[draw]
        assert getattr(one, draw)(*args) == getattr(two, draw)(*args)
