"""Streams whose driver is killed at any time: the next driver continues, and each record is in the output once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.testing import Broker
from tests.pipeline.spark_cluster import end_group, environment
from tests.pipeline.tiering import QUICK, TIERED
from tests.support.librdkafka_clients import produce

pytestmark = [pytest.mark.interop, pytest.mark.slow]

KILLS, RECORDS_A_RUN = 2, 600
TIMEOUT_SECONDS = 300.0


@contextmanager
def _driver(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a driver and kill it at the end of the context, with its JVM and its Python workers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.stream_to_files", *words],
        cwd=Path(__file__).parents[2],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end_group(process)
        assert process.stdout is not None
        process.stdout.close()


def _value(number: int) -> str:
    return f"record {number} ".ljust(120, ".")


def _produce(broker: Broker, run: int) -> None:
    first = run * RECORDS_A_RUN
    numbers = range(first, first + RECORDS_A_RUN)
    produce(
        broker.bootstrap,
        "events",
        [_value(number) for number in numbers],
        partition=[number % 2 for number in numbers],
        config={"batch.size": 1000, "enable.idempotence": True},  # the numbers are the offsets
    )


def _await_a_batch(commits: Path, driver: subprocess.Popen[str]) -> None:
    """Wait for one more committed batch."""
    done = _count(commits)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while _count(commits) == done:
        assert driver.poll() is None, "the stream ended"
        assert time.monotonic() < deadline, "no batch was committed"
        time.sleep(0.05)


def _count(commits: Path) -> int:
    return sum(path.name.isdigit() for path in commits.glob("*"))


def test_each_record_is_written_once_when_the_driver_is_killed(tmp_path: Path) -> None:
    random = Random(4)
    tier = tmp_path / "tier"
    with Broker(configs=QUICK, tiered=tier) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        (made,) = admin.create_topics([NewTopic("events", 2, config=TIERED)]).values()
        made.result(30)
        words = (broker.bootstrap, str(tier), str(tmp_path))
        for run in range(KILLS):
            _produce(broker, run)
            with _driver(*words) as driver:
                _await_a_batch(tmp_path / "checkpoint" / "commits", driver)
                time.sleep(random.uniform(0.0, 2.0))
                assert driver.poll() is None
        _produce(broker, KILLS)
        with _driver(*words, "once") as driver:
            output, _ = driver.communicate(timeout=TIMEOUT_SECONDS)
            assert driver.returncode == 0
    assert list(tier.rglob("*.manifest")), "no segment was read from the store"
    found = sorted(json.loads(line) for line in output.splitlines())
    numbers = range((KILLS + 1) * RECORDS_A_RUN)
    assert found == sorted([number % 2, number // 2, _value(number)] for number in numbers)
