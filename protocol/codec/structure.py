"""Structures of messages: fields in wire order with their types, tags, nullability and defaults.

They are derived from kio's dataclasses (one class per version) and from Odradek's (one class for all versions, see
`schemas.definition`), so that the compilers of readers and writers depend on neither.
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
"""Format for `struct` of each wire type of fixed size, and its default if the schema has none."""

_VARIABLE_DEFAULTS: dict[str, Any] = {"string": "", "bytes": b"", "records": None}


@value_class
class FieldPlan:
    """Wire format of one field.

    `kind` is the name of a primitive type, "string", "bytes", "records" or "struct". `of` is the structure of a struct.
    `optional_element` marks kio's arrays of UUIDs in which the zero UUID is read as None.
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
        """The `struct` format of a field whose size is fixed and whose bytes need no check, else None."""
        if self.is_array or self.tag is not None or self.kind not in PRIMITIVES:
            return None
        return PRIMITIVES[self.kind][0]


@value_class
class Structure:
    """A message or a struct in a message: untagged fields in wire order, then tagged fields by tag.

    `absent` are the fields of the class that this version does not encode, with their defaults. `unknown_names`
    returns the names that are not a field in any version, if the versions are known.
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
        """The minimum size of the encoded structure in bytes."""
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
    """The structure of a class of kio, with the structures of its structs."""
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
    """Type of a field without `| None` and `tuple[…, ...]`: (type, nullable, is array, nullable elements)."""
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
    """The structure of a stored record at a version, with the structures of its structs."""
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


def with_tagged_field(structure: Structure, field: FieldPlan) -> Structure:
    """The structure for a reader with one tagged field more, for which its entities have one slot more.

    The entities are equal to those without the field if the other fields are equal.
    """
    base = structure.entity_type
    names = structure.names

    def is_equal(entity: Any, other: object) -> bool:
        return isinstance(other, base) and all(
            getattr(entity, name) == getattr(other, name) for name in names
        )

    members = {"__slots__": (field.name,), "__module__": base.__module__, "__eq__": is_equal}
    entity_type = type(base.__name__, (base,), members)
    return Structure(
        entity_type=entity_type,
        flexible=structure.flexible,
        plain=structure.plain,
        tagged=(*structure.tagged, field),
        absent=structure.absent,
        unknown_names=lambda names: structure.unknown_names(names - {field.name}),
    )


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
