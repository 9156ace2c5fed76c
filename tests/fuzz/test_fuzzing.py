"""Short fuzz runs with fixed seeds; `python -m tests.fuzz.internal_topics` and `tests.fuzz.frames` run longer ones."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz import frames, internal_topics
from tests.fuzz.records import RecordGenerator
from tests.fuzz.report import Observer

topics = pytest.mark.parametrize("topic", internal_topics.TOPICS)


def check(observer: Observer) -> None:
    assert observer.tracebacks == []
    assert observer.is_flat, observer.memory
    assert observer.is_good


@topics
async def test_invalid_records_of_an_internal_topic_do_not_affect_valid_work(topic: str) -> None:
    check(await internal_topics.fuzz(topic, 300, seed=3))


@topics
@pytest.mark.slow
async def test_many_invalid_records_of_an_internal_topic(topic: str) -> None:
    check(await internal_topics.fuzz(topic, 20_000, seed=4))


@pytest.mark.slow
def test_many_frames_do_not_end_the_broker(tmp_path: Path) -> None:
    check(frames.fuzz(10_000, 4, tmp_path / "broker"))


def test_seed_determines_the_records_and_the_frames() -> None:
    for family in ("group", "metadata"):
        first, second = (RecordGenerator(7).records(family) for _ in range(2))
        assert list(islice(first, 500)) == list(islice(second, 500))
    assert list(islice(frames.frames(7), 50)) == list(islice(frames.frames(7), 50))
