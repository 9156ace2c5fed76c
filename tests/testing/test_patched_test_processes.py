"""The session's broker while freezegun, time-machine, pyfakefs or gevent patches the test's process."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.slow

_CLIENTS = """
    import time

    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    def exchange(bootstrap, topic, value=b"v"):
        '''Produce a record, and consume it with a group that commits its offset.'''
        errors = []
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(10) == 0
        assert errors == [None]
        consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })
        consumer.subscribe([topic])
        message = consumer.poll(20)
        assert message is not None and message.error() is None, message
        assert message.value() == value
        consumer.commit(message, asynchronous=False)
        consumer.close()
        return message
"""


@pytest.fixture
def run(pytester: pytest.Pytester):  # type: ignore[no-untyped-def]
    """Run tests in another pytest process; all must pass."""

    def run(tests: str, *, conftest: str = "", passed: int) -> None:
        pytester.makepyfile(clients=_CLIENTS)
        pytester.makeconftest(conftest)
        pytester.makepyfile(test_with_broker=tests)
        result = pytester.runpytest_subprocess(
            "-p", "no:cacheprovider", "-W", "ignore", timeout=120
        )
        result.assert_outcomes(passed=passed)

    return run


def test_broker_serves_while_freezegun_has_stopped_the_clocks(run) -> None:  # type: ignore[no-untyped-def]
    run(
        """
        import time
        from datetime import datetime

        from clients import exchange
        from freezegun import freeze_time

        @freeze_time("2020-02-02")
        def test_frozen(kafka_broker):
            assert datetime.now().year == 2020
            kafka_broker.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
            _, timestamp = exchange(kafka_broker.bootstrap, "t").timestamp()
            assert timestamp > 1.7e12  # the broker's clock is not frozen
            kafka_broker.reset()
            exchange(kafka_broker.bootstrap, "u")

        def test_afterwards(kafka_bootstrap):
            exchange(kafka_bootstrap, "t")
        """,
        passed=2,
    )


def test_broker_starts_while_freezegun_has_stopped_the_clocks(run) -> None:  # type: ignore[no-untyped-def]
    run(
        """
        from clients import exchange
        from freezegun import freeze_time
        from odradek.testing import Broker

        @freeze_time("2020-02-02")
        def test_frozen():
            with Broker() as broker:
                exchange(broker.bootstrap, "t")
            with Broker(process=True) as broker:
                exchange(broker.bootstrap, "t")
        """,
        passed=1,
    )


def test_cluster_serves_while_freezegun_has_stopped_the_clocks(run) -> None:  # type: ignore[no-untyped-def]
    run(
        """
        from clients import exchange
        from freezegun import freeze_time
        from odradek.testing import Cluster

        def test_frozen():
            with Cluster(brokers=1) as cluster, freeze_time("2020-02-02"):
                cluster.degrade(latency_ms=20)  # the proxy waits for each message
                exchange(cluster.bootstrap, "t")
                cluster.kill(1)
                cluster.restart(1)
                exchange(cluster.bootstrap, "u")
        """,
        passed=1,
    )


def test_broker_accepts_records_while_time_machine_has_moved_the_clock(run) -> None:  # type: ignore[no-untyped-def]
    run(
        """
        import time

        import time_machine
        from clients import exchange

        @time_machine.travel("2020-02-02", tick=False)
        def test_moved_back(kafka_broker):
            assert time.gmtime().tm_year == 2020
            exchange(kafka_broker.bootstrap, "t")
            kafka_broker.reset()
            exchange(kafka_broker.bootstrap, "t")

        def test_moved_forward(kafka_broker, time_machine):
            time_machine.move_to("2050-02-02")
            kafka_broker.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
            _, timestamp = exchange(kafka_broker.bootstrap, "t").timestamp()
            assert time.time() * 1000 > timestamp + 1e11  # the broker's clock is not moved

        def test_afterwards(kafka_bootstrap):
            exchange(kafka_bootstrap, "t")
        """,
        passed=3,
    )


def test_broker_serves_before_during_and_after_pyfakefs(run) -> None:  # type: ignore[no-untyped-def]
    run(
        """
        import os

        from clients import exchange

        def test_before(kafka_bootstrap):
            exchange(kafka_bootstrap, "t")

        def test_during(fs, kafka_broker):
            fs.create_file("/only/here")
            assert os.path.exists("/only/here")
            exchange(kafka_broker.bootstrap, "t")
            kafka_broker.create_topic("u", partitions=2)
            kafka_broker.reset()
            exchange(kafka_broker.bootstrap, "u")

        def test_afterwards(kafka_bootstrap):
            exchange(kafka_bootstrap, "t")
        """,
        passed=3,
    )


def test_broker_starts_while_pyfakefs_has_replaced_the_files(run) -> None:  # type: ignore[no-untyped-def]
    run(
        """
        import os
        import unittest

        import pytest
        from clients import exchange
        from odradek.testing import Broker
        from pyfakefs.fake_filesystem_unittest import Patcher, TestCase

        class Test(TestCase):
            @pytest.fixture(autouse=True)
            def _broker(self, kafka_broker):
                self.broker = kafka_broker

            def test_files(self):
                self.setUpPyfakefs()
                self.fs.create_file("/only/here")
                exchange(self.broker.bootstrap, "t")

        def test_first_use(fs, kafka_bootstrap):
            fs.create_file("/only/here")
            exchange(kafka_bootstrap, "t")

        def test_own_broker():
            with Patcher() as patcher, Broker() as broker:
                patcher.fs.create_file("/only/here")
                exchange(broker.bootstrap, "t")

        def test_afterwards(kafka_bootstrap):
            assert not os.path.exists("/only/here")
            exchange(kafka_bootstrap, "t")
        """,
        passed=4,
    )


def test_broker_serves_a_process_that_gevent_has_patched(run) -> None:  # type: ignore[no-untyped-def]
    run(
        """
        from clients import exchange
        import gevent
        from odradek.testing import Broker

        def test_greenlets(kafka_broker):
            kafka_broker.create_topic("u", partitions=2)
            jobs = [gevent.spawn(exchange, kafka_broker.bootstrap, "u")]
            gevent.joinall(jobs, raise_error=True)
            kafka_broker.reset()
            exchange(kafka_broker.bootstrap, "t")

        def test_own_broker():
            with Broker(topics=["t"]) as broker:
                exchange(broker.bootstrap, "t")
        """,
        conftest="from gevent import monkey; monkey.patch_all()",
        passed=2,
    )
