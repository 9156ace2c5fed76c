"""Exports on a Spark cluster in which one process of each kind is killed write each record once.

`python -m tests.pipeline.killed_exports` runs longer, with more kills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.killed_exports import RECORDS_AT_ONCE, killing

pytestmark = [pytest.mark.interop, pytest.mark.slow]

VICTIMS = ("executor", "python worker", "driver")


def test_each_record_is_exported_once_when_processes_are_killed(tmp_path: Path) -> None:
    with killing(tmp_path, seed=3) as run:
        run.run(VICTIMS)
        assert run.killed == dict.fromkeys(VICTIMS, 1)
        assert run.check() >= RECORDS_AT_ONCE
    assert list((tmp_path / "tier").rglob("*.manifest")), "no segment was read from the store"
