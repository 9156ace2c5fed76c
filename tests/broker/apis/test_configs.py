from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from odradek.protocol import apis

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def describe(
    client: Any,
    *resources: tuple[int, str],
    version: int = 4,
    keys: Sequence[str] | None = None,
    **more: Any,
) -> list[Any]:
    response = await client.ask(
        apis.DESCRIBE_CONFIGS,
        version,
        resources=[
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for kind, name in resources
        ],
        **more,
    )
    return list(response.results)


async def entry(client: Any, kind: int, name: str, config: str) -> Any:
    (result,) = await describe(client, (kind, name), keys=[config], include_synonyms=True)
    assert result.error_code.name == "none"
    (found,) = result.configs
    return found


@pytest.mark.parametrize("version", apis.DESCRIBE_CONFIGS.versions)
async def test_describe_configs_in_all_versions(client: Any, version: int) -> None:
    await client.create("t", retention_ms="5")
    results = await describe(
        client,
        (TOPIC, "t"),
        (BROKER, "1"),
        (BROKER, ""),
        (GROUP, "g"),
        (METRICS, "s"),
        (LOGGER, "1"),
        version=version,
    )
    assert [result.error_code.name for result in results] == ["none"] * 6
    counts = [len(result.configs) for result in results]
    assert counts[:5] == [33, 340, 0, 17, 3]
    retention = next(each for each in results[0].configs if each.name == "retention.ms")
    assert (retention.value, retention.config_source, retention.read_only) == ("5", 1, False)
    assert retention.synonyms == ()  # not requested
    if version >= 3:
        assert retention.config_type == 5
        assert retention.documentation is None


async def test_describe_configs_includes_synonyms_and_documentation_on_request(client: Any) -> None:
    await client.create("t", segment_bytes="1048576")
    (result,) = await describe(
        client,
        (TOPIC, "t"),
        keys=["segment.bytes"],
        include_synonyms=True,
        include_documentation=True,
    )
    (found,) = result.configs
    assert [(s.name, s.value, s.source) for s in found.synonyms] == [
        ("segment.bytes", "1048576", 1),
        ("log.segment.bytes", "1073741824", 5),
    ]
    assert "new segment" in found.documentation


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "gone", "unknown_topic_or_partition"),
        (TOPIC, "bad name", "invalid_topic_exception"),
        (BROKER, "2", "invalid_request"),
        (BROKER, "one", "invalid_request"),
        (LOGGER, "", "invalid_request"),
        (LOGGER, "2", "invalid_request"),
        (GROUP, "", "invalid_request"),
        (METRICS, "", "invalid_request"),
        (3, "x", "invalid_request"),
    ],
)
async def test_describe_configs_of_invalid_resources_fails(
    client: Any, kind: int, name: str, code: str
) -> None:
    (result,) = await describe(client, (kind, name))
    assert result.error_code.name == code
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert result.configs == ()


async def test_unknown_resource_type_fails_the_whole_request(client: Any) -> None:
    results = await describe(client, (BROKER, "1"), (3, "x"))
    assert [result.error_code.name for result in results] == ["invalid_request"] * 2


# AlterConfigs and IncrementalAlterConfigs


async def alter(
    client: Any, *resources: tuple[int, str, dict[str, str | None]], version: int = 2, **more: Any
) -> list[str]:
    response = await client.ask(
        apis.ALTER_CONFIGS,
        version,
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": key, "value": value} for key, value in configs.items()],
            }
            for kind, name, configs in resources
        ],
        **more,
    )
    return [each.error_code.name for each in response.responses]


async def change(
    client: Any,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    **more: Any,
) -> str:
    response = await client.ask(
        apis.INCREMENTAL_ALTER_CONFIGS,
        version,
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in changes
                ],
            }
        ],
        **more,
    )
    (response,) = response.responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    assert (response.error_message is None) == (response.error_code.name == "none")
    return str(response.error_code.name)


@pytest.mark.parametrize("version", apis.ALTER_CONFIGS.versions)
async def test_alter_configs_replaces_all_configs(client: Any, version: int) -> None:
    await client.create("t", retention_ms="5", preallocate="true")
    altered = await alter(client, (TOPIC, "t", {"retention.ms": "6"}), version=version)
    assert altered == ["none"]
    assert client.broker.metadata.image.topic_configs("t") == {"retention.ms": "6"}


@pytest.mark.parametrize("version", apis.INCREMENTAL_ALTER_CONFIGS.versions)
async def test_incremental_alter_keeps_other_configs(client: Any, version: int) -> None:
    await client.create("t", retention_ms="5", preallocate="true")
    changed = await change(
        client,
        TOPIC,
        "t",
        ("retention.ms", DELETE, None),
        ("segment.ms", SET, "7"),
        ("cleanup.policy", APPEND, "compact"),
        version=version,
    )
    assert changed == "none"
    assert client.broker.metadata.image.topic_configs("t") == {
        "preallocate": "true",
        "segment.ms": "7",
        "cleanup.policy": "delete,compact",
    }
    assert await change(client, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == "none"
    assert client.broker.metadata.image.topic_configs("t")["cleanup.policy"] == "compact"


async def test_validate_only_changes_no_configs(client: Any) -> None:
    await client.create("t")
    assert await change(client, TOPIC, "t", ("segment.ms", SET, "7"), validate_only=True) == "none"
    assert await alter(client, (TOPIC, "t", {"segment.ms": "7"}), validate_only=True) == ["none"]
    assert client.broker.metadata.image.topic_configs("t") == {}


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "t", [("nonsense", SET, "1")], "invalid_config"),
        (TOPIC, "t", [("retention.ms", SET, "soon")], "invalid_config"),
        (TOPIC, "t", [("retention.ms", SET, None)], "invalid_request"),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], "invalid_config"),
        (TOPIC, "t", [("retention.ms", 9, "1")], "invalid_request"),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], "invalid_request"),
        (TOPIC, "gone", [("retention.ms", SET, "1")], "unknown_topic_or_partition"),
        (TOPIC, "", [("retention.ms", SET, "1")], "invalid_request"),
        (BROKER, "2", [("log.retention.ms", SET, "1")], "invalid_request"),
        (BROKER, "one", [("log.retention.ms", SET, "1")], "invalid_request"),
        (BROKER, "1", [("num.partitions", SET, "1")], "invalid_request"),
        (BROKER, "1", [("log.retention.ms", SET, "soon")], "invalid_request"),
        (BROKER, "1", [("log.retention.ms", APPEND, "1")], "invalid_config"),
        (BROKER, "1", [("log.retention.ms", 9, "1")], "invalid_request"),
        (BROKER, "1", [("min.insync.replicas", SET, "2")], "invalid_config"),  # under ELR
        (BROKER, "", [("listener.name.x.ssl.keystore.type", SET, "PEM")], "invalid_request"),
        (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")], "invalid_config"),
        (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")], "invalid_request"),
        (METRICS, "s", [("interval.ms", SET, "1")], "invalid_request"),
        (3, "x", [("y", SET, "1")], "invalid_request"),
    ],
)
async def test_invalid_alterations_are_rejected(
    client: Any, kind: int, name: str, changes: Any, code: str
) -> None:
    await client.create("t")
    before = client.broker.metadata.image.configs
    assert await change(client, kind, name, *changes) == code
    assert client.broker.metadata.image.configs == before


async def test_invalid_resource_does_not_affect_others(client: Any) -> None:
    await client.create("a")
    await client.create("b")
    assert await alter(
        client,
        (TOPIC, "a", {"retention.ms": "1"}),
        (TOPIC, "b", {"retention.ms": "soon"}),
        (BROKER, "1", {"num.partitions": "3"}),
        (LOGGER, "1", {"root": "INFO"}),
        (TOPIC, "b", {"retention.ms": None}),
    ) == ["none", "invalid_request", "invalid_request", "invalid_request", "invalid_request"]
    assert client.broker.metadata.image.topic_configs("a") == {"retention.ms": "1"}


async def test_dynamic_broker_configs_are_applied(client: Any) -> None:
    config = client.broker.config
    assert await change(client, BROKER, "", ("log.retention.ms", SET, "1000")) == "none"
    assert config.log_config().retention_ms == 1000
    assert await change(client, BROKER, "1", ("log.retention.ms", SET, "2000")) == "none"
    assert config.log_config().retention_ms == 2000
    found = await entry(client, BROKER, "1", "log.retention.ms")
    assert (found.value, found.config_source) == ("2000", 2)
    assert [(s.value, s.source) for s in found.synonyms] == [("2000", 2), ("1000", 3), ("168", 5)]
    found = await entry(client, BROKER, "", "log.retention.ms")
    assert (found.value, found.config_source) == ("1000", 3)
    await client.create("t")
    assert (await entry(client, TOPIC, "t", "retention.ms")).value == "2000"
    assert await change(client, BROKER, "1", ("log.retention.ms", DELETE, None)) == "none"
    assert await alter(client, (BROKER, "", {})) == ["none"]
    assert config.log_config().retention_ms == 7 * 24 * 3600 * 1000


async def test_append_and_subtract_of_broker_lists(client: Any) -> None:
    assert await change(client, BROKER, "", ("log.cleanup.policy", APPEND, "compact")) == "none"
    found = await entry(client, BROKER, "", "log.cleanup.policy")
    assert found.value == "delete,compact"
    assert await change(client, BROKER, "", ("log.cleanup.policy", SUBTRACT, "delete")) == "none"
    assert client.broker.config.log_config().cleanup_policy == ("compact",)


async def test_configs_of_groups_and_client_metrics(client: Any) -> None:
    changes = ("consumer.session.timeout.ms", SET, "50000")
    assert await change(client, GROUP, "g", changes) == "none"
    found = await entry(client, GROUP, "g", "consumer.session.timeout.ms")
    assert (found.value, found.config_source) == ("50000", 8)
    assert await change(client, METRICS, "s", ("metrics", SET, "a,b")) == "none"
    found = await entry(client, METRICS, "s", "metrics")
    assert (found.value, found.config_source) == ("a,b", 7)


async def test_log_levels_are_described_and_altered(client: Any) -> None:
    name = "odradek.test_configs"
    logging.getLogger(name).setLevel(logging.INFO)
    assert await change(client, LOGGER, "1", (name, SET, "DEBUG"), validate_only=True) == "none"
    assert (await entry(client, LOGGER, "1", name)).value == "INFO"
    assert await change(client, LOGGER, "1", (name, SET, "DEBUG")) == "none"
    found = await entry(client, LOGGER, "1", name)
    assert (found.value, found.config_source) == ("DEBUG", 6)
    assert await change(client, LOGGER, "1", (name, DELETE, None)) == "none"
    assert await change(client, LOGGER, "1", (name, SET, "LOUD")) == "invalid_config"
    assert await change(client, LOGGER, "1", (name, APPEND, "INFO")) == "invalid_request"
    assert await change(client, LOGGER, "2", (name, SET, "INFO")) == "invalid_request"
    assert await change(client, LOGGER, "1", ("nobody", SET, "INFO")) == "invalid_config"
    assert await change(client, LOGGER, "1", ("root", DELETE, None)) == "invalid_request"


# ListConfigResources


async def listed(client: Any, version: int, **values: Any) -> Any:
    response = await client.ask(apis.LIST_CONFIG_RESOURCES, version, **values)
    if response.error_code.name != "none":
        assert response.config_resources == ()
        return response.error_code.name
    return {
        (getattr(each, "resource_type", METRICS), each.resource_name)
        for each in response.config_resources
    }


async def test_list_config_resources(client: Any) -> None:
    await client.create("t")
    await change(client, METRICS, "s", ("metrics", SET, "*"))
    await change(client, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
    everything = {(TOPIC, "t"), (BROKER, "1"), (LOGGER, "1"), (METRICS, "s"), (GROUP, "g")}
    assert await listed(client, 0) == {(METRICS, "s")}
    assert await listed(client, 1) == everything
    assert await listed(client, 1, resource_types=[GROUP, TOPIC]) == {(TOPIC, "t"), (GROUP, "g")}
    assert await listed(client, 1, resource_types=[3]) == "unsupported_version"
