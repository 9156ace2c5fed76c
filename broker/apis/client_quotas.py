"""DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.apis.authorized import check_cluster, text_of
from odradek.broker.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.quotas import (
    Component,
    QuotaAlteration,
    alter_client_quotas,
    find_quotas,
)

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


async def alter(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    wanted = [
        QuotaAlteration(
            [(part.entity_type, part.entity_name) for part in entry.entity],
            [(op.key, None if op.remove else op.value) for op in entry.ops],
        )
        for entry in request.entries
    ]
    answers: list[KafkaError | None]
    try:
        check_cluster(ctx)
        answers = await ctx.broker.metadata.perform(
            lambda image: alter_client_quotas(image, wanted, validate_only=request.validate_only)
        )
    except KafkaError as error:
        answers = [error] * len(wanted)
    return {
        "entries": [
            {
                "error_code": ErrorCode.none if error is None else error.code,
                "error_message": error and (error.message or None),
                "entity": [_part(kind, name) for kind, name in each.entity],
            }
            for each, error in zip(wanted, answers, strict=True)
        ]
    }


HANDLERS = {
    apis.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
}
