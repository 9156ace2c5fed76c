"""Quorums of three and five nodes: elections, failover, diverging logs, and snapshots for new nodes."""

from __future__ import annotations

import errno
from functools import partial

import pytest

from odradek.replication.raft.errors import NotController
from odradek.replication.raft.metadata_log import MetadataLogSettings
from odradek.replication.raft.quorum_state import QuorumSettings
from odradek.storage.errors import DiskFull, NoDescriptors
from tests.replication.raft.metadata_quorum import MetadataQuorum, play, values
from tests.support.metadata_nodes import LOG_DIRECTORY, ROOT, configs, names, set_config


@pytest.mark.parametrize("voters", [2, 3, 5])
@pytest.mark.parametrize("static", [False, True])
def test_one_node_leads_and_all_have_the_same_image(voters: int, static: bool) -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        for name in "abc":
            await quorum.commit(name)
        await quorum.until_equal()
        assert [each.id for each in quorum.active()] == [leader.id]
        for each in quorum.up():
            assert each.metadata.leader_id == leader.id
            expected = None if each is leader else (f"host-{leader.id}", 9093)
            assert each.metadata.leader_address == expected
            assert each.metadata.kraft_version == (0 if static else 1)

    play(scenario, voters=voters, static=static)


def test_another_node_takes_over_from_crashed_leader() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        first = await quorum.leader()
        await quorum.commit("a")
        await quorum.restart(first.id)
        second = await quorum.leader()
        assert second.metadata.leader_epoch > first.metadata.leader_epoch
        await quorum.commit("b")
        await quorum.until_equal()
        assert values(quorum.up()) == [{"a", "b"}] * 3
        assert second.activity == [True]

    play(scenario)


@pytest.mark.parametrize("voters", [3, 5])
def test_killed_leader_is_replaced_at_once(voters: int) -> None:
    """The host of the leader refuses connections, so followers do not wait for the fetch timeout."""

    async def scenario(quorum: MetadataQuorum) -> None:
        first = await quorum.leader()
        await quorum.commit("a")
        await quorum.until_equal()
        began = quorum.world.clock.monotonic()
        disk = await quorum.crash(first.id)
        second = await quorum.leader()
        assert quorum.world.clock.monotonic() - began < 0.3
        await quorum.commit("b")
        quorum.start(first.id, disk)
        await quorum.until_equal()
        assert second.metadata.is_active

    play(scenario, voters=voters)


def test_killed_leader_that_restarts_at_once_is_replaced() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        first = await quorum.leader()
        await quorum.commit("a")
        await quorum.until_equal()
        epoch = first.metadata.leader_epoch
        began = quorum.world.clock.monotonic()
        await quorum.restart(first.id)
        second = await quorum.leader()
        assert second.metadata.leader_epoch == epoch + 1, "one election was enough"
        await quorum.until_equal()
        assert quorum.world.clock.monotonic() - began < 4

    play(scenario)


def test_partitioned_controller_resigns_and_drops_uncommitted_records() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        old = await quorum.leader()
        await quorum.commit("a")
        quorum.partitioned.add(old.id)
        with pytest.raises(NotController):
            await quorum.during(lambda: old.metadata.commit([set_config("lost")]))
        assert old.activity == [True, False]
        await quorum.commit("b")
        assert set(configs(old.metadata.image)) == {"a"}
        quorum.partitioned.clear()
        await quorum.until_equal()
        assert values(quorum.up()) == [{"a", "b"}] * 3
        assert len(quorum.active()) == 1

    play(scenario)


def test_nothing_is_committed_without_a_majority() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        await quorum.commit("a")
        disks = {each: await quorum.crash(each) for each in quorum.voters if each != leader.id}
        with pytest.raises(NotController):
            await quorum.during(lambda: leader.metadata.commit([set_config("b")]))
        assert "b" not in configs(leader.metadata.image)
        for each, disk in disks.items():
            quorum.start(each, disk)
        await quorum.commit("c")
        await quorum.until_equal()

    play(scenario)


def test_stopping_leader_resigns_before_timeouts() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        first = await quorum.leader()
        await quorum.commit("a")
        began = quorum.world.clock.monotonic()
        disk = await quorum.stop(first.id)
        assert first.activity == [True, False]
        second = await quorum.leader()
        assert quorum.world.clock.monotonic() - began < 0.5, "no fetch has timed out"
        await quorum.commit("b")
        quorum.start(first.id, disk)
        await quorum.until_equal()
        assert second.metadata.is_active

    play(scenario)


def test_all_nodes_restart_with_their_logs() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        for name in "abc":
            await quorum.commit(name)
        epoch = (await quorum.leader()).metadata.leader_epoch
        disks = {each: await quorum.crash(each) for each in quorum.voters}
        for each, disk in disks.items():
            quorum.start(each, disk)
        assert (await quorum.leader()).metadata.leader_epoch > epoch
        await quorum.until_equal()
        assert values(quorum.up()) == [{"a", "b", "c"}] * 3

    play(scenario)


def test_operations_read_records_of_the_previous_controller() -> None:
    """A new controller becomes active after it has replayed all earlier records."""

    async def scenario(quorum: MetadataQuorum) -> None:
        for round in range(4):
            leader = await quorum.leader()
            assert set(configs(leader.metadata.image)) == set(quorum.acknowledged)
            await quorum.commit(f"c{round}")
            await quorum.restart(leader.id)

    play(scenario)


# Observers


@pytest.mark.parametrize("snapshot", [False, True], ids=["records", "a snapshot and records"])
def test_late_node_catches_up_with_all_committed_records(snapshot: bool) -> None:
    """The image is not published with the first part of the snapshot."""

    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        await quorum.commit("a")
        if snapshot:
            await quorum.during(leader.metadata.take_snapshot)
        for number in range(40):
            await quorum.commit(f"config-{number:>020}")
        committed = leader.metadata.image.offset
        late = quorum.start(9, may_vote=False)
        await quorum.until(lambda: late.is_up)
        await quorum.during(late.metadata.wait_until_caught_up)
        assert late.metadata.image.offset >= committed

    play(scenario, quorum_settings=QuorumSettings(fetch_max_bytes=1000))


def test_observer_follows_and_never_leads() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await quorum.commit("a")
        observer = quorum.start(7, may_vote=False)
        await quorum.until_equal()
        caught_up = await quorum.until(lambda: observer.is_up and observer)
        await quorum.during(caught_up.metadata.wait_until_caught_up)
        leader = await quorum.leader()
        assert [each.key.id for each in leader.metadata.quorum.observers] == [7]
        assert caught_up.metadata.leader_address == (f"host-{leader.id}", 9093)
        await quorum.restart(leader.id)
        await quorum.commit("b")
        await quorum.until_equal()
        assert observer.activity == []
        with pytest.raises(NotController):
            await observer.metadata.commit([set_config("c")])

    play(scenario)


def test_listeners_get_the_same_deltas_on_every_node() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        for name in "abcde":
            await quorum.commit(name)
        await quorum.until_equal()
        for node_run in quorum.up():
            reported = [
                record.name
                for delta in node_run.deltas
                for record in delta.records
                if record.__class__.__name__ == "ConfigRecord" and record.name in "abcde"
            ]
            assert reported == list("abcde"), node_run.id
            steps = [(each.before.offset, each.image.offset) for each in node_run.deltas]
            assert all(before < after for before, after in steps)
        assert leader.metadata.is_active

    play(scenario)


# Snapshots

SMALL = MetadataLogSettings(segment_bytes=16_384, snapshot_bytes=12_000, retention_bytes=1)


async def write_much(quorum: MetadataQuorum, until_start: int = 1) -> None:
    """Commit until the log start offset of the leader is past `until_start`."""
    number = 0
    while (await quorum.leader()).metadata._log.start_offset < until_start:
        leader = await quorum.leader()
        values = [set_config(f"c{number % 50}", f"value {number}" * 20) for _ in range(10)]
        await quorum.during(partial(leader.metadata.commit, values))
        number += 1
        assert number < 500


def test_new_node_loads_a_snapshot_as_one_delta() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await write_much(quorum)
        await quorum.commit("last")
        newcomer = quorum.start(7, may_vote=False)
        await quorum.until_equal()
        first = newcomer.deltas[0]
        assert first.before.offset == -1
        assert first.image.offset + 1 >= newcomer.metadata._log.start_offset > 0
        assert "metadata.version" in first.changed_features
        assert {name for _, name in first.changed_configs} == {""}
        await quorum.restart(7)
        await quorum.until_equal()

    play(scenario, settings=SMALL)


def test_voter_behind_log_start_is_sent_a_snapshot() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        away = next(each for each in quorum.voters if each != leader.id)
        disk = await quorum.crash(away)
        await write_much(quorum, 40)
        back = quorum.start(away, disk)
        await quorum.until_equal()
        assert back.metadata._log.start_offset > 0
        assert len(names(back.node.files, ".part")) == 0
        leader = await quorum.leader()
        if leader is not back:
            await quorum.restart(leader.id)
        await quorum.commit("after")
        await quorum.until_equal()

    play(scenario, settings=SMALL)


def test_every_node_generates_snapshots_and_deletes_old_log() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await write_much(quorum, 100)
        await quorum.until_equal()
        await quorum.pass_time(1)
        for node_run in quorum.up():
            assert node_run.metadata._log.start_offset > 0
            assert len(names(node_run.node.files, ".checkpoint")) <= 2
            assert f"{0:020d}.log" not in node_run.node.files.list(LOG_DIRECTORY)

    play(scenario, settings=SMALL)


# Idle


def test_idle_controller_writes_no_op_records_if_followed() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        await quorum.commit("a")
        await quorum.until_equal()
        before, deltas = leader.metadata.image.offset, len(leader.deltas)
        await quorum.pass_time(5)
        assert 8 <= leader.metadata.image.offset - before <= 10
        assert len(leader.deltas) == deltas, "no new records"

    play(scenario, max_idle_ms=500)


def test_fetch_without_new_records_waits() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        await quorum.restart(leader.id)
        await quorum.commit("a")
        quorum.start(7, may_vote=False)
        await quorum.until_equal()
        await quorum.pass_time(1)
        asked = quorum.requests_sent
        await quorum.pass_time(10)
        assert quorum.requests_sent - asked <= 3 * 21, "two per second from each of three nodes"

    play(scenario)


def test_record_is_fetched_as_soon_as_appended() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await quorum.commit("a")
        await quorum.until_equal()
        began = quorum.world.clock.monotonic()
        await quorum.commit("b")
        assert quorum.world.clock.monotonic() - began < 0.03

    play(scenario)


# Disks


def test_follower_with_full_disk_catches_up_when_there_is_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        await quorum.commit("a")
        full = next(each for each in quorum.up() if each is not leader)
        mount = full.node.disk.mount_of(ROOT)
        space, mount.capacity_bytes = mount.capacity_bytes, mount.used_bytes
        for name in "bcd":
            await quorum.commit(name)
        assert set(configs(full.metadata.image)) == {"a"}
        await quorum.pass_time(1)
        assert sum("cannot be appended" in each.message for each in caplog.records) == 1
        mount.capacity_bytes = space
        await quorum.until_equal()
        assert full.metadata.failure is None

    play(scenario)


@pytest.mark.parametrize("pieces", ["none", "one", "all but the last"])
def test_snapshot_is_fetched_when_there_is_space(
    caplog: pytest.LogCaptureFixture, pieces: str
) -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        away = next(each for each in quorum.voters if each != leader.id)
        disk = await quorum.crash(away)
        await write_much(quorum, 40)
        await quorum.pass_time(1)
        size = leader.node.files.file_size(
            LOG_DIRECTORY / names(leader.node.files, ".checkpoint")[-1]
        )
        space_bytes = {"none": 0, "one": 700, "all but the last": size - 1}[pieces]
        assert size > 1000
        full = quorum.start(away, disk)
        await quorum.until(lambda: full.is_up)
        mount = full.node.disk.mount_of(ROOT)
        space, mount.capacity_bytes = mount.capacity_bytes, mount.used_bytes + space_bytes
        await quorum.pass_time(3)
        assert full.metadata.failure is None
        assert sum("cannot be appended" in each.message for each in caplog.records) == 1
        mount.capacity_bytes = space
        await quorum.until_equal()
        assert full.metadata._log.start_offset > 0
        assert names(full.node.files, ".part") == []

    play(scenario, settings=SMALL, quorum_settings=QuorumSettings(fetch_snapshot_max_bytes=500))


@pytest.mark.parametrize("lacking", ["space", "descriptors"])
def test_active_controller_with_full_disk_resigns(lacking: str) -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await quorum.commit("a")
        await quorum.until_equal()
        leader = await quorum.leader()
        mount = leader.node.disk.mount_of(ROOT)
        space = mount.capacity_bytes
        if lacking == "space":
            mount.capacity_bytes = mount.used_bytes
        else:
            leader.node.disk.fail("*", errno.EMFILE, {"create", "open"})

        async def write() -> None:
            for number in range(40):
                await quorum.during(partial(leader.metadata.commit, [set_config(f"b{number}")]))

        with pytest.raises((DiskFull, NoDescriptors)):
            await write()
        await quorum.until(lambda: leader not in quorum.active())
        await quorum.commit("c")
        assert (await quorum.leader()) is not leader
        assert leader.metadata.failure is None
        mount.capacity_bytes = space
        leader.node.disk.heal()
        await quorum.until_equal()

    play(scenario, settings=MetadataLogSettings(segment_bytes=4_000))


@pytest.mark.parametrize("space_bytes", [0, 150, 400, 700])
def test_election_on_full_disks_stops_no_node(space_bytes: int) -> None:
    """All nodes may share a disk, for example on one host."""

    async def scenario(quorum: MetadataQuorum) -> None:
        await quorum.commit("a")
        await quorum.until_equal()
        leader = await quorum.leader()
        mounts = [each.node.disk.mount_of(ROOT) for each in quorum.up()]
        space = mounts[0].capacity_bytes
        for mount in mounts:
            mount.capacity_bytes = mount.used_bytes + space_bytes
        quorum.partitioned = {leader.id}
        await quorum.pass_time(5)
        quorum.partitioned = set()
        await quorum.pass_time(5)
        assert [each.metadata.failure for each in quorum.up()] == [None] * 3
        for mount in mounts:
            mount.capacity_bytes = space
        await quorum.commit("b")
        await quorum.until_equal()

    play(scenario)


def test_node_waiting_for_disk_space_can_be_stopped() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        await quorum.commit("a")
        full = next(each for each in quorum.up() if each is not leader)
        mount = full.node.disk.mount_of(ROOT)
        space, mount.capacity_bytes = mount.capacity_bytes, mount.used_bytes
        await quorum.restart(leader.id)
        await quorum.commit("b")
        disk = await quorum.stop(full.id)
        mount.capacity_bytes = space
        quorum.start(full.id, disk)
        await quorum.until_equal()

    play(scenario)


@pytest.mark.parametrize("chosen", ["leader", "follower", "observer"])
def test_node_without_file_descriptors_retries(chosen: str) -> None:
    """For example too many connections; a partition log retries, too."""

    async def scenario(quorum: MetadataQuorum) -> None:
        quorum.start(7, may_vote=False)
        await quorum.commit("a")
        await quorum.until_equal()
        leader = await quorum.leader()
        follower = next(each for each in quorum.up() if each is not leader)
        waiting = {"leader": leader, "follower": follower, "observer": quorum.runs[7]}[chosen]
        waiting.node.disk.fail("*", errno.EMFILE, {"create", "open"})
        waiting.node.disk.fail(str(LOG_DIRECTORY), errno.EMFILE, {"sync"})
        quorum.partitioned = {leader.id}
        await quorum.pass_time(5)
        quorum.partitioned = set()
        if chosen != "follower":  # the others are a majority
            for number in range(100):
                await quorum.commit(f"{number} {'x' * 200}")
        await quorum.pass_time(5)
        waiting.node.disk.heal()
        await quorum.commit("b")
        await quorum.until_equal()
        assert waiting.metadata.failure is None

    play(scenario, settings=SMALL)


def test_node_with_failed_disk_reports_it_and_others_continue() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        for chosen in ("leader", "follower"):
            leader = await quorum.leader()
            await quorum.commit(f"before the {chosen}'s failed")
            await quorum.until_equal()
            broken = leader
            if chosen == "follower":
                broken = next(each for each in quorum.up() if each is not leader)
            broken.node.disk.fail(f"{LOG_DIRECTORY}/*.log", errno.EIO, {"sync"})
            await quorum.commit(f"after the {chosen}'s failed")
            await quorum.until(broken.metadata.failed.is_set)
            assert not broken.metadata.is_active
            assert broken.activity in ([], [True, False])
            broken.node.disk.heal()
            await quorum.restart(broken.id)
            await quorum.until_equal()

    play(scenario)


def test_inconsistent_cluster_id_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await quorum.leader()
        await quorum.commit("a")
        quorum.foreign_nodes.add(9)
        stranger = quorum.start(9, may_vote=False)
        await quorum.pass_time(10)
        assert values([stranger]) == [set()]

    play(scenario)
    complaints = [each for each in caplog.messages if "does not belong to cluster" in each]
    assert len(complaints) == 1
    assert "cluster another" in complaints[0]
