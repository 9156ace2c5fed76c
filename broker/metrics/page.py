"""docs/metrics.md, written from the table: `python -m odradek.broker.metrics.page > docs/metrics.md`.

A test compares the page with this; who changes a row writes the page again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from odradek.broker.metrics.exposition import exported_name
from odradek.broker.metrics.table import (
    CLUSTER,
    LOGS,
    REPLICAS,
    TIERED,
    TOPICS,
    Kind,
    Metric,
)

_SECTIONS = (
    ("Topics", "What clients and followers send and are given.", TOPICS),
    ("Replicas", "Of this broker, as of the moment of the question.", REPLICAS),
    ("Logs and their directories", "What is on this broker's disks.", LOGS),
    (
        "Tiered storage",
        "Only where `remote.log.storage.system.enable` is true; the names in the second line are "
        "KIP-405's and KIP-852's, and those of Kafka before 4.2.",
        TIERED,
    ),
    ("The node and its cluster", "What a controller counts is of the whole cluster.", CLUSTER),
)
_INTRODUCTION = """\
<!-- Written by `python -m odradek.broker.metrics.page`; a test keeps it so. -->
# Metrics

`odradek serve --metrics HOST:PORT` (or the config `odradek.metrics.listener`) lets Prometheus read them
at `http://HOST:PORT/metrics`. They are some of Kafka's, spelt as its JMX exporter spells them by its usual
rules, so that panels and alerts on these go on working: names in lower case, what counts
*PerSec* in Kafka ends in `_total` (Prometheus makes rates of it), labels are the MBean's other keys.
There are none of requests, the log cleaner, the coordinators, network threads or a JVM.
A counter by topic exists without a label as well, as the broker's total; a total never falls, not even
when topics are deleted.

The endpoint asks nobody who they are: listen where only those come who may know the topics' names.

```yaml
scrape_configs:
  - job_name: odradek
    static_configs:
      - targets: ["127.0.0.1:9404"]
```

Alert on `kafka_controller_kafkacontroller_offlinepartitionscount`,
`kafka_server_replicamanager_underminisrpartitioncount`,
`kafka_log_logmanager_offlinelogdirectorycount`, and, with tiered storage,
`kafka_log_remote_remotelogmanager_remotestoreaway`, and
`kafka_server_brokertopicmetrics_remotecopylagbytes` while it grows: local disks fill with what can't be
copied.

What a node does not run (tiered storage, or the controller, on a broker alone) has no metrics there.
Without an endpoint nothing is counted; with one a batch costs a few additions, and sums are made when
Prometheus asks.
"""


def page() -> str:
    """The whole page, with its last newline."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for title, about, metrics in _SECTIONS:
        yield f"## {title}\n"
        yield f"{about}\n"
        yield from _rows(metrics)
        yield ""


def _rows(metrics: Iterable[Metric]) -> Iterator[str]:
    for metric in metrics:
        labels = f" · by {', '.join(metric.labels)}" if metric.labels else ""
        yield f"- **`{exported_name(metric.mbean, metric.kind)}`** · {metric.kind.value}{labels}  "
        for other in metric.also:
            yield f"  `{exported_name(other, metric.kind)}`  "
        unit = "" if metric.kind is not Kind.TIMER else " `_count` and `_sum`."
        yield f"  {metric.help}{unit} *{metric.mbean}*"


if __name__ == "__main__":
    sys.stdout.write(page())
