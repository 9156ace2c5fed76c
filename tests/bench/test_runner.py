"""The order of a run, repeated runs, failures, and interruption."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest

from odradek.bench.model import (
    Feature,
    LimitResult,
    Metric,
    Peer,
    PeerFailed,
    Stage,
    Workload,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.results_file import Failure, Results, SampleState
from odradek.bench.runner import FAILURES_MAX, Runner, RunPlan
from odradek.bench.summary import titled
from tests.bench.fakes import (
    SPEED,
    FakeClusterPeer,
    FakePeer,
    FakeWatch,
    FakeWorkload,
    Journal,
    QuietProgress,
    empty_results,
)


@pytest.fixture
def journal() -> Journal:
    return []


def run(
    directory: Path,
    peers: Iterable[Peer],
    workloads: Iterable[Workload],
    shares: Iterable[float] = (),
    **settings: int,
) -> Results:
    results = empty_results()
    remaining = iter(shares)
    plan = RunPlan(
        list(peers), list(workloads), [], directory, **{"rounds": 2, "warm_ups": 0, **settings}
    )
    Runner(plan, results, QuietProgress(), lambda _: FakeWatch(remaining)).run()
    return results


def peers_of(journal: Journal, *names: str) -> list[FakePeer]:
    return [FakePeer(name, journal) for name in names]


def failing(times: int) -> Callable[[str], WorkloadOutcome]:
    """Fails a number of times on the peer "b", and then succeeds."""
    left = [times]

    def outcome(peer: str) -> WorkloadOutcome:
        if peer == "b" and left[0]:
            left[0] -= 1
            raise WorkloadFailed("records were refused")
        return WorkloadOutcome({SPEED.name: 1.0})

    return outcome


def test_peers_alternate_and_keep_their_processes(tmp_path: Path, journal: Journal) -> None:
    workloads = [FakeWorkload("w", journal), FakeWorkload("v", journal)]
    run(tmp_path, peers_of(journal, "a", "b"), workloads)
    assert journal == [
        "start a", "w a", "start b", "w b", "w a", "w b",
        "v a", "v b", "v a", "v b",
        "stop b", "stop a",
    ]  # fmt: skip


def test_workloads_with_a_fresh_process_run_before_the_shared_ones(
    tmp_path: Path, journal: Journal
) -> None:
    workloads = [
        FakeWorkload("last", journal, stage=Stage.LAST),
        FakeWorkload("shared", journal),
        FakeWorkload("fresh", journal, stage=Stage.FRESH),
    ]
    run(tmp_path, peers_of(journal, "a"), workloads)
    assert journal == [
        *["start a", "fresh a", "stop a"] * 2,
        "start a", "shared a", "shared a", "last a", "stop a",
    ]  # fmt: skip


def test_cluster_workloads_run_on_peers_that_support_clusters(
    tmp_path: Path, journal: Journal
) -> None:
    needs = frozenset({Feature.CLUSTER})
    workload = FakeWorkload("w", journal, needs=needs, stage=Stage.CLUSTER)
    alone = FakePeer("b", journal, lacks={Feature.CLUSTER: "is one broker"})
    results = run(tmp_path, [FakeClusterPeer("a", journal), alone], [workload])
    assert journal == ["start cluster a", "w a", "stop cluster a"] * 2
    assert results.workloads[0].peers["b"].skipped == "is one broker"


def test_cluster_settings_are_recorded_with_those_of_one_process(
    tmp_path: Path, journal: Journal
) -> None:
    workload = FakeWorkload("w", journal, stage=Stage.CLUSTER)
    results = run(tmp_path, [FakeClusterPeer("a", journal)], [workload])
    (record,) = results.peers
    assert record.settings == {"threads": "1"}
    assert record.clusters == {"cluster": {"replicas": "3"}}


def test_directory_of_a_run_is_deleted_before_the_next(tmp_path: Path, journal: Journal) -> None:
    left: list[list[Path]] = []

    def outcome(_: str) -> WorkloadOutcome:
        left.append([each.parent for each in tmp_path.glob("*/log")])
        return WorkloadOutcome({SPEED.name: 1.0})

    stages = [Stage.FRESH, Stage.CLUSTER]
    workloads = [FakeWorkload("w", journal, outcome, stage=stage) for stage in stages]
    run(tmp_path, [FakeClusterPeer("a", journal)], workloads)
    assert [len(each) for each in left] == [1] * 4
    assert not list(tmp_path.iterdir())


def test_warm_up_samples_are_recorded_and_not_counted(tmp_path: Path, journal: Journal) -> None:
    workloads = [FakeWorkload("w", journal), FakeWorkload("f", journal, stage=Stage.FRESH)]
    results = run(tmp_path, peers_of(journal, "a"), workloads, warm_ups=1)
    shared, fresh = results.workload("w"), results.workload("f")
    assert shared is not None
    assert fresh is not None
    states = [sample.state for sample in shared.peers["a"].samples]
    assert states == [SampleState.WARM_UP, SampleState.COUNTED, SampleState.COUNTED]
    assert len(shared.peers["a"].counted) == 2
    assert [sample.state for sample in fresh.peers["a"].samples] == [SampleState.COUNTED] * 2


def test_warm_up_lasts_equally_long_for_all_peers(tmp_path: Path, journal: Journal) -> None:
    now_s = [0.0]

    def lasting(peer: str) -> WorkloadOutcome:
        now_s[0] += 12.0 if peer == "b" else 4.0
        return WorkloadOutcome({SPEED.name: 1.0})

    workload = FakeWorkload("w", journal, lasting)
    plan = RunPlan(peers_of(journal, "a", "b"), [workload], [], tmp_path, rounds=1, warm_up_s=10.0)
    Runner(
        plan, empty_results(), QuietProgress(), lambda _: FakeWatch(iter(())), lambda: now_s[0]
    ).run()
    runs = [entry for entry in journal if entry.startswith("w ")]
    assert runs == ["w a"] * 3 + ["w b"] + ["w a", "w b"]


def test_measured_start_waits_for_a_quiet_machine(tmp_path: Path, journal: Journal) -> None:
    workloads = [FakeWorkload("f", journal, stage=Stage.FRESH), FakeWorkload("w", journal)]
    plan = RunPlan(peers_of(journal, "a"), workloads, [], tmp_path, rounds=1, warm_ups=0)

    def watch(pids: Collection[int]) -> FakeWatch:
        journal.append("watch")
        return FakeWatch(iter(()))

    def settle(pids: Collection[int]) -> None:
        journal.append("settle")

    Runner(plan, empty_results(), QuietProgress(), watch, settle=settle).run()
    fresh = ["settle", "watch", "start a", "f a", "stop a"]
    assert journal == [*fresh, "start a", "settle", "watch", "w a", "stop a"]


def test_disturbed_run_is_repeated_and_recorded(tmp_path: Path, journal: Journal) -> None:
    results = run(tmp_path, peers_of(journal, "a"), [FakeWorkload("w", journal)], [0.4, 0.1, 0.2])
    (workload,) = results.workloads
    measured = workload.peers["a"]
    assert [(s.round, s.others_cores, s.state) for s in measured.samples] == [
        (1, 0.4, SampleState.DISTURBED),
        (1, 0.1, SampleState.COUNTED),
        (2, 0.2, SampleState.COUNTED),
    ]
    assert len(measured.counted) == 2
    assert not measured.only_disturbed


def test_repeats_of_a_disturbed_run_are_limited(tmp_path: Path, journal: Journal) -> None:
    results = run(
        tmp_path, peers_of(journal, "a"), [FakeWorkload("w", journal)], [1.0] * 99, repeats_max=2
    )
    measured = results.workloads[0].peers["a"]
    assert len(measured.samples) == 2 * 3
    assert measured.only_disturbed
    assert len(measured.counted) == 6


def test_running_peer_counts_as_another_process_outside_its_turn(
    tmp_path: Path, journal: Journal
) -> None:
    workloads = [FakeWorkload("fresh", journal, stage=Stage.FRESH), FakeWorkload("w", journal)]
    bystanders: list[str] = []

    def watch(pids: Collection[int]) -> FakeWatch:
        bystanders.append("".join(map(chr, pids)))
        return FakeWatch(iter(()))

    plan = RunPlan(peers_of(journal, "a", "b", "c"), workloads, [], tmp_path, rounds=2, warm_ups=0)
    Runner(plan, empty_results(), QuietProgress(), watch).run()
    assert bystanders == ["", "", "", "", "", "", "", "a", "ab", "bc", "ac", "ab"]


def test_failed_workload_is_recorded_and_the_others_run(tmp_path: Path, journal: Journal) -> None:
    results = run(
        tmp_path, peers_of(journal, "a", "b"), [FakeWorkload("w", journal, failing(1))], rounds=3
    )
    workload = results.workloads[0]
    assert workload.peers["b"].failures == [Failure(1, "records were refused")]
    assert [sample.round for sample in workload.peers["b"].samples] == [2, 3]
    assert len(workload.peers["a"].samples) == 3
    assert results.has_failures()


def test_failed_peer_is_restarted(tmp_path: Path, journal: Journal) -> None:
    results = run(tmp_path, peers_of(journal, "b"), [FakeWorkload("w", journal, failing(1))])
    assert journal == ["start b", "w b", "stop b", "start b", "w b", "stop b"]
    assert results.remarks == ["b was restarted after a failure"]


def test_repeatedly_failing_workload_is_skipped_on_that_peer(
    tmp_path: Path, journal: Journal
) -> None:
    workloads = [FakeWorkload("w", journal, failing(99)), FakeWorkload("v", journal)]
    results = run(tmp_path, peers_of(journal, "a", "b"), workloads, rounds=9)
    assert len(results.workloads[0].peers["b"].failures) == FAILURES_MAX
    assert len(results.workloads[1].peers["b"].samples) == 9


def test_exception_in_a_workload_fails_only_that_workload(tmp_path: Path, journal: Journal) -> None:
    def broken(peer: str) -> WorkloadOutcome:
        raise ZeroDivisionError("no seconds")

    workloads = [FakeWorkload("w", journal, broken), FakeWorkload("v", journal)]
    results = run(tmp_path, peers_of(journal, "a"), workloads)
    assert results.workloads[0].peers["a"].failures[0].reason == "ZeroDivisionError: no seconds"
    assert len(results.workloads[1].peers["a"].samples) == 2


def test_peer_that_does_not_start_fails_its_workloads(tmp_path: Path, journal: Journal) -> None:
    def refuse() -> None:
        raise PeerFailed("ended at once")

    peers = [*peers_of(journal, "a"), FakePeer("b", journal, on_start=refuse)]
    results = run(tmp_path, peers, [FakeWorkload("w", journal)])
    failures = results.workloads[0].peers["b"].failures
    assert [each.reason for each in failures] == ["ended at once"] * FAILURES_MAX
    assert len(results.workloads[0].peers["a"].samples) == 2


def test_unavailable_peer_is_reported(tmp_path: Path, journal: Journal) -> None:
    peers = [*peers_of(journal, "a"), FakePeer("b", journal, unavailable="no compiler")]
    results = run(tmp_path, peers, [FakeWorkload("w", journal)])
    assert [(peer.name, peer.unavailable) for peer in results.peers] == [
        ("a", None),
        ("b", "no compiler"),
    ]
    assert list(results.workloads[0].peers) == ["a"]


def test_run_without_peers_measures_nothing(tmp_path: Path, journal: Journal) -> None:
    results = run(
        tmp_path, [FakePeer("b", journal, unavailable="gone")], [FakeWorkload("w", journal)]
    )
    assert [peer.unavailable for peer in results.peers] == ["gone"]
    assert results.workloads == []
    assert list(tmp_path.iterdir()) == []


def test_unsupported_workload_is_skipped_with_the_reason(tmp_path: Path, journal: Journal) -> None:
    peers = [FakePeer("a", journal, lacks={Feature.GROUPS: "it has no groups"})]
    workload = FakeWorkload("w", journal, needs=frozenset({Feature.GROUPS}))
    results = run(tmp_path, peers, [workload])
    assert results.workloads[0].peers["a"].skipped == "it has no groups"
    assert journal == []


def test_ctrl_c_stops_peers_and_keeps_results(tmp_path: Path, journal: Journal) -> None:
    def interrupted(peer: str) -> WorkloadOutcome:
        if peer == "b":
            raise KeyboardInterrupt
        return WorkloadOutcome({SPEED.name: 1.0})

    workloads = [FakeWorkload("w", journal, interrupted), FakeWorkload("v", journal)]
    results = run(tmp_path, peers_of(journal, "a", "b"), workloads)
    assert results.interrupted
    assert journal == ["start a", "w a", "start b", "w b", "stop b", "stop a"]
    assert len(results.workloads[0].peers["a"].samples) == 1


def test_ctrl_c_is_raised_when_the_cleanup_fails(tmp_path: Path, journal: Journal) -> None:
    def interrupted(peer: str) -> WorkloadOutcome:
        try:
            raise KeyboardInterrupt
        finally:
            raise PeerFailed("the topic could not be deleted")

    workloads = [FakeWorkload("w", journal, interrupted), FakeWorkload("v", journal)]
    results = run(tmp_path, peers_of(journal, "a"), workloads)
    assert results.interrupted
    assert journal == ["start a", "w a", "stop a"]


class FakeLimit:
    name = "sendfile"
    title = "sendfile alone"
    metric = Metric("mb_per_s", "MB/s", "higher")

    def __init__(self) -> None:
        self.values = iter([200.0, 220.0])

    def measure(self, directory: Path) -> LimitResult:
        return LimitResult(next(self.values), {"cpu_s": 0.5})


def test_limits_are_measured_once_per_round(tmp_path: Path) -> None:
    results = empty_results()
    plan = RunPlan([], [], [FakeLimit()], tmp_path, rounds=2)
    Runner(plan, results, QuietProgress(), lambda _: FakeWatch(iter(()))).run()
    assert results.limits[0].samples == [(200.0, {"cpu_s": 0.5}), (220.0, {"cpu_s": 0.5})]


def test_disturbed_limit_is_measured_again(tmp_path: Path) -> None:
    results = empty_results()
    plan = RunPlan([], [], [FakeLimit()], tmp_path, rounds=1)
    shares = iter([0.9])
    Runner(plan, results, QuietProgress(), lambda _: FakeWatch(shares)).run()
    assert results.limits[0].samples == [(220.0, {"cpu_s": 0.5})]
    assert results.remarks == []


def test_limit_that_is_always_disturbed_is_reported(tmp_path: Path) -> None:
    results = empty_results()
    plan = RunPlan([], [], [FakeLimit()], tmp_path, rounds=1, repeats_max=1)
    shares = iter([0.9, 0.9])
    Runner(plan, results, QuietProgress(), lambda _: FakeWatch(shares)).run()
    assert results.limits[0].samples == [(220.0, {"cpu_s": 0.5})]
    assert results.remarks == [
        "the limit sendfile, round 1: other processes used the machine in all of its 2 runs"
    ]


def test_failed_limit_is_reported(tmp_path: Path) -> None:
    results = empty_results()
    plan = RunPlan([], [], [FakeLimit()], tmp_path, rounds=3)  # one more than it has values
    Runner(plan, results, QuietProgress(), lambda _: FakeWatch(iter(()))).run()
    assert results.limits[0].failure is not None
    assert len(results.limits[0].samples) == 2


def test_slow_workloads_have_fewer_rounds_and_report_it(tmp_path: Path, journal: Journal) -> None:
    workloads = [FakeWorkload("slow", journal), FakeWorkload("w", journal)]
    plan = RunPlan(
        peers_of(journal, "a"),
        workloads,
        [],
        tmp_path,
        rounds=5,
        rounds_most={"slow": 3},
        warm_ups=0,
    )
    results = empty_results()
    results.settings = {"rounds": 5}
    Runner(plan, results, QuietProgress(), lambda _: FakeWatch(iter(()))).run()
    assert [journal.count(f"{each.name} a") for each in workloads] == [3, 5]
    assert plan.run_count() == 8
    assert [titled(results, each) for each in results.workloads] == [
        "the workload slow (3 rounds)",
        "the workload w",
    ]


def test_run_count_matches_the_executed_runs(tmp_path: Path, journal: Journal) -> None:
    workloads = [FakeWorkload("w", journal), FakeWorkload("f", journal, stage=Stage.FRESH)]
    workloads += [FakeWorkload("l", journal, stage=Stage.LAST)]
    plan = RunPlan(peers_of(journal, "a", "b"), workloads, [], tmp_path, rounds=3, warm_ups=1)
    progress = QuietProgress()
    Runner(plan, empty_results(), progress, lambda _: FakeWatch(iter(()))).run()
    assert plan.run_count() == len(progress.ends) == 2 * 4 + 2 * 3 + 2
