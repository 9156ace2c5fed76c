"""Importing kio without hypothesis, and its schemas without what they compile.

kio's phantom types import hypothesis wherever it is installed, to register strategies for tests.
That is 0.25 s and 60 MB that no broker wants in a development install, so whoever imports kio first
imports this module before it. Nothing is hidden from a process that has hypothesis loaded already.

kio has a frozen dataclass for each struct of each version, and for each of these the standard library
would compile six methods: milliseconds for every message that is met for the first time, on the loop.
So in its schemas `dataclass` means what our records are, which share their methods (`seams.values`).
That is so in these modules alone; all that others find there is as ever, but that a change of a field
is not refused.
"""

from __future__ import annotations

import builtins
import dataclasses
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType, SimpleNamespace
from typing import Any

from odradek.seams.values import bare_dataclass, compared_by_fields

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # `import hypothesis` now fails
    try:
        import kio.static._phantom
    finally:
        del sys.modules["hypothesis"]

import kio.static._phantom  # noqa: F401

SCHEMAS = "kio.schema."


def _dataclass(*, frozen: bool, slots: bool, kw_only: bool) -> Callable[[type[Any]], type[Any]]:
    """With kio's arguments: another way of making them would fail here."""
    assert frozen, "a schema that changes"
    assert slots, "a schema without slots"
    return lambda cls: compared_by_fields(bare_dataclass(cls, kw_only=kw_only))


_DATACLASSES = SimpleNamespace(dataclass=_dataclass, field=dataclasses.field)


def _import(name: str, *how: Any) -> Any:
    return _DATACLASSES if name == "dataclasses" else builtins.__import__(name, *how)


_BUILTINS = {**vars(builtins), "__import__": _import}


class _SchemaLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = _BUILTINS
        super().exec_module(module)


class _Schemas:
    """The finder of kio's schemas, before all others."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(SCHEMAS):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _SchemaLoader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Schemas)
