"""What the tests of a broker's tiered storage share."""

from __future__ import annotations

import pytest

from odradek.testing.virtual_clock import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()
