"""The structure report counts correctly, and compares with an earlier report."""

from __future__ import annotations

from pathlib import Path

from tests.structure import measure
from tests.structure.sources import read_modules


def _write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_short_module_with_one_importer_is_reported(tmp_path: Path) -> None:
    """Importers in another folder, long modules and modules with several importers are not counted."""
    _write(tmp_path, "broker/node.py", "from odradek.broker import near, long, shared\n")
    _write(tmp_path, "broker/near.py", "from odradek.seams import far, shared\n")
    _write(tmp_path, "broker/long.py", "import odradek.broker.shared\n" * 100)
    _write(tmp_path, "broker/shared.py", "")
    _write(tmp_path, "seams/far.py", "")
    _write(tmp_path, "tests/test_far.py", "from odradek.seams import far\n")
    report = measure.Report()
    measure.report_imports(report, read_modules(tmp_path))
    assert report.findings["modules under 100 lines with one importer"] == [
        "broker/near.py (1 lines) <- broker/node.py",
        "seams/far.py (0 lines) <- broker/near.py",
    ]
    assert report.numbers["of these, with the importer in their folder"] == 1


def test_report_shows_earlier_numbers_for_comparison() -> None:
    assert measure.table({"a": 3, "new": 1}, {"a": 5, "gone": 2}).splitlines() == [
        "| measure | before | now | change |",
        "| ------- | -----: | --: | -----: |",
        "| a       |      5 |   3 |     -2 |",
        "| new     |        |   1 |        |",
        "| gone    |      2 |     |        |",
    ]
