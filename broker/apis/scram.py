"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import ClusterDenied, check_cluster, may_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.scram import (
    HASHES,
    ScramDeletion,
    ScramUpsertion,
    alter_scram_credentials,
)

Values = dict[str, Any]


async def describe_user_scram_credentials(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """DescribeUserScramCredentials: mechanisms and iterations of the requested or all users, never keys."""
    if not may_cluster(ctx):
        denied = ClusterDenied.code
        results = [_not_described("", denied, None) for _ in request.users or ()]
        return {"error_code": denied, "error_message": None, "results": results}
    image = ctx.services.metadata.image
    users = Counter(each.name for each in request.users or ())
    if not users:
        users = Counter({user: 1 for _, user in image.scram})
    return {
        "error_code": ErrorCode.none,
        "results": [
            _described(user, times, image) async for user, times in in_steps(users.items(), ctx)
        ],
    }


def _described(user: str, times: int, image: MetadataImage) -> Values:
    found = [
        {"mechanism": mechanism, "iterations": image.scram[mechanism, user].iterations}
        for mechanism in HASHES
        if (mechanism, user) in image.scram
    ]
    if times > 1:
        return _not_described(
            user,
            ErrorCode.duplicate_resource,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
        )
    if not found:
        return _not_described(
            user, ErrorCode.resource_not_found, f"{user} has no SCRAM credentials"
        )
    return {"user": user, "error_code": ErrorCode.none, "credential_infos": found}


def _not_described(user: str, code: ErrorCode, message: str | None) -> Values:
    return {"user": user, "error_code": code, "error_message": message, "credential_infos": []}


async def alter_user_scram_credentials(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    deletions = [ScramDeletion(each.name, each.mechanism) for each in request.deletions]
    upsertions = [
        ScramUpsertion(
            each.name,
            each.mechanism,
            each.iterations,
            bytes(each.salt),
            bytes(each.salted_password),
        )
        for each in request.upsertions
    ]
    try:
        check_cluster(ctx)
        responses = await ctx.services.metadata.perform(
            lambda image: alter_scram_credentials(image, deletions, upsertions)
        )
    except KafkaError as error:
        users = dict.fromkeys(
            [each.user for each in deletions] + [each.user for each in upsertions]
        )
        responses = [(user, error) for user in users]
    return {
        "results": [
            {
                "user": user,
                "error_code": ErrorCode.none if error is None else error.code,
                "error_message": error and (error.message or None),
            }
            for user, error in responses
        ]
    }


HANDLERS = {
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    apis.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
}
