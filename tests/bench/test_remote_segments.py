"""The measurement of remote log segment metadata."""

from __future__ import annotations

import json

import pytest

from odradek.bench import remote_segments


@pytest.mark.slow
def test_measurement_of_few_segments_returns_all_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert remote_segments.main(["--segments", "4000,8000", "--json"]) == 0
    small, large = json.loads(capsys.readouterr().out)
    assert (small["segments"], large["segments"]) == (4000, 8000)
    assert small["resident_bytes_a_segment"] < 100
    assert large["resident_bytes_a_segment"] < 100
    assert large["snapshot_bytes"] / small["snapshot_bytes"] == pytest.approx(2, rel=0.05)


def test_measurements_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert remote_segments.main(["--segments", "500"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["segments", "500"]
