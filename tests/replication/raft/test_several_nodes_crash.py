"""Power loss at every sync of a voter, and random faults: acknowledged commits survive.

After each crash the node starts on its remaining disk, rejoins the quorum, and gets the same image as the others.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import pytest

from odradek.protocol.errors import KafkaError
from odradek.replication.raft.messages import AddVoterRequest, RemoveVoterRequest
from odradek.replication.raft.metadata_log import MetadataLogSettings
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_world import VirtualWorld
from tests.replication.raft.metadata_quorum import MetadataQuorum, NodeRun, voter_of

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
