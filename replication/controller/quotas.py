"""Client quotas as they are kept, and finding them (KIP-546).

A quota belongs to an entity: a user, a client id, both, or an IP address; a name of None stands for
all that have no quota of their own. What quotas mean for a request is the broker's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import MetadataImage, QuotaEntity
from odradek.replication.controller.operations import ItemRefused
from odradek.seams.values import value_class

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

EXACT, DEFAULT, ANY = 0, 1, 2
"""How a filter's component matches a name: that one, the default, or any."""


@value_class
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
