"""Reads the product's source files and describes their functions.

The product is every folder at the root of the repository that holds Python files, except the folders
in `LEFT_OUT`. A folder that is added later, such as `cli/`, is found without a change here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "odradek"
LEFT_OUT = frozenset({"tests", "docker"})

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A source file. `name` is its dotted name and `path` is relative to the root."""

    name: str
    path: PurePath
    lines: int
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def is_program(self) -> bool:
        return self.path.name == "__main__.py"


@dataclass(frozen=True)
class Function:
    """A function or a method. `lines` runs from `def` to the last line, the docstring included."""

    name: str
    place: str
    lines: int
    parameters: int


def product_folders(root: Path = ROOT) -> list[Path]:
    """Return the folders at the root that hold the product's code."""
    return sorted(
        folder
        for folder in root.iterdir()
        if folder.is_dir()
        and not folder.name.startswith(".")
        and folder.name not in LEFT_OUT
        and any(folder.glob("*.py"))
    )


def read_modules(root: Path = ROOT) -> list[Module]:
    """Parse every source file of the product, in the order of their paths."""
    paths = (path for folder in product_folders(root) for path in folder.rglob("*.py"))
    return [_read_module(root, path) for path in sorted(paths)]


def _read_module(root: Path, file: Path) -> Module:
    path = file.relative_to(root)
    parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
    text = file.read_text(encoding="utf-8")
    name = ".".join((NAMESPACE, *parts))
    return Module(name, path, len(text.splitlines()), ast.parse(text, str(file)))


def functions(module: Module) -> Iterator[Function]:
    """Yield the functions of a module, nested functions and methods included.

    Constructors that a class decorator generates have no `def`, and so they are not among them.
    """
    yield from _functions_in(module, module.tree, prefix="", in_class=False)


def _functions_in(
    module: Module, node: ast.AST, *, prefix: str, in_class: bool
) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode):
            yield _describe(module, child, prefix=prefix, in_class=in_class)
            inner = f"{prefix}{child.name}."
            yield from _functions_in(module, child, prefix=inner, in_class=False)
        elif isinstance(child, ast.ClassDef):
            inner = f"{prefix}{child.name}."
            yield from _functions_in(module, child, prefix=inner, in_class=True)
        else:
            yield from _functions_in(module, child, prefix=prefix, in_class=in_class)


def _describe(module: Module, node: FunctionNode, *, prefix: str, in_class: bool) -> Function:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    place = f"{module.path}:{node.lineno}"
    return Function(prefix + node.name, place, lines, _count_parameters(node, in_class=in_class))


def _count_parameters(node: FunctionNode, *, in_class: bool) -> int:
    """Count every parameter but `self` or `cls`; `*args` and `**kwargs` are one each."""
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    variable = [each for each in (given.vararg, given.kwarg) if each is not None]
    is_bound = in_class and not any(
        isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list
    )
    return len(named) + len(variable) - (1 if is_bound and named else 0)
