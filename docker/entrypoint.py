#!/usr/bin/env python3
"""Entry point of the image: converts the environment to the command line of `odradek serve`.

    docker run odradek                          serve, data in /var/lib/odradek
    docker run -e KAFKA_NUM_PARTITIONS=3 odradek
    docker run odradek --topic orders:6         more flags for serve
    docker run odradek topics list …            any other command of odradek

Environment, as in Apache Kafka's own image: KAFKA_LOG_RETENTION_MS is log.retention.ms, where a
double underscore is one underscore and a triple underscore is a dash. ODRADEK_ variables have the same form, and
override KAFKA_ variables. docs/docker.md lists the names with another meaning.

Everything runs in this process: no second interpreter is started, signals reach their handlers directly, and no
password is visible in a list of processes.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig

DATA = "/var/lib/odradek"
PORT_FILE = "/tmp/odradek.port"
CONFIG_FILES = ("/etc/odradek/server.properties", "/mnt/shared/config/server.properties")

HOST_PORT = 9092
NETWORK_PORT = 19092
LINKED = "tcp://"
"""Kubernetes gives each container a variable of this kind for a service: ODRADEK_PORT, if that is its name."""

# Names that are not broker configs. Kafka's image ignores the same ones.
NOT_CONFIGS = frozenset(
    {
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_OPTS",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "ODRADEK_BOOTSTRAP",
        "ODRADEK_CONFIG",
        "ODRADEK_CLUSTER_ID",
        "ODRADEK_HOST",
        "ODRADEK_PORT",
        "ODRADEK_LOG_LEVEL",
        "ODRADEK_PORT_FILE",
        "ODRADEK_TOPICS",
    }
)
LOG_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
    "off": "error",
}


class BadEnvironment(Exception):
    """A variable is invalid; the message contains its name and the valid values."""


def config_name(variable: str) -> str:
    """Name of the broker config of a variable: KAFKA_A_B__C___D is a.b_c-d."""
    _, _, rest = variable.partition("_")
    return rest.lower().replace("_", ".").replace("...", "-").replace("..", "_")


def configs(environment: Mapping[str, str]) -> dict[str, str]:
    """Broker configs of the environment; ODRADEK_ variables override KAFKA_ variables."""
    found: dict[str, str] = {}
    for prefix in ("KAFKA_", "ODRADEK_"):
        for variable in sorted(environment):
            if variable.startswith(prefix) and variable not in NOT_CONFIGS:
                name = config_name(variable)
                if name:
                    found[name] = environment[variable]
    return found


def listener_configs(
    given: Mapping[str, str], environment: Mapping[str, str], hostname: str
) -> dict[str, str]:
    """Default `listeners` and `advertised.listeners`, for those that the environment does not set.

    Without both there are two listeners, because clients connect to a container in two ways: from the host through
    a published port (advertised as `localhost`, or ODRADEK_HOST and ODRADEK_PORT), and from other containers of its
    network by its host name. With only `advertised.listeners`, each of them listens on all addresses at its port.
    """
    if "listeners" in given:
        return {}
    if "advertised.listeners" in given:
        return {"listeners": ",".join(map(_on_all_addresses, _entries(given)))}
    host = environment.get("ODRADEK_HOST", "localhost")
    port = _port(environment.get("ODRADEK_PORT", ""))
    security = "HOST:PLAINTEXT,NETWORK:PLAINTEXT,CONTROLLER:PLAINTEXT"
    return {
        "listeners": f"HOST://:{HOST_PORT},NETWORK://:{NETWORK_PORT}",
        "advertised.listeners": f"HOST://{host}:{port},NETWORK://{hostname}:{NETWORK_PORT}",
        "listener.security.protocol.map": given.get("listener.security.protocol.map", security),
        "inter.broker.listener.name": given.get("inter.broker.listener.name", "NETWORK"),
    }


def _entries(given: Mapping[str, str]) -> list[str]:
    return [part.strip() for part in given["advertised.listeners"].split(",") if part.strip()]


def _on_all_addresses(entry: str) -> str:
    name, scheme, address = entry.partition("://")
    port = address.rpartition(":")[2]
    if not scheme or not port.isdecimal():
        raise BadEnvironment(f"KAFKA_ADVERTISED_LISTENERS: '{entry}' is not NAME://HOST:PORT")
    return f"{name}://:{port}"


def _port(text: str) -> int:
    if not text or text.startswith(LINKED):
        return HOST_PORT
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise BadEnvironment(f"ODRADEK_PORT={text} is not a port: give the one that is published")
    return int(text)


def log_level(environment: Mapping[str, str]) -> str:
    text = environment.get("ODRADEK_LOG_LEVEL") or environment.get("KAFKA_LOG4J_ROOT_LOGLEVEL")
    if not text:
        return "info"
    level = LOG_LEVELS.get(text.strip().lower())
    if level is None:
        raise BadEnvironment(f"'{text}' is no log level: give debug, info, warning or error")
    return level


def command_line(
    environment: Mapping[str, str],
    arguments: Sequence[str],
    *,
    hostname: str,
    config_file: str | None,
) -> list[str]:
    """The arguments of `odradek`. Only `serve` takes something from the environment here; every other
    command is run as it is given. Raises BadEnvironment."""
    if arguments and _is_for_odradek(arguments[0]):
        return list(arguments)
    given = configs(environment)
    if config_file is None:
        if "log.dirs" not in given and "log.dir" not in given:
            given["log.dirs"] = DATA
        given.update(listener_configs(given, environment, hostname))
    line = ["serve", "--port-file", environment.get("ODRADEK_PORT_FILE", PORT_FILE)]
    line += ["--log-level", log_level(environment)]
    if config_file is not None:
        line += ["--config", config_file]
    for name in sorted(given):
        line += ["--set", f"{name}={given[name]}"]
    for topic in environment.get("ODRADEK_TOPICS", "").split(","):
        if topic.strip():
            line += ["--topic", topic.strip()]
    rest = arguments[1:] if arguments and arguments[0] == "serve" else arguments
    return [*line, *rest]


def _is_for_odradek(first: str) -> bool:
    """And not a flag of `serve`."""
    return first in ("--help", "-h", "--version") or (
        not first.startswith("-") and first != "serve"
    )


def find_config_file(environment: Mapping[str, str]) -> str | None:
    """ODRADEK_CONFIG, or a file mounted where our image or Kafka's looks for one."""
    named = environment.get("ODRADEK_CONFIG")
    if named:
        return named
    return next((path for path in CONFIG_FILES if os.path.isfile(path)), None)


def server_config(line: Sequence[str]) -> ServerConfig:
    """Read the configs that `odradek serve` uses for this command line. Raises ConfigError, OSError."""
    from odradek.broker.config.server_config import ServerConfig
    from odradek.seams.files import Path
    from odradek.seams.real_files import RealFiles

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config")
    parser.add_argument("--log-dirs")
    parser.add_argument("--set", action="append", default=[])
    flags, _ = parser.parse_known_args(list(line))
    overrides = dict(text.split("=", 1) for text in flags.set if "=" in text)
    if flags.log_dirs is not None:
        overrides["log.dirs"] = flags.log_dirs
    path = None if flags.config is None else Path(flags.config)
    return ServerConfig.load(RealFiles(), path, overrides)


def join_cluster(cluster_id: str, config: ServerConfig) -> None:
    """Format new log directories with this cluster id, as Kafka's image does with CLUSTER_ID.

    Raises DirectoryError if a directory belongs to another cluster or node, or is in use.
    """
    from odradek.seams.entropy import RealEntropy
    from odradek.seams.real_files import RealFiles
    from odradek.storage.directories.opening import open_directories

    open_directories(
        RealFiles(),
        RealEntropy(),
        config.log_dirs,
        node_id=config.node_id,
        cluster_id=cluster_id,
        metadata_path=config.metadata_log_dir,
    ).close()


def main(environment: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Run the command and return its exit code, or 2 for an invalid environment or config."""
    from odradek.broker.config.types import ConfigError
    from odradek.cli.main import main as odradek
    from odradek.storage.errors import DirectoryError

    try:
        line = command_line(
            environment,
            arguments,
            hostname=socket.gethostname(),
            config_file=find_config_file(environment),
        )
        cluster_id = environment.get("ODRADEK_CLUSTER_ID") or environment.get("CLUSTER_ID")
        if cluster_id and line[0] == "serve":
            join_cluster(cluster_id, server_config(line))
    except (BadEnvironment, ConfigError) as error:
        return _refuse(error, 2)
    except (DirectoryError, OSError) as error:
        return _refuse(error, 1)
    return odradek(line)


def _refuse(error: Exception, code: int) -> int:
    sys.stderr.write(f"odradek: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(os.environ, sys.argv[1:]))
