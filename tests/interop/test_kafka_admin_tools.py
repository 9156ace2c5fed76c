"""Apache Kafka's tools for security, features, the quorum and moves, against a broker process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_kinds import BROKERS, STARTERS
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import ToolRun, run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, create_topic, wait_for_topic
from tests.support.waiting import deadline

Tool = Callable[..., ToolRun]

WHERE_FIRST = ("features", "metadata-quorum")
"""Tools that take --bootstrap-server before the subcommand."""
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def tool_for(broker: BrokerProcess) -> Tool:
    def run(name: str, *args: str, **options: Any) -> ToolRun:
        where = ("--bootstrap-server", broker.bootstrap)
        words = (*where, *args) if name in WHERE_FIRST else (*args, *where)
        return run_tool(name, *words, **options)

    return run


@pytest.fixture
def tool(broker: BrokerProcess) -> Tool:
    """Runs a tool with --bootstrap-server."""
    return tool_for(broker)


@pytest.fixture(scope="module", params=BROKERS)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker with an authorizer; resources without an ACL are accessible to everyone."""
    config = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    directory = tmp_path_factory.mktemp(f"guarded-{request.param}")
    with STARTERS[request.param](directory, config=config) as running:
        yield running


def eventually(run: Callable[[], ToolRun], expected: str) -> ToolRun:
    """Repeat a tool until its output contains the text, because brokers receive changes after the
    controller.
    """
    with deadline(TIMEOUT_S, expected) as check:
        while expected not in (done := run()).stdout:
            check()
    return done


# kafka-acls


def test_acls(guarded: BrokerProcess, name: str) -> None:
    tool = tool_for(guarded)
    create_topic(guarded.bootstrap, name)
    added = tool("acls", "--add", "--allow-principal", "User:alice", "--consumer",
                 "--topic", name, "--group", "billing")  # fmt: skip
    assert "Adding ACLs for resource" in added.stdout
    tool("acls", "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1",
         "--operation", "Write", "--topic", name, "--resource-pattern-type", "prefixed")  # fmt: skip
    listed = eventually(lambda: tool("acls", "--list"), "User:bob").stdout
    for expected in (
        f"ResourcePattern(resourceType=TOPIC, name={name}, patternType=LITERAL)",
        "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)",
        f"ResourcePattern(resourceType=TOPIC, name={name}, patternType=PREFIXED)",
        "(principal=User:bob, host=10.0.0.1, operation=WRITE, permissionType=DENY)",
        "resourceType=GROUP, name=billing",
    ):
        assert expected in listed
    of_bob = tool("acls", "--list", "--principal", "User:bob").stdout
    assert "User:alice" not in of_bob
    # The topic has ACLs now, so principals without an ACL are refused.
    refused = tool("get-offsets", "--topic", name, check=False)
    assert refused.code != 0
    assert name not in tool("topics", "--list").lines
    tool("acls", "--remove", "--force", "--topic", name)
    tool("acls", "--remove", "--force", "--topic", name, "--resource-pattern-type", "prefixed")
    with deadline(TIMEOUT_S, "the topic to be accessible again") as check:
        while name not in tool("topics", "--list").lines:
            check()


def test_acls_need_an_authorizer(tool: Tool) -> None:
    refused = tool("acls", "--list", check=False)
    assert refused.code == 1
    assert "SecurityDisabledException" in refused.stdout + refused.stderr


# kafka-configs


def test_scram_credentials(tool: Tool) -> None:
    user = ("--entity-type", "users", "--entity-name", "alice")
    # One per request: Kafka alters a user once in a request (KAFKA-14084)
    for credential in (
        "SCRAM-SHA-256=[iterations=8192,password=secret]",
        "SCRAM-SHA-512=[password=secret]",
    ):
        tool("configs", "--alter", *user, "--add-config", credential)
    described = eventually(lambda: tool("configs", "--describe", *user), "SCRAM-SHA-512").stdout
    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "SCRAM-SHA-512=iterations=4096" in described
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        tool("configs", "--alter", *user, "--delete-config", mechanism)
    with deadline(TIMEOUT_S, "the credentials to be gone") as check:
        while "SCRAM" in tool("configs", "--describe", *user).stdout:
            check()
    few = tool("configs", "--alter", *user, "--add-config",
               "SCRAM-SHA-256=[iterations=10,password=secret]", check=False)  # fmt: skip
    assert few.code != 0


def test_client_metrics(tool: Tool) -> None:
    client_metrics = ("--entity-type", "client-metrics")
    named = (*client_metrics, "--entity-name", "latency")
    tool("configs", "--alter", *named, "--add-config",
         "metrics=[org.apache.kafka.producer.],interval.ms=5000,match=[client_id=x]")  # fmt: skip
    described = eventually(lambda: tool("configs", "--describe", *client_metrics), "latency")
    assert "interval.ms=5000" in described.stdout
    tool("configs", "--alter", *named, "--delete-config", "metrics,interval.ms,match")


# The controller's


def test_leader_election(tool: Tool, bootstrap: str, name: str, tmp_path: Path) -> None:
    create_topic(bootstrap, name)
    wait_for_topic(bootstrap, name)
    one = ("--topic", name, "--partition", "0")
    for kind in ("preferred", "unclean"):
        done = tool("leader-election", "--election-type", kind, *one)
        assert "Valid replica already elected" in done.stdout
    assert (
        tool("leader-election", "--election-type", "preferred", "--all-topic-partitions").code == 0
    )
    plan = tmp_path / "elections.json"
    plan.write_text(json.dumps({"partitions": [{"topic": f"{name}-gone", "partition": 0}]}))
    gone = tool("leader-election", "--election-type", "preferred",
                "--path-to-json-file", str(plan), check=False)  # fmt: skip
    assert gone.code == 1


def test_features(tool: Tool) -> None:
    described = tool("features", "describe").stdout
    assert "Feature: metadata.version" in described
    assert "FinalizedVersionLevel: 4.3-IV0" in described
    assert _level(tool, "kraft.version") == "1"
    lowered = tool("features", "downgrade", "--feature", "share.version=0")
    assert "share.version was downgraded to 0." in lowered.stdout
    with deadline(TIMEOUT_S, "the level to be 0") as check:
        while _level(tool, "share.version") != "0":
            check()
    raised = tool("features", "upgrade", "--feature", "share.version=1")
    assert "share.version was upgraded to 1." in raised.stdout
    refused = tool("features", "downgrade", "--metadata", "3.9", check=False)
    assert refused.code == 1
    assert tool("features", "upgrade", "--release-version", "4.3", check=False).code in (0, 1)


def _level(tool: Tool, feature: str) -> str:
    described = tool("features", "describe").stdout
    found = re.search(rf"Feature: {feature}\s.*FinalizedVersionLevel: (\S+)", described)
    assert found, described
    return found[1]


def test_metadata_quorum(tool: Tool) -> None:
    status = tool("metadata-quorum", "describe", "--status").stdout
    assert "LeaderId:               1" in status
    assert "MaxFollowerLag:         0" in status
    replication = tool("metadata-quorum", "describe", "--replication").lines
    assert replication[0].split()[0] == "NodeId"
    assert replication[1].split()[0] == "1"
    assert "Leader" in replication[1]


def test_reassign_partitions(tool: Tool, bootstrap: str, name: str, tmp_path: Path) -> None:
    assert "No partition reassignments found." in tool("reassign-partitions", "--list").stdout
    create_topic(bootstrap, name)
    wait_for_topic(bootstrap, name)
    plan = tmp_path / "plan.json"
    where = [{"topic": name, "partition": 0, "replicas": [1], "log_dirs": ["any"]}]
    plan.write_text(json.dumps({"version": 1, "partitions": where}))
    words = ("--reassignment-json-file", str(plan))
    done = tool("reassign-partitions", "--execute", *words)
    assert "Successfully started partition reassignment" in done.stdout
    verified = tool("reassign-partitions", "--verify", *words)
    assert f"Reassignment of partition {name}-0 is completed." in verified.stdout
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": name}]}))
    proposed = tool("reassign-partitions", "--generate", "--broker-list", "1",
                    "--topics-to-move-json-file", str(topics))  # fmt: skip
    assert "Proposed partition reassignment configuration" in proposed.stdout


def test_cluster(tool: Tool) -> None:
    assert "Cluster ID:" in tool("cluster", "cluster-id").stdout
    endpoints = tool("cluster", "list-endpoints").stdout
    assert "127.0.0.1" in endpoints
    unknown = tool("cluster", "unregister", "--id", "77", check=False)
    assert unknown.code != 0 or "not" in unknown.stdout
    shown = tool("broker-api-versions").stdout
    assert "DescribeQuorum(55): 0 to 2" in shown
    assert "ElectLeaders(43): 0 to 2" in shown
