"""Voters are added, removed, change their endpoints, or lose their disks (KIP-853)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.quorum_state import QuorumStateData, decode_quorum_state
from odradek.replication.raft.errors import KRaftVersionChangeRejected
from odradek.replication.raft.messages import (
    AddVoterRequest,
    RaftResponse,
    RemoveVoterRequest,
)
from odradek.replication.raft.quorum_state import QuorumSettings
from odradek.testing.virtual_world import VirtualWorld
from tests.replication.raft.metadata_quorum import MetadataQuorum, NodeRun, play, voter_of
from tests.support.metadata_nodes import LOG_DIRECTORY, ROOT, configs


async def asked(
    quorum: MetadataQuorum, request: AddVoterRequest | RemoveVoterRequest
) -> RaftResponse:
    """Send a request to the leader; retried while another change is in progress."""
    while True:
        leader = await quorum.leader()
        response: RaftResponse = await quorum.during(
            partial(leader.metadata.handle_request, request)
        )
        if response.error is not ErrorCode.request_timed_out:
            return response
        await quorum.pass_time(0.1)
        request = replace(request)


def voters(quorum: MetadataQuorum) -> list[tuple[int, ...]]:
    return [tuple(each.id for each in node_run.metadata.quorum.voters) for node_run in quorum.up()]


def stored(node_run: NodeRun) -> QuorumStateData:
    return decode_quorum_state(node_run.node.files.read(LOG_DIRECTORY / "quorum-state"))


def test_voter_is_added_and_others_are_removed() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await quorum.commit("a")
        quorum.start(4)
        await quorum.until_equal()
        assert (await asked(quorum, AddVoterRequest(voter=voter_of(4)))).error == 0
        await quorum.until_equal()
        assert voters(quorum) == [(1, 2, 3, 4)] * 4
        first, *others = (node_run.metadata.image for node_run in quorum.up())
        assert all(each == first for each in others), "also at a control record"
        for each in (1, 2):
            response = await asked(quorum, RemoveVoterRequest(voter=voter_of(each).key))
            assert response.error == 0
            await quorum.commit(f"without {each}")
        await quorum.crash(1)
        await quorum.crash(2)
        await quorum.commit("b")
        await quorum.until_equal()
        assert voters(quorum) == [(3, 4)] * 2
        disks = {each: await quorum.crash(each) for each in (3, 4)}
        for each, disk in disks.items():
            quorum.start(each, disk)
        await quorum.commit("c")
        await quorum.until_equal()
        assert voters(quorum) == [(3, 4)] * 2

    play(scenario)


def test_leader_that_removed_itself_resigns_after_commit() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        first = await quorum.leader()
        await quorum.commit("a")
        response = await asked(quorum, RemoveVoterRequest(voter=voter_of(first.id).key))
        assert response.error == 0
        await quorum.until(lambda: not first.metadata.is_active)
        second = await quorum.leader()
        assert second is not first
        await quorum.commit("b")
        await quorum.until_equal()
        assert first.metadata.quorum.leader_id == second.id, "it is an observer"

    play(scenario)


def test_controller_joins_automatically() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await quorum.commit("a")
        quorum.start(4)
        await quorum.until(lambda: set(voters(quorum)) == {(1, 2, 3, 4)})
        await quorum.commit("b")
        await quorum.until_equal()

    play(scenario, quorum_settings=QuorumSettings(auto_join=True))


def test_voter_with_new_disk_is_removed_and_added_again() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        leader = await quorum.leader()
        await quorum.commit("a")
        lost = next(each for each in quorum.voters if each != leader.id)
        await quorum.crash(lost)
        quorum.lost_disks.add(lost)
        restarted = quorum.start(lost)
        await quorum.until(
            lambda: (
                restarted.is_up
                and any(
                    each.id == lost and each.directory_id == restarted.metadata._member.directory_id
                    for each in restarted.metadata.quorum.voters
                )
            )
        )
        await quorum.commit("b")
        await quorum.until_equal()

    play(scenario, quorum_settings=QuorumSettings(auto_join=True))


def test_single_voter_grows_to_three_and_shrinks_again() -> None:
    """A single voter leads, and continues while others join."""

    async def scenario(quorum: MetadataQuorum) -> None:
        first = await quorum.leader()
        await quorum.commit("a")
        for each in (2, 3):
            quorum.start(each)
            await quorum.until_equal()
            assert (await asked(quorum, AddVoterRequest(voter=voter_of(each)))).error == 0
        await quorum.commit("b")
        await quorum.until_equal()
        for each in (2, 3):
            response = await asked(quorum, RemoveVoterRequest(voter=voter_of(each).key))
            assert response.error == 0
            await quorum.crash(each)
        await quorum.commit("c")
        assert first.activity == [True]
        assert set(configs(first.metadata.image)) == {"a", "b", "c"}

    play(scenario, voters=1)


def test_static_quorum_is_upgraded_to_dynamic() -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await quorum.commit("a")
        leader = await quorum.leader()
        with pytest.raises(KRaftVersionChangeRejected):
            await quorum.during(partial(leader.metadata.upgrade_quorum, 7))
        await quorum.pass_time(5)  # the others have reported their directory ids
        assert stored(leader).data_version == 0
        assert stored(leader).current_voters == (1, 2, 3)
        await quorum.during(partial(leader.metadata.upgrade_quorum, 1))
        await quorum.commit("b")
        await quorum.until_equal()
        assert {each.metadata.kraft_version for each in quorum.up()} == {1}
        for node_run in quorum.up():
            assert [each.key for each in node_run.metadata.quorum.voters] == [
                voter_of(each).key for each in quorum.voters
            ]
        leader = await quorum.restart(leader.id)
        await quorum.commit("c")
        await quorum.until_equal()
        assert stored(leader).data_version == 1
        quorum.start(4)
        await quorum.until_equal()
        assert (await asked(quorum, AddVoterRequest(voter=voter_of(4)))).error == 0

    play(scenario, static=True)


@pytest.mark.parametrize("static", [False, True])
def test_voter_change_on_full_disk_is_rejected_until_there_is_space(static: bool) -> None:
    async def scenario(quorum: MetadataQuorum) -> None:
        await quorum.commit("a")
        await quorum.pass_time(5)  # all UpdateRaftVoter requests are complete
        leader = await quorum.leader()
        other = next(each for each in quorum.voters if each != leader.id)
        mount = leader.node.disk.mount_of(ROOT)
        space, mount.capacity_bytes = mount.capacity_bytes, mount.used_bytes
        if static:
            with pytest.raises(
                KRaftVersionChangeRejected, match="disk of the metadata log is full"
            ):
                await quorum.during(partial(leader.metadata.upgrade_quorum, 1))
        else:
            response = await asked(quorum, RemoveVoterRequest(voter=voter_of(other).key))
            assert response.error is ErrorCode.kafka_storage_error
        assert await quorum.leader() is leader
        assert leader.metadata.failure is None
        assert set(voters(quorum)) == {(1, 2, 3)}
        mount.capacity_bytes = space
        await quorum.commit("b")
        if static:
            await quorum.during(partial(leader.metadata.upgrade_quorum, 1))
        else:
            assert (await asked(quorum, RemoveVoterRequest(voter=voter_of(other).key))).error == 0
        await quorum.until_equal()
        assert leader.metadata.kraft_version == 1
        assert len(leader.metadata.quorum.voters) == (3 if static else 2)

    play(scenario, static=static)


def test_same_seed_is_the_same_run() -> None:
    def run() -> list[str]:
        reported: list[str] = []
        world = VirtualWorld(11)

        async def main() -> None:
            async with MetadataQuorum(world) as quorum:
                for round in range(3):
                    leader = await quorum.leader()
                    await quorum.commit(f"c{round}")
                    reported.append(f"{world.clock.monotonic()} {quorum.describe(leader)}")
                    await quorum.restart(leader.id)

        world.run(main)
        return reported

    assert run() == run()
