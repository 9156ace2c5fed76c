"""Rejection of security protocols that Kafka supports and Odradek does not: everything except PLAINTEXT.

Configs of SSL and SASL are accepted and have no effect; `security_configs_without_effect` lists them for a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from odradek.broker.config.all_configs import broker_row, listener_base
from odradek.broker.config.listeners import ListenerEndpoint
from odradek.broker.config.types import ConfigError

ONLY_PLAINTEXT: Final = (
    "this version supports only the security protocol PLAINTEXT, without SASL and SSL"
)
_PLAINTEXT: Final = "PLAINTEXT"
_SECURITY_PREFIXES: Final = ("ssl.", "sasl.", "security.")
"""Prefixes of configs that need a security protocol other than PLAINTEXT."""


def check_plaintext(
    endpoints: Mapping[str, Iterable[ListenerEndpoint]],
    inter_broker_protocol: str,
    remote_listeners: Mapping[str, Iterable[str]],
    protocols: Mapping[str, str],
) -> None:
    """Reject security protocols other than PLAINTEXT. Raises ConfigError.

    `endpoints` and `remote_listeners` are by config name: the listeners of this node, and the names of listeners of
    other nodes, to which this one connects. `inter_broker_protocol` is security.inter.broker.protocol. `protocols`
    are the security protocols by listener name.
    """
    for name, values in endpoints.items():
        for endpoint in values:
            if endpoint.security_protocol != _PLAINTEXT:
                raise ConfigError.of(
                    name,
                    f"{endpoint.name}://{endpoint.host}:{endpoint.port}",
                    f"its security protocol is {endpoint.security_protocol}; {ONLY_PLAINTEXT}",
                )
    if inter_broker_protocol != _PLAINTEXT:
        raise ConfigError.of(
            "security.inter.broker.protocol", inter_broker_protocol, ONLY_PLAINTEXT
        )
    for name, listeners in remote_listeners.items():
        for listener in listeners:
            protocol = protocols.get(listener.upper(), _PLAINTEXT)
            if protocol != _PLAINTEXT:
                raise ConfigError.of(
                    name,
                    listener,
                    f"its security protocol is {protocol} in listener.security.protocol.map;"
                    f" {ONLY_PLAINTEXT}",
                )


def security_configs_without_effect(names: Iterable[str]) -> list[str]:
    """Return those of the set configs that have no effect with PLAINTEXT."""
    return sorted(
        name
        for name in names
        if (listener_base(name) or name).startswith(_SECURITY_PREFIXES)
        and (row := broker_row(name)) is not None
        and not row.effect
    )
