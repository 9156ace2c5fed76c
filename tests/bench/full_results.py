"""Bench results with every kind of entry that a results file can have."""

from __future__ import annotations

from odradek.bench.model import Histogram
from odradek.bench.results_file import (
    Failure,
    LimitResults,
    Measured,
    PeerRecord,
    Results,
    Sample,
    SampleState,
    WorkloadResults,
)
from tests.bench.fakes import DELAY, SPEED, empty_results


def full_results(speed: float = 100.0, delay: float = 400.0) -> Results:
    """Peers with everything that can be in a file."""
    results = empty_results()
    results.remarks.append("kafka was restarted after a failure")
    results.peers += [
        PeerRecord("odradek", "Odradek", "0.1.0", {"threads": "1"}),
        PeerRecord("kafka", "Apache Kafka", "4.3.0", clusters={"cluster": {"heap": "1 GB"}}),
        PeerRecord("mock", "librdkafka's mock cluster", "2.0.2"),
        PeerRecord("nisshi", "nisshi", unavailable="no cargo"),
    ]
    results.limits.append(
        LimitResults("sendfile", "sendfile alone", SPEED, [(200.0, {"cpu_s": 1})])
    )
    histogram = Histogram("µs", ((100.0, 90), (delay, 10)))
    samples = [
        Sample(0, {SPEED.name: 1.0, DELAY.name: 9.0}, SampleState.WARM_UP),
        Sample(1, {SPEED.name: speed, DELAY.name: delay}, others_cores=0.01, histogram=histogram),
        Sample(2, {SPEED.name: speed * 1.2, DELAY.name: delay}, client_bound=True, notes=("hm",)),
        Sample(
            2, {SPEED.name: speed / 9, DELAY.name: delay}, SampleState.DISTURBED, others_cores=0.9
        ),
    ]
    results.workloads.append(
        WorkloadResults(
            "produce-1k",
            "produce, 1 KiB records",
            (SPEED, DELAY),
            {"record_bytes": 1024},
            {
                "odradek": Measured(samples),
                "kafka": Measured([], [Failure(1, "records were refused")]),
                "mock": Measured(skipped="it keeps nothing"),
            },
            rounds=2,
        )
    )
    return results
