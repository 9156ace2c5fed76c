"""Configs that `odradek serve --diskless` sets."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import pytest

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.types import ConfigError
from odradek.cli.serve import _defaults, _overrides, add_parser
from odradek.seams import files
from odradek.seams.real_files import RealFiles


def config(*arguments: str, file: Path | None = None) -> ServerConfig:
    commands = argparse.ArgumentParser()
    add_parser(commands.add_subparsers())
    with_file = [] if file is None else ["--config", str(file)]
    given = commands.parse_args(["serve", *arguments, *with_file])
    path = None if file is None else files.Path(str(file))
    return ServerConfig.load(
        RealFiles(), path, _overrides(given), defaults=partial(_defaults, given)
    )


def test_directory_is_absolute_and_metadata_topic_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = config("--diskless", "objects")
    assert found.get_bool("diskless.storage.system.enable")
    assert found.get_str("diskless.storage.url") == str(tmp_path / "objects")
    assert found.get_int("diskless.metadata.topic.num.partitions") == 3
    assert found.get_int("diskless.metadata.topic.replication.factor") == 1


def test_url_is_kept() -> None:
    assert config("--diskless", "s3://bucket/p").get_str("diskless.storage.url") == "s3://bucket/p"


def test_mistyped_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="the location of diskless topics"):
        config("--diskless", "s3:bucket")


def test_file_overrides_defaults_but_not_location(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "listeners=PLAINTEXT://127.0.0.1:0\n"
        f"log.dirs={tmp_path}/data\n"
        "diskless.storage.url=/other\n"
        "diskless.metadata.topic.num.partitions=7\n"
    )
    found = config("--diskless", "/objects", file=file)
    assert found.get_str("diskless.storage.url") == "/objects"
    assert found.get_int("diskless.metadata.topic.num.partitions") == 7


def test_both_stores_can_be_set() -> None:
    found = config("--diskless", "/objects", "--tiered", "/tier")
    assert found.get_bool("remote.log.storage.system.enable")
    assert found.get_int("diskless.metadata.topic.replication.factor") == 1
    assert found["remote.log.metadata.manager.listener.name"] == "PLAINTEXT"
