"""Normalizes host addresses, which have several spellings.

Java spells an IPv6 address in full (0:0:0:0:0:0:0:1), as do ACLs of Apache Kafka; a listener of Odradek reports
::1.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

Host = IPv4Address | IPv6Address | str
"""An address, or a text that is no address (virtual networks)."""


def host_of(text: str) -> Host:
    """Normalize a host; an IPv4 address mapped to IPv6 becomes IPv4."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
