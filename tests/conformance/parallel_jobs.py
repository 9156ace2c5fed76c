"""Runs jobs concurrently, each alone on its broker."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.conformance import brokers
from tests.conformance.model import Job, Result, Suite
from tests.conformance.programs import end_programs
from tests.support.broker_process import BrokerProcess


def run_alike(
    suite: Suite,
    broker: str,
    settings: Mapping[str, str],
    jobs: Sequence[Job],
    directory: Path,
    at_a_time: int,
) -> Generator[Mapping[str, Result], None, None]:
    """Run jobs with the same settings on `at_a_time` brokers.

    The output of a job is in `directory/JOB/1`, `2` and so on; the brokers' logs are in `directory`. If the
    generator is closed or the command is stopped, running jobs and brokers are stopped.
    """
    free: SimpleQueue[BrokerProcess] = SimpleQueue()

    def run(job: Job) -> Mapping[str, Result]:
        runs = directory / re.sub(r"[^A-Za-z0-9_]+", "-", job.name)
        runs.mkdir(parents=True, exist_ok=True)
        place = runs / str(1 + sum(1 for _ in runs.iterdir()))
        place.mkdir()
        running = free.get()
        try:
            return suite.run(job, running.bootstrap, place)
        finally:
            free.put(running)

    with ExitStack() as stack:
        for number in range(1, min(at_a_time, len(jobs)) + 1):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
            running = brokers.start(broker, place, {**suite.settings, **settings})
            stack.callback(_keep_log, running, directory / f"broker-{number}.log")
            free.put(stack.enter_context(running))
        threads = stack.enter_context(ThreadPoolExecutor(at_a_time))
        try:
            for ended in as_completed([threads.submit(run, job) for job in jobs]):
                yield ended.result()
        except BaseException:
            end_programs()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _keep_log(running: BrokerProcess, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("ab") as log:
        log.write(running.log_file.read_bytes())
