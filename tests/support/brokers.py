"""Embedded brokers: the fixture that starts one, and configs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from odradek.testing import Broker

COMBINED_CONFIGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:0",
}
"""Configs of a node with both roles, on ports that the kernel chooses."""


def broker_fixture(
    *, scope: Literal["function", "module"] = "module", **options: Any
) -> Callable[..., Any]:
    """Return a fixture that starts an embedded broker with `options` (topics, configs, data, tiered).

    A test file assigns it to a name: `broker = broker_fixture(topics={"t": 1})`.
    """

    @pytest.fixture(scope=scope)
    def broker() -> Iterator[Broker]:
        with Broker(**options) as running:
            yield running

    return broker
