"""A node's configs: static ones from a file and flags, dynamic ones from the metadata log on top.

Precedence (KIP-226): dynamic for this broker > dynamic cluster default > static > default. A
topic's configs lie above all of them (`log_config`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from odradek.broker.config.listeners import ListenerEndpoint
from odradek.broker.config.types import ConfigValue
from odradek.seams.files import Files, Path
from odradek.storage.log.config import LogConfig


class ServerConfig:
    """Typed access to the broker's configs, and to topics' effective ones.

    `warnings` are lines to log once at start: unknown keys, and what Kafka warns of.
    """

    warnings: list[str]

    @classmethod
    def load(
        cls, files: Files, path: Path | None, overrides: Mapping[str, str] | None = None
    ) -> ServerConfig:
        """Read `path` (server.properties); without one, the defaults of one node in a test.

        `overrides` are the command line's and win. Raises ConfigError, and OSError for the file.
        """
        raise NotImplementedError

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], *, test_node: bool = False
    ) -> ServerConfig:
        """From text values; `test_node` puts the test-node layer below them. Raises ConfigError."""
        raise NotImplementedError

    def __getitem__(self, name: str) -> ConfigValue:
        """The current value of any broker config. KeyError for a name that is none."""
        raise NotImplementedError

    def get_int(self, name: str) -> int:
        raise NotImplementedError

    def get_float(self, name: str) -> float:
        raise NotImplementedError

    def get_bool(self, name: str) -> bool:
        raise NotImplementedError

    def get_str(self, name: str) -> str:
        raise NotImplementedError

    def get_list(self, name: str) -> tuple[str, ...]:
        raise NotImplementedError

    def optional_int(self, name: str) -> int | None:
        raise NotImplementedError

    def optional_str(self, name: str) -> str | None:
        raise NotImplementedError

    # --- what several configs say together

    @property
    def node_id(self) -> int:
        raise NotImplementedError

    @property
    def process_roles(self) -> frozenset[str]:
        raise NotImplementedError

    @property
    def log_dirs(self) -> tuple[Path, ...]:
        raise NotImplementedError

    @property
    def metadata_log_dir(self) -> Path:
        raise NotImplementedError

    @property
    def listeners(self) -> tuple[ListenerEndpoint, ...]:
        """Where to listen for clients and brokers; controller listeners are not among them."""
        raise NotImplementedError

    @property
    def controller_listeners(self) -> tuple[ListenerEndpoint, ...]:
        raise NotImplementedError

    @property
    def advertised_listeners(self) -> tuple[ListenerEndpoint, ...]:
        """What clients are told, in the order of `listeners`. A host of "" or a port of 0 is still
        to be replaced by what the listener really got."""
        raise NotImplementedError

    @property
    def inter_broker_listener(self) -> str:
        raise NotImplementedError

    # --- topics

    def topic_defaults(self) -> Mapping[str, str]:
        """Every topic config's name and the text of its value where the topic sets nothing."""
        raise NotImplementedError

    def log_config(self, overrides: Mapping[str, str] | None = None) -> LogConfig:
        """A topic's effective config: its own values over this broker's."""
        raise NotImplementedError

    def validate_topic_configs(
        self, configs: Mapping[str, str], existing: Mapping[str, str] | None = None
    ) -> None:
        """Check all configs a topic would have. Raises KafkaError(invalid_config)."""
        raise NotImplementedError

    # --- dynamic configs

    def apply_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> None:
        """The metadata log's broker configs: of the whole cluster, and of this broker.

        Applied in full each time; subscribers hear of every changed name.
        """
        raise NotImplementedError

    def subscribe(self, callback: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call back with the names of broker configs that changed; returns the way to unsubscribe.

        Names of topic configs whose default changed are not among them: see `topic_defaults`.
        """
        raise NotImplementedError
