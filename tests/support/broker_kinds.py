"""Kinds of broker that a test runs against, as `ODRADEK_INTEROP_BROKER` lists them, and how to start each."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka

BROKERS = [name.strip() for name in os.environ.get("ODRADEK_INTEROP_BROKER", "odradek").split(",")]


STARTERS: dict[str, Callable[..., BrokerProcess]] = {"odradek": start_odradek, "kafka": start_kafka}
