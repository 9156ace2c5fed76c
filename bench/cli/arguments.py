"""Which peers and workloads are meant by what the command line says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from odradek.bench.model import Limit, Peer, Workload
from odradek.bench.results_file import InvalidResults, Results, load
from odradek.cli.errors import CommandFailed


class NotKnown(Exception):
    """There is no peer or workload like that; the text has those that there are."""


def choose_peers(known: Mapping[str, Peer], names: Sequence[str] | None) -> list[Peer]:
    """The peers of these names, in their order; without names, those that are measured by default."""
    if names is None:
        return [peer for peer in known.values() if peer.default]
    for name in names:
        if name not in known:
            raise NotKnown(f"no peer {name!r}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def choose_workloads(known: Sequence[Workload], patterns: Sequence[str] | None) -> list[Workload]:
    """The workloads whose names match one of the patterns, in the order in which they are run;
    without patterns, those that are run by default."""
    if patterns is None:
        return [each for each in known if each.default]
    for pattern in patterns:
        if not any(fnmatchcase(each.name, pattern) for each in known):
            raise NotKnown(f"no workload is like {pattern!r}; odradek bench list shows them")
    return [each for each in known if any(fnmatchcase(each.name, each_p) for each_p in patterns)]


def choose_limits(known: Sequence[Limit], workloads: Sequence[Workload]) -> list[Limit]:
    """The limits that a metric of these workloads is to be seen against."""
    wanted = {metric.limit_name for workload in workloads for metric in workload.metrics}
    return [each for each in known if each.name in wanted]


def load_results(name: str) -> Results:
    """Raises CommandFailed with what is wrong with the file."""
    try:
        return load(Path(name))
    except InvalidResults as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{name} can't be read: {error.strerror or error}") from None
