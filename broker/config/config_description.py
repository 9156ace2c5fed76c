"""DescribeConfigs: values, sources, synonyms and types of configs.

The rules are those of Kafka's `ConfigHelper`, including the synonyms that are shown; the synonyms of a topic
config are those of the first broker config that it defaults to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from odradek.broker.config.all_configs import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    broker_row,
    is_dynamic,
)
from odradek.broker.config.config_key import ConfigKey, Table
from odradek.broker.config.config_layers import Synonym
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.topic_config_validation import to_ms
from odradek.broker.config.types import ConfigSource, ConfigType, to_text
from odradek.broker.java_hash import hash_map_order
from odradek.seams.values import value_class

ODRADEK_ONLY: Final = frozenset({"remote.log.disable.policy"})
"""Topic configs that Kafka does not have. They are described if they are set, or requested by name, which is how a
client finds out that the broker has them. The list of all configs is Kafka's."""


@value_class
class ConfigEntry:
    """One described config; `value` is None if it is null or sensitive."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType | None
    synonyms: tuple[Synonym, ...]
    doc: str | None
    sensitive: bool = False
    read_only: bool = False


def describe_broker(
    config: ServerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Configs of this broker, all or those in `names`."""
    return [
        _broker_entry(name, to_text(value), config.layers.synonyms(name))
        for name, value in config.described().items()
        if not names or name in names
    ]


def describe_cluster(
    config: ServerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Dynamic cluster-wide defaults that are set."""
    return [
        _broker_entry(name, text, config.layers.synonyms(name, cluster_only=True))
        for name, text in config.layers.cluster.items()
        if not names or name in names
    ]


def _broker_entry(name: str, value: str | None, synonyms: list[Synonym]) -> ConfigEntry:
    row = broker_row(name)
    secret = row is None or row.sensitive
    return ConfigEntry(
        name,
        None if secret else value,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        row.type if row is not None else None,
        tuple(synonyms),
        BROKER[name].doc if name in BROKER else None,
        sensitive=secret,
        read_only=not is_dynamic(name),
    )


def describe_topic(
    config: ServerConfig, overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[ConfigEntry]:
    texts = {**config.topic_defaults(), **overrides}
    return [
        _entry(
            row,
            texts.get(row.name),
            row.name in overrides,
            ConfigSource.TOPIC_CONFIG,
            config.layers.synonyms(row.synonyms[0]) if row.synonyms else [],
        )
        for row in _shown(TOPIC, overrides, names)
    ]


def describe_group(
    config: ServerConfig, overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[ConfigEntry]:
    entries: list[ConfigEntry] = []
    for row in _shown(GROUP, overrides, names):
        if row.synonyms:
            below = config.layers.synonyms(row.synonyms[0])
            text = to_text(config[row.synonyms[0]])
        else:
            below = [Synonym(row.name, row.default, ConfigSource.DEFAULT_CONFIG)]
            text = row.default
        text = overrides.get(row.name, text)
        entries.append(_entry(row, text, row.name in overrides, ConfigSource.GROUP_CONFIG, below))
    return entries


def describe_client_metrics(
    overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[ConfigEntry]:
    return [
        _entry(
            row,
            overrides.get(row.name, row.default),
            row.name in overrides,
            ConfigSource.CLIENT_METRICS_CONFIG,
            [],
        )
        for row in _shown(CLIENT_METRICS, overrides, names)
    ]


def _shown(
    table: Table, overrides: Mapping[str, str], names: Collection[str] | None
) -> list[ConfigKey]:
    """Rows in the order of Kafka, on which tests of clients depend."""
    requested = ODRADEK_ONLY & set(names or ())
    shown = tuple(
        name
        for name, row in table.items()
        if not row.internal or name in overrides or name in requested
    )
    return [table[name] for name in hash_map_order(shown) if not names or name in names]


def _entry(
    row: ConfigKey,
    text: str | None,
    overridden: bool,
    source: ConfigSource,
    below: list[Synonym],
) -> ConfigEntry:
    """`below` is the source of the value if the resource does not set it."""
    value = to_text(row.parse(text))
    synonyms = [Synonym(row.name, value, source), *below] if overridden else below
    return ConfigEntry(
        row.name,
        value,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        row.type,
        tuple(synonyms),
        row.doc,
    )


def created_topic_configs(
    config: ServerConfig, overrides: Mapping[str, str]
) -> list[tuple[str, str | None, ConfigSource]]:
    """All configs of a new topic by name, with their sources (KIP-525)."""
    found: list[tuple[str, str | None, ConfigSource]] = []
    for row in sorted(_shown(TOPIC, overrides, None), key=lambda row: row.name):
        if row.name in overrides:
            found.append((row.name, overrides[row.name], ConfigSource.TOPIC_CONFIG))
        else:
            found.append((row.name, *_created_default(config, row)))
    return found


def _created_default(config: ServerConfig, row: ConfigKey) -> tuple[str | None, ConfigSource]:
    for layer, source in (
        (config.layers.broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (config.layers.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (config.layers.static, ConfigSource.STATIC_BROKER_CONFIG),
    ):
        for synonym in row.synonyms:
            if synonym in layer:
                if synonym.endswith((".hours", ".minutes")):
                    return str(to_ms(synonym, int(layer[synonym]))), source
                return layer[synonym], source
    return row.default, ConfigSource.DEFAULT_CONFIG
