"""What several broker configs must say together; the checks Kafka makes at start and on each change."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from odradek.broker.config.listeners import check_routable, parse_map
from odradek.broker.config.types import ConfigError
from odradek.seams.files import Path

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ConfigError(reason)


def check_broker(config: ServerConfig) -> None:
    """Raises ConfigError with the first thing that does not fit."""
    if config.get_int("broker.id") != -1 or config.is_set("broker.id"):
        _require(
            config.get_int("broker.id") == config.node_id,
            "broker.id and node.id must be the same where both are set",
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


def _check_logs(config: ServerConfig) -> None:
    log = config.log_config()
    _require(log.segment_ms >= 1, "log.roll.ms must be at least 1")
    _require(log.segment_jitter_ms >= 0, "log.roll.jitter.ms must be at least 0")
    _require(log.retention_ms != 0, "log.retention.ms must be -1, or at least 1")
    _require(
        log.flush_ms >= 0,
        "log.flush.interval.ms, or log.flush.scheduler.interval.ms in its place, must be at least 0",
    )
    _require(
        log.min_compaction_lag_ms <= log.max_compaction_lag_ms,
        "log.cleaner.min.compaction.lag.ms must be at most log.cleaner.max.compaction.lag.ms",
    )
    threads = config.get_int("log.cleaner.threads")
    _require(
        threads > 0 and config.get_int("log.cleaner.dedupe.buffer.size") // threads > 1024 * 1024,
        "log.cleaner.dedupe.buffer.size must be more than 1 MiB for each of log.cleaner.threads",
    )


def _check_cordoned(config: ServerConfig) -> None:
    cordoned = config.get_list("cordoned.log.dirs")
    if "*" in cordoned:
        _require(len(cordoned) == 1, "cordoned.log.dirs is * alone, or a list of directories")
    else:
        directories = {str(path) for path in config.log_dirs}
        missing = [name for name in cordoned if str(Path(name)) not in directories]
        _require(
            not missing, f"cordoned.log.dirs names what is not in log.dirs: {', '.join(missing)}"
        )


RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _check_replication(config: ServerConfig) -> None:
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


def _check_quorum(config: ServerConfig) -> None:
    if config.standalone:
        return  # no quorum was configured: this node is one by itself
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


def _check_controller(config: ServerConfig) -> None:
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


def _check_broker_alone(config: ServerConfig) -> None:
    _require(
        not config.controller_listeners,
        "controller.listener.names must name nothing in listeners without the controller role",
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


def _check_listeners(config: ServerConfig) -> None:
    check_routable("advertised.listeners", config.advertised_listeners)
    check_routable("advertised.listeners", config.advertised_controller_listeners)
    if "broker" not in config.process_roles:
        return
    advertised = {endpoint.name for endpoint in config.advertised_listeners}
    listening = {endpoint.name for endpoint in config.all_listeners}
    _require(
        bool(advertised),
        "a broker needs a listener of its own, beside those in controller.listener.names",
    )
    _require(
        config.inter_broker_listener in advertised,
        f"inter.broker.listener.name is {config.inter_broker_listener}, which is not advertised;"
        f" it can be {', '.join(sorted(advertised))}",
    )
    _require(
        advertised <= listening,
        f"advertised.listeners names {', '.join(sorted(advertised - listening))},"
        f" which listeners lacks; it has {', '.join(sorted(listening))}",
    )
    _check_cordoned(config)


def _check_early_start(config: ServerConfig) -> None:
    listening = {endpoint.name for endpoint in config.all_listeners}
    if config.is_set("early.start.listeners"):
        controllers = {name.upper() for name in config.get_list("controller.listener.names")}
        for name in config.get_list("early.start.listeners"):
            _require(
                name in listening | controllers,
                f"early.start.listeners names {name}, which is no listener",
            )


def _check_network(config: ServerConfig) -> None:
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


def _check_order(config: ServerConfig, *names: str) -> None:
    """Each of the configs must be at most the next."""
    for low, high in pairwise(names):
        _require(config.get_int(low) <= config.get_int(high), f"{high} must be at least {low}")


def _check_groups(config: ServerConfig) -> None:
    _require(
        "classic" in config.get_list("group.coordinator.rebalance.protocols"),
        "group.coordinator.rebalance.protocols cannot leave out classic",
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


def _check_tiered(config: ServerConfig) -> None:
    """T-02, T-06: what a broker needs for tiered storage."""
    _require(
        config["remote.log.storage.manager.class.name"] is not None,
        "remote.log.storage.manager.class.name is needed where remote.log.storage.system.enable is"
        " true: odradek.ObjectStore with remote.log.storage.url, or Kafka's LocalTieredStorage",
    )
    listener = config.optional_str("remote.log.metadata.manager.listener.name")
    _require(
        listener is not None,
        "remote.log.metadata.manager.listener.name is needed where remote.log.storage.system.enable"
        " is true: the listener at which brokers reach the topic of the metadata",
    )
    advertised = [endpoint.name for endpoint in config.advertised_listeners]
    _require(
        str(listener).upper() in advertised,
        f"remote.log.metadata.manager.listener.name is {listener}, which is not advertised;"
        f" it can be {', '.join(sorted(advertised))}",
    )


def check_local_retention(config: ServerConfig) -> None:
    """Local retention lies within the whole one, where that is limited.

    At start this matters with tiered storage alone; Kafka's dynamic changes keep to it always.
    """
    log = config.log_config()
    for unit, total, local in (
        ("ms", log.retention_ms, log.local_retention_ms),
        ("bytes", log.retention_bytes, log.local_retention_bytes),
    ):
        _require(
            total <= -1 or local == -2 or -1 < local <= total,
            f"log.local.retention.{unit} is {local}, beyond log.retention.{unit}, {total}",
        )
