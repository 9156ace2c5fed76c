"""`replay`: each record once in the target, as it was, whatever dies on the way; as fast as it may be."""

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
    """With a topic of three partitions; of each third record a transaction has been given up."""
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
    """Without Spark: what it would have its tasks do."""
    return [
        each
        for replay_task in plan_replay(job, tasks).replay_tasks
        for each in run_replay_task(replay_task)
    ]


def rows(broker: Broker, topic: str, partitions: tuple[int, ...] = PARTITIONS) -> list[Row]:
    return by_consumer(broker.bootstrap, topic, partitions, isolation="read_committed")


def contents(found: list[Row]) -> list[tuple[Any, ...]]:
    """Without the offsets, which are others; the order of a partition is that of them."""
    return [(row[0], *row[2:]) for row in found]


def test_records_are_what_they_were_and_a_second_run_adds_none(broker: Broker) -> None:
    fresh = _of_its_own(broker, 3)
    given = job(broker, fresh)
    done = run(given)
    expected = rows(broker, "events")
    assert sum(each.records for each in done) == len(expected) == COUNT + 30
    assert contents(rows(broker, fresh)) == contents(expected)
    plan = plan_replay(given, 2)
    assert plan.replay_tasks == []
    assert plan.done() == plan.total
    assert sum(each.records for each in run(job(broker, fresh, name="once more"))) == len(expected)
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
def test_a_range_of_it(broker: Broker, source: dict[str, str], kept: Any) -> None:
    fresh = _of_its_own(broker, 3)
    run(job(broker, fresh, source))
    expected = [row for row in rows(broker, "events") if row[1] < COUNT // 3 and kept(row)]
    assert len(expected) > 20
    assert contents(rows(broker, fresh)) == contents(expected)


def _of_its_own(broker: Broker, partitions: int, **config: str) -> str:
    name = f"to.{Random().randrange(1 << 60)}"
    broker.create_topic(name, partitions, {**FOR_EVER, **config})
    return name


def test_a_record_goes_where_its_key_says(broker: Broker) -> None:
    """To two partitions from three: what has no key goes where its partition points."""
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


def test_what_is_known_of_a_job_is_found_again_after_its_target_has_grown(broker: Broker) -> None:
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


def test_batches_become_as_small_as_the_topic_wants_them(broker: Broker) -> None:
    narrow = _of_its_own(broker, 3, **{"max.message.bytes": "2000"})
    run(job(broker, narrow, compression="none"))
    assert contents(rows(broker, narrow)) == contents(rows(broker, "events"))
    tiny = _of_its_own(broker, 3, **{"max.message.bytes": "200"})
    with pytest.raises(PipelineError, match="refuses the record at offset"):
        run(job(broker, tiny, compression="none"))


@pytest.mark.slow
def test_killed_at_any_moment_each_record_is_there_once(broker: Broker) -> None:
    """A task is killed once it has got on, and another is begun on what it left; then one may end."""
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
            assert time.monotonic() < deadline, "nothing is replayed"
        task.join(random.uniform(0, 0.3))
        task.kill()
        task.join()
        done = plan.done()
        assert done < total, "it was not killed on the way"
    run(job(broker, target, name="killed"))
    assert contents(rows(broker, target)) == contents(rows(broker, "events"))


def test_who_comes_later_takes_over(broker: Broker) -> None:
    """Two runs of one job at the same time: one of them is told, and each record is there once."""
    target = _of_its_own(broker, 3)
    plan = plan_replay(job(broker, target), 1)
    (replay_task,) = plan.replay_tasks
    state = replay_task.state
    with plan.target.writing(state, 0, 0) as old:
        run_replay_task(replay_task)
        with pytest.raises(PipelineError, match="another run of the same job has taken over"):
            old.commit(plan.target.progress(state, [0])[0])
    assert contents(rows(broker, target)) == contents(rows(broker, "events"))


def test_a_name_stands_for_one_job_as_it_was_when_it_began(broker: Broker) -> None:
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
    assert list(plan_replay(given, 1).partitions) == [0, 1], "as many as it began with"


def test_what_the_cluster_has_forgotten_is_not_replayed_again(broker: Broker) -> None:
    """The offsets of a group without members go after offsets.retention.minutes."""
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


def test_who_begins_at_the_same_time_does_not_undo_what_the_other_has_done(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that saw no progress yet is held until the other has replayed all."""
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


def test_a_transaction_does_not_wait_for_records_that_come_late(
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
    assert seen == [100], "committed before what came late was written"
    assert contents(rows(broker, target, (0,))) == contents(rows(broker, "events", (0,)))


def test_a_time_that_no_table_holds_is_not_replayed_as_another(broker: Broker) -> None:
    """Nanoseconds that were taken for milliseconds; microseconds are a time yet."""
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


def test_a_transaction_that_ran_out_of_time_is_told_as_that(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator ends it while nothing is written; nobody else has begun the job."""
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
    """Whether a transaction holds up who reads what is committed."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    where = TopicPartition(topic, 0)
    stable, end = (
        admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=level)[where]
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )
    return bool(stable.result(10).offset < end.result(10).offset)


def test_a_topic_that_is_made_again_before_a_partitions_turn_comes_is_not_replayed(
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


def test_the_topic_can_be_replayed_into_itself(broker: Broker) -> None:
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


class OneJob:
    """Spark's context, as far as a replay needs it, whose one job ends when it may, or is cancelled."""

    def __init__(self) -> None:
        self.may_end, self.cancelled = Event(), Event()
        self.tags: dict[int, str] = {}
        self.sparkContext = self

    def parallelize(self, items: Any, slices: int) -> OneJob:
        return self

    def flatMap(self, act: Any) -> OneJob:  # noqa: N802 - Spark's name
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


def _run_of(tell: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[OneJob, Any]:
    monkeypatch.setattr("odradek.pipeline.jobs.replay.PROGRESS_S", 0.01)
    context, plan = OneJob(), SimpleNamespace(replay_tasks=[None])
    return context, lambda: replay_job._run(context, plan, lambda: tell(context))  # type: ignore[arg-type]


def test_a_job_goes_on_while_nobody_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def tell(context: OneJob) -> None:
        told.append(None)
        if len(told) == 3:
            context.may_end.set()
        raise PipelineError("the coordinator does not answer")

    context, run = _run_of(tell, monkeypatch)
    assert [each.partition for each in run()] == [0, 1]
    assert len(told) >= 3
    assert not context.cancelled.is_set()


def test_who_interrupts_a_replay_ends_its_job_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(context: OneJob) -> None:
        raise KeyboardInterrupt

    context, run = _run_of(tell, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert context.cancelled.is_set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "2013-02-10", "--until", "2013-02-08"], "2013-02-10 is later than --until"),
        (["--since", "soon"], "soon is not a time"),
        (
            ["--since", "5", "--offsets", "0:1:2"],
            "--since and --until cannot be used with --offsets",
        ),
    ],
)
def test_ranges_that_are_none(words: list[str], said: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(BadOption, match=said):
        job_of(parser.parse_args(["-t", "a", "--to", "b", "--bootstrap", "h:1", *words]))


def test_what_means_nothing_is_refused(broker: Broker) -> None:
    two = _of_its_own(broker, 2)
    for given, said in (
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
        with pytest.raises(BadOption, match=said):
            plan_replay(given, 1)
    other = _of_its_own(broker, 3)
    plan_replay(job(broker, other, name="one"), 1)
    with pytest.raises(BadOption, match="job one was started with another range"):
        plan_replay(job(broker, other, {"subscribe": other}, name="one"), 1)
    for text in ("0:1", "0:a:2", "0:5:2"):
        with pytest.raises(BadOption, match=text):
            parse_ranges([text])
    assert parse_time_ms("2013-02-08T06:00") == parse_time_ms("1360303200000") == 1360303200000


def test_what_the_source_and_spark_need_besides_is_given_as_to_other_jobs(broker: Broker) -> None:
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


def test_nothing_goes_faster_than_it_may() -> None:
    limiter = RateLimiter(100, 1000)
    assert limiter.wait_s(50.0) == 0
    limiter.used(50.0, 10, 10)
    assert limiter.wait_s(50.0) == pytest.approx(0.1)
    limiter.used(50.0, 1, 500)
    assert limiter.wait_s(50.0) == pytest.approx(0.6)
    assert limiter.wait_s(51.0) == 0
    limiter.used(60.0, 100, 0)
    assert limiter.wait_s(60.0) == pytest.approx(1.0), "what was not used before is lost"
    assert (limiter.records_per_write(5000), limiter.bytes_per_write(5000)) == (100, 1000)
    assert RateLimiter(None, None).records_per_write(5000) == 5000


@pytest.mark.slow
def test_spark_replays_with_progress_and_says_what_went_wrong(
    spark: SparkSession, broker: Broker
) -> None:
    target = _of_its_own(broker, 3)
    told = []
    result = replay(spark, job(broker, target, records_per_s=400), told.append)
    assert contents(rows(broker, target)) == contents(rows(broker, "events"))
    assert result.records == COUNT + 30
    assert [each.partition for each in result.partitions] == list(PARTITIONS)
    assert len(told) > 2
    assert told[-1].done == told[-1].total
    tiny = _of_its_own(broker, 3, **{"max.message.bytes": "100"})
    with pytest.raises(PipelineError, match=r"the replay failed: .* refuses the record"):
        replay(spark, job(broker, tiny, compression="none"))
