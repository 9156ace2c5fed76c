"""Tests of `odradek produce` and `odradek consume`, with the options of kcat."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine

ALL = ("-o", "beginning", "-e")


def test_produce_lines_as_records(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", topic, "-p", "0", stdin=b"one\n\nthree\nlast without newline")
    assert odradek("consume", "-t", topic, "-p", "0", *ALL).stdout == (
        b"one\n\nthree\nlast without newline\n"
    )


def test_keys_headers_and_nulls(odradek: CommandLine, topic: str) -> None:
    words = ["-H", "a=1", "-H", "b=x=y", "-H", "null", "-K", ":", "-Z"]
    odradek("produce", "-t", topic, "-p", "2", *words, stdin=b"k1:v1\nk2:\n:v3\nno key\nk5:a:b\n")
    shown = odradek("consume", "-t", topic, *ALL, "-Z", "-f", "%p/%o %K=%k %S=%s %h\\n")
    headers = "a=1,b=x=y,null=NULL"
    assert shown.lines == [
        f"2/0 2=k1 2=v1 {headers}",
        f"2/1 2=k2 -1=NULL {headers}",
        f"2/2 -1=NULL 2=v3 {headers}",
        f"2/3 -1=NULL 6=no key {headers}",
        f"2/4 2=k5 3=a:b {headers}",
    ]


def test_empty_value_is_not_null_by_default(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", topic, "-K", ":", stdin=b"k:\n")
    assert odradek("consume", "-t", topic, *ALL, "-f", "%K %S").stdout == b"1 0"


def test_keys_and_values_keep_argument_bytes(odradek: CommandLine, topic: str) -> None:
    """Arguments are passed as bytes, even if they are not UTF-8."""
    header = "\udcfb=\udcfe"
    odradek("produce", "-t", topic, "-k", "k\udcff", "-H", header, "-D", "\udcfd", stdin=b"x\xfd")
    shown = odradek("consume", "-t", topic, *ALL, "-f", "%k %h %s\udcfc", "-Z")
    assert shown.stdout == b"k\xff \xfb=\xfe x\xfc"
    (row,) = odradek("consume", "-t", topic, *ALL, "--json").lines
    assert json.loads(row)["headers"] == [[{"base64": "+w=="}, {"base64": "/g=="}]]


def test_delimiters(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", topic, "-p", "0", "-D", ";", "-K", "\\t", stdin=b"a\t1\n;b\t2;")
    assert odradek("consume", "-t", topic, *ALL, "-K", "=", "-D", "\\x00").stdout == (
        b"a=1\n\0b=2\0"
    )


def test_produce_files_as_records(odradek: CommandLine, topic: str, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        file.write_bytes(b"line\n" * 3 + bytes(range(256)))
    odradek("produce", "-t", topic, "-k", "file", *map(str, files))
    shown = odradek("consume", "-t", topic, *ALL, "-f", "%k %S %s")
    assert shown.stdout == (b"file 271 " + files[0].read_bytes()) * 2
    missing = odradek("produce", "-t", topic, str(tmp_path / "c"), code=1)
    assert f"{tmp_path}/c: No such file" in missing.stderr


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(odradek: CommandLine, topic: str, codec: str) -> None:
    data = b"".join(b"%d the same again and again\n" % n for n in range(1000))
    odradek("produce", "-t", topic, "-p", "1", "-z", codec, stdin=data)
    assert odradek("consume", "-t", topic, "-p", "1", *ALL).stdout == data
    shown = odradek("log-dirs", "describe", "-t", topic, "--json").json
    size = sum(row["size"] for each in shown["log_dirs"] for row in each["partitions"])
    assert (size > len(data)) == (codec == "none")


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(odradek: CommandLine, topic: str, acks: str) -> None:
    first = ["produce", "-t", topic, "-p", "0"]
    odradek(*first, stdin=b"there\n")  # with acks 0, a missing log would not be reported
    odradek(*first, "--acks", acks, stdin=b"x\n")
    shown = odradek("consume", "-t", topic, "-p", "0", "-o", "beginning", "-c", "2")
    assert shown.lines == ["there", "x"]


def test_produce_partitions_keys_like_java_producer(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", topic, "-K", ":", stdin=b"k1:\nk2:\nk3:\nk1:\n")
    shown = odradek("consume", "-t", topic, *ALL, "-f", "%k=%p\\n").lines
    assert sorted(shown) == ["k1=2", "k1=2", "k2=0", "k3=1"]


def test_offsets(odradek: CommandLine, topic: str) -> None:
    produce = ["produce", "-t", topic, "-p", "0"]
    odradek(*produce, stdin=b"0\n1\n2\n")
    time.sleep(0.002)
    later = int(time.time() * 1000)
    odradek(*produce, stdin=b"3\n4\n")
    for offset, expected in [
        ("beginning", "01234"),
        ("earliest", "01234"),
        ("end", ""),
        ("2", "234"),
        ("5", ""),
        ("-1", "4"),
        ("-99", "01234"),
        (f"s@{later}", "34"),
        ("s@0", "01234"),
        (f"s@{later + 10_000_000}", ""),
    ]:
        shown = odradek("consume", "-t", topic, "-p", "0", "-o", offset, "-e", "-D", "")
        assert shown.stdout.decode() == expected, offset
    beyond = odradek("consume", "-t", topic, "-p", "0", "-o", "6", "-e", code=1)
    assert "OFFSET_OUT_OF_RANGE" in beyond.stderr
    assert "odradek topics offsets" in beyond.stderr


def test_counts(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", topic, "-p", "0", "-c", "3", stdin=b"0\n1\n2\n3\n")
    assert odradek("consume", "-t", topic, *ALL).lines == ["0", "1", "2"]
    assert odradek("consume", "-t", topic, "-o", "beginning", "-c", "2").lines == ["0", "1"]
    assert odradek("consume", "-t", topic, "-o", "beginning", "-c", "0").lines == []


def test_json_lines(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", topic, "-p", "1", "-K", ":", "-H", "h=1", stdin="k:ä\n".encode())
    odradek("produce", "-t", topic, "-p", "1", stdin=b"\xff\n")
    rows = [json.loads(line) for line in odradek("consume", "-t", topic, *ALL, "--json").lines]
    assert all(abs(row.pop("timestamp") - time.time() * 1000) < 60_000 for row in rows)
    common = {"topic": topic, "partition": 1, "timestamp_type": "create"}
    assert rows == [
        {**common, "offset": 0, "key": "k", "value": "ä", "headers": [["h", "1"]]},
        {**common, "offset": 1, "key": None, "value": {"base64": "/w=="}, "headers": []},
    ]


def test_several_topics(odradek: CommandLine, topic: str) -> None:
    odradek("topics", "create", f"{topic}-b")
    odradek("produce", "-t", topic, stdin=b"a\n")
    odradek("produce", "-t", f"{topic}-b", stdin=b"b\n")
    shown = odradek("consume", "-t", topic, "-t", f"{topic}-b", *ALL, "-f", "%t:%s\\n")
    assert sorted(shown.lines) == [f"{topic}-b:b", f"{topic}:a"]


def test_produce_creates_topic_automatically(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", f"{topic}-auto", stdin=b"first\n")
    assert odradek("consume", "-t", f"{topic}-auto", *ALL).lines == ["first"]


def test_produce_of_too_large_record_fails(odradek: CommandLine, topic: str) -> None:
    odradek("topics", "alter", topic, "-c", "max.message.bytes=1000")
    refused = odradek("produce", "-t", topic, stdin=b"x" * 5000, code=1)
    assert "MESSAGE_TOO_LARGE" in refused.stderr
    assert "max.message.bytes" in refused.stderr
    # many small ones that are too large together are sent in smaller batches
    odradek("produce", "-t", topic, "-p", "0", stdin=b"x" * 99 + b"\n" + b"y\n" * 500)
    assert len(odradek("consume", "-t", topic, "-p", "0", *ALL).lines) == 501


def test_produce_fails_before_stdin_ends(odradek: CommandLine, topic: str) -> None:
    odradek("topics", "alter", topic, "-c", "max.message.bytes=100")
    ran = odradek("produce", "-t", topic, stdin=b"x" * 500 + b"\n", code=1, more_to_come=True)
    assert "MESSAGE_TOO_LARGE" in ran.stderr


def test_errors_are_reported(odradek: CommandLine, topic: str) -> None:
    for words, text in [
        (["consume", "-t", "nothing-here"], "`odradek topics list`"),
        (["consume", "-t", "nothing-here", "-G", "g"], "`odradek topics list`"),
        (["consume", "-t", topic, "-p", "7"], "has no partition 7 (it has 3, from 0)"),
        (["produce", "-t", "a/b"], "INVALID_TOPIC"),
        (["produce", "-t", topic, "-p", "7"], "has no partition 7 (it has 3, from 0)"),
    ]:
        ran = odradek(*words, stdin=b"x\n", code=1)
        assert text in ran.stderr, ran


def test_wrong_usage(offline: CommandLine) -> None:
    for words in (
        ["consume"],
        ["consume", "-t", "t", "-f", "%q"],
        ["consume", "-t", "t", "-f", "\\q"],
        ["consume", "-t", "t", "-f", "%s", "-D", ";"],
        ["consume", "-t", "t", "-f", "%s", "-J"],
        ["consume", "-t", "t", "-o", "yesterday"],
        ["consume", "-t", "t", "-p", "x"],
        ["produce", "-t", "t", "-K", ""],
        ["produce", "-t", "t", "-K", ":", "-k", "x"],
        ["produce", "-t", "t", "-z", "rar"],
        ["produce", "-t", "t", "-c", "-1"],
        ["consume", "-t", "t", "-c", "-1"],
    ):
        assert offline(*words, code=2).stderr
