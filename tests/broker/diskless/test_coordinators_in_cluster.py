"""Coordinators of diskless topics on three brokers: elections, crashes, followers and clients (KIP-1164, D-13 to D-19)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from odradek.broker.coordination.internal_topics import DISKLESS_METADATA_TOPIC
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.diskless_apis import DisklessCommitBatchResult
from tests.support.diskless_cluster import DisklessCluster, run_cluster


def test_commits_from_every_broker_reach_the_coordinators() -> None:
    """D-13, D-24: any broker commits for any partition; offsets are consecutive in each."""

    async def main(cluster: DisklessCluster) -> None:
        await cluster.create(3)
        for number, broker in enumerate((4, 5, 6, 4)):
            results = await cluster.commit(broker, 0, 1, 2, records=5)
            assert [each.error_code for each in results] == [ErrorCode.none] * 3, results
            assert [each.assigned_base_offset for each in results] == [5 * number] * 3
        for index in range(3):
            assert await cluster.latest(5, index) == 20

    run_cluster(main)


def test_followers_serve_stale_reads_of_committed_records() -> None:
    """D-10, D-19: a follower applies what is below its high watermark."""

    async def main(cluster: DisklessCluster) -> None:
        await cluster.create(1)
        await cluster.commit(4, 0, records=3)
        follower = cluster.follower_of(0)
        sent = cluster.diskless(follower).requests.sent
        await cluster.until(
            lambda: _applied(cluster, follower) == _applied(cluster, cluster.leader_of(0))
        )
        assert await cluster.high_watermark(follower) == 3
        assert cluster.diskless(follower).requests.sent == sent

    run_cluster(main)


def _applied(cluster: DisklessCluster, broker: int) -> int:
    coordinator = cluster.diskless(broker).coordinators.find(cluster.coordinator_of(0))
    return -2 if coordinator is None else coordinator.applied_offset


def test_coordinator_moves_with_the_leadership_and_knows_its_producers() -> None:
    """D-07, D-13: a controlled shutdown moves the coordinator; duplicates are recognised by the next one."""

    async def main(cluster: DisklessCluster) -> None:
        await cluster.create(1)
        leader = cluster.leader_of(0)
        client = cluster.other_than(leader)
        first = await cluster.commit(client, 0, records=2, producer_id=9, sequence=0)
        await cluster.nodes.stop(leader)
        assert cluster.leader_of(0) != leader
        again = await cluster.commit(client, 0, records=2, producer_id=9, sequence=0)
        assert again[0].is_duplicate
        assert again[0].assigned_base_offset == first[0].assigned_base_offset == 0
        following = await cluster.commit(client, 0, records=2, producer_id=9, sequence=2)
        assert following[0].assigned_base_offset == 2
        gap = await cluster.commit(client, 0, records=2, producer_id=9, sequence=7)
        assert gap[0].error_code is ErrorCode.out_of_order_sequence_number

    run_cluster(main)


def test_pending_commit_survives_the_crash_of_its_coordinator() -> None:
    """D-17: commits that are running while their coordinator is killed take effect once, at the next coordinator."""

    async def main(cluster: DisklessCluster) -> None:
        await cluster.create(1)
        await cluster.commit(4, 0)
        leader = cluster.leader_of(0)
        client = cluster.other_than(leader)
        offsets: list[int] = []

        async def commit() -> None:
            (result,) = await cluster.commit(client, 0, records=10)
            assert result.error_code is ErrorCode.none, result
            offsets.append(result.assigned_base_offset)

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(commit)
                if number == 6:
                    cluster.nodes.kill(leader)
                await trio.sleep(0.02)
        assert sorted(offsets) == [1 + 10 * number for number in range(12)]
        assert await cluster.latest(client) == 121

    run_cluster(main)


@pytest.mark.parametrize(
    "steps",
    [range(3, 60, 20), pytest.param(range(0, 160, 4), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_commit_takes_effect_once_if_its_coordinator_is_killed_at_any_step(steps: range) -> None:
    """D-16, D-17: the power of the coordinator's broker fails during a commit: before the append, before or after the
    high watermark, before the apply or before the response."""

    async def main(cluster: DisklessCluster) -> None:
        await cluster.create(1)
        await cluster.commit(4, 0)
        end = 1
        for number, passes in enumerate(steps):
            leader = cluster.leader_of(0)
            client = cluster.other_than(leader)
            results: list[DisklessCommitBatchResult] = []

            async def commit(
                broker: int = client,
                into: list[DisklessCommitBatchResult] = results,
                sequence: int = 3 * number,
            ) -> None:
                into.extend(
                    await cluster.commit(broker, 0, records=3, producer_id=1, sequence=sequence)
                )

            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit)
                for _ in range(passes):
                    await trio.lowlevel.checkpoint()
                cluster.nodes.kill(leader)
            assert results[0].error_code is ErrorCode.none, (passes, results)
            assert results[0].assigned_base_offset == end, passes
            end += 3
            await cluster.nodes.start(leader)
            assert await cluster.latest(leader) == end, passes
            again = await cluster.commit(leader, 0, records=3, producer_id=1, sequence=3 * number)
            assert again[0].is_duplicate
            assert again[0].assigned_base_offset == end - 3

    run_cluster(main)


def test_coordinator_without_enough_replicas_accepts_nothing_until_they_return() -> None:
    """D-17: a commit without min.insync.replicas waits for a follower, and is not acknowledged before."""

    async def main(cluster: DisklessCluster) -> None:
        await cluster.create(1)
        await cluster.commit(4, 0)
        leader = cluster.leader_of(0)
        followers = [each for each in (4, 5, 6) if each != leader]
        await cluster.nodes.stop(*followers)
        results = []

        async def commit() -> None:
            results.extend(await cluster.commit(leader, 0, records=4))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await trio.sleep(5)
            assert not results
            assert await cluster.high_watermark(leader) == 1
            await cluster.nodes.start(followers[0])
        assert results[0].error_code is ErrorCode.none
        assert results[0].assigned_base_offset == 1

    run_cluster(main)


def test_restarted_brokers_have_the_state_of_their_log() -> None:
    """D-16: all brokers restart, and the state is as before."""

    async def main(cluster: DisklessCluster) -> None:
        await cluster.create(3)
        for broker in (4, 5, 6):
            await cluster.commit(broker, 0, 1, 2, records=7)
        await cluster.nodes.stop(4, 5, 6)
        await cluster.nodes.start(4, 5, 6)
        for index in range(3):
            assert await cluster.latest(6, index) == 21
        results = await cluster.commit(5, 2, records=1)
        assert results[0].assigned_base_offset == 21

    run_cluster(main)


def test_deleted_topic_is_removed_from_its_coordinators() -> None:
    """D-25: the coordinators follow the metadata, and a new topic of the same name begins at offset 0."""

    async def main(cluster: DisklessCluster) -> None:
        old = await cluster.create(3)
        await cluster.commit(4, 0, 1, 2)
        request = {
            "topics": [{"name": "t", "topic_id": None}],
            "timeout": 5000,
        }
        response = await cluster.nodes.ask(4, apis.DELETE_TOPICS, request)
        assert response.responses[0].error_code is ErrorCode.none
        new = await cluster.create(3)
        assert new != old
        for index in range(3):
            assert await cluster.latest(4, index) == 0
        for broker in (4, 5, 6):
            for coordinator in cluster.diskless(broker).coordinators.led():
                topics = await coordinator.query_strictly(
                    lambda state: {each.topic_id for each in state.partitions()}
                )
                assert topics <= {new}

    run_cluster(main)


def test_partitions_that_are_added_belong_to_the_coordinators_of_their_creation() -> None:
    """D-14: the assignment is in the metadata, and growth of a topic changes no existing one."""

    async def main(cluster: DisklessCluster) -> None:
        await cluster.create(2)
        before = [cluster.coordinator_of(index) for index in range(2)]
        response = await cluster.nodes.ask(
            4,
            apis.CREATE_PARTITIONS,
            {
                "topics": [{"name": "t", "count": 5, "assignments": None}],
                "timeout": 5000,
                "validate_only": False,
            },
        )
        assert response.results[0].error_code is ErrorCode.none, response
        requests = cluster.diskless(5).requests
        await cluster.until(lambda: requests.coordinator_of(cluster.topic_id, 4) is not None)
        results = await cluster.commit(5, 0, 1, 2, 3, 4)
        assert [each.error_code for each in results] == [ErrorCode.none] * 5
        assert [cluster.coordinator_of(index) for index in range(2)] == before

    run_cluster(main)


def test_find_coordinator_finds_the_leader_of_a_metadata_partition() -> None:
    """D-13: the private key type 100; the key is the partition of `__diskless_metadata`."""

    async def main(cluster: DisklessCluster) -> None:
        missing = await _find(cluster, "0")
        assert missing.error_code is ErrorCode.coordinator_not_available
        await cluster.create(3)
        image = cluster.nodes.brokers[1].metadata.image
        for index in range(3):
            found = await _find(cluster, str(index))
            partition = image.partition(DISKLESS_METADATA_TOPIC, index)
            assert partition is not None
            assert found.error_code is ErrorCode.none
            assert found.node_id == partition.leader
        for key in ("3", "x", "-1", "", "99999999999999999999"):
            wrong = await _find(cluster, key)
            assert wrong.error_code is ErrorCode.invalid_request, key

    run_cluster(main)


async def _find(cluster: DisklessCluster, key: str) -> Any:
    request = {"key_type": 100, "coordinator_keys": [key]}
    response = await cluster.nodes.ask(5, apis.FIND_COORDINATOR, request)
    return response.coordinators[0]


def test_clients_do_not_see_the_apis_of_coordinators() -> None:
    """D-01: ApiVersions does not have them, because later versions of Kafka may use their keys."""

    async def main(cluster: DisklessCluster) -> None:
        values = {"client_software_name": "c", "client_software_version": "1"}
        response = await cluster.nodes.ask(4, apis.API_VERSIONS, values)
        keys = {each.api_key for each in response.api_keys}
        assert not keys & apis.DISKLESS_APIS.keys()

    run_cluster(main)
