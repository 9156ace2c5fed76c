"""Runs first in Spark's Python processes (see the package). It must work without other packages; if it fails,
Python reports the error and the process continues.

PySpark is imported from installed files if they have the same version as Spark's zip.

The modules that workers of the data source need are imported once, by the process that forks them. PySpark itself
imports nothing before a fork that may start threads, and NumPy and Arrow do: the threads of OpenBLAS and of the
allocator, which both have fork handlers, and are idle at that time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from zipimport import zipimporter

HERE = Path(__file__).parent
DAEMON = "pyspark.daemon"
ZIPPED = ("pyspark", "py4j")
PLANS = (
    "odradek.pipeline.data_source",
    "odradek.pipeline.query",
    "odradek.pipeline.brokers",
    "odradek.pipeline.segment_reader",
)
NEEDED = {
    "pyspark.sql.worker.create_data_source": ("odradek.pipeline.data_source",),
    "pyspark.sql.worker.data_source_pushdown_filters": PLANS,
    "pyspark.sql.worker.plan_data_source_read": PLANS,
    "pyspark.worker": (
        "pyspark.sql.worker.plan_data_source_read",
        "odradek.pipeline.data_source",
        "odradek.pipeline.range_reader",
        "odradek.pipeline.segment_reader",
        "odradek.pipeline.store",
    ),
}
"""Modules to import, by the module that a worker runs. Modules that only some tasks need, such as numba and the
client, are not included.
"""


def started_module() -> str:
    """Return the module that was started with `-m`."""
    words = sys.orig_argv[1:]
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""


def hand_on() -> None:
    """Run the `sitecustomize` module that Python would import without this one."""
    sys.path[:] = [each for each in sys.path if Path(each) != HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def with_files(path: Sequence[str]) -> list[str]:
    """Return `path` without Spark's zips whose packages are also installed on it."""
    files = [each for each in path if not each.endswith(".zip")]
    return [each for each in path if each in files or not _is_installed(each, files)]


def _is_installed(zipped: str, files: Sequence[str]) -> bool:
    """Whether the packages of a zip are installed in the same version."""
    name = next((each for each in ZIPPED if Path(zipped).name.startswith(each)), None)
    spec = None if name is None else PathFinder.find_spec(name, files)
    if spec is None or spec.origin is None:
        return False
    try:
        version = zipimporter(zipped).get_data(f"{name}/version.py")
        return version == Path(spec.origin).with_name("version.py").read_bytes()
    except (ImportError, OSError):
        return False


def import_for(worker: str) -> None:
    """Import the worker's modules, as far as they exist. Workers share their memory if garbage collection does not
    touch it.
    """
    if worker not in NEEDED:
        return
    with suppress(ImportError):
        for name in (worker, *NEEDED[worker]):
            import_module(name)
    gc.collect()
    gc.freeze()


hand_on()
if started_module().startswith("pyspark."):
    sys.path[:] = with_files(sys.path)
if started_module() == DAEMON:
    import_for(sys.orig_argv[-1])
