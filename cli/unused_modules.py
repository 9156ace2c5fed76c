"""What trio imports and no command uses is loaded by whoever uses it after all.

trio brings along TLS and DTLS, and with them OpenSSL. Neither is spoken here, and they are a twentieth of a
start. So modules of these names, empty yet, are there before trio asks for them. A module that imports itself
in a circle could not be loaded so.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

OF_TRIO = ("ssl", "hmac")
"""Of TLS, and of DTLS; both would load OpenSSL."""

_loading = RLock()


class LoadedWhenUsed(ModuleType):
    """A module that becomes itself when something in it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        with _loading:
            spec = self.__spec__
            if type(self) is LoadedWhenUsed and spec is not None and spec.loader is not None:
                spec.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
        return getattr(self, name)


def load_when_used(*names: str) -> None:
    """Those that are there already stay as they are."""
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is not None:
            module = sys.modules[name] = module_from_spec(spec)
            module.__class__ = LoadedWhenUsed


__all__ = ["OF_TRIO", "LoadedWhenUsed", "load_when_used"]
