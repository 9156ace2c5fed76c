"""Power loss at every sync of a voter, and random faults: acknowledged commits survive.

After each crash the node starts on its remaining disk, rejoins the quorum, and gets the same image as the others.
"""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from functools import partial

import pytest

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import batches
from odradek.replication.raft.durable_ends import ACKNOWLEDGED_END
from odradek.replication.raft.messages import AddVoterRequest, RemoveVoterRequest
from odradek.replication.raft.metadata_log import MetadataLogSettings
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualWorld
from tests.replication.raft.metadata_quorum import MetadataQuorum, NodeRun, play, voter_of
from tests.support.metadata_nodes import FIRST_SEGMENT, LOG_DIRECTORY

SETTINGS = MetadataLogSettings(retention_bytes=1500)


async def some_work(quorum: MetadataQuorum) -> None:
    """Commit records, and take a snapshot on each node, which deletes earlier segments."""
    for number in range(6):
        await quorum.commit(f"c{len(quorum.acknowledged)}")
        if number % 3 == 2:
            await quorum.snapshots()


async def _chosen(quorum: MetadataQuorum, role: str) -> NodeRun:
    leader = await quorum.leader()
    await quorum.until_equal()
    if role == "leader":
        return leader
    return next(each for each in quorum.up() if each is not leader)


def _syncs_of(role: str) -> int:
    world, found = VirtualWorld(5), []

    async def main() -> None:
        async with MetadataQuorum(world, settings=SETTINGS) as quorum:
            victim = await _chosen(quorum, role)
            before = victim.node.files.syncs
            await some_work(quorum)
            found.append(victim.node.files.syncs - before)

    world.run(main)
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_power_loss_at_every_sync(role: str) -> None:
    syncs = _syncs_of(role)
    assert syncs > 10
    for sync in range(1, syncs + 1):
        world = VirtualWorld(sync)

        async def main(sync: int = sync, world: VirtualWorld = world) -> None:
            async with MetadataQuorum(world, settings=SETTINGS) as quorum:
                victim = await _chosen(quorum, role)
                files = victim.node.files
                (files.cut_power_at if sync % 2 else files.cut_power_after)(files.syncs + sync)
                await some_work(quorum)
                await quorum.restart(victim.id)
                await some_work(quorum)
                await quorum.until_equal()

        world.run(main)


MISFORTUNES = ["crash", "cut off", "decapitate", "snapshot", "restart", "voters", "work"]


async def misfortune(quorum: MetadataQuorum, source: random.Random) -> None:
    victim = source.choice(list(quorum.runs))
    match source.choice(MISFORTUNES):
        case "crash":
            await quorum.restart(victim)
        case "decapitate":
            for node_run in quorum.active():
                await quorum.restart(node_run.id)
        case "cut off":
            quorum.partitioned = {victim}
        case "restart":
            disks = {each: await quorum.crash(each) for each in list(quorum.runs)}
            for each, disk in disks.items():
                quorum.start(each, disk)
        case "snapshot":
            await quorum.snapshots()
        case "voters" if not quorum.static:
            await change_voters(quorum, victim)
        case _:
            pass


async def change_voters(quorum: MetadataQuorum, about: int) -> None:
    """Remove a voter, with any response. At least three voters must remain."""
    leader = await quorum.leader()
    voters = [each.id for each in leader.metadata.quorum.voters]
    request: AddVoterRequest | RemoveVoterRequest = AddVoterRequest(voter=voter_of(about))
    if about in voters:
        if len(voters) <= 3:
            return
        request = RemoveVoterRequest(voter=voter_of(about).key)
    with suppress(KafkaError, NodeCrashed):
        await quorum.during(partial(leader.metadata.handle_request, request))


async def misfortunes(quorum: MetadataQuorum, source: random.Random, rounds: int) -> None:
    for _ in range(rounds):
        quorum.loss = source.choice([0.0, 0.0, 0.1, 0.3])
        await misfortune(quorum, source)
        quorum.loss = min(quorum.loss, 0.1)
        for _ in range(source.randint(0, 4)):
            await quorum.commit(f"c{len(quorum.acknowledged)}")
        await quorum.pass_time(source.choice([0.0, 0.01, 0.3, 3.0]))
        if source.random() < 0.5:
            quorum.partitioned.clear()


def live_through(seed: int) -> None:
    source, world = random.Random(seed), VirtualWorld(seed)

    async def main() -> None:
        async with MetadataQuorum(
            world,
            source.choice([3, 5]),
            static=source.random() < 0.3,
            settings=source.choice([None, SETTINGS]),
            max_idle_ms=source.choice([0, 200]),
            disk_seconds=source.choice([0.001, 0.03]),
        ) as quorum:
            quorum.start(9, may_vote=source.random() < 0.7)
            await misfortunes(quorum, source, 8)
            quorum.partitioned.clear()
            quorum.loss = 0.0
            await quorum.commit("last")
            await quorum.until_equal()
            assert len({each.metadata.leader_epoch for each in quorum.up()}) == 1
            assert len(quorum.active()) == 1

    world.run(main)


@pytest.mark.slow
def test_acknowledged_commits_survive() -> None:
    for seed in range(16):
        live_through(seed)


@pytest.mark.slow
def test_acknowledged_commits_survive_many_seeds() -> None:
    for seed in range(1000, 1050):
        live_through(seed)


async def _with_snapshot(quorum: MetadataQuorum) -> None:
    """The log start offset is above 0, so a new node fetches a snapshot."""
    await some_work(quorum)
    await quorum.until_equal()
    leader = await quorum.leader()
    assert leader.metadata._log.start_offset > 0


@pytest.mark.slow
@pytest.mark.parametrize("may_vote", [True, False])
def test_power_loss_at_every_sync_of_a_new_node(may_vote: bool) -> None:
    sync, survived = 0, False
    while not survived:
        sync += 1
        world = VirtualWorld(sync)

        async def main(sync: int = sync, world: VirtualWorld = world) -> bool:
            async with MetadataQuorum(world, settings=SETTINGS) as quorum:
                await _with_snapshot(quorum)
                newcomer = quorum.start(7, may_vote=may_vote)
                files = newcomer.node.files
                (files.cut_power_at if sync % 2 else files.cut_power_after)(sync)
                await quorum.commit("while it comes")
                await quorum.pass_time(1)
                runs = newcomer.node.power.on
                await quorum.restart(7)
                await quorum.commit("after it came")
                await quorum.until_equal()
                return runs

        survived = world.run(main)
    assert sync > 8


def lose_last_batches(disk: VirtualDisk, count: int) -> None:
    """Remove the last batches of the metadata log, which were synced, from the disk of a stopped node."""
    files = VirtualWorld(3).node("disk", disk).files
    whole = files.read(FIRST_SEGMENT)
    sizes = [batch.size for batch in batches(memoryview(whole), allow_partial=True)]
    files.write_new(FIRST_SEGMENT, whole[: sum(sizes[:-count])])


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("remaining", ["the leader", "none"])
def test_voter_that_lost_acknowledged_records_elects_no_leader_without_them(
    static: bool, remaining: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three voters one lags and one loses a committed record; the third, which has it, is down at first."""

    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        await quorum.commit("before")
        await quorum.until_equal()
        lagging, loser = (each for each in quorum.up() if each is not leader)
        lagging_disk = await quorum.crash(lagging.id)
        await quorum.commit("committed")
        await quorum.pass_time(0.5)
        loser_disk = await quorum.crash(loser.id)
        leader_disk = await quorum.crash(leader.id)
        lose_last_batches(loser_disk, 1)
        quorum.start(lagging.id, lagging_disk)
        quorum.start(loser.id, loser_disk)
        await quorum.pass_time(20)
        assert quorum.active() == [], "the committed record would be lost"
        if remaining == "none":
            await remove_acknowledged_ends(quorum)
            await quorum.leader()
            quorum.acknowledged.remove("committed")
        else:
            quorum.start(leader.id, leader_disk)
        await quorum.commit("after")
        await quorum.until_equal()

    with caplog.at_level(logging.INFO, "odradek.metadata"):
        play(scenario, static=static)
    (error,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "records are lost. This voter starts no election" in error
    fetched = [each for each in caplog.records if "has fetched the lost records" in each.message]
    assert len(fetched) == (remaining == "the leader")


async def remove_acknowledged_ends(quorum: MetadataQuorum) -> None:
    """Accept the loss, as documented, on all nodes."""
    for number in [each.id for each in quorum.up()]:
        disk = await quorum.stop(number)
        files = VirtualWorld(3).node("disk", disk).files
        files.remove(LOG_DIRECTORY / ACKNOWLEDGED_END)
        quorum.start(number, disk)


def test_voter_that_lost_records_votes_for_a_voter_that_has_them() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        await quorum.commit("committed")
        await quorum.until_equal()
        loser, whole = (each for each in quorum.up() if each is not leader)
        loser_disk = await quorum.crash(loser.id)
        leader_disk = await quorum.crash(leader.id)
        lose_last_batches(loser_disk, 1)
        quorum.start(loser.id, loser_disk)
        assert (await quorum.leader()).id == whole.id
        await quorum.commit("after")
        await quorum.until(lambda: len(quorum.up()) == 2)
        await quorum.until_equal()
        quorum.start(leader.id, leader_disk)
        await quorum.crash(whole.id)
        await quorum.commit("last")

    play(scenario)
