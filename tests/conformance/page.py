"""Generates docs/conformance.md from the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.conformance.brokers import TITLES
from tests.conformance.model import Outcome, Suite
from tests.conformance.results import Kept, Side

HEAD = """\
# Conformance

Results of the test suites of other projects against Odradek, and against Apache Kafka on the same machine with the
same settings. `make conformance` fetches the suites from their registries into the cache directory, builds them, runs
each entry against a broker in a separate process without other load, and writes this page
([the command](interop.md#test-suites-of-other-projects)).

An entry that fails is run again alone. *Passed later* counts the entries that passed only when they were run again.
Their rows contain the number of runs and the error of the first failed run. The commit is the one that was tested;
`git log COMMIT.. -- broker protocol storage replication client seams` lists the changes since then. *Not applicable*:
the entry can't be run against one broker with these settings, or the suite marks it as not applicable; the row
contains the reason.

[request-comparison.md](request-comparison.md) compares the responses of both brokers to generated requests.
"""

Sides = Mapping[str, Side]


def page(suites: Sequence[Suite], sides: Mapping[str, Sides]) -> str:
    """Page of the suites that have results; `sides` are by suite and broker."""
    with_results = [
        suite for suite in suites if any(side.kept() for side in sides[suite.name].values())
    ]
    parts = [HEAD, _summary(with_results, sides)]
    parts += [_suite(suite, sides[suite.name]) for suite in with_results]
    return "\n".join(parts)


def _summary(suites: Sequence[Suite], sides: Mapping[str, Sides]) -> str:
    lines = [
        "| suite | version | broker | passed at once | passed later | failed | not applicable |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for suite in suites:
        for broker, side in sides[suite.name].items():
            numbers = " | ".join(map(str, _counts(side)))
            lines.append(
                f"| {suite.title} | {suite.version} | {_broker(broker, side)} | {numbers} |"
            )
    return "\n".join(lines) + "\n"


def _broker(broker: str, side: Side) -> str:
    return f"{TITLES[broker]} {side.version}" if side.kept() else f"{TITLES[broker]}: not run"


def _counts(side: Side) -> tuple[int, int, int, int]:
    ended = [(kept.result.outcome, len(kept.runs) > 1) for kept in side.kept().values()]
    failed, excluded = (
        sum(outcome is wanted for outcome, _ in ended)
        for wanted in (Outcome.FAILED, Outcome.NOT_APPLICABLE)
    )
    return (
        ended.count((Outcome.PASSED, False)),
        ended.count((Outcome.PASSED, True)),
        failed,
        excluded,
    )


def _suite(suite: Suite, sides: Sides) -> str:
    entries = {entry for side in sides.values() for entry in side.kept()}
    days = sorted({kept.day for side in sides.values() for kept in side.kept().values()})
    settings = ", ".join(f"`{key}={value}`" for key, value in suite.settings.items())
    lines = [
        f"## {suite.title} {suite.version}",
        "",
        f"From {suite.source}; run {' to '.join(dict.fromkeys([days[0], days[-1]]))}.",
        f"Settings: {settings}." if settings else "No settings.",
        "",
        f"| entry | {' | '.join(TITLES.values())} | |",
        f"|---|{'---|' * len(TITLES)}---|",
    ]
    lines += [_row(entry, sides) for entry in sorted(entries)]
    return "\n".join(lines) + "\n"


def _row(entry: str, sides: Sides) -> str:
    cells, reasons = [], []
    for broker in TITLES:
        kept = sides[broker].kept().get(entry)
        cells.append("not run" if kept is None else _cell(kept))
        if kept is not None and kept.reason:
            reasons.append((TITLES[broker], kept.reason))
    if len(reasons) == len(TITLES) and len({reason for _, reason in reasons}) == 1:
        why = reasons[0][1]
    else:
        why = "; ".join(f"{title}: {reason}" for title, reason in reasons)
    return f"| {entry} | {' | '.join(cells)} | {why} |"


def _cell(kept: Kept) -> str:
    result, runs = kept.result, len(kept.runs)
    if result.outcome is Outcome.NOT_APPLICABLE:
        return "not applicable"
    if result.outcome is Outcome.FAILED:
        return f"**failed** in {runs} runs, {result.seconds:.1f} s"
    often = f" in {kept.passes} of {runs} runs" if runs > 1 else ""
    return f"passed{often}, {result.seconds:.1f} s"
