"""BrokerRegistration request, and the fields that it shares with ControllerRegistration (KIP-500, KIP-858)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from odradek.replication.controller import image as images
from odradek.replication.controller.broker_registration import BrokerRegistration

if TYPE_CHECKING:
    from odradek.broker.environment import NodeEnvironment
    from odradek.broker.network.listeners import BoundListener

SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


def broker_registration_request(
    environment: NodeEnvironment, endpoints: Sequence[BoundListener], *, previous_epoch: int
) -> BrokerRegistration:
    """BrokerRegistration request; every call has a new incarnation id."""
    return BrokerRegistration(
        id=environment.node_id,
        incarnation_id=environment.seams.entropy.uuid(),
        endpoints=advertised_endpoints(endpoints),
        directories=[each.id for each in environment.directories.live if each.id is not None],
        features=images.SUPPORTED_FEATURES,
        rack=environment.config.optional_str("broker.rack"),
        previous_epoch=previous_epoch,
    )


def advertised_endpoints(endpoints: Sequence[BoundListener]) -> list[images.Endpoint]:
    """Listeners with an advertised address."""
    return [
        images.Endpoint(
            each.name,
            each.advertised.host,
            each.advertised.port,
            SECURITY_PROTOCOLS[each.security_protocol],
        )
        for each in endpoints
        if each.advertised is not None
    ]


def registration_fields(
    endpoints: Iterable[images.Endpoint], features: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    """Fields that registrations of brokers and controllers share."""
    return {
        "listeners": [
            {
                "name": each.name,
                "host": each.host,
                "port": each.port,
                "security_protocol": each.security_protocol,
            }
            for each in endpoints
        ],
        "features": [
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, (low, high) in features.items()
        ],
    }
