"""The quick start of the pipeline's page: its code runs as printed, and prints the output on the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from tests.pipeline.tiering import QUICK
from tests.support.odradek_process import OdradekProcess, start_odradek
from tests.support.waiting import deadline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
BLOCKS = re.compile(r"```(?:sh|python)\n(.*?)```", re.DOTALL)
SECTION = re.search(r"\n## Quick start\n(.*?)\n## ", PAGE, re.DOTALL)
assert SECTION is not None
SERVE, TOPIC, PROGRAM = BLOCKS.findall(SECTION[1])
(JSON_VALUES,) = (each for each in BLOCKS.findall(PAGE) if 'valueFormat="json"' in each)
CLICKS = 200_000


def shell(script: str, broker: OdradekProcess, directory: Path) -> str:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ODRADEK_BOOTSTRAP": broker.bootstrap,
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed(program: str, names: dict[str, Any]) -> str:
    message = StringIO()
    with redirect_stdout(message):
        exec(compile(program, "the page", "exec"), names)
    return message.getvalue()


@pytest.mark.interop
@pytest.mark.slow
def test_quick_start(spark: SparkSession, tmp_path: Path) -> None:
    """`spark` is the session that the program would otherwise create."""

    def here(text: str) -> str:
        return text.replace("/tmp/", f"{tmp_path}/")

    command = shlex.split(here(SERVE))
    assert command[:2] == ["odradek", "serve"]
    with start_odradek(tmp_path / "broker", config=QUICK, arguments=command[2:]) as broker:
        *_, listing = TOPIC.strip().splitlines()
        found = shell(here(TOPIC), broker, tmp_path)
        with deadline(30, "segments in the store") as check:
            while not re.search(r"^clicks +0 .* -$", found, re.MULTILINE):
                check(0.2)
                found = shell(here(listing), broker, tmp_path)

        program = here(PROGRAM).replace("127.0.0.1:9092", broker.bootstrap)
        names: dict[str, Any] = {}
        message = printed(program, names)
        assert message.startswith(f"{CLICKS} clicks\n")
        assert "|  /0|28572|" in message
        assert message.endswith(f"\n{CLICKS} clicks in the Parquet table\n")
        assert "|  /0|28572|" in printed(JSON_VALUES, names)

        shell("echo '{}' | odradek produce -t clicks", broker, tmp_path)
        again = printed(program, {})
        assert again.startswith(f"{CLICKS + 1} clicks\n")
        assert again.endswith(f"\n{CLICKS + 1} clicks in the Parquet table\n")
