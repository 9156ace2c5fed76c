"""Layers of broker config texts, and the effective values.

Precedence (KIP-226): dynamic per-broker > dynamic cluster-wide > static > default. A dynamic value overrides
every synonym in lower layers: a dynamic `log.roll.hours` overrides a static `log.roll.ms`. Within a layer the
finer unit applies (`log.retention.ms` before `.minutes` before `.hours`); the reader of the configs chooses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from functools import cache

from odradek.broker.config.all_configs import (
    BROKER,
    DYNAMIC_ONLY,
    broker_row,
    broker_synonyms,
    is_dynamic,
    is_per_broker,
    listener_base,
    needs_listener_prefix,
)
from odradek.broker.config.types import ConfigError, ConfigSource, ConfigValue
from odradek.seams.values import value_class


@value_class
class Synonym:
    """A synonym and its value; `value` is None if it is sensitive."""

    name: str
    value: str | None
    source: ConfigSource


@value_class
class Layers:
    """Config texts by layer; every value has been validated."""

    static: Mapping[str, str]
    cluster: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)

    def effective(self) -> dict[str, str]:
        """Texts of the layer with the highest precedence."""
        found = dict(self.static)
        for layer in (self.cluster, self.broker):
            for name in layer:
                for synonym in broker_synonyms(name, of_listener=False):
                    found.pop(synonym, None)
                found[name] = layer[name]
        _clamp(found, self.cluster.keys() | self.broker.keys())
        return found

    def synonyms(self, name: str, *, cluster_only: bool = False) -> list[Synonym]:
        """Synonyms that provide the value of `name`, by precedence.

        Kafka's rule (DescribeConfigs): by layer, and within a layer by synonym; synonyms before the config's
        own name are not shown.
        """
        names = broker_synonyms(name)
        row = broker_row(name)
        secret = row is None or row.sensitive
        found = [
            Synonym(synonym, None if secret else layer[synonym], source)
            for layer, source in (
                (self.broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
                (self.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
                (self.static, ConfigSource.STATIC_BROKER_CONFIG),
                (_DEFAULTS, ConfigSource.DEFAULT_CONFIG),
            )
            for synonym in names
            if synonym in layer
        ]
        while found and found[0].name != name:
            del found[0]
        if cluster_only:
            return [s for s in found if s.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]
        return found


_DEFAULTS: Mapping[str, str] = {
    name: row.default
    for name, row in BROKER.items()
    if row.default is not None and name not in DYNAMIC_ONLY
}

# Dynamic assignment intervals are clamped to their limits instead of rejected.
_CLAMPED = ("group.consumer", "group.share", "group.streams")
_INTERVAL = "assignment.interval.ms"


def _clamp(values: dict[str, str], dynamic: Collection[str]) -> None:
    for prefix in _CLAMPED:
        name = f"{prefix}.{_INTERVAL}"
        if name in dynamic:
            low, high = (
                int(values.get(bound, BROKER[bound].default or "0"))
                for bound in (f"{prefix}.min.{_INTERVAL}", f"{prefix}.max.{_INTERVAL}")
            )
            values[name] = str(min(max(int(values[name]), low), high))


def parse_all(texts: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Values of all broker configs, also with listener prefixes. Raises ConfigError."""
    for name, row in BROKER.items():
        if row.required and name not in texts:
            raise ConfigError(f"Missing required configuration {name} which has no default value.")
    values = dict(_defaults())
    for name, text in texts.items():
        known = broker_row(name)
        if known is not None:
            values[name] = known.parse(text)
    return values


@cache
def _defaults() -> Mapping[str, ConfigValue]:
    """Default values in the order of the table."""
    return {name: None if row.required else row.parse(row.default) for name, row in BROKER.items()}


def refused_dynamic(configs: Mapping[str, str], *, of_broker: bool) -> Iterator[tuple[str, str]]:
    """Names that cannot be set dynamically, with the reason."""
    for name, text in configs.items():
        if name in BROKER and not is_dynamic(name):
            yield name, "it is not dynamically updatable"
        elif needs_listener_prefix(name):
            yield (
                name,
                f"it can only be updated with the prefix of a listener: listener.name.<name>.{name}",
            )
        elif not of_broker and is_per_broker(name):
            yield name, "it can only be updated per broker: specify the broker id"
        else:
            try:
                _check_dynamic(name, text)
            except ConfigError as error:
                yield name, str(error)


def _check_dynamic(name: str, text: str) -> None:
    base = listener_base(name) or name
    if is_dynamic(base):
        BROKER[base].parse(text)
