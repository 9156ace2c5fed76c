"""Tests of the configs of a node: files, overrides, validation, and dynamic configs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from odradek.broker.config.config_description import describe_broker
from odradek.broker.config.listeners import ListenerEndpoint
from odradek.broker.config.server_config import TOPIC_DEFAULTS, ServerConfig
from odradek.broker.config.types import ConfigError, ConfigSource
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.files import Path
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

# config/server.properties of Apache Kafka 4.3 without comments
KAFKA_OWN = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def of(test_node: bool = False, **configs: str) -> ServerConfig:
    """Configs from keyword arguments, whose `_` stands for a dot."""
    named = {name.replace("_", "."): text for name, text in configs.items()}
    return ServerConfig.from_properties(named, test_node=test_node)


def load(text: str, overrides: Mapping[str, str | None] | None = None) -> ServerConfig:
    files = VirtualFiles(VirtualDisk())
    path = Path("/etc/server.properties")
    files.make_directory(path.parent)
    files.write_new(path, text.encode())
    return ServerConfig.load(files, path, overrides)


def test_properties_file_of_kafka_is_accepted() -> None:
    config = load(KAFKA_OWN)
    assert config.warnings == []
    assert config.node_id == 1
    assert config.listeners == (ListenerEndpoint("PLAINTEXT", "PLAINTEXT", "", 9092),)
    assert config.advertised_listeners == (
        ListenerEndpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),
    )
    assert config.controller_listeners == (ListenerEndpoint("CONTROLLER", "PLAINTEXT", "", 9093),)
    assert config.advertised_controller_listeners == (
        ListenerEndpoint("CONTROLLER", "PLAINTEXT", "localhost", 9093),
    )
    assert config.inter_broker_listener == "PLAINTEXT"
    assert config.log_dirs == (Path("/tmp/kraft-combined-logs"),)
    assert config.metadata_log_dir == Path("/tmp/kraft-combined-logs")
    assert config.get_int("group.initial.rebalance.delay.ms") == 3000


def test_override_none_removes_config_of_file() -> None:
    """`--listen` removes `advertised.listeners` of the file."""
    listeners = "PLAINTEXT://there:9094,CONTROLLER://:9093"
    config = load(KAFKA_OWN, {"listeners": listeners, "advertised.listeners": None})
    assert config.advertised_listeners == (
        ListenerEndpoint("PLAINTEXT", "PLAINTEXT", "there", 9094),
    )
    (entry,) = describe_broker(config, ["advertised.listeners"])
    assert (entry.value, entry.source, entry.synonyms) == (None, ConfigSource.DEFAULT_CONFIG, ())


def test_defaults_without_file_are_those_of_single_test_node() -> None:
    config = ServerConfig.load(VirtualFiles(VirtualDisk()), None)
    assert config.node_id == 1
    assert config.process_roles == {"broker", "controller"}
    assert config.listeners == (ListenerEndpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092),)
    assert config.controller_listeners == ()
    assert config.log_dirs == (Path("odradek-data"),)
    assert config.get_int("offsets.topic.replication.factor") == 1
    assert config.get_int("transaction.state.log.min.isr") == 1
    assert config.get_int("group.initial.rebalance.delay.ms") == 0
    assert config.get_int("offsets.topic.num.partitions") == 50  # all others have Kafka's defaults


def test_defaults_with_file_are_kafkas() -> None:
    config = load("num.partitions=2")
    assert config.get_int("num.partitions") == 2
    assert config.get_int("offsets.topic.replication.factor") == 3
    assert config.get_int("group.initial.rebalance.delay.ms") == 3000
    assert config.log_dirs == (Path("/tmp/kafka-logs"),)


def test_command_line_overrides_file() -> None:
    config = load("num.partitions=2\nnode.id=7", {"num.partitions": "5"})
    assert config.get_int("num.partitions") == 5
    assert config.node_id == 7


def test_log_dir_without_log_dirs() -> None:
    assert of(test_node=True, log_dir="/a,/b").log_dirs == (Path("/a"), Path("/b"))
    assert of(log_dir="/a", log_dirs="/c").log_dirs == (Path("/c"),)
    assert of(log_dirs="/a", metadata_log_dir="/m").metadata_log_dir == Path("/m")


def test_broker_id_is_node_id() -> None:
    assert of(broker_id="4").node_id == 4
    assert of(node_id="4")["broker.id"] == 4
    with pytest.raises(ConfigError, match=r"broker\.id and node\.id"):
        of(node_id="4", broker_id="5")


def test_unknown_keys_are_named_in_one_warning() -> None:
    config = load("zookeeper.connect=x\nnum.partitons=3\nleader.replication.throttled.rate=1")
    (warning,) = config.warnings
    for name in ("zookeeper.connect", "num.partitons", "leader.replication.throttled.rate"):
        assert name in warning


def test_configs_of_plugins_and_listeners_are_known() -> None:
    config = load(
        "rsm.config.bucket=b\nrlmm.config.x=y\nlistener.name.plaintext.max.connections=5\n"
        "listener.name.sasl.plain.sasl.jaas.config=x"
    )
    (warning,) = config.warnings
    assert warning.startswith(
        "listener.name.sasl.plain.sasl.jaas.config: without effect, because this"
    )
    assert config["listener.name.plaintext.max.connections"] == 5


def test_configs_of_tiered_storage_are_known() -> None:
    """T-04: as in docs/remote-storage.md, including the configs of its clients (T-07)."""
    given = (
        "remote.log.storage.url=s3://b/p\nremote.log.storage.aws_region=r\n"
        "remote.log.metadata.producer.batch.size=1\nremote.log.storage.manager.clas.name=x"
    )
    tiered = (
        "remote.log.storage.system.enable=true\nremote.log.storage.manager.class.name=odradek.ObjectStore\n"
        "remote.log.metadata.manager.listener.name=PLAINTEXT\n"
    )
    (warning,) = load(tiered + given).warnings
    assert warning.endswith("without effect: remote.log.storage.manager.clas.name")
    (warning,) = load(given).warnings
    assert warning.count("remote.log.") == 4


def test_invalid_values_are_rejected_with_reason() -> None:
    with pytest.raises(ConfigError, match=r"0 for configuration num\.partitions: .* at least 1"):
        load("num.partitions=0")
    with pytest.raises(ConfigError, match="true or false"):
        load("auto.create.topics.enable=maybe")


def test_warnings_are_reported() -> None:
    config = of(
        broker_heartbeat_interval_ms="5000",
        config_providers="file",
        group_coordinator_rebalance_protocols="classic",
    )
    text = "\n".join(config.warnings)
    assert len(config.warnings) == 3
    assert "broker.heartbeat.interval.ms" in text
    assert "config.providers" in text
    assert "deprecated" in text


def test_unknown_authorizer_is_rejected() -> None:
    with pytest.raises(ConfigError, match="StandardAuthorizer"):
        of(authorizer_class_name="com.example.Mine")
    config = of(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:a",
    )
    assert not config.warnings


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"log.roll.ms": "0"}, "log.roll.ms"),
        ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms"),
        ({"log.retention.ms": "0"}, "log.retention.ms"),
        ({"log.retention.hours": "0"}, "log.retention.ms"),
        ({"log.flush.interval.ms": "-1"}, "log.flush.interval.ms"),
        ({"log.flush.scheduler.interval.ms": "-1"}, "log.flush.scheduler.interval.ms"),
        ({"log.cleaner.threads": "0"}, "log.cleaner"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "1 MiB"),
        ({"cordoned.log.dirs": "/other"}, "/other"),
        ({"cordoned.log.dirs": "*,/tmp/kafka-logs"}, "alone"),
        (
            {
                "log.cleaner.min.compaction.lag.ms": "2",
                "log.cleaner.max.compaction.lag.ms": "1",
            },
            "compaction.lag",
        ),
        ({"replica.fetch.wait.max.ms": "40000"}, "replica.socket.timeout.ms"),
        (
            {"replica.fetch.wait.max.ms": "40000", "replica.socket.timeout.ms": "40000"},
            "replica.lag.time.max.ms",
        ),
        ({"queued.max.request.bytes": "1"}, "socket.request.max.bytes"),
        ({"max.connections.per.ip": "0"}, "overrides"),
        ({"max.connections.per.ip.overrides": "a b:1"}, "host:count"),
        ({"max.connections.per.ip.overrides": "a:x"}, "host:count"),
        ({"connections.max.idle.ms": "50"}, "connection.failed.authentication.delay.ms"),
        ({"group.coordinator.rebalance.protocols": "consumer"}, "classic"),
        ({"group.consumer.session.timeout.ms": "44999"}, "group.consumer.session.timeout.ms"),
        ({"group.consumer.max.session.timeout.ms": "44999"}, "group.consumer.max.session"),
        ({"group.streams.num.standby.replicas": "3"}, "group.streams.max.standby.replicas"),
        ({"group.share.assignors": "a,b"}, "exactly one"),
        ({"group.share.max.size": "300", "group.share.max.share.sessions": "299"}, "sessions"),
        (
            {"remote.log.storage.system.enable": "true", "log.local.retention.ms": "-1"},
            "log.local.retention.ms",
        ),
        (
            {
                "remote.log.storage.system.enable": "true",
                "log.local.retention.bytes": "11",
                "log.retention.bytes": "10",
            },
            "log.local.retention.bytes",
        ),
    ],
)
def test_inconsistent_configs_are_rejected(configs: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ServerConfig.from_properties(configs)


QUORUM = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"controller.quorum.voters": ""}, "must name the controllers"),
        ({"controller.quorum.voters": "2@localhost:9093"}, "must name it"),
        ({"listeners": "PLAINTEXT://localhost:9092"}, "one of listeners"),
        ({"controller.listener.names": "controller"}, "CONTROLLER"),
        ({"listeners": "CONTROLLER://localhost:9093"}, "at least one listener"),
        ({"process.roles": "broker"}, "no controller role"),
        ({"process.roles": "broker", "controller.quorum.voters": "2@h:1"}, "without the contr"),
        ({"process.roles": "controller"}, "without the broker role"),
        ({"process.roles": "observer"}, "process.roles"),
        ({"inter.broker.listener.name": "OTHER"}, "listener.security.protocol.map"),
        ({"inter.broker.listener.name": "CONTROLLER"}, "not advertised"),
        ({"security.inter.broker.protocol": "SSL"}, "only the security protocol PLAINTEXT"),
        (
            {
                "inter.broker.listener.name": "PLAINTEXT",
                "security.inter.broker.protocol": "PLAINTEXT",
            },
            "Only one",
        ),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, r"0\.0\.0\.0"),
        (
            {
                "advertised.listeners": "PLAINTEXT://h:1,EXTERNAL://h:2",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT,"
                "CONTROLLER:PLAINTEXT",
            },
            "EXTERNAL",
        ),
        ({"early.start.listeners": "OTHER"}, "early.start.listeners"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}, "CONTROLLER"),
        (
            {
                "process.roles": "broker",
                "controller.quorum.voters": "2@h:1",
                "listeners": "PLAINTEXT://:9092",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
            },
            "CONTROLLER of controller.listener.names",
        ),
        (
            {
                "process.roles": "controller",
                "listeners": "CONTROLLER://:9093",
                "inter.broker.listener.name": "CONTROLLER",
            },
            "inter.broker.listener.name",
        ),
    ],
)
def test_invalid_quorums_and_listeners_are_rejected(changes: dict[str, str], reason: str) -> None:
    ServerConfig.from_properties(QUORUM)
    with pytest.raises(ConfigError, match=reason):
        ServerConfig.from_properties({**QUORUM, **changes})


@pytest.mark.parametrize("name", ["node.id", "controller.listener.names"])
def test_quorum_configs_are_required(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Missing required configuration {name} "):
        ServerConfig.from_properties({key: QUORUM[key] for key in QUORUM if key != name})


def test_several_listeners_with_different_names() -> None:
    config = ServerConfig.from_properties(
        {
            "listeners": "INSIDE://:9092,OUTSIDE://:9192",
            "advertised.listeners": "OUTSIDE://example.org:443",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "inter.broker.listener.name": "outside",
        }
    )
    assert [each.name for each in config.listeners] == ["INSIDE", "OUTSIDE"]
    assert config.advertised_listeners == (
        ListenerEndpoint("OUTSIDE", "PLAINTEXT", "example.org", 443),
    )
    assert config.advertised("OUTSIDE") == config.advertised_listeners[0]
    assert config.advertised("INSIDE") is None  # in listeners, but not advertised
    assert config.inter_broker_listener == "OUTSIDE"


@pytest.mark.parametrize(
    ("changes", "roles"),
    [
        (
            {
                "process.roles": "broker",
                "controller.quorum.voters": "2@h:1",
                "listeners": "PLAINTEXT://:9092",
            },
            (True, False),
        ),
        ({"process.roles": "controller", "listeners": "CONTROLLER://:9093"}, (False, True)),
        ({"controller.quorum.voters": "1@localhost:9093,2@h:1"}, (True, True)),
        (
            {"controller.quorum.voters": "", "controller.quorum.bootstrap.servers": "a:1,b:1"},
            (True, True),
        ),
    ],
)
def test_process_roles_are_parsed(changes: dict[str, str], roles: tuple[bool, bool]) -> None:
    config = ServerConfig.from_properties({**QUORUM, **changes})
    assert (config.is_broker, config.is_controller) == roles
    assert config.controller_listener == "CONTROLLER"


SECURED_MAP = {"listener_security_protocol_map": "IN:PLAINTEXT,OUT:SASL_SSL,CONTROLLER:SSL"}


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ({"listeners": "SASL_PLAINTEXT://:9092"}, ("listeners", "SASL_PLAINTEXT")),
        ({"listeners": "SSL://:9092", "security_inter_broker_protocol": "SSL"}, ("listeners", "SSL")),
        (
            {"listeners": "PLAINTEXT://:9092", "advertised_listeners": "SASL_SSL://h:1"},
            (r"advertised\.listeners", "SASL_SSL"),
        ),
        ({"security_inter_broker_protocol": "SASL_SSL"}, (r"security\.inter\.broker\.protocol", "")),
        ({"listeners": "IN://:1,OUT://:2", **SECURED_MAP}, ("listeners", "SASL_SSL")),
        (
            {"listeners": "IN://:1", "inter_broker_listener_name": "out", **SECURED_MAP},
            (r"inter\.broker\.listener\.name", "SASL_SSL"),
        ),
        (
            {
                "listeners": "IN://:1", "inter_broker_listener_name": "IN", **SECURED_MAP,
                "process_roles": "broker", "node_id": "2", "controller_listener_names": "CONTROLLER",
                "controller_quorum_voters": "1@h:9093",
            },
            (r"controller\.listener\.names", "SSL"),
        ),
    ],
)  # fmt: skip
def test_first_error_of_a_secured_listener_is_that_it_is_not_supported(
    configs: dict[str, str], names: tuple[str, str]
) -> None:
    """No other error recommends a listener that is refused next."""
    name, protocol = names
    with pytest.raises(
        ConfigError,
        match=rf"for configuration {name}: .*{protocol}.*only the security protocol PLAINTEXT, without SASL and SSL$",
    ):
        of(**configs)


def test_security_configs_without_effect_are_warned_of() -> None:
    found = of(
        ssl_keystore_location="/k", **{"listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN"}
    )
    (warning,) = found.warnings
    assert warning.startswith(
        "listener.name.plaintext.sasl.enabled.mechanisms, ssl.keystore.location: without effect"
    )
    assert of().warnings == []


def test_inter_broker_listener_that_is_not_advertised_is_refused() -> None:
    """Without inter.broker.listener.name, the security protocol is the name."""
    mapped = {
        "listeners": "IN://:1",
        "listener_security_protocol_map": "IN:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    with pytest.raises(
        ConfigError,
        match=r"^inter\.broker\.listener\.name is not set and security\.inter\.broker\.protocol is PLAINTEXT, "
        r"which is not advertised; inter\.broker\.listener\.name can be IN$",
    ):
        of(**mapped)
    assert of(**mapped, inter_broker_listener_name="in").inter_broker_listener == "IN"
    with pytest.raises(
        ConfigError, match=r"can be SSL; to serve, .* only the security protocol PLAINTEXT"
    ):
        ServerConfig.from_properties({"listeners": "SSL://:1"}, to_serve=False)


# Topics


def test_finer_unit_takes_precedence() -> None:
    assert of(log_retention_hours="1").log_config().retention_ms == 3_600_000
    config = of(log_retention_hours="1", log_retention_minutes="2")
    assert config.log_config().retention_ms == 120_000
    config = of(log_retention_hours="1", log_retention_minutes="2", log_retention_ms="3")
    assert config.log_config().retention_ms == 3
    assert of(log_retention_hours="-1").log_config().retention_ms == -1
    assert of(log_retention_ms="-5").log_config().retention_ms == -1
    assert of(log_flush_scheduler_interval_ms="9").log_config().flush_ms == 9
    assert of(log_flush_interval_ms="8").log_config().flush_ms == 8


def test_topic_config_overrides_broker_default() -> None:
    config = of(log_retention_ms="1000", message_max_bytes="2000", compression_type="zstd")
    effective = config.log_config({"retention.ms": "-1", "internal.segment.bytes": "100"})
    assert effective.retention_ms == -1
    assert effective.max_message_bytes == 2000
    assert effective.compression_type == "zstd"
    assert effective.max_segment_bytes == 100


@pytest.mark.parametrize(
    "configs",
    [
        {"nonsense": "1"},
        {"retention.ms": "soon"},
        {"segment.bytes": "1048575"},
        {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
        {"remote.storage.enable": "true"},
    ],
)
def test_invalid_topic_configs_are_rejected(configs: dict[str, str]) -> None:
    with pytest.raises(KafkaError) as refusal:
        of().validate_topic_configs(configs)
    assert refusal.value.code is ErrorCode.invalid_config


TIERED = {"remote.storage.enable": "true"}
TIERING = {
    "remote_log_storage_system_enable": "true",
    "remote_log_storage_manager_class_name": "odradek.ObjectStore",
    "remote_log_metadata_manager_listener_name": "PLAINTEXT",
}


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        ("remote_log_storage_manager_class_name", r"remote\.log\.storage\.manager\.class\.name"),
        ("remote_log_metadata_manager_listener_name", r"manager\.listener\.name is needed"),
    ],
)
def test_tiered_storage_requires_configs(left_out: str, reason: str) -> None:
    """T-02, T-06."""
    configs = {name: text for name, text in TIERING.items() if name != left_out}
    with pytest.raises(ConfigError, match=reason):
        of(**configs)
    off = {**configs, "remote_log_storage_system_enable": "false"}
    assert not of(**off).get_bool("remote.log.storage.system.enable")  # T-01: nothing is required


def test_remote_metadata_listener_must_be_advertised() -> None:
    """T-06."""
    with pytest.raises(ConfigError, match="which is not advertised; it can be PLAINTEXT"):
        of(**{**TIERING, "remote_log_metadata_manager_listener_name": "INTERNAL"})


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact,delete"},
        {"local.retention.ms": "-1"},
        {"local.retention.ms": "604800001"},
        {"retention.bytes": "10", "local.retention.bytes": "11"},
        {"retention.bytes": "10", "local.retention.bytes": "-1"},
        {"remote.log.copy.disable": "true", "local.retention.ms": "5"},
        {"remote.log.copy.disable": "true", "local.retention.bytes": "5"},
    ],
)
def test_invalid_tiered_topic_configs_are_rejected(configs: dict[str, str]) -> None:
    """T-15, T-16; X-01 in Kafka 4.x's form."""
    config = of(**TIERING)
    with pytest.raises(KafkaError):
        config.validate_topic_configs({**TIERED, **configs})


@pytest.mark.parametrize("unit", ["ms", "bytes"])
def test_local_retention_without_copies_is_refused_with_the_text_of_kafka(unit: str) -> None:
    text = (
        f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and `retention.{unit}` must be"
        " set to the identical value because there will be no more logs copied to the remote storage."
    )
    configs = {"remote.log.copy.disable": "true", f"local.retention.{unit}": "5"}
    with pytest.raises(KafkaError) as refused:
        of(**TIERING).validate_topic_configs({**TIERED, **configs})
    assert refused.value.message == text


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"cleanup.policy": ""},
        {"retention.ms": "-1", "local.retention.ms": "-1"},
        {"retention.ms": "10", "local.retention.ms": "10"},
        {"remote.log.copy.disable": "true", "retention.ms": "5", "local.retention.ms": "5"},
    ],
)
def test_valid_tiered_topic_configs_are_accepted(configs: dict[str, str]) -> None:
    of(**TIERING).validate_topic_configs({**TIERED, **configs})


def test_disabling_tiering_requires_decision_on_remote_data() -> None:
    config = of(**TIERING)
    off = {"remote.storage.enable": "false"}
    with pytest.raises(KafkaError, match=r"remote\.log\.delete\.on\.disable"):
        config.validate_topic_configs(off, TIERED)
    config.validate_topic_configs({**off, "remote.log.delete.on.disable": "true"}, TIERED)
    config.validate_topic_configs(off)


# Dynamic configs


def test_precedence_of_dynamic_and_static_configs() -> None:
    config = of(log_cleaner_threads="3", message_max_bytes="100")
    config.apply_dynamic({"log.cleaner.threads": "2", "message.max.bytes": "200"}, {})
    config.apply_dynamic(
        {"log.cleaner.threads": "2", "message.max.bytes": "200"}, {"log.cleaner.threads": "1"}
    )
    assert config.get_int("log.cleaner.threads") == 1
    assert config.log_config().max_message_bytes == 200
    config.apply_dynamic({}, {})
    assert config.get_int("log.cleaner.threads") == 3
    assert config.log_config().max_message_bytes == 100


def test_dynamic_value_overrides_static_synonyms() -> None:
    config = of(log_retention_minutes="1")
    config.apply_dynamic({"log.retention.ms": "5"}, {})
    assert config.log_config().retention_ms == 5
    config.apply_dynamic({}, {})
    assert config.log_config().retention_ms == 60_000


def test_subscribers_receive_changes_only() -> None:
    config = of()
    received: list[frozenset[str]] = []
    unsubscribe = config.subscribe(received.append)
    config.apply_dynamic({"log.retention.ms": "5", "max.connections": "9"}, {})
    config.apply_dynamic({"log.retention.ms": "5", "max.connections": "9"}, {})
    assert received == [{"log.retention.ms", "max.connections"}]
    assert received[0] & TOPIC_DEFAULTS == {"log.retention.ms"}
    unsubscribe()
    config.apply_dynamic({}, {})
    assert len(received) == 1


def test_invalid_dynamic_configs_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    config = of()
    config.apply_dynamic(
        {
            "num.partitions": "9",  # read-only
            "log.retention.ms": "soon",  # not a number
            "listener.name.x.ssl.keystore.location": "/k",  # per broker
            "message.max.bytes": "7",
        },
        {},
    )
    assert config.get_int("num.partitions") == 1
    assert config.get_int("message.max.bytes") == 7
    for name in ("num.partitions", "log.retention.ms", "listener.name.x.ssl.keystore.location"):
        assert name in caplog.text


def test_inconsistent_layers_change_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = of()
    config.apply_dynamic({"message.max.bytes": "7"}, {})
    lags = {"log.cleaner.min.compaction.lag.ms": "2", "log.cleaner.max.compaction.lag.ms": "1"}
    config.apply_dynamic({"message.max.bytes": "8", **lags}, {})
    assert config.get_int("message.max.bytes") == 7
    assert "compaction.lag" in caplog.text


def test_assignment_interval_is_clamped_to_its_limits() -> None:
    config = of(group_consumer_min_assignment_interval_ms="500")
    config.apply_dynamic({"group.consumer.assignment.interval.ms": "1"}, {})
    assert config.get_int("group.consumer.assignment.interval.ms") == 500
    config.apply_dynamic({"group.consumer.assignment.interval.ms": "20000"}, {})
    assert config.get_int("group.consumer.assignment.interval.ms") == 15000


def test_error_for_an_unroutable_advertised_address_has_a_valid_value() -> None:
    properties = {
        "listeners": "PLAINTEXT://0.0.0.0:9092",
        "advertised.listeners": "PLAINTEXT://0.0.0.0:9092",
    }
    with pytest.raises(
        ConfigError, match=r"--set advertised\.listeners=PLAINTEXT://localhost:9092"
    ):
        ServerConfig.from_properties(properties, test_node=True)
