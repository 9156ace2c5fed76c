"""Every command finds the store of a broker, as a directory or as a file:// URL."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Producer

from odradek.cli.main import main
from odradek.pipeline.errors import MissingSegment
from odradek.pipeline.jobs.audit import AuditJob, run_audit
from odradek.pipeline.options import parse_options
from odradek.pipeline.planning import BrokerRange, flatten_ranges
from odradek.pipeline.query import Query
from odradek.testing import Broker
from tests.pipeline.tiering import QUICK, TIERED
from tests.support.spark_reading import by_tasks

pytestmark = pytest.mark.interop

RECORDS = 600
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a tier")


@pytest.fixture(scope="module")
def broker(tier: Path) -> Iterator[Broker]:
    """Broker whose store is given as a URL; all but the last segment are only in the store."""
    with Broker(configs=QUICK, tiered=f"file://{tier}".replace(" ", "%20")) as broker:
        broker.create_topic("events", 1, {**TIERED, "retention.ms": "-1"})
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 3000})
        for number in range(RECORDS):
            producer.produce("events", b"%04d" % number + b"x" * 200)
        producer.flush()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        partition = broker.node.partitions.opened("events", 0)
        assert partition is not None
        while len(partition.log.segments) > 1 or not partition.log.local_log_start_offset:
            assert time.monotonic() < deadline, "nothing was tiered"
            time.sleep(0.1)
        yield broker


@pytest.fixture(params=["directory", "slash", "relative", "home", "url", "encoded", "store"])
def spelling(request: pytest.FixtureRequest, tier: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tier.parent)
    monkeypatch.setenv("HOME", str(tier.parent))
    return {
        "directory": str(tier),
        "slash": f"{tier}/",
        "relative": tier.name,
        "home": f"~/{tier.name}",
        "url": f"file://{tier}",
        "encoded": f"file://{tier}/".replace(" ", "%20"),
        "store": f"file://{tier}/kafka-tiered-storage".replace(" ", "%20"),
    }[request.param]


def here(act: Any, items: Sequence[Any]) -> list[Any]:
    return [act(each) for each in items]


def test_store_of_a_broker_with_a_url_is_that_of_the_directory(broker: Broker, tier: Path) -> None:
    assert [each.name for each in tier.iterdir()] == ["kafka-tiered-storage"]


def test_query_reads_copied_segments_from_the_store(broker: Broker, spelling: str) -> None:
    given = {"tiered.url": spelling, "subscribe": "events"}
    stored = by_tasks(given)
    assert len(stored) > RECORDS // 2
    query = Query(
        parse_options({**given, "kafka.bootstrap.servers": broker.bootstrap}, streaming=False)
    )
    pieces = query.plan(query.ranges()).pieces
    fetched = [each for each in flatten_ranges(pieces) if isinstance(each, BrokerRange)]
    assert [(each.low, each.high) for each in fetched] == [(len(stored), RECORDS)]


@pytest.mark.parametrize("with_brokers", [True, False])
def test_audit_finds_all_segments(broker: Broker, spelling: str, with_brokers: bool) -> None:
    job = AuditJob(spelling, broker.bootstrap if with_brokers else None)
    report = run_audit(job, here, 2)
    assert report.has_no_problems
    assert sum(report.records.values()) > RECORDS // 2


def test_audit_with_another_spelling_is_resumed(
    broker: Broker, spelling: str, tier: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"

    def killed(act: Any, items: Sequence[Any]) -> list[Any]:
        if act.__name__ == "_check_partition":
            raise KeyboardInterrupt
        return here(act, items)

    with pytest.raises(KeyboardInterrupt):
        run_audit(AuditJob(str(tier), broker.bootstrap, resume=str(results)), killed, 2)
    resumed: list[int] = []
    run_audit(
        AuditJob(spelling, broker.bootstrap, resume=str(results)),
        here, 2, lambda progress: resumed.append(progress.done_before),
    )  # fmt: skip
    assert resumed[-1] > 0


def test_remote_command_lists_the_store(
    broker: Broker, spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["remote", "list", "--bootstrap", broker.bootstrap, "--url", spelling, "--json"]
    assert main(words) == 0
    (row,) = json.loads(capsys.readouterr().out)["partitions"]
    assert (row["topic"], row["segments"] > 5) == ("events", True)


def test_other_store_is_an_error_of_queries_by_name(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "kafka-tiered-storage").mkdir()
    given = {
        "tiered.url": str(tmp_path),
        "subscribe": "events",
        "kafka.bootstrap.servers": broker.bootstrap,
    }
    with pytest.raises(
        MissingSegment,
        match=rf"^offsets 0 to \d+ of events-0: .* file://{tmp_path}/kafka-tiered-storage has no object events-0-",
    ):
        by_tasks(given)
    rows = by_tasks({**given, "onCorruptSegment": "skip"})
    assert [row[1] for row in rows] == list(range(RECORDS - len(rows), RECORDS))


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["relative", "encoded"], indirect=True)
@pytest.mark.parametrize("job", ["stats", "export"])
def test_job_reads_the_store(
    broker: Broker, spelling: str, job: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline", job, "--topic", "events", "--tiered", spelling, "--json"]
    if job == "export":
        words += ["--bootstrap", broker.bootstrap, "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()]
