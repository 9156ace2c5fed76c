"""Alters SCRAM credentials (Kafka's `ScramControlManager`; KIP-554).

Requests contain the salted password. Only StoredKey and ServerKey are stored (RFC 5802, section 3): they
verify a login, but are not sufficient to log in.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import (
    ControllerResult,
    ItemRefused,
    check_size,
)
from odradek.replication.controller.image import MetadataImage
from odradek.seams.values import value_class

HASHES: Final = {1: "sha256", 2: "sha512"}
"""Mechanism to hash: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."""
MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384


@value_class
class ScramDeletion:
    user: str
    mechanism: int


@value_class
class ScramUpsertion:
    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)
    """Sufficient to log in, therefore excluded from repr."""


def alter_scram_credentials(
    image: MetadataImage,
    deletions: Sequence[ScramDeletion],
    upsertions: Sequence[ScramUpsertion],
) -> ControllerResult[list[tuple[str, KafkaError | None]]]:
    """Apply changes; the result has None or an error per user. A user may only be altered once per
    request."""
    changes: list[ScramDeletion | ScramUpsertion] = [*deletions, *upsertions]
    wanted: dict[str, ScramDeletion | ScramUpsertion] = {}
    refused: dict[str, KafkaError] = {}
    for each in changes:
        if each.user in refused:
            continue
        if wanted.pop(each.user, None) is not None:
            refused[each.user] = ItemRefused(
                ErrorCode.duplicate_resource,
                "A user credential cannot be altered twice in the same request",
            )
            continue
        try:
            _check(image, each)
        except KafkaError as error:
            refused[each.user] = error
        else:
            wanted[each.user] = each
    records = [_record(each) for each in wanted.values()]
    check_size(records)
    return ControllerResult(records, [*((user, None) for user in wanted), *refused.items()])


def _check(image: MetadataImage, wanted: ScramDeletion | ScramUpsertion) -> None:
    if not wanted.user:
        raise ItemRefused(ErrorCode.unacceptable_credential, "Username must not be empty")
    if wanted.mechanism not in HASHES:
        raise ItemRefused(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if isinstance(wanted, ScramUpsertion):
        if wanted.iterations < MIN_ITERATIONS:
            raise ItemRefused(ErrorCode.unacceptable_credential, "Too few iterations")
        if wanted.iterations > MAX_ITERATIONS:
            raise ItemRefused(ErrorCode.unacceptable_credential, "Too many iterations")
        if not wanted.salted_password:
            raise ItemRefused(ErrorCode.unacceptable_credential, "Empty salted password")
    elif (wanted.mechanism, wanted.user) not in image.scram:
        raise ItemRefused(
            ErrorCode.resource_not_found,
            "Attempt to delete a user credential that does not exist",
        )


def _record(wanted: ScramDeletion | ScramUpsertion) -> Any:
    from odradek.protocol.schemas import security_records as schemas

    if isinstance(wanted, ScramDeletion):
        return schemas.RemoveUserScramCredentialRecord(name=wanted.user, mechanism=wanted.mechanism)
    stored_key, server_key = scram_keys(wanted.mechanism, wanted.salted_password)
    return schemas.UserScramCredentialRecord(
        name=wanted.user,
        mechanism=wanted.mechanism,
        salt=wanted.salt,
        stored_key=stored_key,
        server_key=server_key,
        iterations=wanted.iterations,
    )


def scram_keys(mechanism: int, salted_password: bytes) -> tuple[bytes, bytes]:
    """StoredKey and ServerKey of a salted password (RFC 5802, section 3)."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return stored_key, hmac.digest(salted_password, b"Server Key", name)
