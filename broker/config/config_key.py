"""`ConfigKey`, the definition of one config, as in Kafka's `ConfigDef`, and the function `row` that creates it.

Each config is declared in one row (`broker_*_configs.py`, `topic_configs.py`, `group_configs.py`,
`client_metrics_configs.py`). Parsing, validation, DescribeConfigs, alteration and docs/configuration.md use it.
Names, types, defaults, validators, importance and update modes are those of Kafka 4.3; the descriptions are our
own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TypedDict, Unpack

from odradek.broker.config.types import (
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
    """Whether and how a broker config can be updated dynamically."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


@value_class
class Validator:
    """Validator of a value; `check` raises ConfigError, and `text` describes valid values.

    `distinct` is for lists without duplicates.
    """

    text: str
    check: Callable[[str, ConfigValue], None]
    distinct: bool = False


@value_class
class ConfigKey:
    """A row of the table.

    `default` is the text of the default, None if it is null. `internal` configs are for tests: accepted, but
    not described. `synonyms` are broker configs that provide the value if this one is not set, by precedence.
    `effect` is False if nothing uses the value yet.
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
        """Parse and validate a text. Raises ConfigError."""
        value = parse(self.name, text, self.type)
        if self.validator is not None:
            if self.validator.distinct and isinstance(value, tuple):
                value = tuple(dict.fromkeys(value))
            self.validator.check(self.name, value)
        return value

    @property
    def default_value(self) -> ConfigValue:
        return parse(self.name, self.default, self.type)


BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
SHORT = ConfigType.SHORT
LONG = ConfigType.LONG
DOUBLE = ConfigType.DOUBLE
LIST = ConfigType.LIST
CLASS = ConfigType.CLASS
PASSWORD = ConfigType.PASSWORD

HIGH = Importance.HIGH
MEDIUM = Importance.MEDIUM
LOW = Importance.LOW

Rows = tuple[ConfigKey, ...]

CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
PER_BROKER = UpdateMode.PER_BROKER


class MoreColumns(TypedDict, total=False):
    """Columns of `ConfigKey` that few rows set."""

    scope: Scope
    required: bool
    internal: bool
    synonyms: tuple[str, ...]
    effect: bool


def row(
    name: str,
    kind: ConfigType,
    default: str | None,
    importance: Importance,
    valid: Validator | None = None,
    mode: UpdateMode = UpdateMode.READ_ONLY,
    *,
    doc: str,
    **columns: Unpack[MoreColumns],
) -> ConfigKey:
    """Create a row; `ConfigKey` describes the columns."""
    return ConfigKey(name, kind, default, importance, doc, validator=valid, mode=mode, **columns)


Table = Mapping[str, ConfigKey]


def table(*groups: Iterable[ConfigKey]) -> Table:
    """Rows by name, in the order of declaration."""
    rows: dict[str, ConfigKey] = {}
    for group in groups:
        for row in group:
            assert row.name not in rows, f"two rows for {row.name}"
            rows[row.name] = row
    return rows
