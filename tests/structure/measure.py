"""Measures the structure of the product's code, for comparisons before and after a change.

    python -m tests.structure.measure [--json FILE] [--compare FILE] [--static]

It prints a table of numbers and then the findings behind them. `--json` writes both to a file, and
`--compare` shows the numbers of such a file next to the new ones. `--static` omits what needs a running
broker. All numbers are the same in every run, except the times and, by a few, the
calls in all Python code.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.structure.import_graph import Import, Kind, cycles, find_imports, graph
from tests.structure.sources import ROOT, Function, Module, functions, read_modules

SCHEMA = 1
LONG_FUNCTION_LINES = 40
MANY_PARAMETERS = 8
SMALL_MODULE_LINES = 100
SMALL_FILE_LINES = 30
SHOWN = 15
"""The number of functions that are printed; the JSON file has all of them."""

Number = int | float


@dataclass
class Report:
    """Numbers by name, and the findings behind some of them."""

    numbers: dict[str, Number] = field(default_factory=dict)
    findings: dict[str, list[str]] = field(default_factory=dict)
    shortened: set[str] = field(default_factory=set)
    """Of these findings only the first ones are printed."""


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    before = {} if options.compare is None else _load_numbers(options.compare)
    report = measure(static=options.static)
    print(table(report.numbers, before))
    for title, lines in report.findings.items():
        print(f"\n{_listed(title, lines, SHOWN if title in report.shortened else None)}")
    if options.json is not None:
        options.json.write_text(json.dumps(_document(report), indent=1) + "\n", encoding="utf-8")
    return 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.structure.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="where the result is written")
    parser.add_argument("--compare", metavar="FILE", type=Path, help="an earlier result")
    parser.add_argument("--static", action="store_true", help="start no broker")
    return parser.parse_args(words)


def measure(*, static: bool) -> Report:
    """Return the report on the product as it is in this checkout."""
    report = Report()
    modules = read_modules()
    _report_files(report, modules)
    _report_functions(report, [each for module in modules for each in functions(module)])
    report_imports(report, modules)
    if not static:
        _report_requests(report)
        _report_readiness(report)
    return report


def _report_files(report: Report, modules: Sequence[Module]) -> None:
    packages = [module for module in modules if module.is_package]
    small = sorted(
        (module.lines, str(module.path))
        for module in modules
        if not module.is_package and module.lines < SMALL_FILE_LINES
    )
    title = f"files under {SMALL_FILE_LINES} lines, without __init__.py"
    report.numbers |= {
        "Python files": len(modules),
        "lines": sum(module.lines for module in modules),
        title: len(small),
        "__init__.py files": len(packages),
        f"__init__.py files under {SMALL_FILE_LINES} lines": sum(
            package.lines < SMALL_FILE_LINES for package in packages
        ),
    }
    report.findings[title] = [f"{path}: {lines} lines" for lines, path in small]


def _report_functions(report: Report, found: Sequence[Function]) -> None:
    long = [each for each in found if each.lines > LONG_FUNCTION_LINES]
    wide = [each for each in found if each.parameters > MANY_PARAMETERS]
    long_title = f"functions over {LONG_FUNCTION_LINES} lines"
    wide_title = f"functions with more than {MANY_PARAMETERS} parameters"
    report.numbers |= {
        "functions": len(found),
        long_title: len(long),
        "lines of the longest function": max(each.lines for each in found),
        wide_title: len(wide),
        "parameters of the widest function": max(each.parameters for each in found),
    }
    long.sort(key=lambda each: (-each.lines, each.place))
    wide.sort(key=lambda each: (-each.parameters, each.place))
    report.findings[long_title] = [f"{each.place} {each.name}: {each.lines}" for each in long]
    report.findings[wide_title] = [f"{each.place} {each.name}: {each.parameters}" for each in wide]
    report.shortened |= {long_title, wide_title}


def report_imports(report: Report, modules: Sequence[Module]) -> None:
    imports = find_imports(modules)
    paths = {module.name: str(module.path) for module in modules}
    groups = cycles(graph(modules, imports))
    at_run_time = [each for each in imports if each.kind is not Kind.FOR_TYPES]
    run_time_groups = cycles(graph(modules, at_run_time))
    report.numbers |= {
        "import edges": len(imports),
        "import edges that are made only inside functions": _count(imports, Kind.IN_FUNCTION),
        "import edges that are made only for types": _count(imports, Kind.FOR_TYPES),
        "import cycles": len(groups),
        "files in import cycles": sum(map(len, groups)),
        "import cycles without imports for types": len(run_time_groups),
        "files in import cycles without imports for types": sum(map(len, run_time_groups)),
    }
    for number, group in enumerate(groups, start=1):
        title = f"import cycle {number}, {len(group)} files"
        report.findings[title] = [paths[name] for name in group]
    _report_single_importers(report, modules, imports)


def _count(imports: Iterable[Import], kind: Kind) -> int:
    return sum(each.kind is kind for each in imports)


def _report_single_importers(
    report: Report, modules: Sequence[Module], imports: Iterable[Import]
) -> None:
    """Exclude the `__init__` modules of packages, and programs, which are not meant to be imported."""
    importers = defaultdict(list)
    for each in imports:
        importers[each.imported].append(each.importer)
    paths = {module.name: module.path for module in modules}
    pairs = [
        (module, paths[importers[module.name][0]])
        for module in modules
        if len(importers[module.name]) == 1
        and module.lines < SMALL_MODULE_LINES
        and not (module.is_package or module.is_program)
    ]
    title = f"modules under {SMALL_MODULE_LINES} lines with one importer"
    same = [(module, path) for module, path in pairs if module.path.parent == path.parent]
    report.numbers |= {title: len(pairs), "of these, with the importer in their folder": len(same)}
    report.findings[title] = [
        f"{module.path} ({module.lines} lines) <- {path}" for module, path in pairs
    ]


def _report_requests(report: Report) -> None:
    from tests.structure.request_calls import count_requests

    for api, cost in count_requests().items():
        report.numbers |= {
            f"{api}: calls in the product": cost.calls,
            f"{api}: product files": len(cost.files),
            f"{api}: calls in all Python code": cost.all_calls,
            f"{api}: all files": cost.all_files,
        }
        report.findings[f"product files on the path of {api}"] = list(cost.files)
        report.shortened.add(f"product files on the path of {api}")


def _report_readiness(report: Report) -> None:
    from tests.structure.readiness import STARTS, measure_readiness

    found = measure_readiness()
    report.numbers |= {
        "serve: product modules at readiness": len(found.own_loaded),
        "serve: all modules at readiness": len(found.loaded),
        f"serve: ms to readiness, median of {STARTS}": round(median(found.ready_ms), 1),
        f"serve: ms to readiness, fastest of {STARTS}": round(min(found.ready_ms), 1),
        f"serve: processor ms to readiness, median of {STARTS}": round(
            median(found.processor_ms), 1
        ),
    }
    title = "product modules that serve has loaded at readiness"
    report.findings[title] = found.own_loaded
    report.shortened.add(title)


# What is printed and written


def table(numbers: Mapping[str, Number], before: Mapping[str, Number]) -> str:
    """Return the numbers as a Markdown table, next to earlier ones if there are any."""
    if not before:
        rows = [("measure", "now"), *((label, _text(now)) for label, now in numbers.items())]
        return "\n".join(_rows(rows))
    labels = dict.fromkeys((*numbers, *before))
    compared = [
        (
            label,
            _text(before.get(label)),
            _text(numbers.get(label)),
            _change(label, before, numbers),
        )
        for label in labels
    ]
    return "\n".join(_rows([("measure", "before", "now", "change"), *compared]))


def _change(label: str, before: Mapping[str, Number], now: Mapping[str, Number]) -> str:
    if label not in before or label not in now:
        return ""
    return f"{round(now[label] - before[label], 1):+}"


def _text(number: Number | None) -> str:
    return "" if number is None else str(number)


def _rows(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        first, *others = row
        cells = [first.ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            bars = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
            yield f"| {' | '.join(bars)} |"


def _listed(title: str, lines: Sequence[str], limit: int | None) -> str:
    shown = lines[:limit]
    rest = [] if len(shown) == len(lines) else [f"- and {len(lines) - len(shown)} more"]
    return "\n".join([f"## {title}", "", *(f"- {line}" for line in shown), *rest])


def _document(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "numbers": report.numbers,
        "findings": report.findings,
    }


def _commit() -> str | None:
    """Return the checkout's commit, with a `+` if there are changes; None without git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _load_numbers(path: Path) -> dict[str, Number]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("schema") != SCHEMA:
        raise SystemExit(f"{path} has another schema than {SCHEMA}")
    numbers: dict[str, Number] = document["numbers"]
    return numbers


if __name__ == "__main__":
    sys.exit(main())
