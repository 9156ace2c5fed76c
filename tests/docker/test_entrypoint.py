"""The image's entry point without a container engine: environment variables become options and configs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docker" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


entrypoint = _load("entrypoint")


def line(environment: dict[str, str], *arguments: str, config: str | None = None) -> list[str]:
    made: list[str] = entrypoint.command_line(
        environment, arguments, hostname="box", config_file=config
    )
    return made


def sets(environment: dict[str, str], config: str | None = None) -> dict[str, str]:
    made = line(environment, config=config)
    pairs = [made[at + 1] for at, word in enumerate(made) if word == "--set"]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize(
    ("variable", "config"),
    [
        ("KAFKA_NUM_PARTITIONS", "num.partitions"),
        ("KAFKA_LOG_RETENTION_MS", "log.retention.ms"),
        ("KAFKA_A__B", "a_b"),
        ("KAFKA_A___B", "a-b"),
        (
            "KAFKA_LISTENER_NAME_EXTERNAL_SSL_KEYSTORE_TYPE",
            "listener.name.external.ssl.keystore.type",
        ),
        ("ODRADEK_NUM_PARTITIONS", "num.partitions"),
    ],
)
def test_variable_names_map_to_configs_as_in_kafka_image(variable: str, config: str) -> None:
    assert entrypoint.config_name(variable) == config


def test_values_are_unchanged_and_odradek_variables_take_precedence() -> None:
    given = sets(
        {
            "KAFKA_NUM_PARTITIONS": "3",
            "ODRADEK_NUM_PARTITIONS": "4",
            "KAFKA_SASL_JAAS_CONFIG": "a=b c=d",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
            "KAFKA_VERSION": "4.3.0",
            "PATH": "/bin",
        }
    )
    assert given["num.partitions"] == "4"
    assert given["sasl.jaas.config"] == "a=b c=d"
    assert not {"heap.opts", "version", "path"} & given.keys()


def test_default_listeners_are_host_and_network() -> None:
    given = sets({})
    assert given["log.dirs"] == "/var/lib/odradek"
    assert given["listeners"] == "HOST://:9092,NETWORK://:19092"
    assert given["advertised.listeners"] == "HOST://localhost:9092,NETWORK://box:19092"


def test_odradek_port_is_advertised() -> None:
    given = sets({"ODRADEK_HOST": "ci.example", "ODRADEK_PORT": "29092"})
    assert given["listeners"].startswith("HOST://:9092")
    assert given["advertised.listeners"].startswith("HOST://ci.example:29092,")


def test_kubernetes_service_variable_is_ignored() -> None:
    """Kubernetes sets ODRADEK_PORT for a service with the name `odradek`."""
    given = sets({"ODRADEK_PORT": "tcp://10.96.0.17:9092"})
    assert given["advertised.listeners"] == "HOST://localhost:9092,NETWORK://box:19092"


def test_advertised_listeners_bind_all_addresses() -> None:
    given = sets({"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:9092, OTHER://[::1]:9094"})
    assert given["listeners"] == "PLAINTEXT://:9092,OTHER://:9094"


def test_listeners_from_environment_are_unchanged() -> None:
    given = sets({"KAFKA_LISTENERS": "PLAINTEXT://:9000"})
    assert given["listeners"] == "PLAINTEXT://:9000"
    assert "advertised.listeners" not in given


def test_variables_override_config_file() -> None:
    made = line({"KAFKA_NUM_PARTITIONS": "3"}, config="/etc/odradek/server.properties")
    assert made[made.index("--config") + 1] == "/etc/odradek/server.properties"
    assert sets({"KAFKA_NUM_PARTITIONS": "3"}, config="/x") == {"num.partitions": "3"}


def test_topics_log_level_and_flags() -> None:
    made = line({"ODRADEK_TOPICS": "a:3, b,", "ODRADEK_LOG_LEVEL": "WARN"}, "--topic", "c")
    assert made[0] == "serve"
    assert [made[at + 1] for at, word in enumerate(made) if word == "--topic"] == ["a:3", "b", "c"]
    assert made[made.index("--log-level") + 1] == "warning"
    assert line({}, "serve", "--topic", "c") == line({}, "--topic", "c")


@pytest.mark.parametrize(
    "arguments",
    [["topics", "list"], ["remote", "list"], ["storge", "info"], ["--version"], ["--help"]],
)
def test_other_commands_run_unchanged(arguments: list[str]) -> None:
    """Misspelled commands too: `odradek` prints the list of commands."""
    assert line({"KAFKA_NUM_PARTITIONS": "3"}, *arguments) == arguments


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ODRADEK_PORT": "none"}, "ODRADEK_PORT=none is not a port"),
        ({"ODRADEK_LOG_LEVEL": "loud"}, "'loud' is no log level"),
        ({"KAFKA_ADVERTISED_LISTENERS": "broker:9092"}, "is not NAME://HOST:PORT"),
    ],
)
def test_invalid_variables_exit_with_code_2(
    environment: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entrypoint.main(environment, []) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@given(st.dictionaries(st.text(min_size=1, max_size=30), st.text(max_size=30), max_size=6))
def test_any_environment_gives_command_line_or_error(environment: dict[str, str]) -> None:
    prefixed = {f"KAFKA_{name}": value for name, value in environment.items()}
    try:
        made = line({**environment, **prefixed})
    except entrypoint.BadEnvironment:
        return
    assert made[0] == "serve"


def test_command_line_is_accepted_by_serve() -> None:
    """`odradek serve` has the options, and the configs are valid."""
    from odradek.cli import serve
    from odradek.cli.main import build_parser

    made = line({"ODRADEK_TOPICS": "a:3"})
    args = build_parser("serve", serve).parse_args(made)
    assert args.topic == ["a:3"]
    config = entrypoint.server_config(made)
    assert [(each.name, each.port) for each in config.listeners] == [
        ("HOST", 9092),
        ("NETWORK", 19092),
    ]
    assert config.inter_broker_listener == "NETWORK"
    assert config.warnings == []


def test_cluster_id_formats_new_directories_and_must_match(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    made = line({"KAFKA_LOG_DIRS": data, "KAFKA_NODE_ID": "5"})
    entrypoint.join_cluster("my-cluster", entrypoint.server_config(made))
    text = (tmp_path / "data" / "meta.properties").read_text()
    assert "cluster.id=my-cluster\n" in text
    assert "node.id=5\n" in text
    from odradek.storage.errors import WrongDirectory

    with pytest.raises(WrongDirectory, match="my-cluster"):
        entrypoint.join_cluster("another", entrypoint.server_config(made))
