"""docs/conformance.md, made from the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.conformance.brokers import TITLES
from tests.conformance.model import Outcome, Suite
from tests.conformance.results import Kept, Results

HEAD = """\
# Conformance

What other people's test suites say of Odradek, and of Apache Kafka on the same machine with the same
settings. `make conformance` fetches the suites from their registries into the cache directory, builds
them, runs them one entry at a time against a broker in a process of its own, and writes this page
([the command](interop.md#other-peoples-suites)).

*Not applicable*: the entry can't be run against one broker set up as these are, or says itself that it
doesn't apply; the reason is given.
"""

Side = Mapping[str, Kept]


def page(suites: Sequence[Suite], results: Results) -> str:
    """The page, of the suites that have results."""
    sides = {
        suite.name: {broker: results.of(suite.name, broker) for broker in TITLES}
        for suite in suites
    }
    told = [suite for suite in suites if any(sides[suite.name].values())]
    parts = [HEAD, _summary(told, sides)]
    parts += [_suite(suite, sides[suite.name]) for suite in told]
    return "\n".join(parts)


def _summary(suites: Sequence[Suite], sides: Mapping[str, Mapping[str, Side]]) -> str:
    lines = [
        "| suite | version | broker | passed | failed | not applicable |",
        "|---|---|---|--:|--:|--:|",
    ]
    for suite in suites:
        for broker, side in sides[suite.name].items():
            counts = [_count(side, outcome) for outcome in Outcome]
            numbers = " | ".join(str(count) for count in counts)
            lines.append(
                f"| {suite.title} | {suite.version} | {_broker(broker, side)} | {numbers} |"
            )
    return "\n".join(lines) + "\n"


def _broker(broker: str, side: Side) -> str:
    versions = sorted({kept.broker_version for kept in side.values()})
    return f"{TITLES[broker]} {', '.join(versions)}" if versions else f"{TITLES[broker]}: not run"


def _count(side: Side, outcome: Outcome) -> int:
    return sum(kept.result.outcome is outcome for kept in side.values())


def _suite(suite: Suite, sides: Mapping[str, Side]) -> str:
    entries = list(dict.fromkeys(entry for side in sides.values() for entry in side))
    days = sorted({kept.day for side in sides.values() for kept in side.values()})
    settings = ", ".join(f"`{key}={value}`" for key, value in suite.settings.items())
    lines = [
        f"## {suite.title} {suite.version}",
        "",
        f"From {suite.source}; run {' to '.join(dict.fromkeys([days[0], days[-1]]))}.",
        f"Settings: {settings}." if settings else "No settings of its own.",
        "",
        f"| entry | {' | '.join(TITLES.values())} | |",
        f"|---|{'---|' * len(TITLES)}---|",
    ]
    lines += [_row(entry, sides) for entry in sorted(entries)]
    return "\n".join(lines) + "\n"


def _row(entry: str, sides: Mapping[str, Side]) -> str:
    cells, reasons = [], []
    for broker in TITLES:
        kept = sides[broker].get(entry)
        cells.append("not run" if kept is None else _cell(kept))
        if kept is not None and kept.result.reason:
            reasons.append((TITLES[broker], kept.result.reason))
    if len(reasons) == len(TITLES) and len({reason for _, reason in reasons}) == 1:
        why = reasons[0][1]
    else:
        why = "; ".join(f"{title}: {reason}" for title, reason in reasons)
    return f"| {entry} | {' | '.join(cells)} | {why} |"


def _cell(kept: Kept) -> str:
    result = kept.result
    if result.outcome is Outcome.NOT_APPLICABLE:
        return "not applicable"
    mark = "**failed**" if result.outcome is Outcome.FAILED else "passed"
    return f"{mark}, {result.seconds:.1f} s"
