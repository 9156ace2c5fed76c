"""The order of a run: peers take turns run by run, what was disturbed is repeated, failures are named.

Within a workload the peers alternate (A B C A B C …), so that what changes on the machine in the
meantime changes for all. Physical limits come first, then five parts: workloads that want a process of
their own, those that want a cluster, those that want a tiered one, those that share one process a peer
(started once, up to the end, so that its memory afterwards means something), and those that look at that
process last. The first `warm_ups` rounds of shared workloads do not count, so that a JVM may compile; where
a plan has a `warm_up_s` they last so long on each peer. Workloads that are given something of their own warm
it up themselves.

A run while which other processes used more than `others_cores_max` of the machine is kept as
disturbed and repeated, at most `repeats_max` times. A run that raises is a failure in the results;
after `FAILURES_MAX` of them the workload is given up on that peer. Ctrl-C ends what was started and
leaves the results as far as they are.
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
    why_not,
)
from odradek.bench.results_file import (
    Failure,
    LimitResults,
    Measured,
    PeerRecord,
    Results,
    Sample,
    State,
    WorkloadResults,
)

FAILURES_MAX = 2
STARTED_FOR_A_RUN = frozenset({Stage.FRESH, Stage.CLUSTER, Stage.TIERED})
"""Of these a run begins before its peer is there."""

Enter: TypeAlias = Callable[[Peer], AbstractContextManager[Target]]
"""How a run comes to its target."""


class Usage(Protocol):
    """What a watch saw (`machine.Usage`)."""

    @property
    def others_share(self) -> float:
        """Cores that others kept busy."""
        ...


class Watch(Protocol):
    """Looks at who uses the machine (`machine.Watch`), from when it is made on."""

    def stop(self) -> Usage: ...


class Progress(Protocol):
    """Who is told how far the run is."""

    def doing(self, what: str) -> None:
        """What is begun now."""
        ...

    def ran(self, workload: Workload, peer: Peer, end: Sample | Failure) -> None:
        """One run ended, so or so."""
        ...

    def measured(self, workload: WorkloadResults, results: Results) -> None:
        """A workload is through, on all peers."""
        ...


@dataclass(frozen=True)
class Plan:
    """What is to be run; `directory` is for the peers' data."""

    peers: Sequence[Peer]
    workloads: Sequence[Workload]
    limits: Sequence[Limit]
    directory: Path
    rounds: int = 5
    rounds_most: Mapping[str, int] = field(default_factory=dict)
    """Of workloads of these names no more rounds count."""
    warm_ups: int = 1
    warm_up_s: float = 0.0
    """How long a peer is warmed up for a workload, with as many runs as that takes, but one in each of these rounds:
    Java compiles what has run for long, so by one run each the faster of two peers is the colder one."""
    repeats_max: int = 2
    others_cores_max: float = 0.25

    def of(self, stage: Stage) -> list[Workload]:
        return [each for each in self.workloads if each.stage is stage]

    def run_count(self) -> int:
        """How many runs there will be, if nothing fails and nothing is repeated."""
        return sum(
            self.runs_of(workload)
            for workload in self.workloads
            for peer in self.peers
            if why_not(workload, peer) is None
        )

    def runs_of(self, workload: Workload) -> int:
        """How often it is run on a peer."""
        return self.rounds_of(workload) + self.warm_ups_of(workload)

    def rounds_of(self, workload: Workload) -> int:
        """How many of its rounds count: of what is looked at last one, a second look would see the same."""
        if workload.stage is Stage.LAST:
            return 1
        return min(self.rounds, self.rounds_most.get(workload.name, self.rounds))

    def warm_ups_of(self, workload: Workload) -> int:
        """How many of its rounds do not: a process of its own is as cold in each."""
        return self.warm_ups if workload.stage is Stage.SHARED else 0


class Runner:
    """Runs a plan into `results`, which is up to date whenever `run` ends, and however it does."""

    def __init__(
        self,
        plan: Plan,
        results: Results,
        progress: Progress,
        watch: Callable[[Collection[int]], Watch],
        clock: Callable[[], float] = time.monotonic,
        settle: Callable[[Collection[int]], None] = lambda bystanders: None,
    ) -> None:
        """`watch` is told which processes are up without its being their turn; `settle` is called
        before each run, with them: it returns when the machine is quiet."""
        self._plan = plan
        self._results = results
        self._progress = progress
        self._watch = watch
        self._clock = clock
        self._settle = settle
        self._peers: list[Peer] = []
        self._directories = 0
        self._standing = Standing(self._new_directory, results.remarks)

    def run(self) -> None:
        """All of it. Ctrl-C is not raised, but noted in the results."""
        began = self._clock()
        try:
            self._obtain()
            if self._plan.peers and not self._peers:
                return  # limits and empty tables say nothing
            self._measure_limits()
            for workload in self._plan.of(Stage.FRESH):
                self._take_turns(workload, self._fresh)
            for workload in self._plan.of(Stage.CLUSTER):
                self._take_turns(workload, self._cluster)
            for workload in self._plan.of(Stage.TIERED):
                self._take_turns(workload, self._tiered)
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
        """As often as everything else, before it: the peers are not there yet to be in the way."""
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
        """One turn: repeated while it is disturbed, until the repeats are used up; said if they are."""
        tries = self._plan.repeats_max + 1
        for repeat in range(tries):
            self._progress.doing(f"limit {limit.name}, {_turn(number, repeat)}")
            watch = self._quiet_watch(None)
            result = limit.measure(self._new_directory())
            if watch.stop().others_share <= self._plan.others_cores_max:
                break
        else:
            why = f"others used the machine in all of its {tries} runs"
            self._results.remarks.append(f"the limit {limit.name}, round {number}: {why}")
        return result

    def _run_shared(self) -> None:
        shared, last = self._plan.of(Stage.SHARED), self._plan.of(Stage.LAST)
        if not shared and not last:
            return
        with self._standing as standing:
            for workload in (*shared, *last):
                self._take_turns(workload, standing.target)

    @contextmanager
    def _fresh(self, peer: Peer) -> Iterator[Target]:
        with self._one_runs_directory() as directory, peer.start(directory) as target:
            yield target

    @contextmanager
    def _cluster(self, peer: Peer) -> Iterator[Target]:
        assert isinstance(peer, ClusterPeer), "why_not has said that it is one"
        with self._one_runs_directory() as directory, peer.start_cluster(directory) as target:
            yield target

    @contextmanager
    def _tiered(self, peer: Peer) -> Iterator[Target]:
        assert isinstance(peer, TieredPeer), "why_not has said that it is one"
        with self._one_runs_directory() as directory, peer.start_tiered(directory) as target:
            yield target

    @contextmanager
    def _one_runs_directory(self) -> Iterator[Path]:
        """A new directory; what a run has written takes no room from the runs after it."""
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
            found.peers[peer.name] = Measured(skipped=why_not(workload, peer))
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
        """One turn: repeated while it is disturbed, until it fails or the repeats are used up."""
        for repeat in range(self._plan.repeats_max + 1):
            self._progress.doing(f"{workload.name} on {peer.name}, {_turn(number, repeat)}")
            end = self._attempt(workload, peer, number, enter)
            if isinstance(end, Failure):
                measured.failures.append(end)
            else:
                measured.samples.append(end)
            self._progress.ran(workload, peer, end)
            if isinstance(end, Failure) or end.state is not State.DISTURBED:
                return

    def _attempt(
        self, workload: Workload, peer: Peer, number: int, enter: Enter
    ) -> Sample | Failure:
        watch = None
        try:
            if workload.stage in STARTED_FOR_A_RUN:  # the start may be what is measured
                watch = self._quiet_watch(None)
            with enter(peer) as target:
                if watch is None:
                    watch = self._quiet_watch(target)
                self._note_settings(workload, peer, target)
                began = self._clock()
                outcome = workload.run(target)
                seconds, usage = self._clock() - began, watch.stop()
        except Exception as error:  # a run of hours does not end by one workload's bug
            if was_interrupted(error):
                raise KeyboardInterrupt from error
            return Failure(number, _reason(error))
        # A broker that we did not start is itself one of the others.
        others = None if target.process is None else usage.others_share
        state = State.COUNTED
        if number < 1:
            state = State.WARM_UP
        elif others is not None and others > self._plan.others_cores_max:
            state = State.DISTURBED
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
        """Begun when the machine is quiet: of those who are up, it is only this one's turn."""
        bystanders = self._standing.processes_but(target)
        self._settle(bystanders)
        return self._watch(bystanders)


class Standing:
    """The processes that shared workloads use: each started when first asked for, and up to the end.

    After a failure a peer is stopped, and started anew when it is asked for again: nobody knows what
    state it is in.
    """

    def __init__(self, new_directory: Callable[[], Path], remarks: list[str]) -> None:
        self._new_directory = new_directory
        self._remarks = remarks
        self._running: dict[str, tuple[Target, ExitStack]] = {}
        self._started: set[str] = set()

    def __enter__(self) -> Standing:
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as all_of_them:  # one that does not end well keeps no other from ending
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
        """The processes that are up, without the one that is `target`'s."""
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
            self._remarks.append(f"{peer.name} was started anew after a failure")
        self._started.add(peer.name)


def _turn(number: int, repeat: int) -> str:
    turn = f"round {number}" if number > 0 else "warm-up"
    return f"{turn}, repeat {repeat}" if repeat else turn


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is behind an error: what cleans up after it may fail, and hide it."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, KeyboardInterrupt):
            return True
        behind = behind.__cause__ or behind.__context__
    return False


def _reason(error: Exception) -> str:
    """Why a run gave nothing, in words; what no workload should raise is named by its class."""
    if isinstance(error, (WorkloadFailed, PeerFailed, PeerUnavailable)):
        return str(error)
    return f"{type(error).__name__}: {error}"
