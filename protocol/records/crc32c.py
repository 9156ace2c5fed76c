"""CRC-32C, the checksum of record batches, without what its package brings along.

The package `crc32c` looks up its own version when imported; that loads importlib.metadata, and with
it email, csv and zipfile: 10 ms and 2 MB of every start, for a number that nobody asks for. So its
extension module is loaded by itself. Where that is not to be had, the package is imported as it is.
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
"""`crc32c(data, value=0)`: of a buffer, going on from `value`."""
