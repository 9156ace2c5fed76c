"""`make conformance`: test suites of other clients against Odradek and against Apache Kafka.

    python -m tests.conformance [--suite NAME] [--test PATTERN] [--only odradek|kafka] [--jobs N]
                                [--again] [--page FILE]

Entries that passed with the current versions of the suite and the broker are not run again. --jobs entries
run at a time, each on its own broker. A failed entry is run again alone, at most twice, and also by the next
command; the page contains the number of runs.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from odradek.bench.build_cache import cache_directory
from odradek.bench.model import PeerUnavailable
from tests.conformance import brokers
from tests.conformance.builds import PAGE, Build, broker_build, results_name
from tests.conformance.franz_go import FranzGo
from tests.conformance.kafka_python import KafkaPython
from tests.conformance.librdkafka import Librdkafka
from tests.conformance.model import Job, Outcome, Result, Suite, not_applicable
from tests.conformance.page import page
from tests.conformance.parallel_jobs import run_alike
from tests.conformance.results import Side
from tests.support.kafka_dist import KafkaUnavailable

SUITES: tuple[Suite, ...] = (Librdkafka(), FranzGo(), KafkaPython())
REPEATS = 2


def main(words: Sequence[str] | None = None) -> int:
    """Run the suites. Returns 0, 1 if an entry failed on Odradek and passed on Kafka, or 2 if a suite is
    unavailable.
    """
    options = _options(words)
    builds = {broker: broker_build(broker) for broker in brokers.TITLES}
    if refusal := page_refused(builds, options.page):
        print(refusal, file=sys.stderr)
        return 2
    sides = {suite.name: _sides(suite, builds) for suite in SUITES}
    suites = [suite for suite in SUITES if options.suite in (None, suite.name)]
    for suite in suites:
        try:
            suite.obtain()
            for broker in options.only or list(brokers.TITLES):
                _run_suite(suite, broker, options, sides[suite.name][broker])
        except (PeerUnavailable, KafkaUnavailable) as unavailable:
            print(f"{suite.title}: {unavailable}", file=sys.stderr)
            return 2
    options.page.write_text(page(SUITES, sides))
    print(f"written: {options.page}")
    return 1 if any(_worse_than_kafka(sides[suite.name]) for suite in suites) else 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--suite", choices=[suite.name for suite in SUITES])
    parser.add_argument("--test", metavar="PATTERN", help="entries by name, with * and ?")
    parser.add_argument("--only", choices=list(brokers.TITLES), action="append")
    parser.add_argument(
        "--jobs", type=int, default=1, help="number of entries that run at a time (default: 1)"
    )
    parser.add_argument("--again", action="store_true", help="run entries that have passed again")
    parser.add_argument("--page", type=Path, default=PAGE, help="file for the page")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser.parse_args(words)


def page_refused(builds: Mapping[str, Build], page_file: Path) -> str | None:
    """Reason why the page cannot be written: docs/conformance.md contains results of commits only."""
    if page_file != PAGE or not any(build.dirty for build in builds.values()):
        return None
    return "this checkout has uncommitted changes: commit them, or write another file with --page"


def _sides(suite: Suite, builds: Mapping[str, Build]) -> dict[str, Side]:
    module = Path(sys.modules[type(suite).__module__].__file__ or "")
    kept = cache_directory() / "conformance" / suite.name
    return {
        broker: Side(kept / results_name(broker, build, module), build)
        for broker, build in builds.items()
    }


def _run_suite(suite: Suite, broker: str, options: argparse.Namespace, side: Side) -> None:
    title = f"{suite.title} {suite.version} against {brokers.TITLES[broker]} {side.version}"
    print(f"== {title}: {side.directory}", flush=True)
    excluded = {
        entry: reason
        for entry, reason in suite.excluded().items()
        if _wanted([entry], options.test)
    }
    jobs = [job for job in suite.jobs() if _wanted(job.entries, options.test)]
    side.begin([*excluded, *(entry for job in jobs for entry in job.entries)], again=options.again)
    for entry, reason in excluded.items():
        if entry not in side.kept():
            side.put(entry, not_applicable(reason))
    new = [job for job in jobs if any(map(side.is_to_run, job.entries))]
    for at_a_time in (options.jobs, *[1] * REPEATS):
        to_run = [job for job in new if any(map(side.is_to_run, job.entries))]
        for entry, result in _run_jobs(suite, broker, to_run, side, at_a_time):
            if side.is_to_run(entry):
                _report(side, entry, result)


def _report(side: Side, entry: str, result: Result) -> None:
    side.put(entry, result)
    print(f"{entry}: {result.outcome.value} {result.seconds:.1f} s {result.reason}", flush=True)


def _wanted(entries: Iterable[str], pattern: str | None) -> bool:
    return pattern is None or any(fnmatch.fnmatch(entry, pattern) for entry in entries)


def _run_jobs(
    suite: Suite,
    broker: str,
    jobs: Sequence[Job],
    side: Side,
    at_a_time: int,
) -> Iterator[tuple[str, Result]]:
    """Results of the entries of `jobs`, with new brokers for each set of settings."""
    for settings, alike in itertools.groupby(sorted(jobs, key=_settings_of), key=_settings_of):
        with closing(
            run_alike(suite, broker, dict(settings), list(alike), side.directory, at_a_time)
        ) as ended:
            for results in ended:
                yield from results.items()


def _settings_of(job: Job) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(job.settings.items()))


def _worse_than_kafka(sides: Mapping[str, Side]) -> bool:
    theirs = sides["kafka"].kept()
    return any(
        kept.result.outcome is Outcome.FAILED
        and (entry not in theirs or theirs[entry].result.outcome is Outcome.PASSED)
        for entry, kept in sides["odradek"].kept().items()
    )


def stop_when_terminated() -> None:
    """Make SIGTERM stop the command and its programs like Ctrl-C."""

    def terminated(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # ignore further signals
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, terminated)


if __name__ == "__main__":
    stop_when_terminated()
    sys.exit(main())
