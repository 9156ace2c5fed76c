"""What a message consists of: fields in wire order, with types, tags, nullability and defaults.

Derived from kio's dataclasses (one class a version) and from ours (one class for all versions, see
`schemas.definition`), so that reading and writing know neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin
from uuid import UUID

from odradek.seams.values import value_class

PRIMITIVES: dict[str, tuple[str, Any]] = {
    "int8": ("b", 0),
    "int16": ("h", 0),
    "int32": ("i", 0),
    "int64": ("q", 0),
    "uint8": ("B", 0),
    "uint16": ("H", 0),
    "uint32": ("I", 0),
    "uint64": ("Q", 0),
    "float64": ("d", 0.0),
    "bool": ("?", False),
    "uuid": ("16s", UUID(int=0)),
    "error_code": ("h", 0),
    "timedelta_i32": ("i", 0),
    "timedelta_i64": ("q", 0),
    "datetime_i64": ("q", 0),
}
"""Wire types of a fixed size: their struct format, and the default where a schema names none."""

_VARIABLE_DEFAULTS: dict[str, Any] = {"string": "", "bytes": b"", "records": None}


@value_class
class FieldPlan:
    """One field as it is on the wire.

    `kind` is a primitive's name, "string", "bytes", "records" or "struct"; `of` the structure of a
    struct. `optional_element` is for arrays of UUIDs whose zero reads as None (kio's).
    """

    name: str
    kind: str
    default: Any
    is_array: bool = False
    nullable: bool = False
    tag: int | None = None
    of: Structure | None = None
    optional_element: bool = False

    @property
    def fixed_format(self) -> str | None:
        """The struct format of a field that is always of one size and needs no look at the bytes."""
        if self.is_array or self.tag is not None or self.kind not in PRIMITIVES:
            return None
        return PRIMITIVES[self.kind][0]


@value_class
class Structure:
    """A message or a struct within one: plain fields in wire order, then tagged ones by tag.

    `absent` are fields of the class that this version has not on the wire, with their defaults.
    `unknown_names` tells which of some names are no field's in any version, as far as it is known.
    """

    entity_type: type[Any]
    flexible: bool
    plain: tuple[FieldPlan, ...]
    tagged: tuple[FieldPlan, ...]
    absent: tuple[tuple[str, Any], ...]
    unknown_names: Callable[[set[str]], set[str]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in (*self.plain, *self.tagged))

    @property
    def min_bytes(self) -> int:
        """The fewest bytes that one of these takes on the wire."""
        return sum(_min_bytes(field, self.flexible) for field in self.plain) + self.flexible


def _min_bytes(field: FieldPlan, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.kind in PRIMITIVES:
        return FIXED_SIZES[PRIMITIVES[field.kind][0]]
    if field.kind == "struct":
        assert field.of is not None
        return 1 if field.nullable else field.of.min_bytes
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


FIXED_SIZES = {
    "b": 1, "B": 1, "?": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8, "d": 8, "16s": 16,
}  # fmt: skip


def kio_structure(
    entity_type: type[Any], unknown_names: Callable[[type[Any], set[str]], set[str]]
) -> Structure:
    """The structure of one of kio's classes, and of the structs within it."""
    flexible: bool = entity_type.__flexible__
    plans = [_kio_field(field, unknown_names) for field in fields(entity_type)]
    return _structure(
        entity_type, flexible, plans, (), lambda names: unknown_names(entity_type, names)
    )


def _kio_field(
    field: Field[Any], unknown_names: Callable[[type[Any], set[str]], set[str]]
) -> FieldPlan:
    base, nullable, is_array, optional_element = _unwrap(field.type)
    of = kio_structure(base, unknown_names) if _is_struct(base) else None
    kind = "struct" if of is not None else field.metadata["kafka_type"]
    if field.default is not MISSING:
        default = field.default
    elif is_array:
        default = ()
    elif of is not None:
        default = MISSING
    elif kind in PRIMITIVES:
        default = PRIMITIVES[kind][1]
    else:
        default = _VARIABLE_DEFAULTS[kind]
    return FieldPlan(
        name=field.name,
        kind=kind,
        default=default,
        is_array=is_array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        of=of,
        optional_element=optional_element,
    )


def _is_struct(annotation: Any) -> bool:
    return is_dataclass(annotation)


def _unwrap(annotation: Any) -> tuple[Any, bool, bool, bool]:
    """A field's type without `| None` and `tuple[…, ...]`: (type, nullable, array, element null)."""
    annotation, nullable = _without_none(annotation)
    if get_origin(annotation) is not tuple:
        return annotation, nullable, False, False
    element, element_nullable = _without_none(get_args(annotation)[0])
    return element, nullable, True, element_nullable


def _without_none(annotation: Any) -> tuple[Any, bool]:
    options = get_args(annotation)
    if type(None) not in options:
        return annotation, False
    (rest,) = (option for option in options if option is not type(None))
    return rest, True


def record_structure(
    record_type: type[Any], version: int, flexible: bool | None = None
) -> Structure:
    """The structure of one of our stored records at a version, and of the structs within it."""
    if flexible is None:
        flexible = version >= record_type.__flexible_from__
    plans = []
    absent = []
    for field in fields(record_type):
        spec = field.metadata
        if not spec["since"] <= version <= spec["until"]:
            absent.append((field.name, field.default))
            continue
        kafka_type: str = spec["kafka_type"]
        of = spec["of"]
        plans.append(
            FieldPlan(
                name=field.name,
                kind=kafka_type.removeprefix("[]"),
                default=field.default,
                is_array=kafka_type.startswith("[]"),
                nullable=spec["nullable"],
                tag=spec.get("tag"),
                of=None if of is None else record_structure(of, version, flexible),
            )
        )
    return _structure(record_type, flexible, plans, tuple(absent), lambda names: names)


def _structure(
    entity_type: type[Any],
    flexible: bool,
    plans: list[FieldPlan],
    absent: tuple[tuple[str, Any], ...],
    unknown_names: Callable[[set[str]], set[str]],
) -> Structure:
    tagged = [plan for plan in plans if plan.tag is not None]
    return Structure(
        entity_type=entity_type,
        flexible=flexible,
        plain=tuple(plan for plan in plans if plan.tag is None),
        tagged=tuple(sorted(tagged, key=lambda plan: plan.tag or 0)),
        absent=absent,
        unknown_names=unknown_names,
    )
