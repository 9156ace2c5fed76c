"""The page: everything that was found is on it, and it loads nothing."""

from __future__ import annotations

import html.parser
import re

import pytest

from odradek.bench.model import Histogram
from odradek.bench.report import merge, page, percentile_line
from odradek.bench.results_file import Measured
from tests.bench.test_results_file import full_results


class Elements(html.parser.HTMLParser):
    """Counts elements, and checks that they are closed in order."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_has_every_plot() -> None:
    text = page(full_results())
    elements = Elements()
    elements.feed(text)
    assert elements.open == []
    assert elements.counts["svg"] == 2 + 1  # a plot a metric, and the histogram
    for expected in (
        "produce, 1 KiB records",
        "110 (100\N{EN DASH}120) 55%",
        "FAILED",
        "left out",
        "no cargo",
    ):
        assert expected in text


def test_the_page_loads_nothing() -> None:
    text = page(full_results())
    assert not re.search(r"<(script|link|img|iframe|object)\b", text)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    assert "@import" not in text


def test_the_same_results_make_the_same_page() -> None:
    assert page(full_results()) == page(full_results())


def test_what_is_named_strangely_does_no_harm() -> None:
    results = full_results()
    results.remarks.append("<script>alert(1)</script>")
    assert "<script>" not in page(results)


def test_histograms_of_counted_runs_are_added_up() -> None:
    measured = full_results().workloads[0].peers["odradek"]
    assert merge(measured) == Histogram("µs", ((100.0, 90), (400.0, 10)))
    assert merge(Measured()) is None


def test_a_histogram_as_percentiles() -> None:
    xs, ys = percentile_line(Histogram("µs", ((100.0, 90), (400.0, 9), (900.0, 1))))
    assert ys == [100.0, 100.0, 400.0, 900.0]
    assert xs == [1.0, pytest.approx(10), pytest.approx(100), pytest.approx(200)]
