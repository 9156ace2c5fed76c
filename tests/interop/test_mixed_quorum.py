"""A quorum of controllers of Apache Kafka and of Odradek: elections, logs, snapshots, changes of voters."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol.uuids import uuid_to_text
from tests.interop.mixed_quorum import Controller, Quorum, initial_controllers, quorum
from tests.support.kafka_tools import ToolFailed, run_tool
from tests.support.waiting import deadline

QUICK = {"metadata.max.idle.interval.ms": "100"}
"""NoOpRecords ten times per second, so that there is always something to replicate."""
OFTEN = {**QUICK, "metadata.log.max.record.bytes.between.snapshots": "500"}

KAFKA, ODRADEK = "kafka", "odradek"


def led_by_another(than: int) -> Callable[[Any], bool]:
    return lambda described: described.leader_id != than


def later_than(epoch: int) -> Callable[[Any], bool]:
    return lambda described: described.leader_epoch > epoch


def all_level(nodes: list[Controller]) -> Callable[[Any], bool]:
    """Condition that every voter has fetched nearly everything; records are written all the time."""

    def level(described: Any) -> bool:
        ends = {each.replica_id: each.log_end_offset for each in described.current_voters}
        return (
            ends.keys() == {node.id for node in nodes}
            and min(ends.values()) >= described.high_watermark - 5
            and described.high_watermark > 0
        )

    return level


def assert_same_logs(nodes: list[Controller]) -> None:
    """Assert that the common part of the logs is identical byte for byte."""
    logs = [node.batches() for node in nodes]
    shared = set.intersection(*(set(each) for each in logs))
    assert len(shared) > 5
    for offset in sorted(shared):
        assert len({each[offset] for each in logs}) == 1, f"the logs differ at {offset}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "static"), [((KAFKA, KAFKA, ODRADEK), True), ((KAFKA, ODRADEK, ODRADEK), False)]
)
def test_leaders_of_both_kinds_are_elected(
    tmp_path: Path, kinds: tuple[str, ...], static: bool
) -> None:
    """Leaders are killed and stopped in turn; then each controller that has not led yet becomes the leader
    of the others.
    """
    with quorum(tmp_path, kinds, QUICK, static=static) as mixed:
        words = () if static else initial_controllers(mixed.nodes)
        for node in mixed.nodes:
            node.format(mixed.cluster_id, *words)
        for node in mixed.nodes:
            node.start()
        have_led: set[int] = set()
        for attempt in range(4):
            leader = mixed.node(_level(mixed).leader_id)
            have_led.add(leader.id)
            (leader.stop if attempt % 2 else leader.kill)()
            mixed.wait_for("another leader", led_by_another(leader.id))
            leader.start()
        have_led.add(_level(mixed).leader_id)
        for node in mixed.nodes:
            if node.id not in have_led:
                _make_lead(mixed, node)
                assert _level(mixed).leader_id == node.id
        for node in reversed(mixed.nodes):
            node.stop()
        assert_same_logs(mixed.nodes)


def _level(mixed: Quorum) -> Any:
    """DescribeQuorum response after all voters have caught up."""
    return mixed.wait_for("all voters to catch up", all_level(mixed.nodes))


def _make_lead(mixed: Quorum, wanted: Controller) -> None:
    """Make one of three controllers the leader: while it is down, the only other running voter lacks
    records and cannot be elected.
    """
    lacking, other = (node for node in mixed.nodes if node is not wanted)
    enough = _level(mixed).high_watermark + 20
    lacking.kill()
    mixed.wait_for("records that it lacks", lambda described: described.high_watermark >= enough)
    other.kill()
    lacking.start()
    mixed.wait_for(
        f"{wanted.kind} {wanted.id} to lead", lambda described: described.leader_id == wanted.id
    )
    other.start()


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(KAFKA, ODRADEK), (ODRADEK, KAFKA)])
def test_added_controller_of_other_kind_becomes_leader(
    tmp_path: Path, first: str, second: str
) -> None:
    """The new controller fetches the leader's snapshot, becomes a voter, leads, and removes the first
    controller, with kafka-metadata-quorum.
    """
    with quorum(tmp_path, (first, second), OFTEN) as mixed:
        old, new = mixed.nodes
        old.format(mixed.cluster_id, "--standalone")
        new.format(mixed.cluster_id, "--no-initial-controllers")
        old.start()
        mixed.wait_for("a snapshot", lambda described: old.snapshots())
        new.start()
        mixed.wait_for("an observer", lambda described: _caught_up(described, new))
        assert min(new.batches(), default=1) > 0, "the log before the snapshot was fetched"
        added = mixed.tool(old, "--command-config", str(new.config), "add-controller")
        assert "Added controller 2" in added.stdout
        described = mixed.wait_for("two voters", all_level(mixed.nodes))
        (directory,) = [
            each.replica_directory_id
            for each in described.current_voters
            if each.replica_id == old.id
        ]
        replication = mixed.tool(old, "describe", "--replication").stdout
        assert [line.split()[-1] for line in replication.splitlines()[1:3]] == [
            "Leader",
            "Follower",
        ]
        _hand_over(mixed, new)
        removed = mixed.tool(
            new,
            "remove-controller",
            *("--controller-id", str(old.id)),
            *("--controller-directory-id", uuid_to_text(directory)),
        )
        assert "Removed" in removed.stdout
        described = mixed.wait_for("one voter", all_level([new]))
        assert [each.replica_id for each in described.observers] == [old.id]
        enough = described.high_watermark + 10
        mixed.wait_for(
            "records of both",
            lambda now: now.high_watermark >= enough and _caught_up(now, old),
        )
        new.stop()
        old.stop()
        assert_same_logs(mixed.nodes)


def _caught_up(described: Any, node: Controller) -> bool:
    return any(
        each.replica_id == node.id and each.log_end_offset >= described.high_watermark - 5
        for each in described.observers
    )


def _hand_over(mixed: Quorum, to: Controller) -> None:
    """Stop leaders until this one leads. Of two voters, the other one may lack a record, and then the
    stopped one is elected again after its restart.
    """
    for _ in range(5):
        described = _level(mixed)
        if described.leader_id == to.id:
            return
        leader = mixed.node(described.leader_id)
        leader.stop()
        leader.start()
        mixed.wait_for("a new epoch", later_than(described.leader_epoch))
    raise AssertionError(f"node {to.id} was never elected")


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(KAFKA, ODRADEK), (ODRADEK, KAFKA)])
def test_static_quorum_is_upgraded_to_dynamic(tmp_path: Path, kinds: tuple[str, str]) -> None:
    """kafka-features upgrades kraft.version after every voter has reported its directory to the leader."""
    with quorum(tmp_path, kinds, QUICK, static=True) as mixed:
        for node in mixed.nodes:
            node.format(mixed.cluster_id)
            node.start()
        first, second = mixed.nodes
        _hand_over(mixed, first)
        asked = ("--bootstrap-controller", str(first.address))
        with deadline(20, "the voters to report their directories") as check:
            while True:
                with suppress(ToolFailed):
                    run_tool("features", *asked, "upgrade", "--feature", "kraft.version=1")
                    break
                check(0.5)
        described = mixed.wait_for(
            "voters with directories",
            lambda described: all(each.replica_directory_id for each in described.current_voters),
        )
        ids = {each.replica_id: each.replica_directory_id for each in described.current_voters}
        mixed.tool(
            first,
            "remove-controller",
            *("--controller-id", str(second.id)),
            *("--controller-directory-id", uuid_to_text(ids[second.id])),
        )
        described = mixed.wait_for("one voter", all_level([first]))
        assert [each.replica_id for each in described.observers] == [second.id]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(KAFKA, ODRADEK), (ODRADEK, KAFKA)])
def test_controller_joins_automatically(tmp_path: Path, first: str, second: str) -> None:
    """controller.quorum.auto.join.enable: a controller joins; with a new disk it replaces its earlier
    directory id.
    """
    joins = {**QUICK, "controller.quorum.auto.join.enable": "true"}
    with quorum(tmp_path, (first, second), joins) as mixed:
        old, new = mixed.nodes
        old.format(mixed.cluster_id, "--standalone")
        new.format(mixed.cluster_id, "--no-initial-controllers")
        old.start()
        new.start()
        described = mixed.wait_for("two voters", all_level(mixed.nodes))
        before = {each.replica_id: each.replica_directory_id for each in described.current_voters}
        _hand_over(mixed, old)
        third = mixed.add(second, joins)  # so that two of the three voters are a majority
        third.format(mixed.cluster_id, "--no-initial-controllers")
        third.start()
        mixed.wait_for("three voters", all_level(mixed.nodes))
        new.kill()
        shutil.rmtree(new.data)
        new.format(mixed.cluster_id, "--no-initial-controllers")
        new.start()
        described = mixed.wait_for(
            "the new directory",
            lambda described: (
                all_level(mixed.nodes)(described)
                and before[new.id]
                not in [each.replica_directory_id for each in described.current_voters]
            ),
        )
        assert len(described.current_voters) == 3
