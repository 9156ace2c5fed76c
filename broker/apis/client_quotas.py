"""DescribeClientQuotas and AlterClientQuotas (KIP-546): the quotas in the metadata log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import check_cluster, text_of
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.client_quotas import (
    AlteredQuotas,
    QuotaAlteration,
    QuotaFilterComponent,
    alter_quotas,
    find_quotas,
)

Values = dict[str, Any]


async def describe_client_quotas(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    components = [
        QuotaFilterComponent(each.entity_type, each.match_type, each.match)
        for each in request.components
    ]
    try:
        check_cluster(ctx)
        found = find_quotas(ctx.services.metadata.image, components, strict=request.strict)
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


async def alter_client_quotas(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    alterations = [
        QuotaAlteration(
            [(part.entity_type, part.entity_name) for part in each.entity],
            [(op.key, None if op.remove else op.value) for op in each.ops],
        )
        for each in request.entries
    ]
    try:
        check_cluster(ctx)
        responses = await ctx.services.metadata.perform(
            lambda image: alter_quotas(image, alterations, validate_only=request.validate_only)
        )
    except KafkaError as error:
        return {
            "entries": [
                {
                    "error_code": error.code,
                    "error_message": text_of(error),
                    "entity": [_part(kind, name) for kind, name in each.entity],
                }
                for each in alterations
            ]
        }
    return {"entries": [_altered(each) for each in responses]}


def _altered(response: AlteredQuotas) -> Values:
    error = response.error
    return {
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message or None,
        "entity": [_part(kind, name) for kind, name in response.entity],
    }


HANDLERS = {
    apis.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    apis.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
}
