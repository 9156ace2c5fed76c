"""Arguments of the jobs as options of the source."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from odradek.pipeline.cli.arguments import add_source_arguments, source_of
from odradek.pipeline.errors import BadOption


def parsed(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topic")
    add_source_arguments(parser)
    return parser.parse_args(given)


def test_arguments_become_source_options() -> None:
    args = parsed("--bootstrap", "h:9092", "--tiered", "/tier", "--option", "tiered.prefix=a=b")
    assert source_of(args) == {
        "kafka.bootstrap.servers": "h:9092",
        "tiered.url": "/tier",
        "tiered.prefix": "a=b",
    }
    assert source_of(parsed("--option", "includeHeaders=true")) == {"includeHeaders": "true"}


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("subscribe=other", "--topic"),
        ("Subscribe=other", "--topic"),
        ("kafka.bootstrap.servers=h:9092", "--bootstrap"),
        ("tiered.URL=/tier", "--tiered"),
    ],
)
def test_option_with_its_own_argument_is_refused(option: str, argument: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(BadOption, match=f"^--option {name} is not allowed: use {argument}$"):
        source_of(parsed("--topic", "events", "--option", option))


@pytest.mark.parametrize(
    ("given", "source"),
    [("a tier", "{cwd}/a tier"), ("s3://bucket/prefix", "s3://bucket/prefix"), ("", "")],
)
def test_store_is_independent_of_the_working_directory_of_spark(
    given: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM and its Python workers have the working directory in which the JVM was started."""
    monkeypatch.chdir(tmp_path)
    found = source_of(parsed("--tiered", given))
    assert found == {"tiered.url": source.format(cwd=tmp_path)}
