"""SCRAM credentials: rejected changes, stored keys, and verification of a login (RFC 5802)."""

from __future__ import annotations

import base64
import hashlib

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.image_records import snapshot_records
from odradek.replication.controller.scram import (
    ScramDeletion,
    ScramUpsertion,
    alter_scram_credentials,
    scram_keys,
)

SHA_256, SHA_512 = 1, 2
ALICE = ScramUpsertion("alice", SHA_256, 4096, b"salt", b"salted")


def responses(
    image: MetadataImage, *changes: ScramDeletion | ScramUpsertion
) -> dict[str, ErrorCode | None]:
    plan = alter_scram_credentials(
        image,
        [each for each in changes if isinstance(each, ScramDeletion)],
        [each for each in changes if isinstance(each, ScramUpsertion)],
    )
    return {user: error and error.code for user, error in plan.result}


def with_alice() -> MetadataImage:
    plan = alter_scram_credentials(MetadataImage(), [], [ALICE])
    return apply_records(MetadataImage(), plan.records, offset=1).image


def test_scram_keys_of_rfc_7677_example() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    stored_key, server_key = scram_keys(SHA_256, salted)
    assert base64.b64encode(stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def test_salted_password_is_not_stored() -> None:
    (record,) = with_alice().scram.values()
    assert b"salted" not in (record.stored_key, record.server_key)
    assert (record.salt, record.iterations, record.mechanism) == (b"salt", 4096, SHA_256)


def test_deleted_credential() -> None:
    image = with_alice()
    plan = alter_scram_credentials(image, [ScramDeletion("alice", SHA_256)], [])
    assert not apply_records(image, plan.records, offset=2).image.scram


def test_invalid_changes_are_rejected() -> None:
    image = with_alice()
    few = ScramUpsertion("bob", SHA_256, 4095, b"", b"salted")
    empty = ScramUpsertion("bob", SHA_256, 4096, b"salt", b"")
    many = ScramUpsertion("bob", SHA_256, 16385, b"", b"")
    unknown = ScramUpsertion("bob", 3, 4096, b"", b"")
    for change, code in (
        (few, ErrorCode.unacceptable_credential),
        (many, ErrorCode.unacceptable_credential),
        (empty, ErrorCode.unacceptable_credential),
        (unknown, ErrorCode.unsupported_sasl_mechanism),
        (ScramDeletion("bob", SHA_256), ErrorCode.resource_not_found),
        (ScramDeletion("alice", SHA_512), ErrorCode.resource_not_found),
        (ScramDeletion("", SHA_512), ErrorCode.unacceptable_credential),
    ):
        found = responses(image, change, ScramUpsertion("carol", SHA_256, 4096, b"", b"salted"))
        assert found[change.user] is code
        assert found["carol"] is None


def test_duplicate_user_is_rejected() -> None:
    image = with_alice()
    twice = responses(image, ScramDeletion("alice", SHA_256), ALICE)
    assert twice == {"alice": ErrorCode.duplicate_resource}


def test_snapshot_contains_the_records() -> None:
    image = with_alice()
    assert (
        apply_records(MetadataImage(), snapshot_records(image), offset=2).image.scram == image.scram
    )
