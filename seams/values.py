"""Decorators for data classes that cost little at start: immutable values and mutable states.

A broker has about two hundred data classes, and `dataclass` would compile six methods for each, which would dominate the
start. Here all classes share these methods, and `__init__` is compiled when the first object of a class is made; most
classes have none before the first request. Only the type checker ensures that values do not change
(`dataclass_transform`), which also makes them faster to create. Otherwise they are data classes: `fields`,
`replace` and pattern matching work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(cls: type[T]) -> type[T]:
    """Same as `dataclass(frozen=True, slots=True)`, at a sixth of its cost."""
    return compared_by_fields(bare_dataclass(cls))


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def state_class(cls: type[T]) -> type[T]:
    """Same as `dataclass(slots=True, eq=False)`, at a quarter of its cost."""
    made = bare_dataclass(cls)
    if "__repr__" not in made.__dict__:
        made.__repr__ = _show  # type: ignore[method-assign]
    return made


def bare_dataclass(cls: type[T], *, kw_only: bool = False) -> type[T]:
    """Make a data class with slots and `__init__` but without other generated methods."""
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # otherwise `dataclass` inspects the signature to generate it
    made = dataclass(slots=True, init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    if "__init__" not in made.__dict__:
        made.__init__ = _compiled_when_called(made)  # type: ignore[method-assign]
    return made


def compared_by_fields(made: type[T]) -> type[T]:
    """Add comparison, hash and `repr` to a data class, unless the class defines them."""
    own = made.__dict__
    compared = [each.name for each in fields(made) if each.compare]  # type: ignore[arg-type]
    values = _getter(tuple(compared))

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    if "__eq__" not in own:
        made.__eq__ = equal  # type: ignore[method-assign]
    if "__hash__" not in own:
        made.__hash__ = lambda self: hash(values(self))  # type: ignore[method-assign]
    if "__repr__" not in own:
        made.__repr__ = _show  # type: ignore[method-assign]
    return made


def _getter(names: tuple[str, ...]) -> Any:
    return attrgetter(*names) if names else lambda _: ()


def _show(self: Any) -> str:
    shown = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compiled_when_called(made: type[Any]) -> Callable[..., None]:
    """An `__init__` that compiles the real one on its first call and replaces itself."""

    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807
        init = made.__init__ = _init(made)
        init(self, *values, **named)

    return __init__


_BY_FACTORY = object()
"""Default of a parameter whose value comes from a factory."""


def _init(made: type[Any]) -> Callable[..., None]:
    """Compile the `__init__` of `dataclass`, with one parameter for each field in order."""
    every = fields(made)
    is_plain = all(each.init and each.default_factory is MISSING for each in every)
    ways = {bool(each.kw_only) for each in every}
    if is_plain and len(ways) == 1 and not hasattr(made, "__post_init__"):
        defaults = {each.name: each.default for each in every if each.default is not MISSING}
        init = _plain_init([each.name for each in every], defaults, ways.pop())
    else:
        init = _compiled_init(made)
    init.__module__, init.__qualname__ = made.__module__, f"{made.__qualname__}.__init__"
    return init


def _plain_init(
    names: Sequence[str], defaults: Mapping[str, Any], is_by_keyword: bool
) -> FunctionType:
    """Make an `__init__` of `self.name = name` statements without compiling it.

    Classes with the same number of fields share one code object, in which only the names are replaced.
    """
    count = len(names)
    code = _code_for(count).replace(co_varnames=("self", *names), co_names=tuple(names))
    if not is_by_keyword:
        return FunctionType(code, {}, "__init__", tuple(defaults.values()))
    init = FunctionType(code.replace(co_argcount=1, co_kwonlyargcount=count), {}, "__init__")
    init.__kwdefaults__ = dict(defaults)
    return init


@cache
def _code_for(count: int) -> CodeType:
    parameters = "".join(f", p{index}" for index in range(count))
    body = "; ".join(f"self.a{index} = p{index}" for index in range(count))
    scope: dict[str, Any] = {}
    exec(f"def __init__(self{parameters}): {body}", scope)
    code: CodeType = scope["__init__"].__code__
    return code


def _compiled_init(made: type[Any]) -> FunctionType:
    scope: dict[str, Any] = {"BY_FACTORY": _BY_FACTORY}
    parameters, keywords, body = ["self"], list[str](), list[str]()
    for each in fields(made):
        name = parameter = value = each.name
        default = f"default_of_{name}"
        if each.default is not MISSING:
            scope[default] = each.default
            parameter = f"{name}={default}"
            value = name if each.init else default
        elif each.default_factory is not MISSING:
            scope[default] = each.default_factory
            parameter = f"{name}=BY_FACTORY"
            value = (
                f"{default}() if {name} is BY_FACTORY else {name}" if each.init else f"{default}()"
            )
        elif not each.init:
            continue  # `__post_init__` sets it
        if each.init:
            (keywords if each.kw_only else parameters).append(parameter)
        body.append(f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    if keywords:
        parameters += ["*", *keywords]
    lines = "\n    ".join(body or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n    {lines}", scope)
    init: FunctionType = scope["__init__"]
    return init
