"""Modules that Spark's Python processes import in advance, and from where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

pyspark = pytest.importorskip("pyspark")

from odradek.pipeline.worker_startup import HERE, PATH, speed_up_workers  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = Path(pyspark.__file__).parent
ZIPS = sorted(str(each) for each in (FILES / "python" / "lib").glob("*.zip"))
READING = "odradek.pipeline.range_reader"
LATER = """
import atexit, json, sys
from importlib.util import find_spec

def report():
    modules = [each for each in {modules} if each in sys.modules]
    print(json.dumps([find_spec("pyspark").origin, modules, sys.path]), file=sys.stderr)

atexit.register(report)
"""


def started(
    directory: Path, *words: str, zips: list[str] = ZIPS
) -> tuple[str, list[str], list[str]]:
    """Start such a process; return the location of PySpark, its modules of this package, and its path. They are
    printed by the `sitecustomize` module that would be used without this package's.
    """
    (directory / "sitecustomize.py").write_text(LATER.format(modules=[READING]))
    done = subprocess.run(
        [sys.executable, *words],
        env={PATH: ":".join([*zips, HERE, str(directory)])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    found: tuple[str, list[str], list[str]] = json.loads(done.stderr.decode().splitlines()[-1])
    return found


def test_worker_daemon_has_imported_the_workers_modules_from_files(tmp_path: Path) -> None:
    origin, modules, path = started(tmp_path, "-m", "pyspark.daemon", "pyspark.worker")
    assert (origin, modules) == (str(FILES / "__init__.py"), [READING])
    assert not {*ZIPS, HERE} & {*path}


def test_another_version_does_not_replace_the_zip(tmp_path: Path) -> None:
    zipped = tmp_path / "pyspark.zip"
    with ZipFile(zipped, "w") as archive:
        for name in ("__init__", "daemon"):
            archive.writestr(f"pyspark/{name}.py", "")
        archive.writestr("pyspark/version.py", "__version__ = '0'")
    origin, _, _ = started(tmp_path, "-m", "pyspark.daemon", "another", zips=[str(zipped)])
    assert origin == f"{zipped}/pyspark/__init__.py"


def test_other_processes_are_unchanged(tmp_path: Path) -> None:
    origin, modules, _ = started(tmp_path, "-c", "pass")
    assert (origin.startswith(ZIPS[-1]), modules) == (True, [])


def test_existing_path_follows_the_added_directory() -> None:
    context = SimpleNamespace(environment={PATH: "/given", "OTHER": "1"})
    speed_up_workers(SimpleNamespace(sparkContext=context))
    assert context.environment == {PATH: f"{HERE}:/given", "OTHER": "1"}


@pytest.mark.interop
def test_workers_of_a_session_use_the_startup_module(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reported(_: int) -> tuple[Any, bool]:
        import sys

        import pyspark

        return pyspark.__file__, "odradek.pipeline.range_reader" in sys.modules

    context = spark.sparkContext
    monkeypatch.setattr(context, "environment", {**context.environment})
    speed_up_workers(spark)
    (found,) = context.parallelize([0], 1).map(reported).collect()
    assert found == (str(FILES / "__init__.py"), True)
