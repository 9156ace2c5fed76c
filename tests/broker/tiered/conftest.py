"""Fixtures of the tiered storage tests."""

from __future__ import annotations

import pytest

from odradek.testing.virtual_clock import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()
