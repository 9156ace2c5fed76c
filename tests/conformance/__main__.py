"""`make conformance`: other people's suites against Odradek and against Apache Kafka.

    python -m tests.conformance [--suite NAME] [--test PATTERN] [--only odradek|kafka] [--page FILE]

Every suite gets a fresh broker; so does every group of its entries that wants other settings. One
entry runs at a time unless --jobs says otherwise (entries wait more than they work, but a suite's
entries are not made to share a broker).
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import signal
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from odradek.bench.model import PeerUnavailable
from odradek.bench.obtaining import cache_directory
from tests.conformance import brokers
from tests.conformance.franz_go import FranzGo
from tests.conformance.kafka_python import KafkaPython
from tests.conformance.librdkafka import Librdkafka
from tests.conformance.model import Job, Outcome, Result, Suite, not_applicable
from tests.conformance.page import page
from tests.conformance.results import Results
from tests.conformance.running import end_programs
from tests.interop.kafka_dist import KafkaUnavailable

SUITES: tuple[Suite, ...] = (Librdkafka(), FranzGo(), KafkaPython())
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"


def main(words: Sequence[str] | None = None) -> int:
    """0 if nothing failed on Odradek that passed on Kafka, or 1; 2 if a suite can't be had."""
    options = _options(words)
    suites = [suite for suite in SUITES if options.suite in (None, suite.name)]
    results = Results(cache_directory() / "conformance")
    for suite in suites:
        try:
            suite.obtain()
            for broker in options.only or list(brokers.TITLES):
                _run_suite(suite, broker, options, results)
        except (PeerUnavailable, KafkaUnavailable) as unavailable:
            print(f"{suite.title}: {unavailable}", file=sys.stderr)
            return 2
    options.page.write_text(page(SUITES, results))
    print(f"written: {options.page}")
    return 1 if any(_worse_than_kafka(suite, results) for suite in suites) else 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--suite", choices=[suite.name for suite in SUITES])
    parser.add_argument("--test", metavar="PATTERN", help="entries by name, with * and ?")
    parser.add_argument("--only", choices=list(brokers.TITLES), action="append")
    parser.add_argument("--jobs", type=int, default=1, help="entries at a time (default 1)")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is written")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser.parse_args(words)


def _run_suite(suite: Suite, broker: str, options: argparse.Namespace, results: Results) -> None:
    version = brokers.version(broker)
    print(f"== {suite.title} {suite.version} against {brokers.TITLES[broker]} {version}")
    if options.test is None:
        results.forget(suite.name, broker)

    def report(entry: str, result: Result) -> None:
        results.put(suite.name, broker, entry, result, version)
        print(f"{entry}: {result.outcome.value} {result.seconds:.1f} s {result.reason}", flush=True)

    for entry, reason in suite.excluded().items():
        if _wanted([entry], options.test):
            report(entry, not_applicable(reason))
    jobs = [job for job in suite.jobs() if _wanted(job.entries, options.test)]
    directory = cache_directory() / "conformance" / suite.name / broker
    directory.mkdir(parents=True, exist_ok=True)
    for settings, alike in itertools.groupby(sorted(jobs, key=_settings_of), key=_settings_of):
        with closing(
            run_alike(suite, broker, dict(settings), list(alike), directory, options.jobs)
        ) as results_of_jobs:
            for ended in results_of_jobs:
                for entry, result in ended.items():
                    report(entry, result)


def _wanted(entries: Iterable[str], pattern: str | None) -> bool:
    return pattern is None or any(fnmatch.fnmatch(entry, pattern) for entry in entries)


def _settings_of(job: Job) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(job.settings.items()))


def run_alike(
    suite: Suite,
    broker: str,
    settings: Mapping[str, str],
    jobs: Sequence[Job],
    directory: Path,
    at_a_time: int,
) -> Generator[Mapping[str, Result], None, None]:
    """Run jobs that want the same settings against one broker; its log goes beside theirs.

    Closed early, or told to stop, it ends what is under way, the broker too.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-") as place:
        running = brokers.start(broker, Path(place), {**suite.settings, **settings})
        try:
            with running, ThreadPoolExecutor(at_a_time) as threads:
                try:
                    yield from threads.map(
                        lambda job: suite.run(job, running.bootstrap, directory), jobs
                    )
                except BaseException:
                    end_programs()
                    raise
        finally:
            (directory / "broker.log").write_bytes(running.log_file.read_bytes())


def _worse_than_kafka(suite: Suite, results: Results) -> bool:
    ours, theirs = results.of(suite.name, "odradek"), results.of(suite.name, "kafka")
    return any(
        kept.result.outcome is Outcome.FAILED
        and (entry not in theirs or theirs[entry].result.outcome is Outcome.PASSED)
        for entry, kept in ours.items()
    )


def stop_when_terminated() -> None:
    """Have SIGTERM end the command as Ctrl-C does: with what it started."""

    def terminated(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, terminated)


if __name__ == "__main__":
    stop_when_terminated()
    sys.exit(main())
