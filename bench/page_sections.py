"""The parts of docs/performance.md that come from runs of their own: `bench/results/SECTION-VERSION.json`."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.bench.goals import CLUSTER_GOALS, REBUILD_GOALS, TABLE_GOALS, TIERED_GOALS, Goal
from odradek.seams.values import value_class


class UnknownSection(ValueError):
    """A results file is named as no section is."""


@value_class
class Section:
    """`introduction` names the results by `{file}`."""

    title: str
    introduction: str
    goals: Sequence[Goal]
    reading: str = ""
    clusters: bool = False
    """Whether it is of nothing else."""


TABLES = """\
Two topics with the same bytes in Apache Kafka and in this broker, read by Spark applications in turns, measured by
`python -m odradek.bench.tables`. `odradek` is this project's source over the store of tiered segments (and over
the broker for the last segment of each partition), `kafka` is Spark's own Kafka connector over Apache Kafka;
beside them our source over our broker alone, and the connector over our broker. Every sample is in
[{file}](../bench/results/{file}).
"""

READING_TABLES = """\
Rates are of the records' keys and values, decompressed, by the application's clock: planning is in them, the
start of Java and of Spark is not. `cpu_s` is of all the application's processes (the driver's Python, its JVM, the
workers), `broker_cpu_s` of the broker's, whose copies to the store were made before. "Count" asks our source with
`.schema("partition int NOT NULL, offset long NOT NULL")`, and the connector, whose columns cannot be chosen, as it is;
"count by batches" sums up our source's `rows=batches`, a row a batch. "One hour of thirty days, by a filter" sets
`pushFilters` on our side, by which the source sees the filter, and `maxLateness` to `0`, a promise that records are in
order, by which it leaves out what comes after the hour; the connector has no such options, and applies the filter to
all records. "All columns" goes into Spark's sink that throws
rows away. Our source wants Spark 4.2 or later; the connector runs on 4.0.0, the last of which all that it needs can be
fetched: some of the difference may be Spark's. Batches have 16 KiB, as Java's producer fills them. Every answer is
compared with what was written. Before each run the memory is warm, and the logs that are to be read are in
the page cache. Brokers, store and Spark share the machine; with one core Spark runs one task at a time, and
our source's decoder is a process beside Spark's.
"""

CLUSTERS = """\
Three brokers, which are the controllers too, on the same machine as their clients; Apache Kafka's are three JVMs.
Every sample is in [{file}](../bench/results/{file}).
"""

TIERED = """\
Three brokers under a controller, and KIP-405's question: what does tiering cost producers? The remote store is a
directory, of Kafka's LocalTieredStorage there; here its objects are synced to the disk, there they are not.
Every sample is in [{file}](../bench/results/{file}).
"""

REBUILD = """\
The same three brokers: one is stopped, what it has is removed, and it is started. `plain_s` is until it is in sync
without tiering, `tiered_s` with 64 MiB of the history on the brokers' disks, both with the start of the process in
it; the p99 is of producers with acks=all meanwhile. Every sample is in [{file}](../bench/results/{file}).
"""

SECTIONS = {
    "clusters": Section("Three brokers", CLUSTERS, CLUSTER_GOALS, clusters=True),
    "tiered": Section("Tiered storage", TIERED, TIERED_GOALS, clusters=True),
    "rebuild": Section("An emptied broker", REBUILD, REBUILD_GOALS, clusters=True),
    "tables": Section("Topics as Spark tables", TABLES, TABLE_GOALS, READING_TABLES),
}
"""By the beginning of a file's name."""


def section_of(file: str) -> Section:
    """Raises UnknownSection."""
    found = SECTIONS.get(file.partition("-")[0])
    if found is None:
        raise UnknownSection(
            f"{file} is no part of the page: its name begins with {', '.join(SECTIONS)}, and a hyphen"
        )
    return found
