"""Tests of the rules of StandardAuthorizer, one by one and against a reference implementation."""

from __future__ import annotations

import random

import pytest

from odradek.broker.config.types import ConfigError
from odradek.broker.security.authorizer import Authorizer
from odradek.broker.security.authorizer_config import check_authorizer, parse_super_users
from odradek.replication.controller.acls import (
    Acl,
    AclOperation,
    AclResource,
    PatternType,
    Permission,
)

ALICE, BOB = "User:alice", "User:bob"
HERE, THERE = "10.0.0.1", "10.0.0.2"
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC = AclResource.TOPIC


def acl(
    operation: AclOperation = READ,
    name: str = "t",
    *,
    principal: str = ALICE,
    host: str = "*",
    prefixed: bool = False,
    deny: bool = False,
    resource: AclResource = TOPIC,
) -> Acl:
    return Acl(
        resource,
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal,
        host,
        operation,
        Permission.DENY if deny else Permission.ALLOW,
    )


def with_acls(*acls: Acl, **options: object) -> Authorizer:
    authorizer = Authorizer(**options)  # type: ignore[arg-type]
    authorizer.load(acls)
    return authorizer


def allows(
    authorizer: Authorizer,
    operation: AclOperation = READ,
    name: str = "t",
    principal: str = ALICE,
    host: str = HERE,
) -> bool:
    return authorizer.allows(principal, host, operation, TOPIC, name)


def test_without_acls_only_super_users_are_allowed() -> None:
    authorizer = with_acls(super_users=[BOB])
    assert not allows(authorizer)
    assert allows(authorizer, principal=BOB)


def test_allow_everyone_ends_with_the_first_acl_about_the_resource() -> None:
    authorizer = with_acls(acl(principal=BOB), allow_if_no_acl=True)
    assert allows(authorizer, name="other")
    assert not allows(authorizer)
    assert allows(authorizer, principal=BOB)
    assert authorizer.allows(ALICE, HERE, READ, AclResource.GROUP, "t")


def test_acl_applies_to_principal_host_and_operation() -> None:
    authorizer = with_acls(acl(host=HERE))
    assert allows(authorizer)
    assert not allows(authorizer, host=THERE)
    assert not allows(authorizer, principal=BOB)
    assert not allows(authorizer, WRITE)
    assert allows(with_acls(acl(principal="User:*")), principal=BOB)
    assert allows(with_acls(acl(AclOperation.ALL)), WRITE)


@pytest.mark.parametrize("spelt", ["0:0:0:0:0:0:0:1", "::1", "0000::0001", "::1%lo"])
def test_host_matches_in_any_spelling(spelt: str) -> None:
    """Apache Kafka matches only Java's full spelling of an IPv6 address."""
    anywhere = acl(AclOperation.ALL)
    for authorizer in (with_acls(acl(host=spelt)), with_acls(acl(host=spelt), anywhere)):
        assert allows(authorizer, host="::1")
    denying = with_acls(anywhere, acl(host=spelt, deny=True))
    assert not allows(denying, host="::1")
    assert allows(denying, host="::2")
    assert allows(denying, host="10.0.0.1")
    assert not allows(with_acls(acl(host=spelt)), host="node-1")


def test_deny_takes_precedence_in_any_order() -> None:
    everything = acl(AclOperation.ALL, "*", principal="User:*")
    denied = acl(READ, "t", deny=True)
    for order in ((everything, denied), (denied, everything)):
        authorizer = with_acls(*order)
        assert not allows(authorizer)
        assert allows(authorizer, WRITE)
        assert allows(authorizer, principal=BOB)
    assert allows(with_acls(acl(AclOperation.ALL, deny=True), super_users=[ALICE]))


@pytest.mark.parametrize(
    ("has", "implies"),
    [
        (READ, DESCRIBE),
        (WRITE, DESCRIBE),
        (AclOperation.DELETE, DESCRIBE),
        (AclOperation.ALTER, DESCRIBE),
        (AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS),
    ],
)
def test_allow_implies_operations_and_deny_does_not(
    has: AclOperation, implies: AclOperation
) -> None:
    assert allows(with_acls(acl(has)), implies)
    assert not allows(with_acls(acl(implies)), has)
    authorizer = with_acls(acl(has, deny=True), acl(implies))
    assert allows(authorizer, implies)


def test_resource_patterns_match_names() -> None:
    authorizer = with_acls(acl(name="pre-", prefixed=True), acl(name="lit"), acl(WRITE, "*"))
    assert allows(authorizer, name="pre-")
    assert allows(authorizer, name="pre-fix")
    assert not allows(authorizer, name="pre")
    assert allows(authorizer, name="lit")
    assert not allows(authorizer, name="literal")
    assert allows(authorizer, WRITE, "literal")


def test_cached_decisions_are_removed_when_acls_change() -> None:
    authorizer = with_acls()
    assert not allows(authorizer)
    authorizer.load([acl()])
    assert allows(authorizer)


def test_incremental_changes_equal_full_load() -> None:
    source = random.Random(3)
    changed, there = Authorizer(), [acl(), acl()]
    changed.load(there)
    for _ in range(300):
        removed = source.sample(there, source.randrange(len(there) + 1) // 2)
        for each in removed:
            there.remove(each)
        added = [
            acl(
                source.choice([READ, WRITE]),
                source.choice(["t", "te", "test", "*"]),
                principal=source.choice([ALICE, BOB]),
                prefixed=source.random() < 0.4,
                deny=source.random() < 0.3,
            )
            for _ in range(source.randrange(3))
        ]
        there += added
        changed.change(added, removed)
        loaded = with_acls(*there)
        for name in ("t", "te", "tes", "test", "*", "x"):
            for principal in (ALICE, BOB):
                assert allows(changed, READ, name, principal) == allows(
                    loaded, READ, name, principal
                )
        assert changed.allows_any(BOB, HERE, WRITE, TOPIC) == loaded.allows_any(
            BOB, HERE, WRITE, TOPIC
        )


def test_authorization_for_any_topic() -> None:
    def any_topic(*acls: Acl, **options: object) -> bool:
        return with_acls(*acls, **options).allows_any(ALICE, HERE, WRITE, TOPIC)

    assert not any_topic()
    assert any_topic(super_users=[ALICE])
    assert any_topic(allow_if_no_acl=True)
    assert any_topic(acl(WRITE))
    assert any_topic(acl(AclOperation.ALL, "*"))
    assert not any_topic(acl(READ))
    assert not any_topic(acl(WRITE), acl(WRITE, deny=True))
    assert any_topic(acl(WRITE, "a"), acl(WRITE, "b", deny=True))
    assert not any_topic(acl(WRITE, "abc"), acl(WRITE, "a", prefixed=True, deny=True))
    assert not any_topic(
        acl(WRITE, "abc", prefixed=True), acl(WRITE, "ab", prefixed=True, deny=True)
    )
    assert any_topic(acl(WRITE, "ab", prefixed=True), acl(WRITE, "abc", prefixed=True, deny=True))
    assert not any_topic(acl(WRITE), acl(WRITE, "*", deny=True))
    assert any_topic(acl(WRITE, "*"), acl(WRITE, "t", deny=True))


def reference_decision(
    acls: list[Acl], question: tuple[str, str, AclOperation, str], default: bool
) -> bool:
    """Decision by the rules without an index."""
    principal, host, operation, name = question
    about = [
        each
        for each in acls
        if each.resource_name in (name, "*")
        or (each.pattern_type == PatternType.PREFIXED and name.startswith(each.resource_name))
        if each.pattern_type == PatternType.PREFIXED or each.resource_name in (name, "*")
    ]
    if not about:
        return default
    mine = [
        each
        for each in about
        if each.principal in (principal, "User:*") and each.host in (host, "*")
    ]
    if any(
        each.permission == Permission.DENY and each.operation in (operation, AclOperation.ALL)
        for each in mine
    ):
        return False
    enough = {operation, AclOperation.ALL}
    if operation == DESCRIBE:
        enough |= {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER}
    return any(each.permission == Permission.ALLOW and each.operation in enough for each in mine)


def test_authorizer_matches_reference_rules() -> None:
    randoms = random.Random(7)
    names = ["a", "ab", "abc", "b", "*"]
    for _ in range(300):
        acls = [
            acl(
                randoms.choice([READ, WRITE, DESCRIBE, AclOperation.ALL]),
                randoms.choice(names),
                principal=randoms.choice([ALICE, BOB, "User:*"]),
                host=randoms.choice([HERE, THERE, "*"]),
                prefixed=randoms.random() < 0.4,
                deny=randoms.random() < 0.3,
            )
            for _ in range(randoms.randrange(6))
        ]
        acls = [
            each
            for each in acls
            if not (each.resource_name == "*" and each.pattern_type == PatternType.PREFIXED)
        ]
        default = randoms.random() < 0.5
        authorizer = with_acls(*acls, allow_if_no_acl=default)
        for operation in (READ, WRITE, DESCRIBE):
            for name in ("a", "ab", "abcd", "b", "c"):
                question = (ALICE, HERE, operation, name)
                expected = reference_decision(acls, question, default)
                assert allows(authorizer, operation, name) == expected, (acls, question)


def test_super_users_are_allowed_everything() -> None:
    assert parse_super_users(" User:a ; User:CN=x,O=y;") == {"User:a", "User:CN=x,O=y"}
    with pytest.raises(ConfigError):
        parse_super_users("User:a;b")
    with pytest.raises(ConfigError):
        check_authorizer("com.example.Mine", "")
