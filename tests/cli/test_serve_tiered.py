"""Tests of `odradek serve --tiered`, with and without a config file (T-01, T-02, T-06, T-08)."""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.types import ConfigError
from odradek.broker.local_cluster.plan import CLIENT_LISTENER, ListenerAddress, make_plan
from odradek.broker.tiered.tiered_storage import metadata_properties
from odradek.cli.main import WRONG_USAGE, main
from odradek.cli.serve import _defaults, _overrides, add_parser
from odradek.seams import files
from odradek.seams.network import Address
from odradek.seams.real_files import RealFiles
from odradek.storage.tiered.remote_storage_settings import (
    LOCAL_TIERED_STORAGE,
    OBJECT_STORE,
    RemoteStorageSettings,
)
from tests.support.odradek_process import start_odradek

TOPIC = "remote.log.metadata.topic"


def config(target: str, file: Path | None = None) -> ServerConfig:
    """Configs that `serve` derives from --tiered."""
    commands = argparse.ArgumentParser()
    add_parser(commands.add_subparsers())
    with_file = [] if file is None else ["--config", str(file)]
    given = commands.parse_args(["serve", "--tiered", target, *with_file])
    path = None if file is None else files.Path(str(file))
    return ServerConfig.load(
        RealFiles(), path, _overrides(given), defaults=partial(_defaults, given)
    )


def test_directory_store_has_layout_of_kafka(tmp_path: Path) -> None:
    found = config(str(tmp_path / "tier"))
    assert found.get_bool("remote.log.storage.system.enable")
    texts = found.layers.effective()
    assert texts["remote.log.storage.manager.class.name"] == LOCAL_TIERED_STORAGE
    assert (
        RemoteStorageSettings(texts).url(RealFiles())
        == f"file://{tmp_path}/tier/kafka-tiered-storage"
    )


def test_relative_directory_is_resolved_in_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        RemoteStorageSettings(config("tier").layers.effective()).url(RealFiles())
        == f"file://{tmp_path}/tier/kafka-tiered-storage"
    )


def test_tiered_url_selects_object_store() -> None:
    texts = config("s3://bucket/prefix").layers.effective()
    assert texts["remote.log.storage.manager.class.name"] == OBJECT_STORE
    assert RemoteStorageSettings(texts).url(RealFiles()) == "s3://bucket/prefix"


def test_metadata_topic_replication_is_limited_by_brokers() -> None:
    found = metadata_properties(config("memory:///"))
    assert found[f"{TOPIC}.replication.factor"] == found[f"{TOPIC}.min.isr"] == "1"
    assert found["remote.log.metadata.manager.listener.name"] == "PLAINTEXT"


def test_metadata_topic_configs_in_file_take_precedence(tmp_path: Path) -> None:
    """T-05: the prefix from the config file is used."""
    written = tmp_path / "server.properties"
    written.write_text(
        "listeners=INSIDE://127.0.0.1:9092\n"
        "listener.security.protocol.map=INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        "inter.broker.listener.name=INSIDE\n"
        "rlmm.config.remote.log.metadata.topic.num.partitions=7\n"
    )
    found = metadata_properties(config("memory:///", written))
    assert found[f"{TOPIC}.num.partitions"] == "7"
    assert found[f"{TOPIC}.replication.factor"] == "1"
    assert found["remote.log.metadata.manager.listener.name"] == "INSIDE"


@pytest.mark.parametrize("target", ["", "s3:/bucket", "file:/srv/tier"])
def test_invalid_tiered_target_is_wrong_usage(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the check, a directory `s3:` would be created."""
    with pytest.raises(ConfigError, match="a directory or a URL"):
        config(target)
    assert main(["cluster", "--tiered", target, "--data", str(tmp_path)]) == WRONG_USAGE
    assert "a directory or a URL" in capsys.readouterr().err


def test_local_cluster_shares_its_remote_tier() -> None:
    address = ListenerAddress(Address("127.0.0.1", 1), Address("127.0.0.1", 1))
    plan = make_plan(
        brokers=2,
        directory="/c",
        new_id=lambda: "id",
        addresses=iter([address] * 4),
        settings={"rlmm.config.remote.log.metadata.topic.num.partitions": "3"},
        tiered="/c/tier",
    )
    for node in plan.nodes:
        found = plan.properties(node)
        assert found["rsm.config.dir"] == "/c/tier"
        assert found["rlmm.config.remote.log.metadata.topic.replication.factor"] == "2"
        assert found["rlmm.config.remote.log.metadata.topic.num.partitions"] == "3"
        assert found["remote.log.metadata.manager.listener.name"] == CLIENT_LISTENER


def test_serve_starts_and_stops(tmp_path: Path) -> None:
    with start_odradek(tmp_path, arguments=["--tiered", str(tmp_path / "tier")]) as broker:
        assert broker.bootstrap
    assert (tmp_path / "tier" / "kafka-tiered-storage").is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tiered", "no-store://bucket"], "stores are file:///directory"),
        (["--tiered", "memory:///", "--set", "rsm.config.compression=gzip"], "none, zstd, lz4"),
        (
            ["--tiered", "memory:///", "--set", f"rlmm.config.{TOPIC}.num.partitions=x"],
            "num.partitions",
        ),
    ],
)
def test_invalid_config_is_wrong_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    """An invalid target is wrong usage, so that a service manager does not restart the broker."""
    words = ["serve", "--listen", "127.0.0.1:0", "--log-dirs", str(tmp_path), *arguments]
    ended = subprocess.run(
        [sys.executable, "-m", "odradek.cli", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == WRONG_USAGE
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1
