"""docs/performance.md, made from a results file: what was measured, and how to read it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from odradek.bench.goals import CLUSTER_GOALS, GOALS, Goal, standings
from odradek.bench.page_sections import Section, section_of
from odradek.bench.results_file import PeerRecord, Results, WorkloadResults
from odradek.bench.summary import cell, figure, measured_peers, number, ranged, remarks, titled

OF_STAGE = {
    "cluster": "three brokers, controllers too",
    "tiered": "three brokers and a controller, tiered",
}
ONE_CORE = "-1"
"""What the name of a workload ends with that is another one with half of the machine."""

INTRODUCTION = """\
# Performance

<!-- Made by `odradek bench report RESULTS.json --with SECTION.json … --markdown docs/performance.md`, of the
     results named below; not to be edited. -->

This broker beside others, measured by `odradek bench run` (`pip install 'odradek[bench]'`, gcc and
librdkafka's headers): real workloads over real sockets, on one machine, in one run, the peers in turns
(A B C A B C ...). Every sample is in [{file}](../bench/results/{file}); `odradek bench report` draws
it, `odradek bench compare` holds two of them against each other.
"""

RENO = """ What it sends goes by TCP's Reno, as Odradek's listeners on loopback
  choose it; other brokers and clients have the system's choice, which the machine's line above names."""

READING = """\
## How to read it

- A figure is the median of the runs that count, with the smallest and the largest in brackets. A run
  during which other processes used more than {others:.0%} of a core was repeated; where every run was
  like that the figure has a star, and is worth less.
- A percentage is how close a figure comes to what the machine does with no broker in between: the same
  bytes from a socket to a file and back, a round trip of a few bytes, a record to another process and back
  every millisecond, as much written to the disk, measured in the same run. What is compressed, and what waits behind others, has none.
- "No broker" is a bare loop in Python on this machine, in the same run: `recv_into` and `write`,
  `sendfile`, a few bytes there and back, asked by the client that asks the brokers, or a record there and back
  every millisecond, from when it was due: how long the machine itself keeps two processes waiting. Goals that are numbers were set on another machine; this is
  what they can be held against here.{reno}
- Client and brokers share the machine's {cores} cores. Where the client was at its limit (below, if it
  was) the rate is the client's; the broker's CPU seconds per GB tell brokers apart all the same.
- Throughput is of a C client on librdkafka, 1 KiB records unless it says otherwise, in MB (10^6 bytes)
  of records before compression. What is consumed was produced just before: it comes from the page
  cache, as it does for a consumer that keeps up, and not from a disk.
- Latency is from the moment at which a record was due to its arrival at a consumer. A record that waits
  behind others counts as late (no coordinated omission). `sender_p99_us` is how late the client was by
  itself: it is in the figures of all brokers.
- Of `requests-*` a connection's next request goes out when an answer is there (a closed loop): their p50 and p99
  are of requests that no other was waiting to make, and a broker that stands still is asked less meanwhile.
- Groups and topics are asked for over plain sockets: a client's own pauses are not in them, but for
  `group-assignment-librdkafka`, of which about 50 ms are librdkafka's.
- `odradek bench run --workloads NAME …` measures one of those in "Everything measured" alone.

## What it does not say

- One machine, loopback: the brokers of a cluster share it with each other and with their clients. Nothing
  about TLS, or a network between.
- Nobody waits for a disk: as in Kafka, acknowledged means in the page cache, unless `flush.messages`
  says otherwise. A run is shorter than the time after which the kernel writes back in earnest.
- There is no latency beside a recovery: like Apache Kafka, this broker recovers all its logs before it
  answers its listeners, and a log directory that failed comes back by a restart. What a client waits
  for is what `recovery-100mb` and `recovery-1000mb` measure: from a kill -9's restart to the first record
  taken.
- A JVM gets warmer with hours than with what it has here: on one broker {warm_ups} uncounted and {rounds}
  counted rounds of most workloads; clusters are new in each run, with some seconds of the same load before
  what counts (`warm_up_s` in the results). Peers that keep nothing (librdkafka's mock has a few MB of each
  partition, kfake in memory) stand for the limit of a fake, where they are measured.
- Figures of two machines can't be compared; those of one, on two days, only if nothing else ran.
"""


def performance_page(
    results: Results, file: str, further: Mapping[str, Results] | None = None
) -> str:
    """The page; `file` is the name of the results in bench/results, as are the names of `further` ones,
    which say what section they are. Raises UnknownSection."""
    settings = results.settings
    return "\n".join(
        [
            INTRODUCTION.format(file=file),
            *_circumstances(results),
            "## Goals",
            "",
            *_goals(results, [*GOALS, *_those_measured(results, CLUSTER_GOALS)]),
            "",
            "## Everything measured",
            "",
            *_everything(results),
            "",
            *_limits(results),
            *_remarks(results),
            *(
                line
                for name, each in (further or {}).items()
                for line in _section(section_of(name), each, name)
            ),
            READING.format(
                others=float(settings.get("others_cores_max", 0.25)),
                cores=results.machine.get("cores", "?"),
                warm_ups=settings.get("warm_ups", "?"),
                rounds=settings.get("rounds", "?"),
                reno=RENO if "TCP" in results.machine else "",
            ),
        ]
    )


def _circumstances(results: Results, *, clusters_alone: bool = False) -> Iterator[str]:
    machine = ", ".join(f"{key} {value}" for key, value in results.machine.items())
    settings = ", ".join(f"{key} {value}" for key, value in results.settings.items())
    yield f"Measured on {results.started[:10]}: {machine}; {settings}."
    yield ""
    yield from _table(
        ["peer", "", "version", "set other than by default"],
        [row for peer in results.peers for row in _peer_rows(peer, clusters_alone)],
    )
    yield ""
    if results.remarks:
        yield "**To be known about this run as a whole:**"
        yield ""
        yield from (f"- {' '.join(line.split())}" for line in results.remarks)
        yield ""


def _peer_rows(peer: PeerRecord, clusters_alone: bool) -> Iterator[Sequence[str]]:
    """A row for each way in which a peer was run."""
    named = [peer.name, peer.title, peer.version or f"not measured: {peer.unavailable}"]
    if clusters_alone and not peer.clusters:
        yield [*named, "the results do not say how its clusters were set"]
    elif not clusters_alone:
        yield [*named, _set(peer.settings)]
    for stage, settings in peer.clusters.items():
        yield [peer.name, OF_STAGE.get(stage, stage), named[-1], _set(settings)]


def _set(settings: Mapping[str, str]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in settings.items())


def _section(section: Section, results: Results, file: str) -> Iterator[str]:
    yield f"## {section.title}"
    yield ""
    yield section.introduction.format(file=file)
    yield from _circumstances(results, clusters_alone=section.clusters)
    yield from _goals(results, section.goals)
    yield ""
    yield from _everything(results)
    yield ""
    yield from _cores(results)
    yield from _remarks(results)
    if section.reading:
        yield section.reading


def _cores(results: Results) -> Iterator[str]:
    """What the second core brings: of workloads that were also run with one, which are called the same and `-1`."""
    rows = []
    for one in results.workloads:
        both = results.workload(one.name.removesuffix(ONE_CORE))
        if both is None or both is one:
            continue
        for peer in one.peers:
            half, whole = _rate(results, one, peer), _rate(results, both, peer)
            if half and whole:
                values = [number(each) for each in (half, whole, whole / half)]
                rows.append([both.title, peer, both.metrics[0].unit, *values])
    if rows:
        yield from _table(["from one core to two", "peer", "unit", "one", "two", "times"], rows)
        yield ""


def _rate(results: Results, workload: WorkloadResults, peer: str) -> float | None:
    """Of its first metric, of which more is better."""
    metric, measured = workload.metrics[0], workload.peers.get(peer)
    found = None if measured is None else figure(results, metric, measured)
    return found.median if found is not None and metric.better == "higher" else None


def _those_measured(results: Results, goals: Sequence[Goal]) -> Iterator[Goal]:
    return (each for each in goals if results.workload(each.workload) is not None)


def _goals(results: Results, goals: Iterable[Goal]) -> Iterator[str]:
    found = list(standings(results, list(goals)))
    columns: list[tuple[str, list[str]]] = [
        ("", [each.goal.title for each in found]),
        ("unit", ["" if each.metric is None else each.metric.unit for each in found]),
        ("Odradek", ["-" if each.ours is None else ranged(each.ours) for each in found]),
        ("Apache Kafka", ["-" if each.kafka is None else ranged(each.kafka) for each in found]),
        ("no broker", ["" if each.alone is None else number(each.alone) for each in found]),
        ("must be", [each.must_words() for each in found]),
        ("aim", [each.aim_words() for each in found]),
        ("", [each.words for each in found]),
    ]
    shown = [(head, cells) for head, cells in columns if head != "no broker" or any(cells)]
    rows = list(zip(*(cells for _, cells in shown), strict=True))
    yield from _table([head for head, _ in shown], rows)


def _everything(results: Results) -> Iterator[str]:
    peers = measured_peers(results)
    rows = []
    for workload in results.workloads:
        for metric in workload.metrics:
            cells = [
                cell(results, metric, workload.peers[peer]) if peer in workload.peers else "-"
                for peer in peers
            ]
            rows.append(
                [
                    titled(results, workload),
                    f"`{workload.name}`",
                    f"`{metric.name}`",
                    metric.unit,
                    *cells,
                ]
            )
    yield from _table(["workload", "name", "metric", "unit", *peers], rows)


def _limits(results: Results) -> Iterator[str]:
    if not results.limits:
        return
    yield from _table(
        ["physical limit", "", "unit"],
        [
            [
                limit.title,
                limit.failure or number(statistics.median(value for value, _ in limit.samples)),
                limit.metric.unit,
            ]
            for limit in results.limits
        ],
    )
    yield ""


def _remarks(results: Results) -> Iterator[str]:
    said = remarks(results)[len(results.remarks) :]  # those of the run as a whole come first
    if said:
        yield "To be known about the workloads of this run:"
        yield ""
        yield from (f"- {' '.join(line.split())}" for line in said)
        yield ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(text.replace('|', '/') for text in row)} |"
