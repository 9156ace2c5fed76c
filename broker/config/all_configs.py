"""All config rows by scope, and synonyms and listener prefixes of broker configs."""

from __future__ import annotations

import re

from odradek.broker.config.broker_diskless_configs import DISKLESS
from odradek.broker.config.broker_group_configs import GROUPS
from odradek.broker.config.broker_kraft_configs import KRAFT
from odradek.broker.config.broker_log_configs import LOGS
from odradek.broker.config.broker_metrics_configs import METRICS
from odradek.broker.config.broker_network_configs import NETWORK
from odradek.broker.config.broker_remote_storage_configs import REMOTE
from odradek.broker.config.broker_replication_configs import REPLICATION
from odradek.broker.config.broker_security_configs import SECURITY
from odradek.broker.config.broker_share_group_configs import SHARE_AND_STREAMS_GROUPS
from odradek.broker.config.broker_transaction_configs import TRANSACTIONS
from odradek.broker.config.client_metrics_configs import CLIENT_METRICS_ROWS
from odradek.broker.config.config_key import ConfigKey, Table, UpdateMode, table
from odradek.broker.config.group_configs import GROUP_ROWS
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
    DISKLESS,
    SECURITY,
)
TOPIC: Table = table(TOPIC_ROWS)
GROUP: Table = table(GROUP_ROWS)
CLIENT_METRICS: Table = table(CLIENT_METRICS_ROWS)

# Dynamic-only configs (KIP-73): without a default, ignored in a file.
DYNAMIC_ONLY = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)

# Configs that Kafka does not have, two of KIP-113 among them: not described unless set.
ODRADEK_CONFIGS = frozenset(
    {
        *(row.name for row in DISKLESS),
        "diskless.enable",
        "num.replica.move.threads",
        "intra.broker.throttled.rate",
        "odradek.metrics.listener",
        "odradek.remote.log.retain.on.disable",
        "remote.log.disable.policy",
        "remote.log.index.file.cache.total.size.mb",
        "remote.partition.remover.task.interval.ms",
    }
)

# Names of one config in several units: the first that is set applies.
_SAME_QUANTITY = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")

_OF_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)")
# Configs whose listener prefix may include a SASL mechanism.
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
# Configs that are not per-broker with a listener prefix.
_OF_CLUSTER = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})


def broker_synonyms(name: str, *, of_listener: bool = True) -> tuple[str, ...]:
    """Names that provide the value of a broker config, by precedence, including its own."""
    for names in _SAME_QUANTITY:
        if name in names:
            return names
    if name == _FLUSH[0]:
        return _FLUSH
    if of_listener and (base := listener_base(name)) is not None:
        return (name, base)
    return (name,)


def listener_base(name: str) -> str | None:
    """Name after `listener.name.<listener>.` and a mechanism; None without the prefix."""
    match = _OF_LISTENER.fullmatch(name)
    if match is None:
        return None
    base = match[1]
    return next((config for config in _OF_MECHANISM if base.endswith(config)), base)


def broker_row(name: str) -> ConfigKey | None:
    """Row of a broker config; with a listener prefix that of its base config."""
    found = BROKER.get(name)
    if found is None and (base := listener_base(name)) is not None:
        found = BROKER.get(base)
    return found


def is_dynamic(name: str) -> bool:
    """Whether the config without listener prefix can be updated dynamically."""
    return name in BROKER and BROKER[name].mode is not UpdateMode.READ_ONLY


def needs_listener_prefix(name: str) -> bool:
    return name in _ONLY_WITH_PREFIX


def is_per_broker(name: str) -> bool:
    """Whether the config can only be updated per broker."""
    if name in BROKER:
        return BROKER[name].mode is UpdateMode.PER_BROKER
    match = _OF_LISTENER.fullmatch(name)
    return match is not None and match[1] not in _OF_CLUSTER
