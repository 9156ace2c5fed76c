"""Creation, search and deletion of ACLs, and their records in snapshots."""

from __future__ import annotations

import random
from dataclasses import replace
from uuid import UUID

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclResource,
    PatternType,
    Permission,
    acl_of,
    create_acls,
    delete_acls,
    find_acls,
)
from odradek.replication.controller.controller_result import MAX_RECORDS
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.image_records import snapshot_records
from tests.support.cluster_images import ENTROPY, LITERAL, READ, with_acls

WILDCARD = replace(LITERAL, resource_name="*", principal="User:bob")


def names(found: AclFilter, image: MetadataImage) -> list[str]:
    return [acl.resource_name for acl in find_acls(image, found) if acl]


def test_existing_acl_is_not_created_again() -> None:
    image = with_acls(READ, LITERAL, READ)
    assert [acl_of(record) for record in image.acls.values()] == [READ, LITERAL]
    again = create_acls(image, [READ, WILDCARD], entropy=ENTROPY)
    assert again.result == [None, None]
    assert [acl_of(record) for record in again.records] == [WILDCARD]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (replace(READ, resource_type=AclResource.ANY), "Invalid resourceType ANY"),
        (replace(READ, resource_type=0), "Invalid resourceType UNKNOWN"),
        (replace(READ, pattern_type=PatternType.MATCH), "Invalid patternType MATCH"),
        (replace(READ, operation=AclOperation.ANY), "Invalid operation ANY"),
        (replace(READ, permission=Permission.ANY), "Invalid permissionType ANY"),
        (replace(READ, resource_name=""), "Invalid empty resource name"),
        (
            replace(READ, principal="alice"),
            "Could not parse principal from `alice` "
            "(no colon is present separating the principal type from the principal name)",
        ),
        (
            replace(READ, resource_type=AclResource.CLUSTER),
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
    ],
)
def test_invalid_acl_is_rejected_alone(wrong: Acl, message: str) -> None:
    plan = create_acls(MetadataImage(), [wrong, LITERAL], entropy=ENTROPY)
    assert [error and error.code for error in plan.result] == [ErrorCode.invalid_request, None]
    assert plan.result[0] is not None
    assert plan.result[0].message == message
    assert len(plan.records) == 1


def test_filter_matching() -> None:
    image = with_acls(READ, LITERAL, WILDCARD)
    assert names(AclFilter(), image) == ["pay", "payments", "*"]
    assert names(AclFilter(resource_name="payments"), image) == ["payments"]
    for name, expected in (("payments", 3), ("pay", 2), ("other", 1)):
        found = AclFilter(resource_name=name, pattern_type=PatternType.MATCH)
        assert len(names(found, image)) == expected, name
    assert names(AclFilter(pattern_type=PatternType.PREFIXED), image) == ["pay"]
    assert names(AclFilter(principal="User:bob"), image) == ["*"]
    assert names(AclFilter(operation=AclOperation.WRITE), image) == []
    assert names(AclFilter(host="10.0.0.1"), image) == []


def test_acl_matched_by_several_filters_is_deleted_once() -> None:
    image = with_acls(READ, LITERAL)
    filters = [AclFilter(resource_name="pay"), AclFilter(), AclFilter(operation=0)]
    plan = delete_acls(image, filters)
    assert [len(each.acls) for each in plan.result] == [1, 2, 0]
    assert plan.result[2].error is not None
    assert plan.result[2].error.message == "Unknown entryFilter."
    assert len(plan.records) == 2
    assert not apply_records(image, plan.records, offset=9).image.acls


def test_deletion_above_batch_limit_is_rejected() -> None:
    (record,) = with_acls(READ).acls.values()
    ids = [UUID(int=number) for number in range(1, MAX_RECORDS + 2)]
    image = MetadataImage(acls={each: replace(record, id=each) for each in ids})
    with pytest.raises(KafkaError, match="Cannot remove more than 10000 acls") as caught:
        delete_acls(image, [AclFilter()])
    assert caught.value.code is ErrorCode.invalid_request


def test_many_filters_match_like_single_filters() -> None:
    source = random.Random(5)
    words = ["a", "ab", "abc", "*", "b"]
    some = {
        Acl(
            source.choice([AclResource.TOPIC, AclResource.GROUP]),
            source.choice(words),
            source.choice([PatternType.LITERAL, PatternType.PREFIXED]),
            source.choice(["User:alice", "User:bob"]),
            "*",
            source.choice([AclOperation.READ, AclOperation.WRITE]),
            Permission.ALLOW,
        )
        for _ in range(40)
    }
    image = with_acls(*some)
    filters = [
        AclFilter(
            resource_type=source.choice([AclResource.ANY, AclResource.TOPIC]),
            resource_name=source.choice([None, *words, "abcd", "c", "x" * 30_000]),
            pattern_type=source.choice([each for each in PatternType if each]),
            principal=source.choice([None, "User:bob"]),
        )
        for _ in range(200)
    ]
    for asked in (filters, [each for each in filters if each.exact_name is not None]):
        plan = delete_acls(image, asked)
        for wanted, deleted in zip(asked, plan.result, strict=True):
            assert set(deleted.acls) == set(find_acls(image, wanted)) - {None}, wanted
            assert len(deleted.acls) == len(set(deleted.acls))


def test_snapshot_contains_the_records() -> None:
    image = with_acls(READ, LITERAL)
    assert (
        apply_records(MetadataImage(), snapshot_records(image), offset=9).image.acls == image.acls
    )
