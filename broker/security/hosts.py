"""Hosts as texts: one address has several, and it is the same host by each of them.

Java writes all of an IPv6 address (0:0:0:0:0:0:0:1), and so do the ACLs that hold in Apache Kafka; a listener
of ours says ::1.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

Host = IPv4Address | IPv6Address | str
"""A text where it is no address, as in virtual networks."""


def host_of(text: str) -> Host:
    """The host; an IPv4 one also where the listener is IPv6's."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
