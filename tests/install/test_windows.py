"""Windows is refused with one line that names the alternatives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AS_ON_WINDOWS = "import sys, trio; sys.platform = 'win32'; "
"""trio would load a library of Windows."""
REFUSAL = (
    "Odradek does not run on Windows: use WSL (wsl --install) or the container image"
    " (docs/docker.md)"
)
TESTS = """
import sys

def test_without_a_broker():
    pass

def test_with_a_broker(monkeypatch, request):
    monkeypatch.setattr(sys, "platform", "win32")
    request.getfixturevalue("kafka_broker")
"""


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("arguments", [[], ["serve"], ["--version"]])
def test_command_prints_one_line_on_windows(arguments: list[str]) -> None:
    code = f"from odradek.cli.__main__ import main; sys.exit(main({arguments}))"
    found = run("-c", AS_ON_WINDOWS + code)
    assert (found.returncode, found.stdout, found.stderr) == (1, "", f"odradek: {REFUSAL}\n")


@pytest.mark.parametrize(
    "statement",
    [
        "from odradek.testing import Broker",
        "from odradek.testing import Cluster",
        "import odradek.testing.embedded",
        "import odradek.client.producer",
    ],
)
def test_import_raises_the_same_line_on_windows(statement: str) -> None:
    found = run("-c", AS_ON_WINDOWS + statement)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == f"ImportError: {REFUSAL}"


def test_pytest_plugin_refuses_only_its_fixtures_on_windows(tmp_path: Path) -> None:
    """Tests of a project that need no broker still run."""
    (tmp_path / "test_it.py").write_text(TESTS)
    found = run("-m", "pytest", "-q", "test_it.py", cwd=tmp_path)
    assert "1 failed, 1 passed" in found.stdout
    assert f"ImportError: {REFUSAL}" in found.stdout
