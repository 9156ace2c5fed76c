"""Rules of `promtool check metrics`, and that no family mixes sets of labels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

LINE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\.)*"(?:,[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\.)*")*\})?'
    r" (-?[0-9.e+-]+)"
)
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
CAMEL_CASE = re.compile(r"[a-z][A-Z]")
TYPES = ("counter", "gauge", "summary", "histogram", "untyped")
UNITS = {
    "ms": "seconds", "milliseconds": "seconds", "us": "seconds", "ns": "seconds", "sec": "seconds",
    "minutes": "seconds", "min": "seconds", "hours": "seconds", "days": "seconds", "weeks": "seconds",
    "kb": "bytes", "mb": "bytes", "gb": "bytes", "kilobytes": "bytes", "megabytes": "bytes",
    "kibibytes": "bytes", "mebibytes": "bytes", "bits": "bytes", "percent": "ratio",
}  # fmt: skip
"""Units that Prometheus does not use, and those that it uses."""


def lint(text: str) -> list[str]:
    """Return the problems of a page in the text format."""
    return list(_problems(text))


def _problems(text: str) -> Iterator[str]:
    helps: dict[str, str] = {}
    types: dict[str, str] = {}
    label_sets: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    seen: set[str] = set()
    finished: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            _, keyword, name, rest = line.split(" ", 3)
            of_keyword = helps if keyword == "HELP" else types
            if name in of_keyword:
                yield f"{name} has two lines {keyword}"
            of_keyword[name] = rest
            continue
        match = LINE.fullmatch(line)
        if match is None:
            yield f"{line} is not a sample"
            continue
        if match[1] + (match[2] or "") in seen:
            yield f"{match[1]}{match[2] or ''} is reported twice"
        seen.add(match[1] + (match[2] or ""))
        family = _family(match[1], types)
        if family not in finished[-1:]:
            if family in finished:
                yield f"{family} is not contiguous"
            finished.append(family)
        label_sets[family].add(tuple(sorted(name for name, _ in LABEL.findall(match[2] or ""))))
    for family in finished:
        yield from _problems_of_name(family, types.get(family, ""))
        if not helps.get(family, "").strip():
            yield f"{family} has no help"
        if len(label_sets[family]) > 1:
            yield f"{family} mixes the labels {sorted(label_sets[family])}"
        for name in sorted({name for names in label_sets[family] for name in names}):
            if CAMEL_CASE.search(name):
                yield f"the label {name} of {family} is not in snake case"
            if (name, types.get(family)) in (("le", "counter"), ("le", "gauge"), ("le", "summary")):
                yield f"{family} has the label le and is no histogram"
            if name == "quantile" and types.get(family) != "summary":
                yield f"{family} has the label quantile and is no summary"


def _family(name: str, types: dict[str, str]) -> str:
    """Name of the family: that of a summary without the suffix of its samples."""
    for suffix in ("_sum", "_count", "_bucket"):
        family = name.removesuffix(suffix)
        if family != name and types.get(family) in ("summary", "histogram"):
            return family
    return name


def _problems_of_name(name: str, kind: str) -> Iterator[str]:
    words = name.split("_")
    if kind not in TYPES:
        yield f"{name} has no type"
    if (kind == "counter") != name.endswith("_total"):
        yield f"{name} is a {kind}: only counters end in _total, and all do"
    if name.endswith(("_count", "_sum", "_bucket")):
        yield f"{name} has a suffix of summaries and histograms"
    if CAMEL_CASE.search(name) or name != name.lower():
        yield f"{name} is not in snake case"
    if ":" in name:
        yield f"{name} has a colon, which is for recording rules"
    for word in words:
        if word in TYPES:
            yield f"{name} has a type in its name"
        if word in UNITS:
            yield f"{name} is in {word}, not in {UNITS[word]}"
