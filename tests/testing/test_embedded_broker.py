"""odradek.testing.Broker: under trio, in a thread, and with a data directory that outlives it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.broker.config.types import ConfigError
from odradek.broker.node import CannotStart
from odradek.client.metadata import open_cluster
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Broker, Cluster
from tests.support.librdkafka_clients import produce


def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, 10)]
    finally:
        consumer.close()


def topics(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)


def test_broker_under_with_serves_other_client_libraries() -> None:
    with Broker(topics=["t"]) as broker:
        produce(broker.bootstrap, "t", [b"one", b"two"], partition=0)
        assert consume(broker.bootstrap, "t", 2) == [b"one", b"two"]


def test_reset_deletes_topics_and_recreates_the_declared_ones() -> None:
    with Broker(topics={"kept": 2}) as broker:
        broker.create_topic("passing", partitions=1)
        produce(broker.bootstrap, "kept", [b"forgotten"], partition=0)
        assert topics(broker.bootstrap) >= {"kept", "passing"}
        broker.reset()
        assert topics(broker.bootstrap) & {"kept", "passing"} == {"kept"}
        produce(broker.bootstrap, "kept", [b"remembered"], partition=0)
        assert consume(broker.bootstrap, "kept", 1) == [b"remembered"]


def test_diskless_topics_are_in_the_store(tmp_path: Path) -> None:
    """With a directory for the store and one for the data, a later broker serves the same topics."""
    data, objects = tmp_path / "data", tmp_path / "objects"
    with Broker(data=data, diskless=objects) as broker:
        broker.create_topic("t", 1, {"diskless.enable": "true"})
        produce(broker.bootstrap, "t", [b"still here"], partition=0)
    assert list(objects.glob("*/diskless/*"))
    assert not list(data.glob("t-*"))
    with Broker(data=data, diskless=objects) as broker:
        assert consume(broker.bootstrap, "t", 1) == [b"still here"]
    with pytest.raises(CannotStart, match="topic t is diskless"), Broker(data=data):
        pass


def test_reset_deletes_diskless_topics() -> None:
    with Broker(diskless=True) as broker:
        for value in (b"one", b"two"):
            broker.create_topic("t", 1, {"diskless.enable": "true"})
            produce(broker.bootstrap, "t", [value], partition=0)
            assert consume(broker.bootstrap, "t", 1) == [value]
            broker.reset()
            assert "t" not in topics(broker.bootstrap)


def test_given_data_directory_is_kept(tmp_path: Path) -> None:
    with Broker(topics=["t"], data=tmp_path) as broker:
        produce(broker.bootstrap, "t", [b"still here"], partition=0)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    with Broker(data=tmp_path) as broker:
        assert consume(broker.bootstrap, "t", 1) == [b"still here"]


async def test_cancelled_broker_shuts_down_cleanly(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with Broker(topics={"t": 3}, data=tmp_path):
            scope.cancel()
            await trio.sleep_forever()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_temporary_data_directory_is_removed() -> None:
    with Broker() as broker:
        directory = Path(str(broker.node.config.log_dirs[0]))
        assert directory.is_dir()
    assert not directory.exists()


async def test_broker_under_async_with_runs_in_the_current_loop() -> None:
    async with Broker(topics={"t": 3}) as broker:
        async with open_cluster(broker.node.seams.network, broker.bootstrap) as cluster:
            assert len((await cluster.topic("t")).partitions) == 3


def test_start_error_is_raised_and_data_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        pytest.raises(ConfigError, match=r"num\.partitions"),
        Broker(configs={"num.partitions": "none"}, tiered=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_error_in_the_test_stops_the_broker() -> None:
    broker = Broker()
    with pytest.raises(ZeroDivisionError), broker:
        1 / 0  # noqa: B018
    with pytest.raises(RuntimeError, match="not running"):
        _ = broker.node


def test_error_of_an_address_in_use_has_the_address() -> None:
    with Broker() as first:
        taken = Broker(listen=first.bootstrap)
        with pytest.raises(CannotStart, match=rf"can't listen on {first.bootstrap}: .*--listen"):
            taken.__enter__()


def test_start_that_fails_because_of_an_address_leaves_no_log_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker() as first:
        with pytest.raises(CannotStart, match="can't listen on"):
            Broker(listen=first.bootstrap, data=data).__enter__()
        configs = {"odradek.metrics.listener": first.bootstrap}
        with pytest.raises(CannotStart, match="can't serve metrics on"):
            Broker(configs=configs, data=data).__enter__()
        assert not data.exists() or list(data.iterdir()) == []
    with Broker(data=data):
        assert (data / "meta.properties").exists()


async def test_broker_under_with_serves_a_test_under_trio() -> None:
    """A test under trio may use the session's broker, whose fixture entered it with plain `with`."""
    with Broker() as broker:
        broker.create_topic("t", partitions=2)
        async with open_cluster(TcpNetwork(), broker.bootstrap) as cluster:
            assert len((await cluster.topic("t")).partitions) == 2
        broker.reset()


def test_running_broker_rejects_a_second_enter() -> None:
    """A test might enter the fixture's broker as if it were its own: `with kafka_broker:`."""
    with Broker() as broker:
        address, threads = broker.bootstrap, threading.active_count()
        with pytest.raises(RuntimeError, match="runs already"):
            broker.__enter__()
        assert threading.active_count() == threads
        assert broker.bootstrap == address
        broker.create_topic("t")
    with broker:  # allowed once it has ended
        broker.create_topic("t")


async def test_error_under_trio_is_raised_without_exception_group() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Broker():
            1 / 0  # noqa: B018


async def test_error_under_trio_shuts_down_cleanly(tmp_path: Path) -> None:
    with pytest.raises(BaseException, match="reason"):
        async with Broker(data=tmp_path):
            pytest.skip("a reason")
    assert (tmp_path / ".kafka_cleanshutdown").exists()


async def test_topics_are_created_and_reset_under_trio() -> None:
    async with Broker(topics={"kept": 1}) as broker:
        await broker.acreate_topic("passing", partitions=2)
        async with open_cluster(broker.node.seams.network, broker.bootstrap) as cluster:
            assert len((await cluster.topic("passing")).partitions) == 2
        await broker.areset()
        assert set(broker.node.metadata.image.topics_by_name) == {"kept"}


async def test_synchronous_methods_under_trio_raise_with_the_async_name() -> None:
    async with Broker() as broker:
        with pytest.raises(RuntimeError, match="await acreate_topic and areset"):
            broker.create_topic("t")
        with pytest.raises(RuntimeError, match="await acreate_topic and areset"):
            broker.reset()


def test_async_with_under_asyncio_raises_with_a_hint() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="plain `with`"):
            async with Broker():
                pass
        with pytest.raises(RuntimeError, match="plain `with`"):
            async with Cluster(brokers=1):
                pass
        with Broker() as broker:
            broker.create_topic("t")

    asyncio.run(main())


def test_configs_accept_numbers_and_booleans() -> None:
    with Broker(configs={"num.partitions": 3, "auto.create.topics.enable": False}) as broker:
        assert broker.node.config.get_int("num.partitions") == 3
        assert broker.node.config["auto.create.topics.enable"] is False
        broker.create_topic("t", configs={"retention.ms": 5000})
        assert broker.node.metadata.image.topic_configs("t") == {"retention.ms": "5000"}


def test_unknown_config_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(configs={"num.partition": "3"}):
        pass
    assert "Unknown configs, without effect: num.partition" in caplog.text
