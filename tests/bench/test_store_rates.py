"""Rates of an object store, with a segment too small for meaningful rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.bench.store_rates import FORMS, main


def test_store_rates_are_measured_for_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(tmp_path), "--mb", "1", "--passes", "1"])
    out = capsys.readouterr().out
    assert "a segment of 1 MiB" in out
    assert [line.split(" | ")[0] for line in out.splitlines() if line.startswith("| ")] == [
        "| MB/s", "| the store alone", *(f"| {form}" for form in FORMS),
    ]  # fmt: skip
    assert "copy | read 1 MiB | read 8 MiB" in out
    assert list(tmp_path.iterdir()) == []
