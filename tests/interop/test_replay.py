"""`odradek pipeline replay` against any broker: it writes in transactions with Odradek's own client."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

pytest.importorskip("pyspark")

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.replay import ReplayJob, plan_replay
from odradek.pipeline.jobs.replay_task import run_replay_task
from tests.support.spark_reading import by_consumer

PARTITIONS = (0, 1)
COUNT = 200


def test_replay_writes_each_record_once_and_fences_earlier_run(bootstrap: str, name: str) -> None:
    again = f"{name}.again"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(each, 2) for each in (name, again)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    for number in range(COUNT):
        headers = [("n", b"%d" % number)]
        producer.produce(name, b"value %d" % number, b"%d" % number, number % 2, headers=headers)
    producer.flush()
    source = {"kafka.bootstrap.servers": bootstrap, "subscribe": name}
    plan = plan_replay(ReplayJob(source, again, bootstrap, name=name), 1)
    (replay_task,) = plan.replay_tasks
    with plan.target.writing(plan.state, 0, 0) as old:
        assert sum(each.records for each in run_replay_task(replay_task)) == COUNT
        assert sum(each.records for each in run_replay_task(replay_task)) == 0
        with pytest.raises(PipelineError, match="another run of the same job has taken over"):
            old.commit(plan.target.progress(plan.state, [0])[0])
    assert plan.done() == plan.total == COUNT
    found, expected = (
        by_consumer(bootstrap, topic, PARTITIONS, isolation="read_committed")
        for topic in (again, name)
    )
    assert [(row[0], *row[2:]) for row in found] == [(row[0], *row[2:]) for row in expected]
