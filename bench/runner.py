"""Runs a plan: peers alternate, disturbed runs are repeated, failures are recorded.

Within a workload the peers alternate (A B C A B C …), so that a change of the machine affects all of them.
Physical limits are measured first. Then the stages follow in this order: FRESH, CLUSTER, TIERED, DISKLESS, SHARED,
LAST. SHARED workloads use one process per peer, which runs until the end, so that LAST can measure its memory. The first
`warm_ups` rounds of shared workloads do not count, so that a JVM can compile; each lasts at least `warm_up_s` on
each peer. Workloads of the other stages do their own warm-up.

A run during which other processes used more than `others_cores_max` cores is recorded as disturbed and repeated, at
most `repeats_max` times. A run that raises is recorded as a failure; after `FAILURES_MAX` failures the workload is
not run on that peer again. Ctrl-C stops all processes and keeps the results so far.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from odradek.bench.model import (
    ClusterPeer,
    DisklessPeer,
    Limit,
    LimitResult,
    Peer,
    PeerFailed,
    PeerUnavailable,
    Stage,
    Target,
    TieredPeer,
    Workload,
    WorkloadFailed,
    reason_to_skip,
)
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

FAILURES_MAX = 2
STARTED_FOR_A_RUN = frozenset({Stage.FRESH, Stage.CLUSTER, Stage.TIERED, Stage.DISKLESS})
"""In these stages, a run includes the start of its peer."""

Enter: TypeAlias = Callable[[Peer], AbstractContextManager[Target]]
"""Starts or returns the target of a run."""


class Usage(Protocol):
    """CPU use during a period (`machine.Usage`)."""

    @property
    def others_cores(self) -> float:
        """CPU use of other processes, in cores."""
        ...


class Watch(Protocol):
    """Measures CPU use from its creation on (`machine.Watch`)."""

    def stop(self) -> Usage: ...


class RunProgress(Protocol):
    """Receives the progress of a run."""

    def doing(self, what: str) -> None:
        """Report the step that starts now."""
        ...

    def ran(self, workload: Workload, peer: Peer, end: Sample | Failure) -> None:
        """Report the end of one run."""
        ...

    def measured(self, workload: WorkloadResults, results: Results) -> None:
        """Report that a workload has been run on all peers."""
        ...


@dataclass(frozen=True)
class RunPlan:
    """Peers, workloads and limits of a run, and its settings. `directory` is for the peers' data."""

    peers: Sequence[Peer]
    workloads: Sequence[Workload]
    limits: Sequence[Limit]
    directory: Path
    rounds: int = 5
    rounds_most: Mapping[str, int] = field(default_factory=dict)
    """Maximum number of rounds, by workload name."""
    warm_ups: int = 1
    warm_up_s: float = 0.0
    """Minimum duration of a warm-up round on each peer, in seconds; the workload is repeated until then.

    With one run each, the faster of two peers would be warmed up for less time.
    """
    repeats_max: int = 2
    others_cores_max: float = 0.25

    def of(self, stage: Stage) -> list[Workload]:
        return [each for each in self.workloads if each.stage is stage]

    def run_count(self) -> int:
        """Return the number of runs, if none fails and none is repeated."""
        return sum(
            self.runs_of(workload)
            for workload in self.workloads
            for peer in self.peers
            if reason_to_skip(workload, peer) is None
        )

    def runs_of(self, workload: Workload) -> int:
        """Return the number of runs of a workload on one peer."""
        return self.rounds_of(workload) + self.warm_ups_of(workload)

    def rounds_of(self, workload: Workload) -> int:
        """Return the number of rounds that count: one in the stage LAST, which changes nothing on the peer."""
        if workload.stage is Stage.LAST:
            return 1
        return min(self.rounds, self.rounds_most.get(workload.name, self.rounds))

    def warm_ups_of(self, workload: Workload) -> int:
        """Return the number of warm-up rounds: none if each run starts its own process."""
        return self.warm_ups if workload.stage is Stage.SHARED else 0


class Runner:
    """Runs a plan and records it in `results`, which is complete up to the moment when `run` ends or raises."""

    def __init__(
        self,
        plan: RunPlan,
        results: Results,
        progress: RunProgress,
        watch: Callable[[Collection[int]], Watch],
        clock: Callable[[], float] = time.monotonic,
        settle: Callable[[Collection[int]], None] = lambda bystanders: None,
    ) -> None:
        """Create a runner.

        `watch` and `settle` receive the processes of the other peers. `settle` is called before each run and
        returns when the machine is idle.
        """
        self._plan = plan
        self._results = results
        self._progress = progress
        self._watch = watch
        self._clock = clock
        self._settle = settle
        self._peers: list[Peer] = []
        self._directories = 0
        self._shared_targets = SharedTargets(self._new_directory, results.remarks)

    def run(self) -> None:
        """Run the plan. Ctrl-C sets `results.interrupted` and is not raised."""
        began = self._clock()
        try:
            self._obtain()
            if self._plan.peers and not self._peers:
                return  # without peers, limits are of no use
            self._measure_limits()
            for workload in self._plan.of(Stage.FRESH):
                self._take_turns(workload, self._fresh)
            for workload in self._plan.of(Stage.CLUSTER):
                self._take_turns(workload, self._cluster)
            for workload in self._plan.of(Stage.TIERED):
                self._take_turns(workload, self._tiered)
            for workload in self._plan.of(Stage.DISKLESS):
                self._take_turns(workload, self._diskless)
            self._run_shared()
        except KeyboardInterrupt:
            self._results.interrupted = True
        finally:
            self._results.seconds = self._clock() - began

    def _obtain(self) -> None:
        for peer in self._plan.peers:
            self._progress.doing(f"obtaining {peer.title}")
            try:
                peer.obtain()
                record = PeerRecord(peer.name, peer.title, peer.version(), dict(peer.settings()))
            except Exception as error:
                record = PeerRecord(peer.name, peer.title, unavailable=_reason(error))
            else:
                self._peers.append(peer)
            self._results.peers.append(record)

    def _measure_limits(self) -> None:
        """Measure each limit once per round, before any peer is started."""
        for limit in self._plan.limits:
            found = LimitResults(limit.name, limit.title, limit.metric)
            self._results.limits.append(found)
            for number in range(1, self._plan.rounds + 1):
                try:
                    result = self._measure_limit(limit, number)
                except Exception as error:
                    found.failure = _reason(error)
                    break
                found.samples.append((result.value, dict(result.details)))

    def _measure_limit(self, limit: Limit, number: int) -> LimitResult:
        """Measure a limit, and repeat it up to `repeats_max` times if it was disturbed.

        Adds a remark if all runs were disturbed.
        """
        tries = self._plan.repeats_max + 1
        for repeat in range(tries):
            self._progress.doing(f"limit {limit.name}, {_turn(number, repeat)}")
            watch = self._quiet_watch(None)
            result = limit.measure(self._new_directory())
            if watch.stop().others_cores <= self._plan.others_cores_max:
                break
        else:
            why = f"other processes used the machine in all of its {tries} runs"
            self._results.remarks.append(f"the limit {limit.name}, round {number}: {why}")
        return result

    def _run_shared(self) -> None:
        shared, last = self._plan.of(Stage.SHARED), self._plan.of(Stage.LAST)
        if not shared and not last:
            return
        with self._shared_targets as shared_targets:
            for workload in (*shared, *last):
                self._take_turns(workload, shared_targets.target)

    @contextmanager
    def _fresh(self, peer: Peer) -> Iterator[Target]:
        with self._one_runs_directory() as directory, peer.start(directory) as target:
            yield target

    @contextmanager
    def _cluster(self, peer: Peer) -> Iterator[Target]:
        assert isinstance(peer, ClusterPeer), "reason_to_skip checks it"
        with self._one_runs_directory() as directory, peer.start_cluster(directory) as target:
            yield target

    @contextmanager
    def _tiered(self, peer: Peer) -> Iterator[Target]:
        assert isinstance(peer, TieredPeer), "reason_to_skip checks it"
        with self._one_runs_directory() as directory, peer.start_tiered(directory) as target:
            yield target

    @contextmanager
    def _diskless(self, peer: Peer) -> Iterator[Target]:
        assert isinstance(peer, DisklessPeer), "reason_to_skip checks it"
        with self._one_runs_directory() as directory, peer.start_diskless(directory) as target:
            yield target

    @contextmanager
    def _one_runs_directory(self) -> Iterator[Path]:
        """Create a directory for one run, and delete it afterwards."""
        made = self._new_directory()
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _new_directory(self) -> Path:
        self._directories += 1
        made = self._plan.directory / str(self._directories)
        made.mkdir(parents=True)
        return made

    # One workload

    def _take_turns(self, workload: Workload, enter: Enter) -> None:
        rounds, warm_ups = self._plan.rounds_of(workload), self._plan.warm_ups_of(workload)
        found = WorkloadResults(
            workload.name,
            workload.title,
            tuple(workload.metrics),
            dict(workload.parameters),
            rounds=rounds,
        )
        self._results.workloads.append(found)
        for peer in self._peers:
            found.peers[peer.name] = Measured(skipped=reason_to_skip(workload, peer))
        for number in range(1 - warm_ups, rounds + 1):
            for peer in self._peers:
                measured = found.peers[peer.name]
                while measured.skipped is None and len(measured.failures) < FAILURES_MAX:
                    self._run_one(workload, peer, measured, number, enter)
                    warm_s = sum(each.seconds for each in measured.samples if each.round == number)
                    if number > 0 or warm_s >= self._plan.warm_up_s:
                        break
        self._progress.measured(found, self._results)

    def _run_one(
        self, workload: Workload, peer: Peer, measured: Measured, number: int, enter: Enter
    ) -> None:
        """Run a workload, and repeat it up to `repeats_max` times if it was disturbed and did not fail."""
        for repeat in range(self._plan.repeats_max + 1):
            self._progress.doing(f"{workload.name} on {peer.name}, {_turn(number, repeat)}")
            end = self._attempt(workload, peer, number, enter)
            if isinstance(end, Failure):
                measured.failures.append(end)
            else:
                measured.samples.append(end)
            self._progress.ran(workload, peer, end)
            if isinstance(end, Failure) or end.state is not SampleState.DISTURBED:
                return

    def _attempt(
        self, workload: Workload, peer: Peer, number: int, enter: Enter
    ) -> Sample | Failure:
        watch = None
        try:
            if workload.stage in STARTED_FOR_A_RUN:  # the workload may measure the start
                watch = self._quiet_watch(None)
            with enter(peer) as target:
                if watch is None:
                    watch = self._quiet_watch(target)
                self._note_settings(workload, peer, target)
                began = self._clock()
                outcome = workload.run(target)
                seconds, usage = self._clock() - began, watch.stop()
        except Exception as error:  # an error in one workload must not end the run
            if was_interrupted(error):
                raise KeyboardInterrupt from error
            return Failure(number, _reason(error))
        # A broker that was not started here counts as another process.
        others = None if target.process is None else usage.others_cores
        state = SampleState.COUNTED
        if number < 1:
            state = SampleState.WARM_UP
        elif others is not None and others > self._plan.others_cores_max:
            state = SampleState.DISTURBED
        return Sample(
            number,
            dict(outcome.values),
            state,
            seconds,
            others,
            outcome.client_bound,
            tuple(outcome.notes),
            outcome.histogram,
        )

    def _note_settings(self, workload: Workload, peer: Peer, target: Target) -> None:
        if target.settings:
            (record,) = (each for each in self._results.peers if each.name == peer.name)
            record.clusters[workload.stage.name.lower()] = dict(target.settings)

    def _quiet_watch(self, target: Target | None) -> Watch:
        """Wait until the machine is idle, and start a watch that counts the other peers as other processes."""
        bystanders = self._shared_targets.processes_but(target)
        self._settle(bystanders)
        return self._watch(bystanders)


class SharedTargets:
    """Processes of the shared workloads: started at the first use, and stopped at the end.

    After a failure, the peer is stopped and restarted at its next use, because its state is unknown.
    """

    def __init__(self, new_directory: Callable[[], Path], remarks: list[str]) -> None:
        self._new_directory = new_directory
        self._remarks = remarks
        self._running: dict[str, tuple[Target, ExitStack]] = {}
        self._started: set[str] = set()

    def __enter__(self) -> SharedTargets:
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as all_of_them:  # stops all of them even if one fails
            for _, stack in self._running.values():
                all_of_them.callback(stack.close)

    @contextmanager
    def target(self, peer: Peer) -> Iterator[Target]:
        if peer.name not in self._running:
            self._start(peer)
        target, stack = self._running[peer.name]
        try:
            yield target
        except Exception:
            del self._running[peer.name]
            stack.close()
            raise

    def processes_but(self, target: Target | None) -> list[int]:
        """Return the ids of the running processes, except that of `target`."""
        return [
            each.process.pid
            for each, _ in self._running.values()
            if each is not target and each.process is not None
        ]

    def _start(self, peer: Peer) -> None:
        stack = ExitStack()
        target = stack.enter_context(peer.start(self._new_directory()))
        self._running[peer.name] = target, stack
        if peer.name in self._started:
            self._remarks.append(f"{peer.name} was restarted after a failure")
        self._started.add(peer.name)


def _turn(number: int, repeat: int) -> str:
    turn = f"round {number}" if number > 0 else "warm-up"
    return f"{turn}, repeat {repeat}" if repeat else turn


def was_interrupted(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error. A failing cleanup can hide the KeyboardInterrupt."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, KeyboardInterrupt):
            return True
        behind = behind.__cause__ or behind.__context__
    return False


def _reason(error: Exception) -> str:
    """Return the reason of a failure; an unexpected exception is prefixed with its class."""
    if isinstance(error, (WorkloadFailed, PeerFailed, PeerUnavailable)):
        return str(error)
    return f"{type(error).__name__}: {error}"
