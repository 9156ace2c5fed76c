"""The shape of a row, and how rows of all scopes are found by name.

A row is declared once (`broker_*.py`, `topic_configs.py`, `group_configs.py`,
`client_metrics_configs.py`); parsing, validation, DescribeConfigs, alteration and
docs/configuration.md all read it. Names, types, defaults, validators, importance and update modes
are those of Kafka 4.3; the docs are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from odradek.broker.config.types import (
    ConfigError,
    ConfigType,
    ConfigValue,
    Importance,
    parse,
)
from odradek.seams.values import value_class


class Scope(Enum):
    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT_METRICS = "client-metrics"


class UpdateMode(Enum):
    """Whether a broker config can change while the broker runs, and for whom at once."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


@value_class
class Validator:
    """`check` raises ConfigError; `text` says what is valid, for the docs.

    `distinct` is for lists: what is named twice counts once.
    """

    text: str
    check: Callable[[str, ConfigValue], None]
    distinct: bool = False


@value_class
class ConfigKey:
    """One config.

    `default` is text as a file would hold it, None where the value is null until set. `internal`
    ones are for tests: accepted, and left out of DescribeConfigs and the docs. `synonyms` are the
    broker configs that give the value where this one is not set, best first. `effect` is False
    where we accept, store and report the value, and nothing acts on it yet.
    """

    name: str
    type: ConfigType
    default: str | None
    importance: Importance
    doc: str
    scope: Scope = Scope.BROKER
    validator: Validator | None = None
    required: bool = False
    internal: bool = False
    mode: UpdateMode = UpdateMode.READ_ONLY
    synonyms: tuple[str, ...] = ()
    effect: bool = False

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str | None) -> ConfigValue:
        """The value of `text`, checked. Raises ConfigError."""
        value = parse(self.name, text, self.type)
        if self.validator is not None:
            if self.validator.distinct and isinstance(value, tuple):
                value = tuple(dict.fromkeys(value))
            self.validator.check(self.name, value)
        return value

    @property
    def default_value(self) -> ConfigValue:
        return parse(self.name, self.default, self.type)


Table = Mapping[str, ConfigKey]


def table(*groups: Iterable[ConfigKey]) -> Table:
    """Rows by name, in the order they are declared."""
    rows: dict[str, ConfigKey] = {}
    for group in groups:
        for row in group:
            assert row.name not in rows, f"two rows for {row.name}"
            rows[row.name] = row
    return rows


__all__ = ["ConfigError", "ConfigKey", "Scope", "Table", "UpdateMode", "Validator", "table"]
