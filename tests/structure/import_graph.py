"""Finds which product modules import each other, and the cycles among them.

An import is read from the source, so that imports inside functions and under TYPE_CHECKING count.
`from package import module` is an import of the module, not of the package's `__init__`. Importing
`a.b.c` counts as an import of `a.b.c` alone, although Python runs the `__init__` of `a.b` first.
Modules that are loaded by a name in a string are not seen.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from tests.structure.sources import FunctionNode, Module

Graph = Mapping[str, Collection[str]]
"""A graph maps each module's name to the names that it leads to."""


class Kind(IntEnum):
    """When an import happens. Where a module imports another more than once, the lowest kind holds."""

    AT_LOAD = 0
    IN_FUNCTION = 1
    FOR_TYPES = 2


@dataclass(frozen=True)
class Import:
    """One module imports another; there is one such edge for each pair."""

    importer: str
    imported: str
    kind: Kind


def find_imports(modules: Iterable[Module]) -> list[Import]:
    """Return the imports of product modules by product modules."""
    by_name = {module.name: module for module in modules}
    kinds: dict[tuple[str, str], Kind] = {}
    for module in by_name.values():
        for node, kind in _import_nodes(module.tree, Kind.AT_LOAD):
            for target in _targets(module, node, by_name):
                pair = (module.name, target)
                kinds[pair] = min(kind, kinds.get(pair, kind))
    return [
        Import(importer, imported, kind)
        for (importer, imported), kind in sorted(kinds.items())
        if importer != imported
    ]


def _import_nodes(node: ast.AST, kind: Kind) -> Iterator[tuple[ast.Import | ast.ImportFrom, Kind]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, kind
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        for statement in node.body:
            yield from _import_nodes(statement, Kind.FOR_TYPES)
        for statement in node.orelse:
            yield from _import_nodes(statement, kind)
    else:
        inner = max(kind, Kind.IN_FUNCTION) if isinstance(node, FunctionNode) else kind
        for child in ast.iter_child_nodes(node):
            yield from _import_nodes(child, inner)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def _targets(
    module: Module, node: ast.Import | ast.ImportFrom, known: Collection[str]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    base = _base(module, node)
    for alias in node.names:
        submodule = f"{base}.{alias.name}"
        if submodule in known:
            yield submodule
        elif base in known:
            yield base


def _base(module: Module, node: ast.ImportFrom) -> str:
    """Return the name after `from`, in full where it is relative."""
    if not node.level:
        return node.module or ""
    levels = node.level - 1 if module.is_package else node.level
    parents = module.name.split(".")[: -levels or None]
    return ".".join([*parents, *([node.module] if node.module else [])])


def graph(modules: Iterable[Module], imports: Iterable[Import]) -> dict[str, list[str]]:
    """Return the imports as a graph from importers to what they import."""
    leads: dict[str, list[str]] = {module.name: [] for module in modules}
    for each in imports:
        leads[each.importer].append(each.imported)
    return leads


def cycles(leads: Graph) -> list[list[str]]:
    """Return the cycles, largest first: the groups of modules that all lead to each
    other (the strongly connected components of more than one module)."""
    backwards: dict[str, list[str]] = {name: [] for name in leads}
    for name, nexts in leads.items():
        for each in nexts:
            backwards[each].append(name)
    seen: set[str] = set()
    order = [each for name in leads for each in _finished(leads, name, seen)]
    seen = set()
    groups = [_finished(backwards, name, seen) for name in reversed(order)]
    found = [sorted(group) for group in groups if len(group) > 1]
    return sorted(found, key=lambda group: (-len(group), group))


def _finished(leads: Graph, start: str, seen: set[str]) -> list[str]:
    """Walk from `start` to what was not seen, depth first; return the modules in
    the order in which they are finished."""
    if start in seen:
        return []
    seen.add(start)
    done: list[str] = []
    path = [(start, iter(leads[start]))]
    while path:
        name, rest = path[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            done.append(name)
            path.pop()
        else:
            seen.add(following)
            path.append((following, iter(leads[following])))
    return done


def shortest_way_around(leads: Graph, group: Collection[str]) -> list[str]:
    """Return the shortest cycle in a group; its first module is the last one, too."""
    ways = (_way_back(leads, start, group) for start in sorted(group))
    return min(ways, key=len)


def _way_back(leads: Graph, start: str, group: Collection[str]) -> list[str]:
    ways = deque([[start]])
    seen: set[str] = set()
    while ways:
        way = ways.popleft()
        for following in leads[way[-1]]:
            if following == start:
                return [*way, start]
            if following in group and following not in seen:
                seen.add(following)
                ways.append([*way, following])
    raise ValueError(f"{start} is in no cycle")
