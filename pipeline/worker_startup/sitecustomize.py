"""What Python does first in the processes that Spark starts (see the package). It has to do without all that is not
there, and a process in which it fails goes on without it: Python says so, and no more.

PySpark is imported from its files where these are installed, in the version of the zip that Spark would have it from.

What the workers of our source import is imported here, once, by the process that forks them. PySpark itself
imports nothing before a fork that may have threads, and NumPy and Arrow have some: those are OpenBLAS's and the
allocator's, which both have handlers for forks, and nothing was computed by then.
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
    "odradek.pipeline.source",
    "odradek.pipeline.query",
    "odradek.pipeline.brokers",
    "odradek.pipeline.segments",
)
NEEDED = {
    "pyspark.sql.worker.create_data_source": ("odradek.pipeline.source",),
    "pyspark.sql.worker.data_source_pushdown_filters": PLANS,
    "pyspark.sql.worker.plan_data_source_read": PLANS,
    "pyspark.worker": (
        "pyspark.sql.worker.plan_data_source_read",
        "odradek.pipeline.source",
        "odradek.pipeline.reading",
        "odradek.pipeline.segments",
        "odradek.pipeline.store",
    ),
}
"""By the module that a worker runs. What only some tasks need they import themselves: a compiler, the client."""


def started_module() -> str:
    """What was asked for by `-m`."""
    words = sys.orig_argv[1:]
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""


def hand_on() -> None:
    """To the module of this name that would be imported if this one were not there."""
    sys.path[:] = [each for each in sys.path if Path(each) != HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def with_files(path: Sequence[str]) -> list[str]:
    """`path` without those zips of Spark's that files on it have, too."""
    files = [each for each in path if not each.endswith(".zip")]
    return [each for each in path if each in files or not _is_installed(each, files)]


def _is_installed(zipped: str, files: Sequence[str]) -> bool:
    """Whether there are files of what is in the zip, of the same version."""
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
    """What it needs, as far as it is there. Workers share the memory, as long as nobody counts what lies there."""
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
