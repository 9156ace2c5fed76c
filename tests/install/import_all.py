"""Imports every module of the installed package, and prints how many."""

from __future__ import annotations

import importlib
import pkgutil

import odradek

names = [
    module.name
    for module in pkgutil.walk_packages(odradek.__path__, "odradek.")
    if not module.name.endswith("__main__")
]
for name in names:
    importlib.import_module(name)
print(len(names))
