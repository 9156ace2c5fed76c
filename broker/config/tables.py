"""All rows by scope, and what is said of broker configs as a whole: synonyms and listener prefixes."""

from __future__ import annotations

import re

from odradek.broker.config.broker_groups import GROUPS
from odradek.broker.config.broker_kraft import KRAFT
from odradek.broker.config.broker_logs import LOGS
from odradek.broker.config.broker_metrics import METRICS
from odradek.broker.config.broker_network import NETWORK
from odradek.broker.config.broker_remote import REMOTE
from odradek.broker.config.broker_replication import REPLICATION
from odradek.broker.config.broker_security import SECURITY
from odradek.broker.config.broker_share_groups import SHARE_AND_STREAMS_GROUPS
from odradek.broker.config.broker_transactions import TRANSACTIONS
from odradek.broker.config.client_metrics_configs import CLIENT_METRICS_ROWS
from odradek.broker.config.group_configs import GROUP_ROWS
from odradek.broker.config.table import ConfigKey, Table, UpdateMode, table
from odradek.broker.config.topic_configs import TOPIC_ROWS

BROKER: Table = table(
    KRAFT,
    NETWORK,
    LOGS,
    REPLICATION,
    GROUPS,
    SHARE_AND_STREAMS_GROUPS,
    TRANSACTIONS,
    METRICS,
    REMOTE,
    SECURITY,
)
TOPIC: Table = table(TOPIC_ROWS)
GROUP: Table = table(GROUP_ROWS)
CLIENT_METRICS: Table = table(CLIENT_METRICS_ROWS)

# Configs that exist only as dynamic ones (KIP-73): no default is reported, a file cannot set them.
DYNAMIC_ONLY = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)

# Configs that Kafka has not, KIP-113's names of two of its own among them: not described until they are set.
OURS = frozenset(
    {
        "num.replica.move.threads",
        "intra.broker.throttled.rate",
        "odradek.metrics.listener",
        "remote.log.index.file.cache.total.size.mb",
        "remote.partition.remover.task.interval.ms",
    }
)

# One quantity under several names, in several units: the first that is set counts.
_SAME_QUANTITY = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")

_OF_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)")
# These may also carry a SASL mechanism's name between the listener's and their own.
_OF_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
# Security configs are dynamic only under a listener's prefix.
_ONLY_WITH_PREFIX = frozenset(
    name
    for name in BROKER
    if name.startswith(("ssl.keystore.", "ssl.truststore.", "ssl.key.password"))
)
# What a listener's prefix does not make a per-broker config.
_OF_CLUSTER = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})


def broker_synonyms(name: str, *, of_listener: bool = True) -> tuple[str, ...]:
    """Names under which a broker config's value may be found, best first, its own among them."""
    for names in _SAME_QUANTITY:
        if name in names:
            return names
    if name == _FLUSH[0]:
        return _FLUSH
    if of_listener and (base := listener_base(name)) is not None:
        return (name, base)
    return (name,)


def listener_base(name: str) -> str | None:
    """What follows `listener.name.<listener>.` (and a mechanism), or None without that prefix."""
    match = _OF_LISTENER.fullmatch(name)
    if match is None:
        return None
    base = match[1]
    return next((config for config in _OF_MECHANISM if base.endswith(config)), base)


def broker_row(name: str) -> ConfigKey | None:
    """The row that a broker config's type comes from; a listener's is that of its base config."""
    found = BROKER.get(name)
    if found is None and (base := listener_base(name)) is not None:
        found = BROKER.get(base)
    return found


def is_dynamic(name: str) -> bool:
    """Whether the plain name (no listener's prefix) can be altered while the broker runs."""
    return name in BROKER and BROKER[name].mode is not UpdateMode.READ_ONLY


def needs_listener_prefix(name: str) -> bool:
    return name in _ONLY_WITH_PREFIX


def is_per_broker(name: str) -> bool:
    """Whether altering it needs a broker's id: it has no cluster-wide default."""
    if name in BROKER:
        return BROKER[name].mode is UpdateMode.PER_BROKER
    match = _OF_LISTENER.fullmatch(name)
    return match is not None and match[1] not in _OF_CLUSTER
