"""Alters and finds client quotas (Kafka's `ClientQuotaControlManager`; KIP-546).

A quota belongs to an entity: a user, a client id, both, or an IP address. The name None is the default
for entities without their own quota. Brokers enforce quotas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import (
    ControllerResult,
    ItemRefused,
    check_size,
)
from odradek.replication.controller.image import MetadataImage, QuotaEntity
from odradek.seams.values import value_class

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_LONG_MAX: Final = float(2**63 - 1)
_INT_MAX: Final = float(2**31 - 1)
_CLIENT_KEYS: Final[Mapping[str, tuple[str, float] | None]] = {
    PRODUCER_BYTE_RATE: ("LONG", _LONG_MAX),
    CONSUMER_BYTE_RATE: ("LONG", _LONG_MAX),
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_KEYS: Final[Mapping[str, tuple[str, float] | None]] = {
    CONNECTION_CREATION_RATE: ("INT", _INT_MAX),
}
"""Type and maximum of integer quotas; None for quotas that may be fractions."""

EXACT, DEFAULT, ANY = 0, 1, 2
"""Match types of a filter component: this name, the default entity, or any name."""


@value_class
class QuotaFilterComponent:
    """Filter component for one entity type."""

    entity_type: str
    match_type: int
    name: str | None


@value_class
class QuotaAlteration:
    """Changes to an entity's quotas; the value None removes a quota."""

    entity: Sequence[tuple[str, str | None]]
    ops: Sequence[tuple[str, float | None]]


@value_class
class AlteredQuotas:
    entity: QuotaEntity
    error: KafkaError | None = None


def alter_quotas(
    image: MetadataImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> ControllerResult[list[AlteredQuotas]]:
    """Apply alterations; one result per entity, in request order.

    For a duplicate entity, the first alteration is applied and the result is an error, as in Kafka.
    """
    records: list[Any] = []
    responses: dict[QuotaEntity, AlteredQuotas] = {}
    for each in alterations:
        entity: QuotaEntity = tuple(sorted(dict(each.entity).items(), key=lambda part: part[0]))
        try:
            if entity in responses:
                raise _invalid(f"Ignoring duplicate entity {_shown(entity)}")
            records += _altered(image, entity, each.ops)
        except ItemRefused as refused:
            responses[entity] = AlteredQuotas(entity, refused)
        else:
            responses[entity] = AlteredQuotas(entity)
    check_size(records)
    return ControllerResult([] if validate_only else records, list(responses.values()))


def _altered(
    image: MetadataImage, entity: QuotaEntity, ops: Sequence[tuple[str, float | None]]
) -> list[Any]:
    """Records of the changed quotas of one entity. Raises ItemRefused."""
    from odradek.protocol.schemas.security_records import ClientQuotaEntity, ClientQuotaRecord

    wanted: dict[str, float | None] = {}
    for key, value in ops:
        if key in wanted:
            raise _invalid(
                f"Duplicate quota key {key} not updating quota for this entity {_shown(entity)}"
            )
        wanted[key] = value
    keys = _keys_of(entity)
    now = image.quotas.get(entity, {})
    parts = tuple(ClientQuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity)
    records: list[Any] = []
    for key, value in wanted.items():
        if value is None:
            if key in now:
                records.append(ClientQuotaRecord(entity=parts, key=key, value=0.0, remove=True))
            continue
        _check_value(keys, key, value)
        if now.get(key) != value:
            records.append(ClientQuotaRecord(entity=parts, key=key, value=value, remove=False))
    return records


def _keys_of(entity: QuotaEntity) -> Mapping[str, tuple[str, float] | None]:
    """Quota keys that an entity may have. Raises ItemRefused if the entity is invalid."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    parts = dict(entity)
    if IP not in parts:
        return _CLIENT_KEYS
    if len(parts) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity should"
            "not be combined with User or ClientId"
        )
    address = parts[IP]
    if address is not None and not _is_address(address):
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return _IP_KEYS


def _is_address(text: str) -> bool:
    """Whether the text is an IP address. Host names are not resolved, because that would block."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _check_value(keys: Mapping[str, tuple[str, float] | None], key: str, value: float) -> None:
    """Validate a quota value. Raises ItemRefused."""
    if key not in keys:
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0:  # false for NaN
        raise _invalid(f"Quota {key} must be greater than 0")
    whole = keys[key]
    if whole is None:
        return
    if value > whole[1]:
        raise _invalid(f"Proposed value for {key} is too large for a {whole[0]}.")
    if value % 1.0 > 1e-6:
        raise _invalid(f"{key} cannot be a fractional value.")


def _shown(entity: QuotaEntity) -> str:
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{parts}}})"


def find_quotas(
    image: MetadataImage, components: Sequence[QuotaFilterComponent], *, strict: bool
) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    """Entities that match all components (and, if strict, have no others), with their quotas.

    Without components, all entities match, or none if strict. Raises KafkaError for an invalid filter.
    """
    wanted = _checked_filter(components)
    return [
        (entity, values)
        for entity, values in image.quotas.items()
        if _matches(dict(entity), wanted, strict)
    ]


def _checked_filter(components: Sequence[QuotaFilterComponent]) -> dict[str, QuotaFilterComponent]:
    wanted: dict[str, QuotaFilterComponent] = {}
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
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null")
        if each.match_type in (DEFAULT, ANY) and each.name is not None:
            raise _invalid("Only a component that matches exactly has a name")
        if each.match_type not in (EXACT, DEFAULT, ANY):
            raise _invalid(f"Unknown match type {each.match_type}")
        wanted[each.entity_type] = each
    if IP in wanted and len(wanted) > 1:
        raise _invalid("An IP filter component should not be used with user or clientId")
    return wanted


def _matches(
    entity: Mapping[str, str | None], wanted: Mapping[str, QuotaFilterComponent], strict: bool
) -> bool:
    for kind, component in wanted.items():
        if kind not in entity:
            return False
        if component.match_type != ANY and entity[kind] != component.name:
            return False
    return not strict or (len(entity) == len(wanted))


def _invalid(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_request, reason)
