"""Parsing and validation of listener configs.

A listener is `NAME://host:port`; an empty host is every address. `listener.security.protocol.map` has the
security protocol of each name (KIP-103, KIP-291). Names are compared in upper case.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from odradek.broker.config.types import ConfigError
from odradek.seams.values import value_class

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_HOST = r"[0-9a-zA-Z\-%._:]*"
_ENDPOINT = re.compile(rf"(.*)://\[?({_HOST})\]?:(-?[0-9]+)")
_ADDRESS = re.compile(rf"(?:[0-9a-zA-Z\-%._]*://)?\[?({_HOST})\]?:([0-9]+)")
_NO_ROUTE = "0.0.0.0"
EVERY_ADDRESS = frozenset(("", _NO_ROUTE, "::"))
PORT_MAX = 65535


@value_class
class ListenerEndpoint:
    """Entry of `listeners` or `advertised.listeners`; `host` is "" forevery address."""

    name: str
    security_protocol: str
    host: str
    port: int


@value_class
class QuorumAddress:
    """Address of a controller; `node_id` is None in `controller.quorum.bootstrap.servers`."""

    node_id: int | None
    host: str
    port: int


def listener_name(entry: str) -> str:
    """Name of a listener entry, in upper case."""
    name, colon, _ = entry.partition(":")
    if not colon:
        raise ConfigError(f"Unable to parse a listener name from {entry}")
    return name.upper()


def parse_endpoints(
    name: str, entries: Sequence[str], protocols: Mapping[str, str], *, distinct_ports: bool
) -> tuple[ListenerEndpoint, ...]:
    """Parse the listeners of the config `name`. Raises ConfigError."""
    endpoints = tuple(_parse_endpoint(name, entry, protocols) for entry in entries)
    shown = ",".join(entries)
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise ConfigError.of(name, shown, "each listener must have a different name")
    if distinct_ports:
        _check_ports(name, shown, endpoints)
    return endpoints


def _parse_endpoint(name: str, entry: str, protocols: Mapping[str, str]) -> ListenerEndpoint:
    match = _ENDPOINT.fullmatch(entry)
    if match is None:
        raise ConfigError.of(name, entry, "unable to parse a listener; expected NAME://host:port")
    listener, host, port = match[1].upper(), match[2], int(match[3])
    if not 0 <= port <= 65535:
        raise ConfigError.of(name, entry, "the port must be between 0 and 65535")
    if listener not in protocols:
        raise ConfigError.of(
            name,
            entry,
            f"no security protocol defined for listener {listener} in listener.security.protocol.map",
        )
    return ListenerEndpoint(listener, protocols[listener], host, port)


def _check_ports(name: str, shown: str, endpoints: Sequence[ListenerEndpoint]) -> None:
    """Check that ports are unique, except for an IPv4 and an IPv6 address on one port (KIP-797)."""
    by_port: defaultdict[int, list[ListenerEndpoint]] = defaultdict(list)
    for endpoint in endpoints:
        if endpoint.port != 0:
            by_port[endpoint.port].append(endpoint)
    for port, sharing in by_port.items():
        families = sorted(_family(endpoint.host) for endpoint in sharing)
        if len(sharing) > 1 and families != [4, 6]:
            raise ConfigError.of(
                name,
                shown,
                f"each listener must have a different port, except for an IPv4 and an IPv6 address: {port}",
            )


def _family(host: str) -> int:
    """IP version of an address, 0 for a host name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).version
    except ValueError:
        return 0


def parse_map(name: str, text: str) -> dict[str, str]:
    """Parse `key:value` pairs, split at the last colon of each. Raises ConfigError."""
    found: dict[str, str] = {}
    for pair in re.split(r"\s*,\s*", text.strip()) if text.strip() else ():
        key, colon, value = pair.rpartition(":")
        if not colon:
            raise ConfigError.of(name, text, "expected key:value pairs")
        found[key.strip()] = value.strip()
    return found


def security_protocols(
    text: str,
    *,
    explicit: bool,
    controller_names: Collection[str],
    listeners: Sequence[str],
) -> dict[str, str]:
    """Security protocols by listener name.

    If the map is not `explicit`, controller listeners are PLAINTEXT unless a listener is named after a security
    protocol other than PLAINTEXT.
    """
    config = "listener.security.protocol.map"
    found: dict[str, str] = {}
    for listener, protocol in parse_map(config, text).items():
        if protocol.upper() not in SECURITY_PROTOCOLS:
            raise ConfigError.of(config, text, f"unknown security protocol {protocol}")
        found[listener.upper()] = protocol.upper()
    if not explicit:
        secured = set(SECURITY_PROTOCOLS) - {"PLAINTEXT"}
        named = {*controller_names, *(listener_name(entry) for entry in listeners)}
        if not named & secured:
            found.update(dict.fromkeys(controller_names, "PLAINTEXT"))
    return found


def check_routable(name: str, endpoints: Sequence[ListenerEndpoint]) -> None:
    """Reject 0.0.0.0 as advertised address. Raises ConfigError."""
    for endpoint in endpoints:
        if endpoint.host == _NO_ROUTE:
            raise ConfigError.of(
                name,
                f"{endpoint.name}://{_NO_ROUTE}:{endpoint.port}",
                f"{name} cannot use the nonroutable meta-address {_NO_ROUTE}. Use a routable IP address, "
                f"which clients connect to: {name}={endpoint.name}://HOST:{endpoint.port}, for example with "
                f"--set {name}={endpoint.name}://localhost:{endpoint.port}",
            )


def parse_voters(name: str, entries: Sequence[str]) -> tuple[QuorumAddress, ...]:
    """Parse `id@host:port` entries. Raises ConfigError."""
    found: list[QuorumAddress] = []
    for entry in entries:
        number, at, address = entry.partition("@")
        match = _ADDRESS.fullmatch(address)
        if not at or match is None or not re.fullmatch(r"[+-]?[0-9]+", number):
            raise ConfigError.of(name, entry, "expected id@host:port")
        found.append(QuorumAddress(int(number), match[1], int(match[2])))
    return tuple(found)


def parse_bootstrap_servers(name: str, entries: Sequence[str]) -> tuple[QuorumAddress, ...]:
    """Parse `host:port` entries. Raises ConfigError."""
    found: list[QuorumAddress] = []
    for entry in entries:
        match = _ADDRESS.fullmatch(entry)
        if match is None:
            raise ConfigError.of(name, entry, "expected host:port")
        found.append(QuorumAddress(None, match[1], int(match[2])))
    return tuple(found)


def parse_address(name: str, text: str) -> tuple[str, int]:
    """Parse `host:port`; an empty host is every address. Raises ConfigError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or "://" in text or int(match[2]) > PORT_MAX:
        raise ConfigError.of(name, text, "expected host:port")
    return match[1], int(match[2])
