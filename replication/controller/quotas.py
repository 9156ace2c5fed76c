"""Client quotas as they are kept: altering and finding them (KIP-546, KIP-612, KIP-599).

A quota belongs to an entity: a user, a client id, both, or an IP address; a name of None stands for
all that have no quota of their own. What quotas mean for a request is the broker's business.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import MetadataImage, QuotaEntity
from odradek.replication.controller.operations import ItemRefused, Plan, check_size

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

WHOLE: Final = frozenset((PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE))
"""Quotas that are whole numbers."""
OF_CLIENTS: Final = frozenset(
    (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
)
OF_ADDRESSES: Final = frozenset((CONNECTION_CREATION_RATE,))

_EPSILON: Final = 1e-6
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*\.?")

EXACT, DEFAULT, ANY = 0, 1, 2
"""How a filter's component matches a name: that one, the default, or any."""


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """`entity`: (type, name) pairs as they came; `changes`: (key, value) pairs, None removes."""

    entity: Sequence[tuple[str, str | None]]
    changes: Sequence[tuple[str, float | None]]


def quota_entity(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """The entity under which the image keeps quotas."""
    return tuple(sorted(parts, key=lambda part: part[0]))


def alter_client_quotas(
    image: MetadataImage, wanted: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Plan[list[KafkaError | None]]:
    """One answer for each entity asked, None where it is as wanted now."""
    records: list[Any] = []
    answers: list[KafkaError | None] = []
    seen: set[QuotaEntity] = set()
    for each in wanted:
        entity = quota_entity(each.entity)
        try:
            if entity in seen:
                raise _invalid("An entity is altered once in a request")
            seen.add(entity)
            changes = _checked(each)
        except KafkaError as error:
            answers.append(error)
            continue
        answers.append(None)
        records += _records(entity, image.quotas.get(entity, {}), changes)
    check_size(records)
    return Plan([] if validate_only else records, answers)


def _checked(wanted: QuotaAlteration) -> Mapping[str, float | None]:
    keys = _keys_of(wanted.entity)
    changes: dict[str, float | None] = {}
    for key, value in wanted.changes:
        if key in changes:
            raise _invalid(f"The quota {key} is named twice")
        changes[key] = value
        if value is None:
            continue
        if key not in keys:
            raise _invalid(f"Invalid configuration key {key}")
        if key in WHOLE and abs(int(value + _EPSILON) - value) > _EPSILON:
            raise _invalid(f"Configuration {key} must be a Long value")
    return changes


def _keys_of(entity: Sequence[tuple[str, str | None]]) -> frozenset[str]:
    """The quotas that such an entity can have. Raises ItemRefused for what is none."""
    types = [entity_type for entity_type, _ in entity]
    for entity_type, name in entity:
        if entity_type not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise _invalid(f"Empty {entity_type} not supported")
    if not types or len(set(types)) != len(types):
        raise _invalid("Invalid empty client quota entity")
    if IP not in types:
        return OF_CLIENTS
    if len(types) > 1:
        raise _invalid("Invalid empty client quota entity")
    name = entity[0][1]
    if name is not None and not _is_address(name):
        raise _invalid(f"{name} is not a valid IP or resolvable host.")
    return OF_ADDRESSES


def _is_address(name: str) -> bool:
    """An address, or what could be a host's name; nobody is asked whether there is one."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return _HOST.fullmatch(name) is not None and not name.replace(".", "").isdigit()
    return True


def _records(
    entity: QuotaEntity, present: Mapping[str, float], changes: Mapping[str, float | None]
) -> Iterator[Any]:
    from odradek.protocol.schemas.security_records import ClientQuotaEntity, ClientQuotaRecord

    parts = tuple(ClientQuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity)
    for key, value in changes.items():
        if value is None:
            if key in present:
                yield ClientQuotaRecord(entity=parts, key=key, remove=True)
        elif present.get(key) != value:
            yield ClientQuotaRecord(entity=parts, key=key, value=value)


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a filter: which names of an entity type."""

    entity_type: str
    match_type: int
    name: str | None


def find_quotas(
    image: MetadataImage, components: Sequence[Component], *, strict: bool
) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    """The entities that have all components (and, if strict, no others), with their quotas.

    No components find everything, or nothing if strict. Raises KafkaError for what no filter can be.
    """
    wanted = _checked_filter(components)
    return [
        (entity, values)
        for entity, values in image.quotas.items()
        if _matches(dict(entity), wanted, strict)
    ]


def _checked_filter(components: Sequence[Component]) -> dict[str, Component]:
    wanted: dict[str, Component] = {}
    for each in components:
        if not each.entity_type:
            raise _invalid("Unexpected empty filter component entity type")
        if each.entity_type not in (USER, CLIENT_ID, IP):
            raise ItemRefused(
                ErrorCode.unsupported_version,
                f"Custom entity type {each.entity_type} not supported",
            )
        if each.entity_type in wanted:
            raise _invalid(f"Entity type {each.entity_type} cannot appear more than once")
        if each.match_type == EXACT and each.name is None:
            raise _invalid("A component that matches exactly names what")
        if each.match_type in (DEFAULT, ANY) and each.name is not None:
            raise _invalid("Only a component that matches exactly has a name")
        if each.match_type not in (EXACT, DEFAULT, ANY):
            raise _invalid(f"Unknown match type {each.match_type}")
        wanted[each.entity_type] = each
    if IP in wanted and len(wanted) > 1:
        raise _invalid("An IP filter component should not be used with user or clientId")
    return wanted


def _matches(
    entity: Mapping[str, str | None], wanted: Mapping[str, Component], strict: bool
) -> bool:
    for kind, component in wanted.items():
        if kind not in entity:
            return False
        if component.match_type != ANY and entity[kind] != component.name:
            return False
    return not strict or (len(entity) == len(wanted))


def _invalid(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_request, reason)
