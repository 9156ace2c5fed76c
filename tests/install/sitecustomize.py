"""Removes calls and constants of the standard library, as on a platform that does not have them.

Python imports this module at its start if its folder is in PYTHONPATH, also in the worker processes of a broker.
`WITHOUT` has the names (`os.fdatasync,select.epoll`), and `AS_PLATFORM` is the value of `sys.platform`.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import SimpleNamespace

WITHOUT = [name for name in os.environ.get("WITHOUT", "").split(",") if name]

if WITHOUT:
    import select

    # trio and shutil choose the calls of this platform, and are imported before it seems to be another one.
    import trio
    from trio._core import _io_epoll

    _io_epoll.select = SimpleNamespace(**vars(select))  # type: ignore[attr-defined]
    trio.run(trio.sleep, 0)
    for name in WITHOUT:
        module, _, attribute = name.rpartition(".")
        found = importlib.import_module(module)
        if hasattr(found, attribute):
            delattr(found, attribute)

if platform := os.environ.get("AS_PLATFORM"):
    if platform == "darwin":
        import fcntl

        fcntl.F_FULLFSYNC = 51  # type: ignore[attr-defined] # Linux has no such command, as some file systems of macOS
    sys.platform = platform
