"""CRC-32C, the checksum of record batches, without importing the whole package `crc32c`.

On import the package looks up its own version, which loads importlib.metadata, email, csv and zipfile and costs 10 ms
and 2 MB at every start. So only its extension module is loaded. If that fails, the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, cast

_EXTENSION = "crc32c._crc32c"


def _load() -> Callable[..., int]:
    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    spec = None if places is None else PathFinder.find_spec(_EXTENSION, list(places))
    if spec is None or spec.loader is None:
        from crc32c import crc32c as whole

        return cast("Callable[..., int]", whole)
    extension: Any = module_from_spec(spec)
    spec.loader.exec_module(extension)
    return cast("Callable[..., int]", extension.crc32c)


crc32c: Callable[..., int] = _load()
"""`crc32c(data, value=0)` returns the CRC of a buffer, continued from the CRC value."""
