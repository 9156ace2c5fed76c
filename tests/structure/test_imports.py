"""The product's modules import each other without cycles, and the search for cycles finds all kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure.import_graph import (
    Import,
    Kind,
    cycles,
    find_imports,
    graph,
    shortest_way_around,
)
from tests.structure.sources import functions, read_modules


def test_product_modules_have_no_import_cycles() -> None:
    """Imports inside functions and under TYPE_CHECKING count as well."""
    modules = read_modules()
    leads = graph(modules, find_imports(modules))
    found = [
        f"{len(group)} modules, such as {' -> '.join(shortest_way_around(leads, group))}"
        for group in cycles(leads)
    ]
    assert not found, "\n".join(found)


def _write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / "broker" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def _groups(root: Path) -> list[list[str]]:
    modules = read_modules(root)
    return cycles(graph(modules, find_imports(modules)))


@pytest.mark.parametrize(
    "text",
    [
        "from odradek.broker import one",
        "from odradek.broker.one import VALUE",
        "import odradek.broker.one",
        "from . import one",
        "from .one import VALUE",
        "def use():\n    from odradek.broker import one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from odradek.broker import one",
        "import typing\nif typing.TYPE_CHECKING:\n    from odradek.broker.one import VALUE",
        "try:\n    from odradek.broker.one import VALUE\nexcept ImportError:\n    pass",
    ],
)
def test_import_cycle_is_found_for_every_kind_of_import(tmp_path: Path, text: str) -> None:
    _write(tmp_path, __init__="", one="from odradek.broker.two import VALUE", two=text)
    assert _groups(tmp_path) == [["odradek.broker.one", "odradek.broker.two"]]


def test_import_of_a_submodule_is_no_import_of_its_package(tmp_path: Path) -> None:
    _write(
        tmp_path, __init__="from odradek.broker.two import VALUE", one="", two="from . import one"
    )
    assert _groups(tmp_path) == []


def test_module_adjacent_to_a_cycle_is_not_part_of_it(tmp_path: Path) -> None:
    _write(tmp_path, a="from . import b", b="from . import c", c="from . import b, d", d="")
    assert _groups(tmp_path) == [["odradek.broker.b", "odradek.broker.c"]]


def test_shortest_cycle_is_returned() -> None:
    leads = {"a": ["b"], "b": ["c"], "c": ["a", "b"]}
    assert shortest_way_around(leads, ["a", "b", "c"]) == ["b", "c", "b"]


def test_module_imported_twice_has_the_earliest_kind(tmp_path: Path) -> None:
    text = "def use():\n    from . import two\nfrom . import two"
    _write(tmp_path, one=text, two="")
    found = find_imports(read_modules(tmp_path))
    assert found == [Import("odradek.broker.one", "odradek.broker.two", Kind.AT_LOAD)]


def test_parameter_count_excludes_self_and_cls(tmp_path: Path) -> None:
    text = """
class Each:
    def method(self, a, /, b, *args, c, **kwargs): ...
    @classmethod
    def of(cls, a): ...
    @staticmethod
    def plain(a):
        def inner(self): ...
"""
    _write(tmp_path, one=text)
    (module,) = read_modules(tmp_path)
    counted = {each.name: (each.parameters, each.lines) for each in functions(module)}
    assert counted == {
        "Each.method": (5, 1),
        "Each.of": (1, 1),
        "Each.plain": (1, 2),
        "Each.plain.inner": (1, 1),
    }
