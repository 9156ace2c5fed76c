"""docs/configuration.md, written from the table: `python -m odradek.broker.config.page > …`.

A test compares the page with this; who changes a row writes the page again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from odradek.broker.config import (
    broker_groups,
    broker_kraft,
    broker_logs,
    broker_metrics,
    broker_network,
    broker_remote,
    broker_replication,
    broker_security,
    broker_share_groups,
    broker_transactions,
    client_metrics_configs,
    group_configs,
    topic_configs,
)
from odradek.broker.config.server_config import STANDALONE, TEST_NODE
from odradek.broker.config.table import ConfigKey, UpdateMode
from odradek.broker.config.tables import DYNAMIC_ONLY

_SECTIONS = (
    ("Node and quorum", broker_kraft, broker_kraft.KRAFT),
    ("Network", broker_network, broker_network.NETWORK),
    ("Logs", broker_logs, broker_logs.LOGS),
    ("Replication", broker_replication, broker_replication.REPLICATION),
    ("Groups", broker_groups, broker_groups.GROUPS),
    (
        "Share and streams groups",
        broker_share_groups,
        broker_share_groups.SHARE_AND_STREAMS_GROUPS,
    ),
    ("Transactions", broker_transactions, broker_transactions.TRANSACTIONS),
    ("Metrics and quotas", broker_metrics, broker_metrics.METRICS),
    ("Tiered storage", broker_remote, broker_remote.REMOTE),
    ("Security", broker_security, broker_security.SECURITY),
)
_OTHERS = (
    ("Topic configs", topic_configs, topic_configs.TOPIC_ROWS),
    ("Group configs", group_configs, group_configs.GROUP_ROWS),
    (
        "Client metrics configs",
        client_metrics_configs,
        client_metrics_configs.CLIENT_METRICS_ROWS,
    ),
)
_MODES = {
    UpdateMode.READ_ONLY: "at start",
    UpdateMode.PER_BROKER: "dynamic, per broker",
    UpdateMode.CLUSTER_WIDE: "dynamic",
}

_INTRODUCTION = """\
<!-- Written by `python -m odradek.broker.config.page`; a test keeps it so. -->
# Configuration

Odradek has the configs of Apache Kafka 4.3: the same names, types, defaults and limits, in the
same `server.properties`. Those that nothing acts on yet are marked *no effect yet*: they are
accepted, stored and reported, so that a file written for Kafka is taken as it is. Keys that Kafka
does not know either are named in one warning at start; a value that Kafka would refuse is refused
with the reason, and `odradek serve` exits with code 2.

A broker config is set, the higher winning:

1. dynamically for one broker (`odradek configs`, `kafka-configs.sh --entity-type brokers`);
2. dynamically for all brokers;
3. on the command line, `--set KEY=VALUE`, `--listen`, `--log-dirs`;
4. in the file of `--config`;
5. by its default.

A topic's own config beats the broker's, a group's likewise. Where a quantity has names in several
units, the finer unit wins: `log.retention.ms` before `log.retention.minutes` before
`log.retention.hours`.

The file is Java's: `key=value`, `key: value` or `key value`, `#` and `!` for comments, a backslash
at the end of a line to go on in the next, `\\u00e9` for characters. It may also be UTF-8.

## Where this is not Kafka

- A node that is a broker and a controller, and whose configs name no other controller, formats its
  directories by itself; every other one has to be told its cluster (`odradek storage format`), as in Kafka.
- Listeners are PLAINTEXT; a file that asks for SSL or SASL is refused.
- `listeners` cannot be changed while the broker runs; the change is refused.
- `${provider:path:key}` in a value is not looked up, and the file's author is warned.
- What `metric.reporters` and other classes name is not loaded.

An authorizer's configs are in [security.md](security.md), a remote store's in
[remote-storage.md](remote-storage.md). Quotas are set by `kafka-configs.sh` (`--entity-type clients`, `users`,
`ips`), for which `odradek` has no command.

## One node
"""


def page() -> str:
    """The whole page, with its last newline."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "A node whose configs leave out `process.roles` is a quorum of one by itself, as if they said"
    yield "\n```properties"
    yield from (f"{name}={text}" for name, text in STANDALONE.items())
    yield "```\n"
    yield "with node id 1 and no listener for controllers. Without `--config`, these lie below what the"
    yield "command line sets, where Kafka's defaults ask for a cluster:"
    yield "\n```properties"
    yield from (f"{name}={text}" for name, text in TEST_NODE.items())
    yield "```\n"
    yield "# Broker configs\n"
    for title, module, rows in _SECTIONS:
        yield from _section(f"## {title}", module.__doc__, rows)
    for title, module, rows in _OTHERS:
        yield from _section(f"# {title}", module.__doc__, rows)


def _section(title: str, about: str | None, rows: Iterable[ConfigKey]) -> Iterator[str]:
    yield f"{title}\n"
    yield f"{about}\n"
    for row in sorted(rows, key=lambda row: row.name):
        if not row.internal or row.effect:
            yield from _row(row)
    yield ""


def _row(row: ConfigKey) -> Iterator[str]:
    yield f"- **`{row.name}`**{'' if row.effect else ' · *no effect yet*'}  "
    yield f"  {row.doc}  "
    yield f"  {' · '.join(_facts(row))}"


def _facts(row: ConfigKey) -> Iterator[str]:
    yield row.type.name.lower()
    if row.required:
        yield "required by Kafka"
    elif row.name not in DYNAMIC_ONLY:
        yield f"default {_default(row)}"
    if row.validator is not None and row.validator.text != "any":
        yield row.validator.text
    yield f"importance {row.importance.value}"
    if row.scope.value == "broker":
        yield _MODES[row.mode]
    if row.synonyms:
        yield "falls back on " + ", ".join(f"`{name}`" for name in row.synonyms)


def _default(row: ConfigKey) -> str:
    if row.default is None:
        return "null"
    return f"`{row.default}`" if row.default else "empty"


if __name__ == "__main__":
    sys.stdout.write(page())
