"""Types, importance and update modes of config rows, and the function `row`."""

from __future__ import annotations

from odradek.broker.config.table import ConfigKey, Scope, UpdateMode, Validator
from odradek.broker.config.types import ConfigType, Importance

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


def row(
    name: str,
    kind: ConfigType,
    default: str | None,
    importance: Importance,
    valid: Validator | None = None,
    mode: UpdateMode = UpdateMode.READ_ONLY,
    *,
    doc: str,
    scope: Scope = Scope.BROKER,
    required: bool = False,
    internal: bool = False,
    synonyms: tuple[str, ...] = (),
    effect: bool = False,
) -> ConfigKey:
    """Create a row; `ConfigKey` describes the columns."""
    return ConfigKey(
        name,
        kind,
        default,
        importance,
        doc,
        scope,
        valid,
        required,
        internal,
        mode,
        synonyms,
        effect,
    )
