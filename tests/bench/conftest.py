"""Fixtures of the bench tests that need programs outside of the Python packages."""

from __future__ import annotations

import pytest

from odradek.bench.load import LoadUnavailable, load_program


@pytest.fixture(scope="session")
def load_program_is_there() -> None:
    """Build the load program; skip the test with the reason if that is not possible."""
    try:
        load_program()
    except LoadUnavailable as unavailable:
        pytest.skip(str(unavailable))
