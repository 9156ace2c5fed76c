"""Arguments and output of `stats`, `decode` and other jobs."""

from __future__ import annotations

import argparse
from types import ModuleType

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from odradek.cli.main import main
from odradek.pipeline.cli import audit, decode, export, stats
from odradek.pipeline.cli.main import JOBS
from odradek.pipeline.cli.stats import as_text, outcomes_as_text, parsed_rule
from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.retention import GIB, RetentionOutcome, RetentionRule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("retention.ms=7d", RetentionRule(7 * 86_400_000)),
        ("retention.bytes=1.5GiB", RetentionRule(-1, 3 * GIB // 2)),
        ("retention.ms=1000, retention.bytes=100", RetentionRule(1000, 100)),
        ("retention.ms=-1,retention.bytes=2MB", RetentionRule(-1, 2 << 20)),
        ("local.retention.bytes=5", RetentionRule(local_retention_bytes=5)),
        ("local.retention.ms = -2, retention.ms = 1h", RetentionRule(3_600_000, -1, -2)),
        ("local.retention.ms=1m,local.retention.bytes=-1", RetentionRule(-1, -1, 60_000, -1)),
    ],
)
def test_retention_rules_are_parsed_by_config_name(text: str, rule: RetentionRule) -> None:
    assert parsed_rule(text) == rule


@pytest.mark.parametrize(
    "text",
    [
        "7d",
        "retention.ms=soon",
        "retention.bytes=GiB",
        "x=1",
        "retention.ms=-2",
        "local.retention.bytes=-3",
        "local.retention.ms=2,retention.ms=1",
        "retention.ms=1,retention.ms=2",
    ],
)
def test_invalid_retention_rules_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match=text.partition("=")[0]):
        parsed_rule(text)


def test_statistics_as_text() -> None:
    row = {
        "topic": "t",
        "partition": 0,
        "records": 2000,
        "batches": 7,
        "bytes": 1 << 20,
        "uncompressedBytes": 3 << 20,
        "codecs": {"none": 262_144, "zstd": 786_432},
        "oldest": "2026-01-02T03:04:05Z",
        "newest": None,
        "keyless": 0,
        "distinctKeys": 3,
        "topKeys": [{"key": "0xff", "records": 500}],
        "late": 11,
    }
    head, line = as_text([row])
    assert head.split() == (
        [
            "TOPIC",
            "PARTITION",
            "RECORDS",
            "BATCHES",
            "BYTES",
            "RATIO",
            "CODECS",
            "OLDEST",
            "NEWEST",
            "KEYS",
            "TOP",
            "KEY",
            "LATE",
        ]
    )
    expected = "t 0 2,000 7 1.0 MiB 3.00 zstd 75% none 25% 2026-01-02 03:04 - 3 0xff 25% 11"
    assert line.split() == expected.split()


def test_each_retention_rule_has_a_table() -> None:
    outcomes = [
        RetentionOutcome("t", number, RetentionRule(5), 1, GIB, 10, 2 * GIB, 10 + number)
        for number in (0, 1)
    ]
    title, head, *rows = outcomes_as_text(outcomes, 0.5)
    assert title == "retention.ms=5 retention.bytes=-1"
    assert head.endswith("PER MONTH")
    assert rows[-1].split() == ["all", "-", "2.0", "GiB", "2", "20", "4.0", "GiB", "-", "2.00"]


def test_table_of_local_retention() -> None:
    rule = RetentionRule(local_retention_bytes=5)
    outcomes = [
        RetentionOutcome("t", number, rule, 0, 0, 0, 9, 3, 4, kept, 7)
        for number, kept in enumerate((5, 1019))
    ]
    title, head, *rows = outcomes_as_text(outcomes, None)
    assert title == "retention.ms=-1 retention.bytes=-1 local.retention.bytes=5"
    assert head.endswith("LOCAL DELETES  LOCAL KEEPS  LOCAL START")
    assert rows[0].split()[-5:] == ["4", "B", "5", "B", "7"]
    assert rows[-1].split()[-5:] == ["8", "B", "1.0", "KiB", "-"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--price", "0.02"], "--price requires --what-if"),
        (["--price", "nan", "--what-if", "retention.ms=1"], "--price nan: must be a price"),
        (["--price", "-1", "--what-if", "retention.ms=1"], "--price -1.0: must be a price"),
    ],
)
def test_invalid_prices_are_refused(words: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    stats.add_arguments(parser)
    with pytest.raises(BadOption, match=message):
        stats.run(parser.parse_args(["-t", "a", *words]))


@pytest.mark.parametrize("name", list(JOBS))
def test_each_subcommand_runs_its_job(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its arguments: replay also has an argument --job."""
    words = {
        "export": ["-t", "a", "--out", "o", "--bootstrap", "b"],
        "replay": ["-t", "a", "--to", "b"],
        "audit": ["--tiered", "s"],
    }.get(name, ["-t", "a"])
    ran: list[argparse.Namespace] = []

    def run(args: argparse.Namespace) -> int:
        ran.append(args)
        return 0

    monkeypatch.setattr(JOBS[name], "run", run)
    assert main(["pipeline", name, *words]) == 0
    assert len(ran) == 1
    if name == "replay":
        assert main(["pipeline", name, *words, "--job", "again"]) == 0
        assert ran[1].job == "again"


def test_spark_error_is_printed_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> int:
        message = (
            "Traceback\n  File a.py\nodradek.pipeline.errors.MissingSegment: x.log is not there\n"
        )
        raise PySparkException(message)

    monkeypatch.setattr(JOBS["stats"], "run", run)
    assert main(["pipeline", "stats", "-t", "a"]) == 1
    assert capsys.readouterr().err == "odradek: x.log is not there\n"


@pytest.mark.parametrize(("kind", "code"), [("BadOption", 2), ("DataLoss", 1)])
def test_arguments_refused_in_spark_are_a_usage_error(
    kind: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topic is looked up in a process of Spark if the job is a single query."""

    def run(args: argparse.Namespace) -> int:
        raise PySparkException(
            f"Traceback\n  File a.py\nodradek.pipeline.errors.{kind}: there is no topic a\n"
        )

    monkeypatch.setattr(JOBS["decode"], "run", run)
    assert main(["pipeline", "decode", "-t", "a"]) == code
    assert capsys.readouterr().err == "odradek: there is no topic a\n"


@pytest.mark.parametrize("job", [audit, decode, export, stats])
def test_jobs_run_on_any_spark_master(job: ModuleType) -> None:
    parser = argparse.ArgumentParser()
    job.add_arguments(parser)
    needed = {"export": ["--out", "o", "--bootstrap", "b"], "audit": ["--tiered", "s"]}
    words = ["-t", "a", "--master", "spark://h:7077", "--conf", "spark.cores.max=1", "--json"]
    args = parser.parse_args([*words, *needed.get(job.__name__.rpartition(".")[2], [])])
    assert (args.master, args.conf, args.json) == ("spark://h:7077", ["spark.cores.max=1"], True)


def test_default_subject_is_topic_value() -> None:
    parser = argparse.ArgumentParser()
    decode.add_arguments(parser)
    made = decode.decoding_of(parser.parse_args(["-t", "a", "--registry", "http://r", "--id", "3"]))
    assert (made.subjects, made.ids) == (("a-value",), (3,))
    made = decode.decoding_of(
        parser.parse_args(["-t", "a", "--registry", "r", "--subject", "b", "--subject", "c"])
    )
    assert made.subjects == ("b", "c")
    made = decode.decoding_of(parser.parse_args(["-t", "a, b", "--registry", "http://r"]))
    assert made.subjects == ("a-value", "b-value")
    with pytest.raises(BadOption, match="--registry"):
        decode.decoding_of(parser.parse_args(["-t", "a"]))


@pytest.mark.parametrize(
    ("job", "words", "message"),
    [
        (audit, ["--tiered", "s", "--older-than", "nan"], "--older-than nan: must be a number"),
        (audit, ["--tiered", "s", "--older-than", "-1"], "--older-than -1.0: must be a number"),
        (audit, ["--tiered", "s", "--older-than", "inf"], "--older-than inf: must be a number"),
        (decode, ["-t", "a", "--limit", "-1"], "--limit -1: must be a number"),
        (decode, ["-t", "a", "--limit", str(1 << 31)], "at most 2147483647"),
    ],
)
def test_invalid_numbers_are_refused(job: ModuleType, words: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    job.add_arguments(parser)
    with pytest.raises(BadOption, match=message):
        job.run(parser.parse_args(words))
