"""Exports on a Spark of several processes, of which one of each kind is killed: each record once all the same.

`python -m tests.pipeline.killed_exports` kills more of them, for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.killed_exports import RECORDS_AT_ONCE, killing

pytestmark = [pytest.mark.interop, pytest.mark.slow]

VICTIMS = ("executor", "python worker", "driver")


def test_each_record_once_whoever_is_killed(tmp_path: Path) -> None:
    with killing(tmp_path, seed=3) as run:
        run.run(VICTIMS)
        assert run.killed == dict.fromkeys(VICTIMS, 1)
        assert run.check() >= RECORDS_AT_ONCE
    assert list((tmp_path / "tier").rglob("*.manifest")), "nothing was read from the store"
