"""Tests of group administration while coordinators are loading."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from odradek.client.group_admin import delete_offsets, list_groups
from odradek.client.metadata import open_cluster
from odradek.protocol.apis import FIND_COORDINATOR, LIST_GROUPS, OFFSET_DELETE
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition
from odradek.seams.tcp import TcpNetwork
from tests.support.scripted_broker import HANG_UP, ReceivedRequest, scripted_broker


@pytest.mark.parametrize("first", [ErrorCode.coordinator_load_in_progress, HANG_UP])
async def test_list_groups_retries_while_loading(first: Any) -> None:
    """The coordinator is loading, as after a broker start."""

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not LIST_GROUPS:
            return None
        if len(broker.requests_of(LIST_GROUPS)) == 1:
            return first if first is HANG_UP else {"error_code": first, "groups": []}
        row = {
            "group_id": "g",
            "protocol_type": "",
            "group_state": "Empty",
            "group_type": "classic",
        }
        return {"error_code": 0, "groups": [row]}

    async with (
        scripted_broker(script) as broker,
        open_cluster(TcpNetwork(), [broker.address]) as cluster,
    ):
        with trio.fail_after(10):
            assert [each.group for each in await list_groups(cluster)] == ["g"]


async def test_delete_offsets_retries_while_loading() -> None:
    def script(asked: ReceivedRequest) -> Any:
        if asked.api is FIND_COORDINATOR:
            node = {"node_id": 1, "host": broker.address.host, "port": broker.address.port}
            key = {"key": "g", **node, "error_code": 0, "error_message": None}
            return {"coordinators": [key]}
        if asked.api is not OFFSET_DELETE:
            return None
        if len(broker.requests_of(OFFSET_DELETE)) == 1:
            return {"error_code": ErrorCode.coordinator_load_in_progress, "topics": []}
        rows = [{"partition_index": 0, "error_code": 0}]
        return {"error_code": 0, "topics": [{"name": "t", "partitions": rows}]}

    async with (
        scripted_broker(script) as broker,
        open_cluster(TcpNetwork(), [broker.address]) as cluster,
    ):
        with trio.fail_after(10):
            await delete_offsets(cluster, "g", [TopicPartition("t", 0)])
    assert len(broker.requests_of(OFFSET_DELETE)) == 2
