"""librdkafka's admin client: ACLs, SCRAM credentials and elections (its tests 0081 and 0138 use these
APIs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    ElectionType,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from odradek.broker.security.authorizer_config import STANDARD_AUTHORIZER
from tests.support.broker_kinds import BROKERS, STARTERS
from tests.support.broker_process import BrokerProcess
from tests.support.librdkafka_clients import TIMEOUT_S, create_topic
from tests.support.waiting import deadline

CONFIG = {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}


@pytest.fixture(scope="module", params=BROKERS)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp(f"admin-{request.param}")
    with STARTERS[request.param](directory, config=CONFIG) as running:
        yield running


@pytest.fixture
def admin(guarded: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": guarded.bootstrap})


def until(found: Callable[[], Any], wanted: Any) -> None:
    """Repeat until the result is as wanted, because Kafka's broker receives changes after its controller."""
    with deadline(TIMEOUT_S, str(wanted)) as check:
        while found() != wanted:
            check()


def test_acls(admin: AdminClient, name: str) -> None:
    def binding(kind: ResourcePatternType, principal: str, operation: AclOperation) -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC, name, kind, principal, "*", operation, AclPermissionType.ALLOW
        )

    literal = binding(ResourcePatternType.LITERAL, "User:test", AclOperation.READ)
    prefixed = binding(ResourcePatternType.PREFIXED, "User:test2", AclOperation.WRITE)
    for future in admin.create_acls([literal, prefixed]).values():
        assert future.result() is None
    for future in admin.create_acls([literal]).values():  # the ACL exists: no error
        future.result()
    matching = AclBindingFilter(
        ResourceType.TOPIC,
        f"{name}-1",
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    everything = AclBindingFilter(
        ResourceType.TOPIC,
        name,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    until(lambda: set(admin.describe_acls(everything).result()), {literal, prefixed})
    assert admin.describe_acls(matching).result() == [prefixed]
    (deleted,) = admin.delete_acls([everything]).values()
    assert set(deleted.result()) == {literal, prefixed}
    until(lambda: admin.describe_acls(everything).result(), [])


def test_scram_credentials(admin: AdminClient, name: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    upsert = UserScramCredentialUpsertion(name, info, b"password", b"salt")
    (done,) = admin.alter_user_scram_credentials([upsert]).values()
    done.result()

    def described() -> list[tuple[ScramMechanism, int]]:
        try:
            found = admin.describe_user_scram_credentials([name])[name].result()
        except KafkaException:
            return []
        return [(each.mechanism, each.iterations) for each in found.scram_credential_infos]

    until(described, [(ScramMechanism.SCRAM_SHA_256, 8192)])
    deletion = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256)
    (gone,) = admin.alter_user_scram_credentials([deletion]).values()
    gone.result()
    until(described, [])
    (missing,) = admin.alter_user_scram_credentials([deletion]).values()
    with pytest.raises(KafkaException):
        missing.result()


def test_elections(admin: AdminClient, guarded: BrokerProcess, name: str) -> None:
    create_topic(guarded.bootstrap, name)
    where = TopicPartition(name, 0)
    for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        elected = admin.elect_leaders(kind, [where]).result()
        assert elected[where].name() == "ELECTION_NOT_NEEDED"


def test_authorized_operations_are_described(
    admin: AdminClient, guarded: BrokerProcess, name: str
) -> None:
    create_topic(guarded.bootstrap, name)
    cluster = admin.describe_cluster(include_authorized_operations=True).result()
    assert AclOperation.ALTER in cluster.authorized_operations
    group = f"{name}-group"

    def error() -> str:
        (future,) = admin.describe_consumer_groups([group]).values()
        try:
            future.result(TIMEOUT_S)
        except KafkaException as refused:
            return str(refused.args[0].name())
        return ""

    denied = AclBinding(
        ResourceType.GROUP,
        group,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.ALL,
        AclPermissionType.DENY,
    )
    (made,) = admin.create_acls([denied]).values()
    made.result()
    until(error, "GROUP_AUTHORIZATION_FAILED")
