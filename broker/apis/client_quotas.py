"""DescribeClientQuotas (KIP-546): the quotas in the metadata log.

None is enforced, and so none can be set here: a log that Kafka wrote may have some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.apis.authorized import check_cluster, text_of
from odradek.broker.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.quotas import Component, find_quotas

Values = dict[str, Any]


async def describe_client_quotas(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    components = [
        Component(each.entity_type, each.match_type, each.match) for each in request.components
    ]
    try:
        check_cluster(ctx)
        found = find_quotas(ctx.broker.metadata.image, components, strict=request.strict)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": text_of(error), "entries": None}
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "entries": [
            {
                "entity": [_part(kind, name) for kind, name in entity],
                "values": [{"key": key, "value": value} for key, value in values.items()],
            }
            for entity, values in found
        ],
    }


def _part(entity_type: str, name: str | None) -> Values:
    return {"entity_type": entity_type, "entity_name": name}


HANDLERS = {
    apis.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
}
