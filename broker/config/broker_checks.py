"""Checks of broker configs that depend on each other, as Kafka checks them at start and after each change."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Protocol

from odradek.broker.config.listeners import (
    ListenerEndpoint,
    QuorumAddress,
    check_routable,
    parse_map,
)
from odradek.broker.config.plaintext_only import ONLY_PLAINTEXT
from odradek.broker.config.types import ConfigError, ConfigValue
from odradek.seams.files import Path
from odradek.storage.log.config import LogConfig


class BrokerConfigs(Protocol):
    """The part of `ServerConfig` that is checked."""

    def __getitem__(self, name: str) -> ConfigValue: ...

    def get_int(self, name: str) -> int: ...

    def get_bool(self, name: str) -> bool: ...

    def get_str(self, name: str) -> str: ...

    def get_list(self, name: str) -> tuple[str, ...]: ...

    def optional_str(self, name: str) -> str | None: ...

    def is_set(self, name: str) -> bool: ...

    def log_config(self) -> LogConfig: ...

    @property
    def standalone(self) -> bool: ...

    @property
    def node_id(self) -> int: ...

    @property
    def process_roles(self) -> frozenset[str]: ...

    @property
    def is_broker(self) -> bool: ...

    @property
    def log_dirs(self) -> tuple[Path, ...]: ...

    @property
    def listener_protocols(self) -> Mapping[str, str]: ...

    @property
    def all_listeners(self) -> tuple[ListenerEndpoint, ...]: ...

    @property
    def controller_listeners(self) -> tuple[ListenerEndpoint, ...]: ...

    @property
    def advertised_listeners(self) -> tuple[ListenerEndpoint, ...]: ...

    @property
    def advertised_controller_listeners(self) -> tuple[ListenerEndpoint, ...]: ...

    @property
    def inter_broker_listener(self) -> str: ...

    @property
    def quorum_voters(self) -> tuple[QuorumAddress, ...]: ...


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ConfigError(reason)


def check_broker(config: BrokerConfigs) -> None:
    """Check configs that depend on each other, as Kafka does at start and after each change. Raises
    ConfigError."""
    if config.get_int("broker.id") != -1 or config.is_set("broker.id"):
        _require(
            config.get_int("broker.id") == config.node_id,
            "broker.id and node.id must be equal if both are set",
        )
    _check_logs(config)
    _check_replication(config)
    _check_quorum(config)
    _check_listeners(config)
    _check_early_start(config)
    _check_network(config)
    _check_groups(config)
    if config.get_bool("remote.log.storage.system.enable"):
        check_local_retention(config)
        if config.is_broker:
            _check_tiered(config)
    _check_diskless(config)


def _check_logs(config: BrokerConfigs) -> None:
    configs = config.log_config()
    _require(configs.segment_ms >= 1, "log.roll.ms must be at least 1")
    _require(configs.segment_jitter_ms >= 0, "log.roll.jitter.ms must be at least 0")
    _require(configs.retention_ms != 0, "log.retention.ms must be -1, or at least 1")
    _require(
        configs.flush_ms >= 0,
        "log.flush.interval.ms, or log.flush.scheduler.interval.ms in its place, must be at least 0",
    )
    _require(
        configs.min_compaction_lag_ms <= configs.max_compaction_lag_ms,
        "log.cleaner.min.compaction.lag.ms must be at most log.cleaner.max.compaction.lag.ms",
    )
    threads = config.get_int("log.cleaner.threads")
    _require(
        threads > 0 and config.get_int("log.cleaner.dedupe.buffer.size") // threads > 1024 * 1024,
        "log.cleaner.dedupe.buffer.size must be more than 1 MiB for each of log.cleaner.threads",
    )


def _check_cordoned(config: BrokerConfigs) -> None:
    cordoned = config.get_list("cordoned.log.dirs")
    if "*" in cordoned:
        _require(len(cordoned) == 1, "cordoned.log.dirs is * alone, or a list of directories")
    else:
        directories = {str(path) for path in config.log_dirs}
        missing = [name for name in cordoned if str(Path(name)) not in directories]
        _require(
            not missing,
            f"cordoned.log.dirs has directories that are not in log.dirs: {', '.join(missing)}",
        )


RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _check_replication(config: BrokerConfigs) -> None:
    wait = config.get_int("replica.fetch.wait.max.ms")
    _require(
        wait <= config.get_int("replica.socket.timeout.ms"),
        "replica.fetch.wait.max.ms must be at most replica.socket.timeout.ms",
    )
    _require(
        wait <= config.get_int("replica.lag.time.max.ms"),
        "replica.fetch.wait.max.ms must be at most replica.lag.time.max.ms",
    )
    _require(
        config["replica.selector.class"] in (None, "", RACK_AWARE),
        f"replica.selector.class can only be {RACK_AWARE}",
    )


def _check_quorum(config: BrokerConfigs) -> None:
    if config.standalone:
        return  # without process.roles the node is its own quorum
    voters = {voter.node_id for voter in config.quorum_voters}
    _require(
        bool(voters) or bool(config.get_list("controller.quorum.bootstrap.servers")),
        "with process.roles set, controller.quorum.voters or controller.quorum.bootstrap.servers"
        " must name the controllers",
    )
    if "controller" in config.process_roles:
        _require(
            not voters or config.node_id in voters,
            f"node {config.node_id} has the controller role, so controller.quorum.voters must"
            " name it",
        )
        _check_controller(config)
    else:
        _require(
            config.node_id not in voters,
            f"node {config.node_id} has no controller role, yet controller.quorum.voters names it",
        )
        _check_broker_alone(config)


def _check_controller(config: BrokerConfigs) -> None:
    names = config.get_list("controller.listener.names")
    listening = {endpoint.name for endpoint in config.all_listeners}
    _require(
        all(name in listening for name in names),
        "every name in controller.listener.names must be one of listeners, in a controller",
    )
    if "broker" not in config.process_roles:
        _require(
            len(config.controller_listeners) == len(config.all_listeners),
            "a node without the broker role may listen on controller.listener.names only",
        )
        _require(
            config["inter.broker.listener.name"] is None
            or config.inter_broker_listener not in names,
            "inter.broker.listener.name must be none of controller.listener.names",
        )


def _check_broker_alone(config: BrokerConfigs) -> None:
    _require(
        not config.controller_listeners,
        "controller.listener.names must not contain a name of listeners without the controller role",
    )
    _require(
        not config.get_bool("controller.quorum.auto.join.enable"),
        "controller.quorum.auto.join.enable needs the controller role",
    )
    names = config.get_list("controller.listener.names")
    unmapped = [name for name in names if name.upper() not in config.listener_protocols]
    _require(
        not unmapped,
        "listener.security.protocol.map has no security protocol for"
        f" {', '.join(unmapped)} of controller.listener.names",
    )


def _check_listeners(config: BrokerConfigs) -> None:
    check_routable("advertised.listeners", config.advertised_listeners)
    check_routable("advertised.listeners", config.advertised_controller_listeners)
    if "broker" not in config.process_roles:
        return
    advertised = {endpoint.name for endpoint in config.advertised_listeners}
    listening = {endpoint.name for endpoint in config.all_listeners}
    _require(
        bool(advertised),
        "There must be at least one listener that is not in controller.listener.names",
    )
    name = "inter.broker.listener.name"
    if config[name] is None:
        name = f"{name} is not set and security.inter.broker.protocol"
    secured = any(each.security_protocol != "PLAINTEXT" for each in config.advertised_listeners)
    _require(
        config.inter_broker_listener in advertised,
        f"{name} is {config.inter_broker_listener}, which is not advertised;"
        f" inter.broker.listener.name can be {', '.join(sorted(advertised))}"
        + (f"; to serve, {ONLY_PLAINTEXT}" if secured else ""),
    )
    _require(
        advertised <= listening,
        f"advertised.listeners names {', '.join(sorted(advertised - listening))},"
        f" which listeners lacks; it has {', '.join(sorted(listening))}",
    )
    _check_cordoned(config)


def _check_early_start(config: BrokerConfigs) -> None:
    listening = {endpoint.name for endpoint in config.all_listeners}
    if config.is_set("early.start.listeners"):
        controllers = {name.upper() for name in config.get_list("controller.listener.names")}
        for name in config.get_list("early.start.listeners"):
            _require(
                name in listening | controllers,
                f"early.start.listeners names {name}, which is not a listener",
            )


def _check_network(config: BrokerConfigs) -> None:
    queued = config.get_int("queued.max.request.bytes")
    _require(
        queued <= 0 or queued >= config.get_int("socket.request.max.bytes"),
        "queued.max.request.bytes must be at least socket.request.max.bytes",
    )
    name = "max.connections.per.ip.overrides"
    overrides = parse_map(name, config.get_str(name))
    for host, limit in overrides.items():
        if not limit.isdecimal() or not all(c.isalnum() or c in "-%._:" for c in host):
            raise ConfigError.of(name, f"{host}:{limit}", "expected host:count pairs")
    _require(
        config.get_int("max.connections.per.ip") > 0 or bool(overrides),
        "max.connections.per.ip can be 0 only if max.connections.per.ip.overrides is set",
    )
    idle = config.get_int("connections.max.idle.ms")
    _require(
        idle < 0 or config.get_int("connection.failed.authentication.delay.ms") < idle,
        "connection.failed.authentication.delay.ms must be less than connections.max.idle.ms",
    )


def _check_order(config: BrokerConfigs, *names: str) -> None:
    """Check that each config is at most the next."""
    for low, high in pairwise(names):
        _require(config.get_int(low) <= config.get_int(high), f"{high} must be at least {low}")


def _check_groups(config: BrokerConfigs) -> None:
    _require(
        "classic" in config.get_list("group.coordinator.rebalance.protocols"),
        "group.coordinator.rebalance.protocols must contain classic",
    )
    for kind in ("group.consumer", "group.share", "group.streams"):
        for interval in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
            _check_order(
                config, f"{kind}.min.{interval}", f"{kind}.{interval}", f"{kind}.max.{interval}"
            )
        _require(
            config.get_int(f"{kind}.heartbeat.interval.ms")
            < config.get_int(f"{kind}.session.timeout.ms"),
            f"{kind}.heartbeat.interval.ms must be less than {kind}.session.timeout.ms",
        )
    _require(
        len(config.get_list("group.share.assignors")) == 1,
        "group.share.assignors must name exactly one",
    )
    _check_order(config, "group.streams.num.standby.replicas", "group.streams.max.standby.replicas")
    for limit in ("delivery.count.limit", "record.lock.duration.ms", "partition.max.record.locks"):
        _check_order(
            config, f"group.share.min.{limit}", f"group.share.{limit}", f"group.share.max.{limit}"
        )
    _check_order(config, "group.share.max.size", "group.share.max.share.sessions")


def _check_tiered(config: BrokerConfigs) -> None:
    """Check the configs that tiered storage requires (T-02, T-06)."""
    _require(
        config["remote.log.storage.manager.class.name"] is not None,
        "remote.log.storage.manager.class.name is required if remote.log.storage.system.enable is"
        " true: odradek.ObjectStore with remote.log.storage.url, or Kafka's LocalTieredStorage",
    )
    listener = config.optional_str("remote.log.metadata.manager.listener.name")
    _require(
        listener is not None,
        "remote.log.metadata.manager.listener.name is needed where remote.log.storage.system.enable"
        " is true: the listener that brokers use for __remote_log_metadata",
    )
    advertised = [endpoint.name for endpoint in config.advertised_listeners]
    _require(
        str(listener).upper() in advertised,
        f"remote.log.metadata.manager.listener.name is {listener}, which is not advertised;"
        f" it can be {', '.join(sorted(advertised))}",
    )


def _check_diskless(config: BrokerConfigs) -> None:
    """Check the configs that diskless topics require."""
    if config.get_bool("diskless.storage.system.enable"):
        _require(
            not config.is_broker or config["diskless.storage.url"] is not None,
            "diskless.storage.url is required if diskless.storage.system.enable is true: a directory,"
            " file:///directory, s3://bucket/prefix, gs://bucket or az://container",
        )
    else:
        _require(
            not config.get_bool("log.diskless.enable"),
            "log.diskless.enable=true requires diskless.storage.system.enable=true",
        )


def check_local_retention(config: BrokerConfigs) -> None:
    """Check that local retention is at most the total retention, if that is limited.

    At start it is checked with tiered storage only; Kafka checks it for all dynamic changes.
    """
    configs = config.log_config()
    for unit, total, local in (
        ("ms", configs.retention_ms, configs.local_retention_ms),
        ("bytes", configs.retention_bytes, configs.local_retention_bytes),
    ):
        _require(
            total <= -1 or local == -2 or -1 < local <= total,
            f"log.local.retention.{unit} is {local}, more than log.retention.{unit}, {total}",
        )
