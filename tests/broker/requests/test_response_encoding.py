"""Tests of responses of many items: same bytes as in one step, and passes of the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import trio

from odradek.broker.apis.response_encoding import written
from odradek.protocol import apis
from odradek.protocol.messages import Encoded, response_item_writer, write_response
from odradek.replication.controller.acls import Acl, AclFilter, find_acls
from odradek.testing.virtual_clock import VirtualClock
from tests.support.cluster_images import LITERAL, with_acls

RULE = {"principal": "User:é", "host": "*", "operation": 3, "permission_type": 3}
RESOURCE = {"resource_type": 2, "resource_name": "t", "pattern_type": 4}
STATE = {"transactional_id": "x" * 200, "producer_id": 2**40, "transaction_state": "Ongoing"}


class TickingClock(VirtualClock):
    """Clock that advances by 1 ms at each reading."""

    def monotonic(self) -> float:
        self._now += 0.001
        return self._now


@pytest.mark.parametrize("version", apis.DESCRIBE_ACLS.versions)
def test_acls_are_encoded_item_by_item(version: int) -> None:
    write_rule = response_item_writer(29, version, "resources", "acls")
    write_resource = response_item_writer(29, version, "resources")
    rules = [{**RULE, "host": f"h{number}"} for number in range(300)]
    whole = {"error_code": 0, "error_message": "", "resources": [{**RESOURCE, "acls": rules}] * 2}
    resource = write_resource({**RESOURCE, "acls": Encoded(map(write_rule, rules))})
    parts = {**whole, "resources": Encoded([resource, resource])}
    assert write_response(29, version, parts) == write_response(29, version, whole)


@pytest.mark.parametrize("version", apis.LIST_TRANSACTIONS.versions)
def test_transactions_are_encoded_item_by_item(version: int) -> None:
    write = response_item_writer(66, version, "transaction_states")
    whole = {"error_code": 0, "unknown_state_filters": ["x"], "transaction_states": [STATE] * 200}
    parts = {**whole, "transaction_states": Encoded([write(STATE)] * 200)}
    assert write_response(66, version, parts) == write_response(66, version, whole)


def test_only_arrays_of_structs_are_encoded_item_by_item() -> None:
    with pytest.raises(AssertionError, match="unknown_state_filters is no array of structs"):
        response_item_writer(66, 0, "unknown_state_filters")


async def test_encoding_yields_to_event_loop() -> None:
    """After 5 ms, also for items that are left out."""
    made, turns = 0, []

    def items() -> Iterator[Any]:
        nonlocal made
        for number in range(100):
            made += 1
            yield None if number % 2 else STATE

    async def other() -> None:
        while True:
            turns.append(made)
            await trio.lowlevel.checkpoint()

    write = response_item_writer(66, 0, "transaction_states")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        found = await written(items(), write, TickingClock())
        nursery.cancel_scope.cancel()
    assert found == [write(STATE)] * 50
    steps = [after - before for before, after in pairwise(turns)]
    assert max(steps) <= 10, "in one go: there were more than two turns between the other's"
    assert made == 100


def test_search_for_few_acls_yields_to_event_loop() -> None:
    image = with_acls(*(replace(LITERAL, resource_name=f"t{number}") for number in range(50)))
    one = AclFilter(2, "t7", 3, None, None, 1, 1)
    found = list(find_acls(image, one))
    assert len(found) == 50
    assert [each.resource_name for each in found if isinstance(each, Acl)] == ["t7"]
