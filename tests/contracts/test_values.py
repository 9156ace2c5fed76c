"""`value_class` behaves like a frozen dataclass with slots, except that only the type checker enforces it.

`state_class` behaves like a dataclass with slots that is compared by identity.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace

import pytest

from odradek.seams.values import state_class, value_class


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


@value_class
class Account:
    name: str
    _: KW_ONLY
    secret: bytes = field(repr=False)
    seen_ms: int = field(default=-1, compare=False)


@value_class
class Options:
    _: KW_ONLY
    level: int
    depth: int = 2


@state_class
class Counter:
    step: int
    count: int = 0
    history: list[int] = field(default_factory=list)
    total: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.total = self.count * self.step


@state_class
class Titled(Counter):
    title: str = "plain"


def test_values_are_equal_if_all_fields_are() -> None:
    assert Span(1) == Span(1, 7, ())
    assert Span(1) != Span(2)
    assert Size(1) == Size(1)
    assert Size(1) != Size(2)
    assert Nothing() == Nothing()


def test_values_of_different_classes_are_unequal() -> None:
    assert Span(1) != (1, 7, ())
    assert Size(1) != 1
    assert Nothing() != ()


@pytest.mark.parametrize("one", [Span(1), Size(3), Nothing()])
def test_equal_values_have_the_same_hash(one: object) -> None:
    assert {one: "found"}[pickle.loads(pickle.dumps(one))] == "found"


def test_value_with_unhashable_field_is_unhashable() -> None:
    labels: Sequence[str] = ["a list"]
    with pytest.raises(TypeError):
        hash(Span(1, 2, labels))  # type: ignore[arg-type]


def test_value_class_is_a_dataclass() -> None:
    assert repr(Span(1)) == repr(Reference(1)).replace("Reference", "Span")
    assert repr(Nothing()) == "Nothing()"
    assert [each.name for each in fields(Span)] == [each.name for each in fields(Reference)]
    assert replace(Span(1), end=9) == Span(1, 9)
    match Span(4, 5):
        case Span(start, end):
            assert (start, end) == (4, 5)


def test_value_class_has_slots() -> None:
    assert not hasattr(Span(1), "__dict__")


def test_methods_of_the_class_are_kept() -> None:
    assert repr(Named("a", 1)) == "<a>"
    assert Named("a", 1) == Named("a", 2)
    assert hash(Named("a", 1)) == hash(Named("a", 2))


def test_fields_without_compare_and_repr() -> None:
    one = Account("a", secret=b"s", seen_ms=1)
    assert one == Account("a", secret=b"s", seen_ms=2)
    assert hash(one) == hash(Account("a", secret=b"s"))
    assert one != Account("a", secret=b"t", seen_ms=1)
    assert repr(one) == "Account(name='a', seen_ms=1)"


def test_keyword_only_fields() -> None:
    assert (Options(level=1).level, Options(level=1).depth, Options(level=1, depth=4).depth) == (
        1,
        2,
        4,
    )
    with pytest.raises(TypeError, match="keyword"):
        Account("a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Options(1)  # type: ignore[misc]


@pytest.mark.parametrize("again", range(2), ids=["compiled", "as compiled before"])
def test_wrong_argument_names_the_class_in_the_error(again: int) -> None:
    with pytest.raises(TypeError, match=r"Size\.__init__\(\) missing .* 'size'"):
        Size()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Span\.__init__\(\) got an unexpected .* 'begin'"):
        Span(begin=again)  # type: ignore[call-arg]


def test_state_class_compares_by_identity() -> None:
    one, other = Counter(2, 3), Counter(2, 3)
    assert one.total == 6
    assert one != other
    one.count += 1
    one.history.append(one.count)
    assert repr(one) == "Counter(step=2, count=4, history=[4], total=6)"
    assert other.history == []


def test_subclass_adds_fields() -> None:
    heir = Titled(2, title="n")
    assert (heir.step, heir.count, heir.title, heir.total) == (2, 0, "n", 0)
    assert Counter(5, 1).total == 5
