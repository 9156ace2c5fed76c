"""Errors that a broker logs are anomalies, even if its clients do not notice them."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from odradek.broker.lifecycle.errors import Stopped
from odradek.broker.tiered.segment_operations import SegmentOperations
from odradek.replication.partition.partition import Partition
from odradek.testing.simulation.cluster import DATA, SimulatedCluster, SimulatedNodeRun
from odradek.testing.simulation.log_watch import CURRENT_NODE_RUN, EXPECTED, ErrorCause, watch_log
from odradek.testing.simulation.plan import SimulationPlan
from odradek.testing.simulation.run import simulate
from odradek.testing.simulation.trace import Trace
from odradek.testing.virtual_world import VirtualWorld

ROOT = Path(__file__).parents[2]
LAYERS = ("broker", "replication", "storage")


def test_failing_request_handler_is_an_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client retries and succeeds."""
    honest, failures = Partition.append, [KeyError("a role that is gone")]

    def append(self: Partition, *args: Any, **kwargs: Any) -> Any:
        if failures and self.topic == "records":
            raise failures.pop()
        return honest(self, *args, **kwargs)

    monkeypatch.setattr(Partition, "append", append)
    run = simulate(SimulationPlan(0, (), nodes=1, writers=1, transactional=0))
    assert [each.kind for each in run.anomalies] == ["logged error"]
    assert "node-1 logged: closed " in run.anomalies[0].text
    assert "KeyError: 'a role that is gone'" in run.anomalies[0].text


def test_failing_periodic_task_is_an_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, failures = SegmentOperations.copy, [ValueError("of its own")]

    async def copy(self: SegmentOperations, *args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return await honest(self, *args, **kwargs)

    monkeypatch.setattr(SegmentOperations, "copy", copy)
    run = simulate(SimulationPlan(0, (), nodes=1, writers=1, transactional=0, tiered=True))
    assert {each.kind for each in run.anomalies} == {"logged error"}
    assert "ValueError: of its own" in run.anomalies[0].text


def test_disk_error_is_expected_only_after_a_disk_fault() -> None:
    world = VirtualWorld(0)
    virtual_node = world.node("node-1")
    node_run = SimulatedNodeRun("node-1", virtual_node, world.bucket, refused_at_start=0)
    log = logging.getLogger("odradek.log_directories")

    def log_messages() -> list[str]:
        with watch_log() as watch:
            log.error("log directory %s is offline: %s", DATA, "full")
            log.warning("warnings are ignored")
        return [each.text for each in watch.anomalies]

    token = CURRENT_NODE_RUN.set(node_run)
    try:
        assert log_messages() == [f"node-1 logged: log directory {DATA} is offline: full"]
        virtual_node.disk.refusal(errno.ENOSPC, DATA)
        assert log_messages() == []
        assert node_run.is_affected_by(ErrorCause.DISK)
        assert not node_run.is_affected_by(ErrorCause.STORE)
        assert node_run.has_reason(OSError())
        assert not node_run.has_reason(Stopped())
    finally:
        CURRENT_NODE_RUN.reset(token)


def test_log_records_after_a_power_cut_are_ignored() -> None:
    world = VirtualWorld(0)
    virtual_node = world.node("node-1")
    token = CURRENT_NODE_RUN.set(
        SimulatedNodeRun("node-1", virtual_node, world.bucket, refused_at_start=0)
    )
    try:
        with watch_log() as watch:
            virtual_node.power.cut()
            logging.getLogger("odradek.node").error("on its way down")
        assert watch.anomalies == []
    finally:
        CURRENT_NODE_RUN.reset(token)


def test_node_that_reports_a_healthy_disk_as_lost_has_failed() -> None:
    world = VirtualWorld(1)
    world.clock.jumping = True
    failures: list[str] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            cluster = SimulatedCluster(world, 1, Trace(world.clock.monotonic), nursery)
            await cluster.start(1)
            node = cluster.nodes[1]
            while not node.serves:
                await trio.sleep(0.01)
            assert node.broker is not None
            node.broker.services.directories.metadata.fail(OSError(errno.EIO, "is not so"))
            await node.down.wait()
            failures.extend(cluster.failures)

    world.run(main)
    assert len(failures) == 1
    assert "without a fault that explains it" in failures[0]


@pytest.mark.parametrize(("logger", "message"), EXPECTED)
def test_expected_message_is_logged_by_a_module_with_that_logger(logger: str, message: str) -> None:
    """Otherwise each disk failure would be an anomaly after a change of the message."""
    modules = [path.read_text() for name in LAYERS for path in (ROOT / name).rglob("*.py")]
    named = [text for text in modules if f'getLogger("{logger}")' in text]
    assert any(message.rstrip() in text for text in named)
