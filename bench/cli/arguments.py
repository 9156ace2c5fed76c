"""Selects peers, workloads and limits by name, and loads the results files named on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from odradek.bench.model import Limit, Peer, Workload
from odradek.bench.results_file import InvalidResults, Results, load
from odradek.cli.errors import CommandFailed


class UnknownChoice(Exception):
    """No peer or workload has this name. The text lists the existing ones."""


def choose_peers(known: Mapping[str, Peer], names: Sequence[str] | None) -> list[Peer]:
    """Return the peers with these names, in this order; None selects the default peers."""
    if names is None:
        return [peer for peer in known.values() if peer.default]
    for name in names:
        if name not in known:
            raise UnknownChoice(f"unknown peer {name!r}; the peers are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def choose_workloads(known: Sequence[Workload], patterns: Sequence[str] | None) -> list[Workload]:
    """Return the workloads that match one of the patterns, in run order; None selects the defaults."""
    if patterns is None:
        return [each for each in known if each.default]
    for pattern in patterns:
        if not any(fnmatchcase(each.name, pattern) for each in known):
            raise UnknownChoice(f"no workload matches {pattern!r}; odradek bench list shows them")
    return [each for each in known if any(fnmatchcase(each.name, each_p) for each_p in patterns)]


def choose_limits(known: Sequence[Limit], workloads: Sequence[Workload]) -> list[Limit]:
    """Return the limits that the metrics of these workloads are compared with."""
    wanted = {metric.limit_name for workload in workloads for metric in workload.metrics}
    return [each for each in known if each.name in wanted]


def load_results(name: str) -> Results:
    """Load a results file. Raises CommandFailed if it cannot be read."""
    try:
        return load(Path(name))
    except InvalidResults as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"cannot read {name}: {error.strerror or error}") from None
