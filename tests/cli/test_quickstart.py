"""Tests that run the blocks of the quickstart in README.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.odradek_process import OdradekProcess, start_odradek

README = Path(__file__).parents[2] / "README.md"
SECTION = re.search(r"\n## Quickstart\n(.*?)\n## ", README.read_text(), re.DOTALL)
assert SECTION is not None
SERVE, PRODUCE_AND_CONSUME, CLIENT, DUMP = re.findall(
    r"```(?:sh|python)\n(.*?)```", SECTION[1], re.DOTALL
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OdradekProcess]:
    command = shlex.split(SERVE)
    assert command[:2] == ["odradek", "serve"]
    process = start_odradek(tmp_path, log_dirs=[tmp_path / "odradek-data"], arguments=command[2:])
    with process:
        yield process


def run(command: list[str], broker: OdradekProcess, directory: Path) -> str:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ODRADEK_BOOTSTRAP": broker.bootstrap,
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart(broker: OdradekProcess, tmp_path: Path) -> None:
    shell = ["bash", "-euo", "pipefail", "-c"]
    counted, *described = run([*shell, PRODUCE_AND_CONSUME], broker, tmp_path).splitlines()
    assert counted == "336776"
    assert "readers" in "\n".join(described)

    client = CLIENT.replace("127.0.0.1:9092", broker.bootstrap)
    run([sys.executable, "-c", client], broker, tmp_path)
    read_back = "odradek consume -t flights -o -1 -e -f '%k %s\\n' | grep -c '^UA {'"
    assert run([*shell, read_back], broker, tmp_path).strip() == "1"

    assert "00000000000000000000.log: segment" in run(["bash", "-euc", DUMP], broker, tmp_path)
