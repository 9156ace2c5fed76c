"""Validators of values. Their texts are used in error messages and docs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

from odradek.broker.config.config_key import Validator
from odradek.broker.config.listeners import (
    parse_address,
    parse_bootstrap_servers,
    parse_voters,
)
from odradek.broker.config.types import ConfigError, ConfigValue, to_text

Check = Callable[[str, ConfigValue], None]

_THROTTLED = re.compile(r"([0-9]+:[0-9]+)?")
_DURATION = re.compile(r"by_duration:(?i:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d{0,9})?S)?)?)")


def at_least(low: float, *, null: bool = False) -> Validator:
    return between(low, None, null=null)


def between(low: float, high: float | None, *, null: bool = False) -> Validator:
    """Check a range, both ends included; `high` None is unlimited. Null is rejected unless `null`."""

    def check(name: str, value: ConfigValue) -> None:
        if value is None:
            if null:
                return
            raise ConfigError.of(name, None, "value must not be null")
        number = cast(float, value)
        if number < low:
            raise ConfigError.of(name, to_text(value), f"Value must be at least {low}")
        if high is not None and number > high:
            raise ConfigError.of(name, to_text(value), f"Value must be no more than {high}")

    return Validator(f"at least {low}" if high is None else f"{low} to {high}", check)


def one_of(*names: str) -> Validator:
    def check(name: str, value: ConfigValue) -> None:
        if value not in names:
            raise ConfigError.of(name, value, f"String must be one of: {', '.join(names)}")

    return Validator(", ".join(names), check)


def one_of_any_case(*names: str) -> Validator:
    upper = {name.upper() for name in names}

    def check(name: str, value: ConfigValue) -> None:
        if not isinstance(value, str) or value.upper() not in upper:
            raise ConfigError.of(
                name, value, f"String must be one of (case insensitive): {', '.join(names)}"
            )

    return Validator(f"{', '.join(names)}; upper or lower case", check)


def distinct(*names: str, empty: bool = True, null: bool = False) -> Validator:
    """Check a list without duplicates, of `names` if given."""

    def check(name: str, value: ConfigValue) -> None:
        if value is None:
            if null:
                return
            raise ConfigError.of(name, None, "value must not be null")
        items = cast(Sequence[str], value)
        shown = to_text(value)
        if not items and not empty:
            raise ConfigError.of(name, shown, "the list must not be empty")
        for item in items:
            if not item:
                raise ConfigError.of(name, shown, "values must not be empty")
            if names and item not in names:
                raise ConfigError.of(name, shown, f"String must be one of: {', '.join(names)}")

    text = f"of {', '.join(names)}" if names else "any"
    return Validator(text if empty else f"{text}; at least one", check, distinct=True)


def _not_empty(name: str, value: ConfigValue) -> None:
    if value == "":
        raise ConfigError.of(name, "", "String must be non-empty")


def _not_null(name: str, value: ConfigValue) -> None:
    if value is None:
        raise ConfigError.of(name, None, "value must not be null")


def _gzip_level(name: str, value: ConfigValue) -> None:
    if value != -1 and not (isinstance(value, int) and 1 <= value <= 9):
        raise ConfigError.of(name, value, "must be 1 to 9, or -1")


def _throttled_replicas(name: str, value: ConfigValue) -> None:
    items = [item.strip() for item in cast(Sequence[str], value)]
    if not all(_THROTTLED.fullmatch(item) for item in items) and "".join(items) != "*":
        raise ConfigError.of(name, to_text(value), "must be *, or a list of partition:broker pairs")


def _voters(name: str, value: ConfigValue) -> None:
    parse_voters(name, cast(Sequence[str], value))


def _bootstrap_servers(name: str, value: ConfigValue) -> None:
    parse_bootstrap_servers(name, cast(Sequence[str], value))


def _address(name: str, value: ConfigValue) -> None:
    if value is not None:
        parse_address(name, cast(str, value))


def _share_reset(name: str, value: ConfigValue) -> None:
    if value not in ("latest", "earliest") and not _DURATION.fullmatch(str(value)):
        raise ConfigError.of(
            name, value, "must be latest, earliest, or by_duration: and an ISO 8601 duration"
        )


not_empty = Validator("not empty", _not_empty)
not_null = Validator("not null", _not_null)
gzip_level = Validator("1 to 9, or -1", _gzip_level)
throttled_replicas = Validator("*, or partition:broker, …", _throttled_replicas)
voters = Validator("id@host:port, …", _voters)
bootstrap_servers = Validator("host:port, …", _bootstrap_servers)
address = Validator("host:port", _address)
share_reset = Validator("latest, earliest, or by_duration:PnDTnHnMn.nS", _share_reset)
