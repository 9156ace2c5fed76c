"""Sections of docs/performance.md that have their own results file, `bench/results/SECTION-VERSION.json`."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.bench.goals import (
    CLUSTER_GOALS,
    DISKLESS_GOALS,
    REBUILD_GOALS,
    TABLE_GOALS,
    TIERED_GOALS,
    Goal,
)
from odradek.seams.values import value_class


class UnknownSection(ValueError):
    """The name of a results file does not begin with the name of a section."""


@value_class
class Section:
    """A section's title, texts and goals. In `introduction`, `{file}` is the name of the results file."""

    title: str
    introduction: str
    goals: Sequence[Goal]
    reading: str = ""
    clusters: bool = False
    """Whether its results are only about clusters."""


TABLES = """\
Apache Kafka and this broker store two topics with the same bytes. `python -m odradek.bench.tables` starts Spark
applications that read them in alternation. `odradek` is this project's Spark source, which reads remote segments from
the object store, and the last segment of each partition from the broker. `kafka` is Spark's own Kafka connector with
Apache Kafka. In the other columns, this project's source reads only from this broker, or the connector reads from this
broker. Every sample is in [{file}](../bench/results/{file}).
"""

READING_TABLES = """\
- A rate is the number of decompressed bytes of keys and values per second, measured by the application. Rates include planning and
  exclude the start of Java and Spark. `cpu_s` is the CPU time of all processes of the application (the driver's
  Python, its JVM, the workers). `broker_cpu_s` is the CPU time of the broker, which had copied its segments to the
  object store before the run.
- "Count": this project's source has `.schema("partition int NOT NULL, offset long NOT NULL")`. The connector's
  columns cannot be chosen. "Count by batches" adds up the rows of `rows=batches`, one row per batch.
- "One hour of thirty days, by a filter": this project's source has `pushFilters`, which passes the filter to the
  source, and `maxLateness=0`, which states that records are ordered by time, so it does not read records after the
  hour. The connector has no such options and applies the filter to all records.
- "All columns" writes to Spark's sink that discards rows.
- This project's source requires Spark 4.2 or later. The connector runs on 4.0.0, the last release of Spark 4 whose
  dependencies were all available where this was measured. A part of the difference may come from Spark.
- Batches have 16 KiB, as with Java's producer. Every result is compared with what was written. Before each run,
  memory is warm and the logs to be read are in the page cache. The brokers, the object store and Spark share the
  machine. With one core, Spark runs one task at a time, and this project's decoder is a second process.
"""

CLUSTERS = """\
Three brokers, which are also the controllers, run on the same machine as their clients. Apache Kafka's brokers are
three JVMs. Every sample is in [{file}](../bench/results/{file}).
"""

TIERED = """\
Three brokers and one controller. The measurement shows how much tiered storage delays producers.
The object store is a directory. Apache Kafka uses LocalTieredStorage, which does not sync its files to the disk; this
broker does. Every sample is in [{file}](../bench/results/{file}).
"""

REBUILD = """\
One of the three brokers is stopped, its data is deleted, and it is started again. `plain_s` is the time until its
replicas are in sync without tiered storage. `tiered_s` is the same time with tiered storage and only 64 MiB of each
broker's log on local disk. Both include the start of the process. The p99 is the latency of producers with acks=all
during that time. Every sample is in [{file}](../bench/results/{file}).
"""

DISKLESS = """\
Three brokers and one controller. The object store is a directory whose files are synced. A broker writes an object every
250 ms or 8 MiB, and acknowledges its records when the object is committed. `excess_ms` is the p99 of acknowledgements
without 250 ms and the p99 of puts that the benchmark itself makes into the same directory at the same time. The classic
topic has three replicas on the same brokers. An idempotent producer has at most five requests in flight, so that it
waits for the commit interval most of the time. Every sample is in [{file}](../bench/results/{file}).
"""

SECTIONS = {
    "clusters": Section("Three brokers", CLUSTERS, CLUSTER_GOALS, clusters=True),
    "tiered": Section("Tiered storage", TIERED, TIERED_GOALS, clusters=True),
    "rebuild": Section("An emptied broker", REBUILD, REBUILD_GOALS, clusters=True),
    "diskless": Section("Diskless topics", DISKLESS, DISKLESS_GOALS, clusters=True),
    "tables": Section("Topics as Spark tables", TABLES, TABLE_GOALS, READING_TABLES),
}
"""Key: the part of the file's name before the first hyphen."""


def section_of(file: str) -> Section:
    """Return the section of a results file. Raises UnknownSection."""
    found = SECTIONS.get(file.partition("-")[0])
    if found is None:
        raise UnknownSection(
            f"{file}: unknown section; the name must begin with one of {', '.join(SECTIONS)}, and a hyphen"
        )
    return found
