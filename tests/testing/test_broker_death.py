"""What ended the broker of a test: the error of each later use, in its thread or in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.broker.config.types import ConfigError
from odradek.broker.node import CannotStart
from odradek.testing import Broker
from odradek.testing.broker_death import BrokerDied, describe_exit
from odradek.testing.broker_process import BrokerProcess
from tests.support.librdkafka_clients import delivery_errors
from tests.support.waiting import wait_until

pytest_plugins = ["pytester"]

USES: list[Callable[[Broker], object]] = [
    lambda broker: broker.bootstrap,
    lambda broker: broker.port,
    lambda broker: broker.create_topic("t"),
    lambda broker: broker.reset(),
    lambda broker: broker.check_alive(),
]


def process_of(broker: Broker) -> BrokerProcess:
    runner = broker._runner
    assert isinstance(runner, BrokerProcess)
    return runner


def is_dead(broker: Broker) -> bool:
    try:
        broker.check_alive()
    except BrokerDied:
        return True
    return False


def test_every_use_of_a_broker_whose_node_failed_raises_the_cause(tmp_path: Path) -> None:
    broker = Broker(topics=["t"], data=tmp_path / "data")
    broker.__enter__()
    directories = broker.node.services.directories
    broker._runner._thread.call_sync(directories.metadata.fail, OSError(5, "the disk is gone"))  # type: ignore[union-attr]
    wait_until(lambda: is_dead(broker))
    for use in USES:
        with pytest.raises(BrokerDied) as caught:
            use(broker)
        text = str(caught.value)
        assert "NodeFailed: Shutdown broker because" in text
        assert "the disk is gone" in text
        assert "CRITICAL odradek.node: Shutdown broker because" in text
    with pytest.raises(BrokerDied, match="Shutdown broker because"):
        broker.__exit__(None, None, None)


def test_every_use_of_a_killed_process_raises_its_signal() -> None:
    broker = Broker(process=True)
    broker.__enter__()
    directory = Path(broker._temporary[0])
    address, pid = broker.bootstrap, process_of(broker).pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_dead(broker))
    for use in USES:
        with pytest.raises(BrokerDied) as caught:
            use(broker)
        assert f"the broker on {address} (process {pid}) has ended" in str(caught.value)
        assert "its process was killed by SIGKILL" in str(caught.value)
    with pytest.raises(BrokerDied, match="SIGKILL"):
        broker.__exit__(None, None, None)
    assert not directory.exists()


def test_call_in_progress_when_the_process_is_killed_raises_its_signal() -> None:
    broker = Broker(process=True)
    broker.__enter__()
    process = process_of(broker)
    os.kill(process.pid, signal.SIGSTOP)
    kill = threading.Timer(0.2, os.kill, (process.pid, signal.SIGKILL))
    kill.start()
    with pytest.raises(BrokerDied, match="killed by SIGKILL"):
        process.reset()
    kill.join()
    with pytest.raises(BrokerDied):
        broker.__exit__(None, None, None)


def test_node_failure_in_a_process_of_its_own_is_the_cause(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = Broker(process=True, data=data)
    broker.__enter__()
    shutil.rmtree(data)
    delivery_errors(broker.bootstrap, "t", [b"v"], config={"delivery.timeout.ms": 2000})
    wait_until(lambda: is_dead(broker))
    with pytest.raises(BrokerDied) as caught:
        broker.reset()
    text = str(caught.value)
    assert "NodeFailed: Shutdown broker because" in text
    assert "its process exited with status 1" in text
    assert "CRITICAL odradek.node: Shutdown broker because" in text
    with pytest.raises(BrokerDied, match="Shutdown broker because"):
        broker.__exit__(None, None, None)


def test_start_errors_of_a_process_of_its_own_are_those_of_a_thread() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker(configs={"num.partitions": "none"}, process=True).__enter__()
    with Broker() as first, pytest.raises(CannotStart, match=f"can't listen on {first.bootstrap}"):
        Broker(listen=first.bootstrap, process=True).__enter__()


def test_exit_statuses_and_signals_are_described() -> None:
    assert describe_exit(70) == "its process exited with status 70"
    assert describe_exit(-11) == "its process was killed by SIGSEGV"
    assert describe_exit(-99) == "its process was killed by signal 99"


def test_each_test_after_the_death_of_the_session_broker_gets_the_cause(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        def test_during(kafka_broker):
            broker = kafka_broker
            failed = broker.node.services.directories.metadata
            broker._runner._thread.call_sync(failed.fail, OSError(5, "the disk is gone"))
            broker._runner._thread.is_over(20)

        def test_later(kafka_bootstrap):
            pass

        def test_latest(kafka_broker_session):
            kafka_broker_session.bootstrap
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1, errors=3)
    for where in ("teardown of test_during", "setup of test_later"):
        result.stdout.fnmatch_lines(
            [
                f"*ERROR at {where}*",
                "*BrokerDied: the broker on * has ended: NodeFailed: *disk is gone*",
            ]
        )
    result.stdout.fnmatch_lines(
        ["*_ test_latest _*", "*BrokerDied: the broker on * has ended: NodeFailed: *disk is gone*"]
    )
