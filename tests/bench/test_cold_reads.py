"""The measurement of cold reads, with a history too short for meaningful rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.bench.cold_reads import CONCURRENT_RANGES, main


@pytest.mark.slow
def test_cold_reads_measure_both_tiers_and_the_store(
    load_program_is_there: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(tmp_path), "--mb", "16", "--passes", "1"])
    out = capsys.readouterr().out
    assert "a directory, a history of 16 MiB" in out
    rows = [line.split(" | ")[0] for line in out.splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| a consumer, remote",
        "| a consumer, local",
        "| the store alone, 1 at once",
        f"| the store alone, {CONCURRENT_RANGES} at once",
    ]
    assert list(tmp_path.iterdir()) == []
