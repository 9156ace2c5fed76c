"""Libraries for tests that replace modules which a broker in the same process uses.

Only libraries that the test session has already imported are looked at.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_PYFAKEFS = "pyfakefs.fake_filesystem_unittest"
_FAKE_FILE_FIXTURES = frozenset(("fs", "fs_class", "fs_module", "fs_session"))


def cannot_start_here() -> bool:
    """Whether a broker cannot start in this process: trio does not run in a process that gevent has patched,
    kio cannot be imported while freezegun has replaced `datetime`, and pyfakefs has replaced the files."""
    monkey: Any = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_anything_patched():
        return True
    if _active_patcher() is not None:
        return True
    return "freezegun" in sys.modules and datetime.datetime.__name__ == "FakeDatetime"


def real_files() -> AbstractContextManager[Any]:
    """Pause pyfakefs, so that the operating system's files are used meanwhile."""
    patcher = _active_patcher()
    if patcher is None:
        return nullcontext()
    pause: AbstractContextManager[Any] = sys.modules[_PYFAKEFS].Pause(patcher)
    return pause


def _active_patcher() -> Any:
    pyfakefs: Any = sys.modules.get(_PYFAKEFS)
    patcher = None if pyfakefs is None else pyfakefs.Patcher.PATCHER
    return patcher if patcher is not None and patcher.is_patching else None


def any_uses_fake_files(tests: Iterable[Any]) -> bool:
    """Whether one of pytest's items uses pyfakefs by a fixture or by its TestCase."""
    pyfakefs: Any = sys.modules.get(_PYFAKEFS)
    if pyfakefs is None:
        return False
    return any(
        not _FAKE_FILE_FIXTURES.isdisjoint(getattr(test, "fixturenames", ()))
        or issubclass(getattr(test, "cls", None) or object, pyfakefs.TestCaseMixin)
        for test in tests
    )
