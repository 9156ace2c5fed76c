"""What tests of the bench need that does not come with the packages."""

from __future__ import annotations

import pytest

from odradek.bench.load import LoadUnavailable, load_program


@pytest.fixture(scope="session")
def load_program_is_there() -> None:
    """Skips who needs the load program where it can't be built, saying what is to be installed."""
    try:
        load_program()
    except LoadUnavailable as unavailable:
        pytest.skip(str(unavailable))
