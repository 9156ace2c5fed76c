"""kafka-storage and `odradek storage` write the same files, and each reads those of the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import free_port, properties
from tests.support.kafka_tools import run_tool
from tests.support.real_kafka import start_kafka

pytestmark = pytest.mark.interop

VOTERS = "1@127.0.0.1:9093:JEXY6aqzQY-32P5TStzaFg,2@127.0.0.1:9193:MvDxzVmcRsaTz33bUuRU6A"
SCRAM = 'SCRAM-SHA-256=[name=alice,iterations=8192,salt="N3E=",password=secret]'


def odradek_storage(*words: str, code: int = 0) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "odradek.cli", "storage", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran
    return ran.stdout


def config_of(directory: Path) -> Path:
    directory.mkdir()
    file = directory / "server.properties"
    file.write_text(
        properties(
            {
                "process.roles": "broker,controller",
                "node.id": "1",
                "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
                "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": f"{directory}/one,{directory}/two",
            }
        )
    )
    return file


def dumped(directory: Path) -> list[str]:
    """Content of the files that formatting writes, as Kafka's tool decodes it, without timestamps."""
    files = sorted([*directory.rglob("*.checkpoint")])
    lines = []
    for file in files:
        ran = run_tool("dump-log", "--cluster-metadata-decoder", "--files", str(file))
        payloads = [line.partition("payload:")[2] for line in ran.lines if "payload:" in line]
        others = [line.partition("headerKeys: []")[2] for line in ran.lines if "KRaft" in line]
        lines += [file.relative_to(directory).as_posix(), *payloads, *others]
    return lines


@pytest.mark.parametrize(
    "flags",
    [
        ("--initial-controllers", VOTERS),
        ("--initial-controllers", VOTERS, "--release-version", "3.9"),
        ("--no-initial-controllers", "--add-scram", SCRAM, "--feature", "group.version=0"),
    ],
    ids=["dynamic", "3.9", "scram"],
)
def test_format_writes_same_files_as_kafka(tmp_path: Path, flags: tuple[str, ...]) -> None:
    kafka_config, odradek_config = config_of(tmp_path / "kafka"), config_of(tmp_path / "odradek")
    run_tool("storage", "format", "--cluster-id=some", "-c", str(kafka_config), *flags)
    odradek_storage("format", "--cluster-id=some", "-c", str(odradek_config), *flags)
    expected, found = dumped(tmp_path / "kafka"), dumped(tmp_path / "odradek")
    assert len(expected) > 6
    assert [line.split() for line in found] == [line.split() for line in expected]
    info = run_tool("storage", "info", "-c", str(odradek_config)).stdout
    assert odradek_storage("info", "-c", str(odradek_config)) == info


@pytest.mark.parametrize("release", ["3.3-IV3", "3.9", "4.0", "4.1-IV0", "4.3.0"])
def test_version_mapping_equals_that_of_kafka(release: str) -> None:
    words = ("version-mapping", "--release-version", release)
    assert odradek_storage(*words) == run_tool("storage", *words).stdout


def test_feature_dependencies_equal_those_of_kafka() -> None:
    features = [
        "metadata.version=17", "eligible.leader.replicas.version=1", "transaction.version=2",
        "kraft.version=1", "share.version=1", "streams.version=1", "group.version=0",
    ]  # fmt: skip
    words = ["feature-dependencies", *(w for each in features for w in ("--feature", each))]
    assert odradek_storage(*words) == run_tool("storage", *words).stdout


def test_kafka_starts_on_directories_formatted_by_odradek(tmp_path: Path) -> None:
    port, controller = free_port(), free_port()
    directory = tmp_path / "kafka"
    directory.mkdir()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{directory}/data",
    }
    file = directory / "formatted.properties"
    file.write_text(properties(settings))
    odradek_storage(
        "format", "--cluster-id=of-odradek", "-c", str(file), "--standalone", "-S", SCRAM
    )
    with start_kafka(
        directory, config=settings, log_dirs=[directory / "data"], port=port, formatted=True
    ) as kafka:
        ran = run_tool("cluster", "cluster-id", "--bootstrap-server", kafka.bootstrap)
        assert "of-odradek" in ran.stdout
        ran = run_tool(
            "configs", "--bootstrap-server", kafka.bootstrap, "--describe",
            "--entity-type", "users", "--entity-name", "alice",
        )  # fmt: skip
        assert "SCRAM-SHA-256=iterations=8192" in ran.stdout
