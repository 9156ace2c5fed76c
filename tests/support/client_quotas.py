"""Changes of client quotas by tests."""

from __future__ import annotations

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from tests.support.raw_client import RawClient


def set_client_quotas(client: RawClient, **values: float) -> None:
    """Set quotas of the anonymous user, and remove its others."""
    everything = (
        "producer_byte_rate",
        "consumer_byte_rate",
        "request_percentage",
        "controller_mutation_rate",
    )
    ops = [
        {"key": key, "value": values.get(key, 0.0), "remove": key not in values}
        for key in everything
    ]
    entity = [{"entity_type": "user", "entity_name": "ANONYMOUS"}]
    response = client.ask(
        apis.ALTER_CLIENT_QUOTAS,
        1,
        {"entries": [{"entity": entity, "ops": ops}], "validate_only": False},
    )
    assert response.entries[0].error_code is ErrorCode.none, response.entries[0].error_message
