"""Types of config values, and conversion from and to text.

Types and rules are those of Kafka's `ConfigDef` (4.3): text is trimmed; INT and LONG are Java's decimal
integers; a LIST is split at commas without surrounding spaces, and empty for empty text; a PASSWORD is written
as text only where it is stored. `to_text` returns what DescribeConfigs shows; apart from formatting it is the
inverse of `parse`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum

from odradek.seams.values import value_class

HIDDEN = "[hidden]"

_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)")


class ConfigError(ValueError):
    """Invalid config name or value; the message has the config and the reason."""

    @classmethod
    def of(cls, name: str, value: object, reason: str) -> ConfigError:
        return cls(f"Invalid value {value} for configuration {name}: {reason}")


class ConfigType(Enum):
    """Type of a config, with the codes of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class ConfigSource(IntEnum):
    """Source of a value, with the codes of DescribeConfigs."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ResourceType(IntEnum):
    """Resource type of a config, with the codes of the config APIs."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@value_class
class Password:
    """Secret text, hidden in `str` and `repr`."""

    value: str

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__


ConfigValue = bool | int | float | str | Password | Sequence[str] | None

_BITS: Mapping[ConfigType, int] = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def parse(name: str, text: str | None, kind: ConfigType) -> ConfigValue:
    """Parse a text. Raises ConfigError."""
    if text is None:
        return None
    trimmed = text.strip()
    match kind:
        case ConfigType.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise ConfigError.of(name, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            return _parse_integer(name, trimmed, kind)
        case ConfigType.DOUBLE:
            if not _DOUBLE.fullmatch(trimmed):
                raise ConfigError.of(name, text, "Not a number of type DOUBLE")
            return float(trimmed.rstrip("fFdD"))
        case ConfigType.LIST:
            return tuple(re.split(r"\s*,\s*", trimmed)) if trimmed else ()
        case ConfigType.PASSWORD:
            return Password(trimmed)
        case ConfigType.STRING | ConfigType.CLASS:
            return trimmed


def _parse_integer(name: str, trimmed: str, kind: ConfigType) -> int:
    limit = 1 << (_BITS[kind] - 1)
    if not _INTEGER.fullmatch(trimmed) or not -limit <= (value := int(trimmed)) < limit:
        raise ConfigError.of(name, trimmed, f"Not a number of type {kind.name}")
    return value


def to_text(value: ConfigValue) -> str | None:
    """Text of a value in DescribeConfigs; HIDDEN for a password."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Password):
        return str(value)
    if isinstance(value, float):
        return java_double(value)
    return ",".join(value)


def java_double(value: float) -> str:
    """Format a double as Java does: `0.5`, `1.0`, `1.7976931348623157E308`."""
    if 1e-3 <= abs(value) < 1e7:  # usually Python formats it as Java does
        return repr(value)
    from decimal import Decimal  # imported only for this case

    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)  # digits before the decimal point
    if -3 < point <= 7:
        text = text.rjust(len(text) - min(0, point - 1), "0").ljust(point, "0")
        point = max(point, 1)
        suffix = ""
    else:
        suffix = f"E{point - 1}"
        point = 1
    return f"{'-' * sign}{text[:point]}.{text[point:] or '0'}{suffix}"
