"""Configs of a node: static ones of the file and command line, and dynamic ones of the metadata log.

Precedence (KIP-226): dynamic per-broker > dynamic cluster-wide > static > default. Topic configs override all
of them (`log_config`).

Differences from Kafka: a node without `process.roles` is a broker and the only controller of its quorum
(STANDALONE), with node id 1 unless set. Without a file the defaults are those of one node for tests
(TEST_NODE): Kafka's default replication factors require three brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, cast

from odradek.broker.config.all_configs import (
    BROKER,
    DYNAMIC_ONLY,
    TOPIC,
    broker_row,
    is_dynamic,
)
from odradek.broker.config.broker_checks import check_broker
from odradek.broker.config.config_layers import Layers, parse_all, refused_dynamic
from odradek.broker.config.listeners import (
    EVERY_ADDRESS,
    ListenerEndpoint,
    QuorumAddress,
    parse_endpoints,
    parse_voters,
    security_protocols,
)
from odradek.broker.config.plaintext_only import (
    ONLY_PLAINTEXT,
    check_plaintext,
    security_configs_without_effect,
)
from odradek.broker.config.properties import parse_properties
from odradek.broker.config.topic_config_validation import (
    parse_topic,
    topic_defaults,
    validate_topic,
)
from odradek.broker.config.types import ConfigError, ConfigValue
from odradek.broker.security.authorizer_config import (
    ALLOW_EVERYONE,
    SUPER_USERS,
    check_authorizer,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.files import Files, Path
from odradek.storage.log.config import LogConfig

log = logging.getLogger("odradek.config")

STANDALONE: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
}
TEST_NODE: Mapping[str, str] = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "log.dirs": "odradek-data",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Socket buffers that grow: on one machine a fetch response is then sent at once, even if the client
    # is not scheduled.
    "socket.send.buffer.bytes": "-1",
    "socket.receive.buffer.bytes": "-1",
}
_NODE_ID = "1"

Callback = Callable[[frozenset[str]], None]


class ServerConfig:
    """Values of the broker configs, and effective topic configs.

    `warnings` are logged at start: unknown names, and Kafka's warnings.
    """

    def __init__(self, layers: Layers, *, standalone: bool = False, to_serve: bool = True) -> None:
        """Raises ConfigError for invalid values, or (`to_serve`) for values that Odradek does not support."""
        self.layers = layers
        self.standalone = standalone
        self.warnings: list[str] = []
        self._subscribers: list[Callback] = []
        self.derived: dict[Any, Any] = {}
        """Values derived by other modules; cleared when a config changes."""
        self._read()
        if to_serve:
            # First: other checks would recommend listeners that are not supported
            check_plaintext(
                {
                    "listeners": self.all_listeners,
                    "advertised.listeners": self.advertised_listeners,
                },
                self.get_str("security.inter.broker.protocol"),
                {
                    "inter.broker.listener.name": filter(
                        None, (self.optional_str("inter.broker.listener.name"),)
                    ),
                    "controller.listener.names": self.get_list("controller.listener.names"),
                },
                self.listener_protocols,
            )
        check_broker(self)
        if to_serve:
            check_authorizer(
                self.get_str("authorizer.class.name"), self.layers.static.get(SUPER_USERS, "")
            )

    @classmethod
    def load(
        cls,
        files: Files,
        path: Path | None,
        overrides: Mapping[str, str | None] | None = None,
        *,
        defaults: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None,
        to_serve: bool = True,
    ) -> ServerConfig:
        """Load `path` (server.properties); without a path the defaults of a node for tests.

        `overrides` come from the command line and take precedence; None removes a value of the file. `defaults`
        receives the given values and returns defaults for the others. Raises ConfigError, and OSError for the
        file.
        """
        given = parse_properties(files.read(path)) if path is not None else {}
        texts: dict[str, str | None] = {**given, **(overrides or {})}
        properties = {name: text for name, text in texts.items() if text is not None}
        if defaults is not None:
            properties = {**defaults(properties), **properties}
        return cls.from_properties(properties, test_node=path is None, to_serve=to_serve)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], *, test_node: bool = False, to_serve: bool = True
    ) -> ServerConfig:
        """Create from texts; `test_node` adds the defaults of a node for tests. Raises ConfigError."""
        static = {**(TEST_NODE if test_node else {}), **properties}
        if "log.dir" in properties and "log.dirs" not in properties:
            static.pop("log.dirs", None)
        standalone = "process.roles" not in static
        if standalone:
            static = {**STANDALONE, **static}
        number = static.get("node.id", static.get("broker.id", _NODE_ID if standalone else None))
        if number is not None:
            static.setdefault("node.id", number)
            static.setdefault("broker.id", number)
        dynamic_only = sorted(DYNAMIC_ONLY & static.keys())
        config = cls(
            Layers({name: text for name, text in static.items() if name not in DYNAMIC_ONLY}),
            standalone=standalone,
            to_serve=to_serve,
        )
        unknown = [*_unknown(config, properties), *dynamic_only]
        if unknown:
            config.warnings.append(f"Unknown configs, without effect: {', '.join(unknown)}")
        config.warnings += _warnings(config)
        return config

    def _read(self) -> None:
        """Compute the values, topic defaults and log config from the layers. Raises ConfigError."""
        self._texts = self.layers.effective()
        self._values = parse_all(self._texts)
        self._topic_defaults = topic_defaults(self._values)
        self._log_config = LogConfig.from_topic_configs(self._topic_defaults)

    def _take_over(self, other: ServerConfig) -> None:
        """Replace the layers and computed values by those of `other`; derived values are computed again when
        needed."""
        self.layers, self._texts, self._values = other.layers, other._texts, other._values
        self._topic_defaults, self._log_config = other._topic_defaults, other._log_config
        self.derived.clear()
        self.__dict__.pop("_protocols", None)
        self.__dict__.pop("all_listeners", None)
        self.__dict__.pop("_advertised", None)

    # --- single values

    def __getitem__(self, name: str) -> ConfigValue:
        """Current value of a broker config. Raises KeyError for an unknown name."""
        return self._values[name]

    def get_int(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int), name
        assert not isinstance(value, bool), name
        return value

    def get_float(self, name: str) -> float:
        value = self._values[name]
        assert isinstance(value, float), name
        return value

    def get_bool(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool), name
        return value

    def get_str(self, name: str) -> str:
        value = self._values[name]
        assert isinstance(value, str), name
        return value

    def get_list(self, name: str) -> tuple[str, ...]:
        """Value of a list; empty if it is null."""
        value = self._values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def optional_int(self, name: str) -> int | None:
        return None if self._values[name] is None else self.get_int(name)

    def optional_str(self, name: str) -> str | None:
        return None if self._values[name] is None else self.get_str(name)

    def is_set(self, name: str) -> bool:
        """Whether the file, the command line or a dynamic config sets it."""
        return name in self._texts

    def described(self) -> dict[str, ConfigValue]:
        """Configs that DescribeConfigs shows: public ones, and all that are set.

        A name without a row has its text as value; its type is unknown, so it is sensitive.
        """
        shown: dict[str, ConfigValue] = {
            name: self._values[name]
            for name, row in BROKER.items()
            if not row.internal and name not in DYNAMIC_ONLY
        }
        for name, text in self._texts.items():
            if name not in shown:
                shown[name] = self._values.get(name, text)
        return shown

    # --- values of several configs

    @property
    def node_id(self) -> int:
        return self.get_int("node.id")

    @property
    def process_roles(self) -> frozenset[str]:
        return frozenset(self.get_list("process.roles"))

    @property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.process_roles

    @property
    def log_dirs(self) -> tuple[Path, ...]:
        return tuple(Path(name) for name in self.get_list("log.dirs") or self.get_list("log.dir"))

    @property
    def metadata_log_dir(self) -> Path:
        name = self.optional_str("metadata.log.dir")
        return self.log_dirs[0] if name is None else Path(name)

    @property
    def cordoned_log_dirs(self) -> frozenset[Path]:
        """Log directories that get no new partitions (KIP-1066)."""
        names = self.get_list("cordoned.log.dirs")
        return frozenset(self.log_dirs if "*" in names else map(Path, names))

    @cached_property
    def _protocols(self) -> Mapping[str, str]:
        name = "listener.security.protocol.map"
        return security_protocols(
            self.get_str(name),
            explicit=self.is_set(name),
            controller_names=self.get_list("controller.listener.names"),
            listeners=self.get_list("listeners"),
        )

    @property
    def listener_protocols(self) -> Mapping[str, str]:
        """Security protocols by listener name."""
        return self._protocols

    @cached_property
    def all_listeners(self) -> tuple[ListenerEndpoint, ...]:
        """All listeners, including controller listeners."""
        return parse_endpoints(
            "listeners", self.get_list("listeners"), self._protocols, distinct_ports=True
        )

    @property
    def listeners(self) -> tuple[ListenerEndpoint, ...]:
        """Listeners for clients and brokers, without controller listeners."""
        return self._of_brokers(self.all_listeners)

    @property
    def controller_listeners(self) -> tuple[ListenerEndpoint, ...]:
        names = self.get_list("controller.listener.names")
        return tuple(endpoint for endpoint in self.all_listeners if endpoint.name in names)

    @property
    def controller_listener(self) -> str:
        """Name of the listener for requests to controllers."""
        return self.get_list("controller.listener.names")[0].upper()

    def _of_brokers(self, endpoints: tuple[ListenerEndpoint, ...]) -> tuple[ListenerEndpoint, ...]:
        names = self.get_list("controller.listener.names")
        return tuple(endpoint for endpoint in endpoints if endpoint.name not in names)

    @cached_property
    def _advertised(self) -> tuple[ListenerEndpoint, ...] | None:
        if self["advertised.listeners"] is None:
            return None
        name = "advertised.listeners"
        return parse_endpoints(name, self.get_list(name), self._protocols, distinct_ports=False)

    @property
    def advertised_listeners(self) -> tuple[ListenerEndpoint, ...]:
        """Advertised listeners of the broker. A host "" or port 0 is replaced by the bound address of the
        listener."""
        if self._advertised is None:
            return self.listeners
        return self._of_brokers(self._advertised)

    def advertised(self, listener: str) -> ListenerEndpoint | None:
        """Advertised listener of this name; None if it is not advertised.

        `advertised.listeners` may be a subset of `listeners`, in another order.
        """
        for endpoint in self.advertised_listeners:
            if endpoint.name == listener:
                return endpoint
        return None

    @property
    def advertised_controller_listeners(self) -> tuple[ListenerEndpoint, ...]:
        """Advertised controller listeners (KIP-853); a host of every address is "", which is replaced by the
        host name."""
        advertised = {endpoint.name: endpoint for endpoint in self._advertised or ()}
        return tuple(
            advertised.get(endpoint.name)
            or ListenerEndpoint(
                endpoint.name,
                endpoint.security_protocol,
                "" if endpoint.host in EVERY_ADDRESS else endpoint.host,
                endpoint.port,
            )
            for endpoint in self.controller_listeners
        )

    @property
    def inter_broker_listener(self) -> str:
        """Name of the inter-broker listener. Raises ConfigError."""
        name = self.optional_str("inter.broker.listener.name")
        if name is None:
            return self.get_str("security.inter.broker.protocol")
        if self.is_set("security.inter.broker.protocol"):
            raise ConfigError(
                "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set."
            )
        if name.upper() not in self._protocols:
            raise ConfigError.of(
                "inter.broker.listener.name",
                name,
                "the listener name is not in listener.security.protocol.map",
            )
        return name.upper()

    @property
    def quorum_voters(self) -> tuple[QuorumAddress, ...]:
        name = "controller.quorum.voters"
        return parse_voters(name, self.get_list(name))

    # --- topics

    def topic_defaults(self) -> Mapping[str, str]:
        """Defaults of all topic configs, as texts."""
        return self._topic_defaults

    def log_config(self, overrides: Mapping[str, str] | None = None) -> LogConfig:
        """Effective log config of a topic with these overrides."""
        if not overrides:
            return self._log_config
        return LogConfig.from_topic_configs(overrides, base=self._log_config)

    def validate_topic_configs(
        self, configs: Mapping[str, str], existing: Mapping[str, str] | None = None
    ) -> None:
        """Validate all configs of a topic. Raises KafkaError(invalid_config)."""
        try:
            if parse_topic not in self.derived:
                self.derived[parse_topic] = parse_topic(self._topic_defaults)
            validate_topic(
                configs,
                existing or {},
                self.derived[parse_topic],
                tiering=self.get_bool("remote.log.storage.system.enable"),
                diskless=self.get_bool("diskless.storage.system.enable"),
            )
        except ConfigError as error:
            raise KafkaError(ErrorCode.invalid_config, str(error)) from error

    # --- dynamic configs

    def with_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> ServerConfig:
        """Copy of this config with other dynamic layers. Raises ConfigError."""
        return ServerConfig(
            Layers(self.layers.static, dict(cluster), dict(broker)), standalone=self.standalone
        )

    def apply_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> None:
        """Apply the dynamic configs of the metadata log: cluster-wide, and of this broker.

        They are applied in full; subscribers receive the names of changed configs. Invalid ones, which a node
        of another version may have accepted, are logged and ignored.
        """
        kept_cluster = _without_refused(cluster, of_broker=False)
        kept_broker = _without_refused(broker, of_broker=True)
        if (kept_cluster, kept_broker) == (self.layers.cluster, self.layers.broker):
            return
        try:
            new = self.with_dynamic(kept_cluster, kept_broker)
        except ConfigError as error:
            log.error("Dynamic broker configs are invalid and ignored: %s", error)
            return
        before = self._values
        self._take_over(new)
        changed = frozenset(
            name
            for name in before.keys() | self._values.keys()
            if before.get(name) != self._values.get(name)
        )
        if changed:
            log.info("Broker configs changed: %s", ", ".join(sorted(changed)))
            for callback in list(self._subscribers):
                callback(changed)

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call `callback` with the names of changed broker configs; returns a function that unsubscribes.

        If one of TOPIC_DEFAULTS is among them, effective topic configs have changed.
        """
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)


TOPIC_DEFAULTS: frozenset[str] = frozenset(
    synonym for row in TOPIC.values() for synonym in row.synonyms
)
"""Broker configs that are defaults of topic configs."""


def _without_refused(configs: Mapping[str, str], *, of_broker: bool) -> dict[str, str]:
    refused = dict(refused_dynamic(configs, of_broker=of_broker))
    for name, reason in refused.items():
        log.error("Dynamic broker config %s is ignored: %s", name, reason)
    return {name: text for name, text in configs.items() if name not in refused}


_OF_PLUGINS = frozenset((SUPER_USERS, ALLOW_EVERYONE))
_OF_TIERED_STORAGE = tuple(
    f"remote.log.{part}."
    for part in ("storage", "metadata.producer", "metadata.consumer", "metadata.common.client")
)
"""Prefixes of configs of the tiered storage components (T-04, T-07), which check their names themselves."""
_OF_DISKLESS_STORE = "diskless.storage."
"""Prefix of the options of the store of diskless topics, which are checked when it is opened."""
_OF_KAFKAS_MANAGER = "remote.log.storage.manager."


def _unknown(config: ServerConfig, properties: Mapping[str, str]) -> list[str]:
    """Names that nothing reads: no row, no listener prefix, no prefix of an object store."""
    plugins = (
        cast(str, config["remote.log.storage.manager.impl.prefix"]),
        cast(str, config["remote.log.metadata.manager.impl.prefix"]),
        *(_OF_TIERED_STORAGE if config["remote.log.storage.system.enable"] else ()),
        *((_OF_DISKLESS_STORE,) if config["diskless.storage.system.enable"] else ()),
    )
    return sorted(
        name
        for name in properties
        if broker_row(name) is None
        and name not in _OF_PLUGINS
        and (not name.startswith(plugins) or name.startswith(_OF_KAFKAS_MANAGER))
    )


def _warnings(config: ServerConfig) -> list[str]:
    """Warnings of Kafka, and configs that are set but not supported."""
    found: list[str] = []
    heartbeat = config.get_int("broker.heartbeat.interval.ms")
    session = config.get_int("broker.session.timeout.ms")
    if heartbeat * 2 > session:
        found.append(
            f"broker.heartbeat.interval.ms ({heartbeat}) should be at most half of"
            f" broker.session.timeout.ms ({session}), or brokers are fenced"
        )
    if config.is_set("group.coordinator.rebalance.protocols"):
        found.append(
            "group.coordinator.rebalance.protocols is deprecated: feature levels decide what groups"
            " can do"
        )
    if config.get_list("config.providers"):
        found.append("config.providers is not supported yet: values are not resolved")
    if unused := security_configs_without_effect(config.layers.static):
        found.append(f"{', '.join(unused)}: without effect, because {ONLY_PLAINTEXT}")
    return found


__all__ = [
    "STANDALONE",
    "TEST_NODE",
    "TOPIC_DEFAULTS",
    "ServerConfig",
    "is_dynamic",
]
