"""Workloads of the C program, with small sizes, on a broker of Odradek, return all of their metrics."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odradek.bench import limits, load
from odradek.bench.goals import GOALS
from odradek.bench.limits import LIMITS
from odradek.bench.load import run_load
from odradek.bench.model import (
    Limit,
    PeerFailed,
    Target,
    Workload,
    WorkloadFailed,
    WorkloadOutcome,
    reason_to_skip,
)
from odradek.bench.peers.odradek import Odradek
from odradek.bench.peers.running_broker import RunningBroker
from odradek.bench.peers.topics import AdminTopics, with_cluster
from odradek.bench.workloads import (
    WORKLOADS,
    compaction,
    idle_connections,
    moves,
    recovery,
    requests,
    startup,
    throughput,
)
from odradek.bench.workloads.background_load import LatencyUnderLoad, Producers
from odradek.bench.workloads.compaction import Compaction
from odradek.bench.workloads.idle_connections import IdleConnections
from odradek.bench.workloads.latency import Stream
from odradek.bench.workloads.moves import Move
from odradek.bench.workloads.recovery import Recovery
from odradek.bench.workloads.requests import Requests
from odradek.bench.workloads.startup import ResidentMemoryAfterRun, Startup
from odradek.bench.workloads.throughput import Consume, Produce, RecordShape
from odradek.client.admin import ResourceType, describe_configs
from tests.bench.fakes import FakeProcess


@pytest.fixture(scope="module")
def target(
    load_program_is_there: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    with Odradek().start(tmp_path_factory.mktemp("load")) as running:
        yield running


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "SIZES", {1024: ("1k", 20_000), 100: ("100b", 20_000)})
    monkeypatch.setattr(throughput, "WARM_UP_S", 0.05)
    monkeypatch.setattr(requests, "SECONDS", 0.3)
    monkeypatch.setattr(requests, "WARM_UP_S", 0.05)
    monkeypatch.setattr(idle_connections, "SETTLE_S", 0.2)
    monkeypatch.setattr(startup, "SETTLE_S", 0.05)
    monkeypatch.setattr(limits, "SIZE_BYTES", 32 << 20)
    monkeypatch.setattr(limits, "PING_PONG_S", 0.05)
    monkeypatch.setattr(limits, "PACED_S", 0.05)


def whole(workload: Workload, target: Target) -> WorkloadOutcome:
    outcome = workload.run(target)
    assert outcome.values.keys() == {metric.name for metric in workload.metrics}
    assert all(value >= 0 for value in outcome.values.values())
    return outcome


@pytest.mark.parametrize(
    "workload",
    [
        Produce(RecordShape()),
        Produce(RecordShape(size=100, partitions=6, acks="0")),
        Produce(RecordShape(compression="zstd", acks="all", idempotent=True)),
        Consume(RecordShape(partitions=6, compression="lz4")),
    ],
    ids=lambda workload: workload.name,
)
def test_throughput_workloads_return_all_metrics(
    target: Target, workload: Produce | Consume
) -> None:
    values = whole(workload, target).values
    assert values["mb_per_s"] > 1
    # Without acks the client may end before the broker has begun.
    assert values["broker_cpu_s_per_gb"] > 0 or "acks0" in workload.name


def test_uncompressed_records_fail_the_workload(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RecordShape()._produce
    monkeypatch.setattr(RecordShape, "_produce", lambda shape, *given: plain(*given))
    with pytest.raises(WorkloadFailed, match="the records are in none, not in lz4"):
        Produce(RecordShape(compression="lz4")).run(target)


@pytest.mark.parametrize(
    "workload",
    [Requests(1), Requests(10, depth=4), Requests(1, idle=20)],
    ids=lambda workload: workload.name,
)
def test_request_workloads_return_all_metrics(target: Target, workload: Requests) -> None:
    values = whole(workload, target).values
    assert values["requests_per_s"] > 10
    assert values["p50_us"] <= values["p99_us"]


def test_each_response_counts_as_one_record(target: Target) -> None:
    """Includes responses of the warm-up, and requests in flight at the end."""
    found = []

    def check(target: Target, topic: str, requests: int) -> None:
        found.append(requests)
        real(target, topic, requests)
        with pytest.raises(WorkloadFailed):
            real(target, topic, requests - 1)

    real = requests._check_appended
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "_check_appended", check)
        Requests(3, depth=4).run(target)
    assert found[0] > 0


def test_error_responses_fail_the_workload(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = requests.one_record

    def misdirected(topic: str) -> Any:
        values = wanted(topic)
        values["topic_data"][0]["partition_data"][0]["index"] = 9
        return values

    monkeypatch.setattr(requests, "one_record", misdirected)
    with pytest.raises(
        WorkloadFailed, match=r"\d+ requests have a response, but the log has 0 records"
    ):
        Requests(1).run(target)


def test_background_load_runs_during_the_whole_measurement(target: Target) -> None:
    small = Stream(rate=100, seconds=1.0, record_bytes=100)
    values = whole(LatencyUnderLoad(Producers(2, partitions=2), small), target).values
    assert values["background_mb_per_s"] > 0


def test_idle_connections_workload_returns_all_metrics(target: Target) -> None:
    assert whole(IdleConnections(20), target).values["idle_connection_kb"] < 100


def test_closed_connections_fail_the_idle_workload() -> None:
    def close_each(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                server.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=close_each, args=(server,), daemon=True).start()
        host, port = server.getsockname()
        closing = Target("closing", f"{host}:{port}", AdminTopics(f"{host}:{port}"))
        with (
            pytest.raises(WorkloadFailed, match="connection 1 of 3"),
            idle_connections.idle_connections(closing, 3),
        ):
            raise AssertionError("they are there")
        server.shutdown(socket.SHUT_RDWR)


def test_startup_workload_returns_time_and_memory(target: Target) -> None:
    assert whole(Startup(), target).values["ready_ms"] > 1
    assert whole(ResidentMemoryAfterRun(), target).values["resident_mb"] > 10


def test_recovery_workload_returns_all_metrics(target: Target) -> None:
    values = whole(Recovery(1), target).values
    assert values["produce_ms"] >= values["metadata_ms"] > 1


def test_compaction_workload_returns_all_metrics(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SEGMENT_BYTES", 1 << 20)
    monkeypatch.setattr(compaction, "QUIET_S", 0.5)
    small = Stream(rate=100, seconds=0.5, record_bytes=100)
    (at_work,) = compaction.WORKLOADS
    workload = replace(at_work, load=Compaction(records=30_000, keys=100), stream=small)
    values = whole(workload, target).values
    assert values["background_mb_per_s"] > 0
    assert values["background_s"] < 10


def test_compaction_workload_restores_cleaner_settings(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_for_all() -> list[str | None]:
        found = with_cluster(
            target.bootstrap, lambda cluster: describe_configs(cluster, ResourceType.BROKER, "")
        )
        return [each.value for each in found if each.name == compaction.BACKOFF]

    during = []

    def fill(self: Compaction, target: Target, topic: str) -> None:
        during.append(set_for_all())
        raise WorkloadFailed("no records")

    monkeypatch.setattr(Compaction, "_fill", fill)
    with pytest.raises(WorkloadFailed, match="no records"):
        LatencyUnderLoad(Compaction()).run(target)
    assert during == [["100"]]
    assert set_for_all() == []


def test_given_broker_keeps_its_settings() -> None:
    (at_work,) = compaction.WORKLOADS
    assert reason_to_skip(at_work, RunningBroker("127.0.0.1:1")) is not None


def test_move_workload_returns_all_metrics(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "RATE", 200)
    monkeypatch.setattr(moves, "BEFORE_S", 1.0)
    monkeypatch.setattr(moves, "AFTER_S", 0.6)
    values = whole(Move(5), target).values
    assert values["move_mb_per_s"] > 0.1
    assert values["p99_swap_us"] <= values["max_swap_us"] * 1.01  # to three digits


def test_given_broker_has_no_cpu_metric(target: Target) -> None:
    values = Requests(1).run(Target("given", target.bootstrap, target.topics)).values
    assert "requests_per_s" in values
    assert "broker_cpu_us" not in values


def test_load_that_cannot_start_reports_the_reason(target: Target) -> None:
    with pytest.raises(WorkloadFailed, match="no-such-topic"):
        run_load(["consume", "--bootstrap", target.bootstrap, "--topic", "no-such-topic"])
    with pytest.raises(WorkloadFailed, match="usage:"):
        run_load(["produce"])


FAKE_LOAD = """\
#!{python}
import sys, time
sys.stderr.write({warning!r} * {times})
for event in ("begin", "end"):
    print('{{"event": "' + event + '"}}', flush=True)
    sys.stdin.readline()
    print(time.monotonic(), file=open({moments!r}, "a"))
print('{{"seconds": 1, "busiest_thread": 0, "busiest_thread_name": ""}}')
"""


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a load program that writes repeatedly to stderr, and the file that it writes when it may continue."""

    def write(warning: str, times: int = 1) -> Path:
        program, moments = tmp_path / "load", tmp_path / "moments"
        text = FAKE_LOAD.format(
            python=sys.executable, warning=warning, times=times, moments=str(moments)
        )
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setattr(load, "load_program", lambda: program)
        return moments

    return write


class Watched(FakeProcess):
    def __init__(self) -> None:
        super().__init__()
        self.looked_at: list[float] = []

    def cpu_seconds(self) -> float:
        self.looked_at.append(time.monotonic())
        return float(len(self.looked_at))


def test_load_pauses_while_broker_cpu_is_read(
    pretend: Callable[..., Path],
) -> None:
    moments, process = pretend(""), Watched()
    assert run_load([], process).broker_cpu_s == 1.0
    let_go_at = [float(line) for line in moments.read_text().split()]
    assert [a < b for a, b in zip(process.looked_at, let_go_at, strict=True)] == [True, True]


def test_client_warnings_are_kept(
    pretend: Callable[..., Path],
) -> None:
    pretend("no route\n", times=100_000)
    assert run_load([]).notes[1:] == ("no route",) * 3


def test_client_without_compression_fails_the_workload(pretend: Callable[..., Path]) -> None:
    pretend("Broker does not support compression type lz4: not compressing batch\n")
    with pytest.raises(WorkloadFailed, match="did not compress: Broker does not support"):
        run_load([])


def test_stream_continues_while_the_broker_is_paused(target: Target) -> None:
    """The records wait in the client, more than the default queue size."""
    assert target.process is not None
    with target.topic("standing-still") as topic:

        def stand_still(program: subprocess.Popen[str]) -> None:
            pid = target.known_process.pid
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()

        with tempfile.NamedTemporaryFile() as output:
            words = [
                *("latency", "--bootstrap", target.bootstrap, "--topic", topic, "--size", "100"),
                *("--rate", "100000", "--seconds", "2", "--output", output.name),
            ]
            report = run_load(words, target.process, begun=stand_still).report
    assert report["received"] == report["sent"] == 200_000


def test_load_ends_when_its_broker_ends(target: Target) -> None:
    process = target.process
    assert process is not None
    with target.topic("of-one-that-ends") as topic:
        words = ["produce", "--bootstrap", target.bootstrap, "--topic", topic, "--seconds", "60"]
        began = time.monotonic()
        with pytest.raises(PeerFailed, match="during the load"):
            run_load(words, process, begun=lambda program: process.kill())
        assert time.monotonic() - began < 30
        process.restart()


def test_unrecovered_log_fails_the_workload(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "TIMEOUT_S", 0.1)
    with pytest.raises(WorkloadFailed, match="no record was acknowledged"):
        recovery.wait_for_produce(target, "no-such-topic")


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_limits_are_measured(limit: Limit, load_program_is_there: None, tmp_path: Path) -> None:
    result = limit.measure(tmp_path)
    assert result.value > 0
    assert all(value > 0 for value in result.details.values())
    assert list(tmp_path.iterdir()) == []
    further = {
        metric.limit.partition(":")[2]
        for workload in WORKLOADS
        for metric in workload.metrics
        if metric.limit is not None and metric.limit_name == limit.name
    }
    assert further - {""} <= {*result.details}
    asked = {
        each.without_broker.figure
        for each in GOALS
        if each.without_broker and each.without_broker.limit == limit.name
    }
    assert asked <= {limit.metric.name, *result.details}


def test_limits_that_metrics_name_exist() -> None:
    """Each limit also belongs to a metric."""
    named = {metric.limit_name for workload in WORKLOADS for metric in workload.metrics} - {None}
    assert named == {limit.name for limit in LIMITS}


def test_compressed_or_waiting_workloads_have_no_limit() -> None:
    plain, packed = Produce(RecordShape()), Produce(RecordShape(compression="lz4"))
    assert [each.metrics[0].limit for each in (plain, packed)] == ["socket-to-file", None]
    assert {each.limit for each in Requests(1, depth=32).metrics} == {None}
    assert {each.limit for each in Requests(10).metrics} == {None}


def test_missing_bytes_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_feed", lambda connection: connection.sendall(b"half"))
    with pytest.raises(WorkloadFailed, match="4 of 33554432 bytes were received"):
        limits.SocketToFile().measure(tmp_path)


def test_missing_client_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COME_S", 0.2)
    monkeypatch.setattr(limits, "_be_client", lambda address, client: os._exit(1))
    with pytest.raises(TimeoutError):
        limits.SocketToFile().measure(tmp_path)
