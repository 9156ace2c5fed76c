"""What `value_class` promises: all that a frozen dataclass with slots does, but for who enforces it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import pytest

from odradek.seams.values import value_class


@value_class
class Span:
    start: int
    end: int = 7
    labels: tuple[str, ...] = field(default_factory=tuple)


@value_class
class Size:
    size: int


@value_class
class Nothing:
    pass


@value_class
class Named:
    name: str
    weight: int

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Reference:
    start: int
    end: int = 7
    labels: tuple[str, ...] = field(default_factory=tuple)


def test_equal_where_all_fields_are() -> None:
    assert Span(1) == Span(1, 7, ())
    assert Span(1) != Span(2)
    assert Size(1) == Size(1)
    assert Size(1) != Size(2)
    assert Nothing() == Nothing()


def test_never_equal_to_another_class() -> None:
    assert Span(1) != (1, 7, ())
    assert Size(1) != 1
    assert Nothing() != ()


@pytest.mark.parametrize("one", [Span(1), Size(3), Nothing()])
def test_equal_values_have_one_hash(one: object) -> None:
    assert {one: "found"}[pickle.loads(pickle.dumps(one))] == "found"


def test_unhashable_where_a_field_is() -> None:
    labels: Sequence[str] = ["a list"]
    with pytest.raises(TypeError):
        hash(Span(1, 2, labels))  # type: ignore[arg-type]


def test_looks_like_a_dataclass() -> None:
    assert repr(Span(1)) == repr(Reference(1)).replace("Reference", "Span")
    assert repr(Nothing()) == "Nothing()"
    assert [each.name for each in fields(Span)] == [each.name for each in fields(Reference)]
    assert replace(Span(1), end=9) == Span(1, 9)
    match Span(4, 5):
        case Span(start, end):
            assert (start, end) == (4, 5)


def test_has_no_room_for_other_attributes() -> None:
    assert not hasattr(Span(1), "__dict__")


def test_what_a_class_says_itself_stays() -> None:
    assert repr(Named("a", 1)) == "<a>"
    assert Named("a", 1) == Named("a", 2)
    assert hash(Named("a", 1)) == hash(Named("a", 2))
