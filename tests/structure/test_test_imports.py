"""Test files share code only through `tests/support` and through the helper modules of their own folder."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

import pytest

from tests.structure.sources import ROOT

IMPORT = re.compile(
    r"^[ \t]*(?:from (?P<module>tests[\w.]*) import (?P<names>\([^)]*\)|[^\n]*)|import (?P<plain>tests[\w.]*))",
    re.MULTILINE,
)
SUPPORT = PurePath("tests/support")


def imported_files(root: Path, text: str) -> set[PurePath]:
    """Return the paths below `root` of the modules of `tests` that a source text imports."""
    candidates: set[PurePath] = set()
    for match in IMPORT.finditer(text):
        module = match["module"] or match["plain"]
        candidates.add(PurePath(*module.split(".")).with_suffix(".py"))
        for name in re.findall(r"\w+", match["names"] or ""):
            candidates.add(PurePath(*module.split("."), name + ".py"))
    return {path for path in candidates if (root / path).is_file()}


def violations(root: Path) -> list[str]:
    """Return one line for each import of `tests` that breaks a rule.

    Test files and conftest.py are not imported. A helper module outside tests/support is imported only by files of
    its folder and of the folders below it.
    """
    found = []
    for file in sorted(root.glob("tests/**/*.py")):
        importer = file.relative_to(root)
        for path in sorted(imported_files(root, file.read_text()) - {importer}):
            if path.name.startswith("test_") or path.name == "conftest.py":
                found.append(f"{importer} imports {path}: move what both use to {SUPPORT}")
            elif path.parent != SUPPORT and path.parent not in importer.parents:
                found.append(f"{importer} imports {path} of another folder: move it to {SUPPORT}")
    return found


def test_tests_import_shared_code_only_from_support_or_their_own_folder() -> None:
    found = violations(ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("importer", "text", "reason"),
    [
        ("tests/a/test_b.py", "from tests.a.test_a import x", "imports tests/a/test_a.py:"),
        (
            "tests/a/test_b.py",
            "from tests.a import (\n    test_a,\n)",
            "imports tests/a/test_a.py:",
        ),
        ("tests/a/test_b.py", "    import tests.a.test_a as a", "imports tests/a/test_a.py:"),
        ("tests/a/helpers.py", "from tests.a.conftest import x", "imports tests/a/conftest.py:"),
        ("tests/c/test_b.py", "from tests.a.world import x", "imports tests/a/world.py of another"),
        (
            "tests/support/b.py",
            "from tests.a.world import x",
            "imports tests/a/world.py of another",
        ),
        ("tests/a/test_b.py", "from tests.a.world import test_a", None),
        ("tests/a/d/test_b.py", "from tests.a.world import x", None),
        ("tests/a/test_b.py", "from tests.support.records import batch", None),
    ],
)
def test_import_of_a_test_or_of_another_folders_helper_is_reported(
    tmp_path: Path, importer: str, text: str, reason: str | None
) -> None:
    for path in ("a/test_a.py", "a/conftest.py", "a/world.py", "support/records.py"):
        (tmp_path / "tests" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / path).touch()
    (tmp_path / importer).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / importer).write_text(text + "\n")
    found = violations(tmp_path)
    assert [reason in each for each in found] == [True] if reason else found == []
