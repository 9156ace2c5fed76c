"""`replay` writes each record once and unchanged, also after failures, at most at the given rate."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from threading import Event, get_ident
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec

pytest.importorskip("pyspark")

from odradek.client.partitioner import partition_for_key
from odradek.client.transactions import EncodedRecords
from odradek.pipeline.cli.replay import add_arguments, job_of, parse_ranges, parse_time_ms
from odradek.pipeline.errors import BadOption, PipelineError
from odradek.pipeline.jobs import replay as replay_job
from odradek.pipeline.jobs.replay import ReplayJob, plan_replay, replay
from odradek.pipeline.jobs.replay_target import PartitionProgress
from odradek.pipeline.jobs.replay_task import RateLimiter, ReplayedPartition, read, run_replay_task
from odradek.pipeline.query import Query
from odradek.protocol.records.batch import HEADER_SIZE
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.clock import RealClock
from odradek.testing import Broker
from tests.pipeline.recreated_topics import recreate_topic
from tests.support.random_records import PARTITIONS, Ends, produce_varied
from tests.support.spark_reading import Row, by_consumer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

COUNT = 900
TIMEOUT_SECONDS = 60.0
FOR_EVER = {"retention.ms": "-1"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Broker with a topic of three partitions; every third transaction was aborted."""
    with Broker(
        configs={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    ) as broker:
        broker.create_topic("events", 3, FOR_EVER)
        _produce(broker, COUNT, **{"compression.type": "zstd"})
        _produce(broker, 300, "abort", **{"transactional.id": "t"})
        _produce(broker, 30, "commit", **{"transactional.id": "t"})
        yield broker


def _produce(broker: Broker, count: int, ends: Ends = "", **config: Any) -> None:
    produce_varied(broker.bootstrap, "events", range(count), ends, _minute, **config)


def _minute(number: int) -> int:
    return 1_357_000_000_000 + number * 60_000


def job(broker: Broker, topic: str, source: dict[str, str] | None = None, **more: Any) -> ReplayJob:
    given = {"kafka.bootstrap.servers": broker.bootstrap}
    source = {"subscribe": "events"} if source is None else source
    return ReplayJob(source={**given, **source}, topic=topic, bootstrap=broker.bootstrap, **more)


def run(job: ReplayJob, tasks: int = 2) -> list[ReplayedPartition]:
    """Run the replay's tasks in this process."""
    return [
        each
        for replay_task in plan_replay(job, tasks).replay_tasks
        for each in run_replay_task(replay_task)
    ]


def rows(broker: Broker, topic: str, partitions: tuple[int, ...] = PARTITIONS) -> list[Row]:
    return by_consumer(broker.bootstrap, topic, partitions, isolation="read_committed")


def contents(found: list[Row]) -> list[tuple[Any, ...]]:
    """Return rows without their offsets, which differ; they are in the order of their partition."""
    return [(row[0], *row[2:]) for row in found]


def test_replayed_records_are_unchanged_and_a_second_run_adds_none(broker: Broker) -> None:
    fresh = _of_its_own(broker, 3)
    given = job(broker, fresh)
    done = run(given)
    expected = rows(broker, "events")
    assert sum(each.records for each in done) == len(expected) == COUNT + 30
    assert contents(rows(broker, fresh)) == contents(expected)
    plan = plan_replay(given, 2)
    assert plan.replay_tasks == []
    assert plan.done() == plan.total
    assert sum(each.records for each in run(job(broker, fresh, name="again"))) == len(expected)
    assert len(rows(broker, fresh)) == 2 * len(expected)


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ({"subscribe": "events", "startingTimestamp": "1357003000000",
          "endingTimestamp": "1357012000000"}, lambda row: 1357003000000 <= row[2] < 1357012000000),
        ({"assign": '{"events":[0,2]}', "startingOffsets": '{"events":{"0":10,"2":20}}',
          "endingOffsets": '{"events":{"0":60,"2":21}}'},
         lambda row: row[1] in {0: range(10, 60), 1: (), 2: range(20, 21)}[row[0]]),
    ],
    ids=["times", "offsets"],
)  # fmt: skip
def test_range_is_replayed(broker: Broker, source: dict[str, str], kept: Any) -> None:
    fresh = _of_its_own(broker, 3)
    run(job(broker, fresh, source))
    expected = [row for row in rows(broker, "events") if row[1] < COUNT // 3 and kept(row)]
    assert len(expected) > 20
    assert contents(rows(broker, fresh)) == contents(expected)


def _of_its_own(broker: Broker, partitions: int, **config: str) -> str:
    name = f"to.{Random().randrange(1 << 60)}"
    broker.create_topic(name, partitions, {**FOR_EVER, **config})
    return name


def test_records_are_partitioned_by_key(broker: Broker) -> None:
    """From three partitions to two. Records without a key go to their partition modulo two."""
    few = _of_its_own(broker, 2)
    run(job(broker, few, by="key"))
    found = rows(broker, few, (0, 1))
    expected = rows(broker, "events")

    def chosen(row: Row) -> int:
        return row[0] % 2 if row[3] is None else partition_for_key(row[3], 2)

    assert sorted(contents(found), key=repr) == sorted(
        ((chosen(row), *row[2:]) for row in expected), key=repr
    )
    for origin in PARTITIONS:
        for number in (0, 1):
            mine = [r[2:] for r in expected if r[0] == origin and chosen(r) == number]
            theirs = [r[2:] for r in found if r[0] == number and r[2:] in mine]
            assert theirs == mine, "the order of a partition's records is kept"


def test_progress_is_found_after_partitions_were_added_to_the_target(broker: Broker) -> None:
    source, target = _of_its_own(broker, 5), _of_its_own(broker, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(100):
        producer.produce(source, b"%d" % number, b"key %d" % number, number % 5)
    producer.flush()
    by_key = job(broker, target, {"subscribe": source}, by="key", name="grown")
    begun = plan_replay(by_key, 5)
    run_replay_task(replace(begun.replay_tasks[0], partitions=(2, 3)))
    _grow(broker, target, 3)
    state = replace(begun.state, partitions=3)
    assert begun.target.progress(state, range(5)) == begun.target.progress(begun.state, range(5))
    assert begun.done() == 40
    with pytest.raises(BadOption, match="had 2 partitions when job grown started, and has 3 now"):
        plan_replay(by_key, 5)
    for replay_task in begun.replay_tasks:
        run_replay_task(replay_task)
    assert begun.done() == begun.total == 100
    found = rows(broker, target, PARTITIONS)
    assert sorted(row[3] for row in found) == sorted(b"key %d" % number for number in range(100))
    assert {row[0] for row in found} == {0, 1}


def _grow(broker: Broker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(admin.list_topics(topic, 10).topics[topic].partitions) < partitions:
        assert time.monotonic() < deadline


def test_batches_are_split_at_max_message_bytes(broker: Broker) -> None:
    narrow = _of_its_own(broker, 3, **{"max.message.bytes": "2000"})
    run(job(broker, narrow, compression="none"))
    assert contents(rows(broker, narrow)) == contents(rows(broker, "events"))
    tiny = _of_its_own(broker, 3, **{"max.message.bytes": "200"})
    with pytest.raises(PipelineError, match="refuses the record at offset"):
        run(job(broker, tiny, compression="none"))


@pytest.mark.slow
def test_each_record_is_replayed_once_when_tasks_are_killed(broker: Broker) -> None:
    """A task is killed after it has made progress, and another one continues; the last one may finish."""
    random = Random(7)
    target = _of_its_own(broker, 3)
    given = job(broker, target, name="killed", records_per_s=400)
    context = multiprocessing.get_context("spawn")
    done, total = 0, plan_replay(given, 1).total
    for _ in range(3):
        plan = plan_replay(given, 1)
        replay_task = replace(plan.replay_tasks[0], commit_s=0.1)
        task = context.Process(target=run_replay_task, args=(replay_task,), daemon=True)
        task.start()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while plan.done() == done:
            assert time.monotonic() < deadline, "nothing was replayed"
        task.join(random.uniform(0, 0.3))
        task.kill()
        task.join()
        done = plan.done()
        assert done < total, "the task was not killed before its end"
    run(job(broker, target, name="killed"))
    assert contents(rows(broker, target)) == contents(rows(broker, "events"))


def test_later_run_fences_the_earlier_one(broker: Broker) -> None:
    """Of two concurrent runs of a job one fails, and each record is written once."""
    target = _of_its_own(broker, 3)
    plan = plan_replay(job(broker, target), 1)
    (replay_task,) = plan.replay_tasks
    state = replay_task.state
    with plan.target.writing(state, 0, 0) as old:
        run_replay_task(replay_task)
        with pytest.raises(PipelineError, match="another run of the same job has taken over"):
            old.commit(plan.target.progress(state, [0])[0])
    assert contents(rows(broker, target)) == contents(rows(broker, "events"))


def test_job_name_belongs_to_one_range_and_options(broker: Broker) -> None:
    source, target = _of_its_own(broker, 2), _of_its_own(broker, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(source, b"value", b"key", 0)
    producer.flush()
    given = job(broker, target, {"subscribe": source}, name="named")
    run(given)
    for other in (
        replace(given, source={**given.source, "endingTimestamp": "1357003000000"}),
        replace(given, source={**given.source, "kafka.isolation.level": "read_uncommitted"}),
        replace(given, by="key"),
    ):
        with pytest.raises(
            BadOption, match="job named was started with another range, --by or --isolation"
        ):
            plan_replay(other, 1)
    with_more = {**given.source, "kafka.fetch.max.bytes": "1000000", "failOnDataLoss": "false"}
    assert plan_replay(replace(given, source=with_more), 1).replay_tasks == []
    _grow(broker, source, 3)
    assert list(plan_replay(given, 1).partitions) == [0, 1], "the partitions at its start"


def test_job_with_expired_offsets_is_refused(broker: Broker) -> None:
    """Committed offsets of a group without members expire after offsets.retention.minutes."""
    target = _of_its_own(broker, 3)
    given = job(broker, target, name="forgotten")
    plan = plan_replay(given, 1)
    group, _ = plan.state.place(1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups([group])[group].result(30)
    with pytest.raises(
        PipelineError, match=r"no longer has the progress .* \(offsets.retention.minutes\)"
    ):
        run_replay_task(plan.replay_tasks[0])
    with pytest.raises(
        PipelineError, match=r"no longer has the progress .* \(offsets.retention.minutes\)"
    ):
        plan_replay(given, 1)


def test_concurrent_start_keeps_the_progress_of_the_other_run(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that has seen no progress is suspended until the other one has replayed everything."""
    target = _of_its_own(broker, 3)
    given = job(broker, target)
    asked_for = Query.ranges

    def held(query: Query) -> Any:
        monkeypatch.setattr(Query, "ranges", asked_for)
        run(given)
        return asked_for(query)

    monkeypatch.setattr(Query, "ranges", held)
    with pytest.raises(PipelineError, match="another run of the same job has taken over"):
        run(given)
    assert run(given) == []
    assert contents(rows(broker, target)) == contents(rows(broker, "events"))


class JumpingClock(RealClock):
    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + JumpingClock.ahead_s


def test_transaction_is_committed_before_late_records(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = _of_its_own(broker, 1)
    plan = plan_replay(job(broker, target, {"assign": '{"events":[0]}'}), 1)
    replay_task = replace(plan.replay_tasks[0], commit_s=300.0)
    seen = []

    def late(source: Any, topic: str, number: int, left: PartitionProgress) -> Iterator[Any]:
        yield from read(source, topic, number, replace(left, high=100))
        JumpingClock.ahead_s += 1000.0
        yield from read(source, topic, number, replace(left, next=100))
        seen.append(plan.target.progress(plan.state, [0])[0].next)

    monkeypatch.setattr("odradek.pipeline.jobs.replay_task.RealClock", JumpingClock)
    monkeypatch.setattr("odradek.pipeline.jobs.replay_task.read", late)
    run_replay_task(replay_task)
    assert seen == [100], "it was not committed before the late records were written"
    assert contents(rows(broker, target, (0,))) == contents(rows(broker, "events", (0,)))


def test_timestamp_beyond_the_maximum_is_refused(broker: Broker) -> None:
    """A producer has used nanoseconds as milliseconds. Microseconds are within the range."""
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1), **FOR_EVER}
    for topic in ("ahead", "far.ahead"):
        broker.create_topic(topic, 1, any_time)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for at in (1_700_000_000_000_000, 1_700_000_000_000_000_000):
        producer.produce("ahead", b"v", timestamp=at)
    producer.flush()
    with pytest.raises(
        PipelineError, match="the record at offset 1 of partition 0 has a timestamp"
    ):
        run(job(broker, "far.ahead", {"subscribe": "ahead"}))
    first = {"assign": '{"ahead":[0]}', "endingOffsets": '{"ahead":{"0":1}}'}
    run(job(broker, "far.ahead", first))
    assert [row[2] for row in rows(broker, "far.ahead", (0,))] == [1_700_000_000_000_000]


def test_transaction_timeout_is_reported(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator aborts it while nothing is written, and no other run has started."""
    monkeypatch.setattr("odradek.pipeline.jobs.replay_target.TRANSACTION_MS", 1000)
    target = _of_its_own(broker, 1)
    given = job(broker, target, {"assign": '{"events":[0]}'}, name="stalled")
    plan = plan_replay(given, 1)
    batch = EncodedRecords(build_batch([Record(-1, 1000, None, b"v")])[HEADER_SIZE:], 1, 1000, 1000)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with plan.target.writing(plan.state, 0, 0) as writer:
        writer.write({0: batch})
        while _is_open(broker, target):
            assert time.monotonic() < deadline
        with pytest.raises(PipelineError, match=r"timed out.*run the job again; it continues"):
            writer.write({0: batch})
    run(given)
    assert contents(rows(broker, target, (0,))) == contents(rows(broker, "events", (0,)))


def _is_open(broker: Broker, topic: str) -> bool:
    """Whether an open transaction delays read_committed consumers."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    where = TopicPartition(topic, 0)
    stable, end = (
        admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=level)[where]
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )
    return bool(stable.result(10).offset < end.result(10).offset)


def test_topic_recreated_during_the_replay_is_not_replayed(
    broker: Broker,
) -> None:
    source, target = _of_its_own(broker, 3), _of_its_own(broker, 3)
    produce_varied(broker.bootstrap, source, range(60), "", _minute)
    plan = plan_replay(job(broker, target, {"subscribe": source}), 1)
    old, new = recreate_topic(broker, source, 3)
    produce_varied(broker.bootstrap, source, range(60), "", _minute)
    with pytest.raises(BadOption, match=f"{source} was deleted and recreated: .* {old} .* {new}"):
        run_replay_task(plan.replay_tasks[0])
    assert rows(broker, target) == []


def test_topic_can_be_replayed_to_itself(broker: Broker) -> None:
    source = _of_its_own(broker, 3)
    run(job(broker, source))
    once = rows(broker, source)
    given = job(broker, source, {"subscribe": source})
    run(given)
    run(given)
    twice = contents(rows(broker, source))
    for number in PARTITIONS:
        mine = [row for row in contents(once) if row[0] == number]
        assert [row for row in twice if row[0] == number] == mine + mine


class FakeSparkContext:
    """The part of Spark's context that a replay uses. Its job ends on request, or is cancelled."""

    def __init__(self) -> None:
        self.may_end, self.cancelled = Event(), Event()
        self.tags: dict[int, str] = {}
        self.sparkContext = self

    def parallelize(self, items: Any, slices: int) -> FakeSparkContext:
        return self

    def flatMap(self, act: Any) -> FakeSparkContext:  # noqa: N802 - Spark's name
        return self

    def addJobTag(self, tag: str) -> None:  # noqa: N802
        self.tags[get_ident()] = tag

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        if tag in self.tags.values():
            self.cancelled.set()
            self.may_end.set()

    def collect(self) -> list[ReplayedPartition]:
        assert get_ident() in self.tags
        assert self.may_end.wait(TIMEOUT_SECONDS)
        return [ReplayedPartition(1, 2, 3, 4), ReplayedPartition(0, 1, 1, 1)]


def _run_of(on_progress: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeSparkContext, Any]:
    monkeypatch.setattr("odradek.pipeline.jobs.replay.PROGRESS_S", 0.01)
    context, plan = FakeSparkContext(), SimpleNamespace(replay_tasks=[None])
    return context, lambda: replay_job._run(context, plan, lambda: on_progress(context))  # type: ignore[arg-type]


def test_replay_continues_when_its_progress_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = []

    def on_progress(context: FakeSparkContext) -> None:
        reported.append(None)
        if len(reported) == 3:
            context.may_end.set()
        raise PipelineError("the coordinator does not respond")

    context, run = _run_of(on_progress, monkeypatch)
    assert [each.partition for each in run()] == [0, 1]
    assert len(reported) >= 3
    assert not context.cancelled.is_set()


def test_interrupted_replay_cancels_only_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_progress(context: FakeSparkContext) -> None:
        raise KeyboardInterrupt

    context, run = _run_of(on_progress, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert context.cancelled.is_set()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--since", "2013-02-10", "--until", "2013-02-08"], "2013-02-10 is later than --until"),
        (["--since", "soon"], "soon is not a time"),
        (
            ["--since", "5", "--offsets", "0:1:2"],
            "--since and --until cannot be used with --offsets",
        ),
    ],
)
def test_invalid_ranges_are_refused(words: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(BadOption, match=message):
        job_of(parser.parse_args(["-t", "a", "--to", "b", "--bootstrap", "h:1", *words]))


def test_invalid_arguments_are_refused(broker: Broker) -> None:
    two = _of_its_own(broker, 2)
    for given, message in (
        (job(broker, "nowhere"), "has no topic nowhere: create it first"),
        (
            job(broker, two),
            "has 2 partitions, but partition 2 is replayed: add partitions, or use --by key",
        ),
        (job(broker, two, by="hand"), "by partition or by key, not by hand"),
        (job(broker, two, compression="zip"), "the compression is one of .*, not zip"),
        (job(broker, two, tasks=-1), "the number of tasks must be at least 1, not -1"),
        (job(broker, two, records_per_s=0), "a rate must be above 0, not 0"),
        (job(broker, two, bytes_per_s=float("nan")), "a rate must be above 0, not nan"),
        (
            job(broker, two, {"subscribe": f"events,{two}"}),
            "exactly one topic can be replayed at a time",
        ),
    ):
        with pytest.raises(BadOption, match=message):
            plan_replay(given, 1)
    other = _of_its_own(broker, 3)
    plan_replay(job(broker, other, name="one"), 1)
    with pytest.raises(BadOption, match="job one was started with another range"):
        plan_replay(job(broker, other, {"subscribe": other}, name="one"), 1)
    for text in ("0:1", "0:a:2", "0:5:2"):
        with pytest.raises(BadOption, match=text):
            parse_ranges([text])
    assert parse_time_ms("2013-02-08T06:00") == parse_time_ms("1360303200000") == 1360303200000


def test_source_options_and_spark_settings_are_passed(broker: Broker) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = ["--topic", "events", "--bootstrap", broker.bootstrap, "--to", _of_its_own(broker, 3)]
    more = ["--option", "kafka.fetch.max.bytes=100", "--option", "failOnDataLoss=false"]
    args = parser.parse_args([*given, *more, "--conf", "spark.executor.memory=2g", "--json"])
    assert args.conf == ["spark.executor.memory=2g"]
    made = job_of(args)
    assert made.source["kafka.fetch.max.bytes"] == "100"
    assert made.source["subscribe"] == "events"
    assert plan_replay(made, 1).state == plan_replay(job_of(parser.parse_args(given)), 1).state
    for broker_error in ("onCorruptSegment=report", "rows=batches"):
        with pytest.raises(BadOption, match="only records can be replayed"):
            plan_replay(job_of(parser.parse_args([*given, "--option", broker_error])), 1)


def test_rate_limit_is_not_exceeded() -> None:
    limiter = RateLimiter(100, 1000)
    assert limiter.wait_s(50.0) == 0
    limiter.used(50.0, 10, 10)
    assert limiter.wait_s(50.0) == pytest.approx(0.1)
    limiter.used(50.0, 1, 500)
    assert limiter.wait_s(50.0) == pytest.approx(0.6)
    assert limiter.wait_s(51.0) == 0
    limiter.used(60.0, 100, 0)
    assert limiter.wait_s(60.0) == pytest.approx(1.0), "unused rate must not accumulate"
    assert (limiter.records_per_write(5000), limiter.bytes_per_write(5000)) == (100, 1000)
    assert RateLimiter(None, None).records_per_write(5000) == 5000


@pytest.mark.slow
def test_replay_on_spark_reports_progress_and_errors(spark: SparkSession, broker: Broker) -> None:
    target = _of_its_own(broker, 3)
    reported = []
    result = replay(spark, job(broker, target, records_per_s=400), reported.append)
    assert contents(rows(broker, target)) == contents(rows(broker, "events"))
    assert result.records == COUNT + 30
    assert [each.partition for each in result.partitions] == list(PARTITIONS)
    assert len(reported) > 2
    assert reported[-1].done == reported[-1].total
    tiny = _of_its_own(broker, 3, **{"max.message.bytes": "100"})
    with pytest.raises(PipelineError, match=r"the replay failed: .* refuses the record"):
        replay(spark, job(broker, tiny, compression="none"))
