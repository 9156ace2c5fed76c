"""Tests of `odradek storage`: arguments, errors, and the formatted directories."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from odradek.broker.controller.voter_argument import InvalidVoter, parse_voters
from odradek.cli.scram_argument import WrongCredential, scram_record
from odradek.protocol.uuids import uuid_from_text
from odradek.replication.controller.scram import scram_keys
from odradek.seams.real import real_seams
from odradek.storage.directories.meta_properties import parse
from tests.cli.command_line import CommandLine

CONTROLLER = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:9093,127.0.0.1:9193
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs={root}/one,{root}/two
"""
DIRECTORY = "JEXY6aqzQY-32P5TStzaFg"
VOTERS = f"1@127.0.0.1:9093:{DIRECTORY},2@127.0.0.1:9193:MvDxzVmcRsaTz33bUuRU6A"
FORMAT = ("storage", "format", "--cluster-id", "some-cluster", "-c")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "server.properties"
    file.write_text(CONTROLLER.format(root=tmp_path))
    return file


def change(config: Path, old: str, new: str) -> None:
    config.write_text(config.read_text().replace(old, new))


def test_format_controller_with_initial_controllers(
    offline: CommandLine, config: Path, tmp_path: Path
) -> None:
    ran = offline(*FORMAT, str(config), "--initial-controllers", VOTERS)
    assert f"dynamic metadata voter directory {tmp_path}/one" in ran.lines[-1]
    found = parse((tmp_path / "one/meta.properties").read_bytes())
    assert (found.cluster_id, found.node_id) == ("some-cluster", 1)
    assert found.directory_id == uuid_from_text(DIRECTORY)
    assert "already formatted" in offline(*FORMAT, str(config), "-I", VOTERS, code=1).stderr
    again = offline(*FORMAT, str(config), "-I", VOTERS, "--ignore-formatted")
    assert again.lines == ["All of the log directories are already formatted."]


def test_standalone_controller_starts(offline: CommandLine, config: Path, tmp_path: Path) -> None:
    offline(*FORMAT, str(config), "--standalone", "--release-version", "4.1")
    snapshot = offline(
        "dump", "--records", str(next(tmp_path.glob("one/__cluster_metadata-0/*.checkpoint")))
    )
    assert b"127.0.0.1" in snapshot.stdout
    assert b"9093" in snapshot.stdout


def test_storage_info_reports_directories_and_problems(
    offline: CommandLine, config: Path, tmp_path: Path
) -> None:
    ran = offline("storage", "info", "-c", str(config), code=1)
    assert ran.lines == [
        "Found problems:",
        f"  {tmp_path}/one does not exist",
        f"  {tmp_path}/two does not exist",
        "",
    ]
    offline(*FORMAT, str(config), "--initial-controllers", VOTERS)
    ran = offline("storage", "info", "-c", str(config))
    assert ran.lines == [
        "Found log directories:",
        f"  {tmp_path}/one",
        f"  {tmp_path}/two",
        "",
        f"Found metadata: {{cluster.id=some-cluster, directory.id={DIRECTORY}, node.id=1, version=1}}",
        "",
    ]
    (tmp_path / "two/meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    assert (
        "Mismatched cluster IDs"
        in offline("storage", "info", "-c", str(config), code=1).stdout.decode()
    )


@pytest.mark.parametrize(
    ("old", "new", "flags", "reason"),
    [
        ("", "", (), "you must specify one of the following: --standalone"),
        (
            "process.roles=broker,controller\n",
            "",
            (),
            "formats its log directories at its first start",
        ),
        (
            "controller.quorum.bootstrap.servers=127.0.0.1:9093,127.0.0.1:9193",
            "controller.quorum.voters=1@127.0.0.1:9093",
            ("--standalone",),
            "You cannot specify controller.quorum.voters",
        ),
        ("", "", ("-I", "1@host"), "a voter is ID@HOST:PORT:DIRECTORY"),
        ("", "", ("-s", "-S", "SCRAM-SHA-1=[]"), "mechanism SCRAM-SHA-1 is not supported"),
        ("node.id=1", "node.id=x", ("-s",), "node.id"),
    ],
)
def test_format_wrong_usage(
    offline: CommandLine, config: Path, old: str, new: str, flags: tuple[str, ...], reason: str
) -> None:
    change(config, old, new)
    assert reason in offline(*FORMAT, str(config), *flags, code=2).stderr
    assert not (config.parent / "one").exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("-r", "9.9"), "Unknown metadata.version '9.9'"),
        (("-f", "group.version"), "equals sign not found"),
        (("-f", "group.version=one"), "unable to parse one as a short"),
        (
            ("-r", "3.4", "-S", "SCRAM-SHA-256=[name=alice,password=secret]"),
            "SCRAM is only supported in metadata.version 3.5-IV2 or later",
        ),
    ],
)
def test_failed_format_creates_no_directory(
    offline: CommandLine, config: Path, flags: tuple[str, ...], reason: str
) -> None:
    assert reason in offline(*FORMAT, str(config), "-s", *flags, code=1).stderr
    assert not (config.parent / "one").exists()


def test_format_broker_without_voters(offline: CommandLine, config: Path, tmp_path: Path) -> None:
    change(config, "process.roles=broker,controller", "process.roles=broker")
    change(config, ",CONTROLLER://127.0.0.1:9093", "")
    assert (
        "only use --standalone on a controller"
        in offline(*FORMAT, str(config), "-s", code=2).stderr
    )
    offline(*FORMAT, str(config))
    assert not (tmp_path / "one/__cluster_metadata-0").exists()


def test_version_mapping(offline: CommandLine) -> None:
    assert offline("storage", "version-mapping").lines == [
        "metadata.version=30 (4.3-IV0)",
        "kraft.version=1",
        "transaction.version=2",
        "group.version=1",
        "eligible.leader.replicas.version=1",
        "share.version=1",
        "streams.version=1",
    ]
    assert "metadata.version=21 (3.9)" in offline("storage", "version-mapping", "-r", "3.9").lines
    assert (
        "Unknown metadata.version"
        in offline("storage", "version-mapping", "-r", "2.8", code=1).stderr
    )


def test_feature_dependencies(offline: CommandLine) -> None:
    ran = offline(
        "storage", "feature-dependencies", "-f", "metadata.version=30", "-f", "group.version=1",
        "-f", "eligible.leader.replicas.version=1",
    )  # fmt: skip
    assert ran.lines == [
        "metadata.version=30 (4.3-IV0) has no dependencies.",
        "group.version=1 has no dependencies.",
        "eligible.leader.replicas.version=1 requires:",
        "    metadata.version=23 (4.0-IV1)",
    ]
    for level, reason in (("none=1", "Unknown feature"), ("share.version=9", "is not supported")):
        ran = offline("storage", "feature-dependencies", "-f", level, code=1)
        assert reason in ran.stderr


def test_random_uuid_is_valid(offline: CommandLine) -> None:
    first, second = (offline("storage", "random-uuid").lines[0] for _ in range(2))
    assert first != second
    assert uuid_from_text(first).version == 4


# Arguments


def test_format_accepts_voters_in_any_order() -> None:
    found = parse_voters(f"3@[::1]:1:{DIRECTORY},2@h:65535:{DIRECTORY},", "C")
    assert [(each.id, each.endpoints[0].host, each.endpoints[0].port) for each in found] == [
        (2, "h", 65535),
        (3, "::1", 1),
    ]


@pytest.mark.parametrize(
    "text",
    ["", ",", "1", "@h:1:x", f"-1@h:1:{DIRECTORY}", f"1@h:65536:{DIRECTORY}", "1@h:1:short",
     f"1@h:1:{DIRECTORY},1@h:2:{DIRECTORY}", f"1@[::1:1:{DIRECTORY}", f"1@h:x:{DIRECTORY}"],
)  # fmt: skip
def test_format_without_voters_is_wrong_usage(text: str) -> None:
    with pytest.raises(InvalidVoter):
        parse_voters(text, "C")


def test_scram_record_verifies_password() -> None:
    text = 'SCRAM-SHA-512=[name=alice,iterations=8192,salt="N3E=",password=alice-secret]'
    record = scram_record(text, real_seams().entropy)
    salted = hashlib.pbkdf2_hmac("sha512", b"alice-secret", b"7q", 8192)
    assert (record.name, record.iterations, record.salt) == ("alice", 8192, b"7q")
    assert (record.stored_key, record.server_key) == scram_keys(2, salted)


@pytest.mark.parametrize(
    "config",
    ["[password=x]", "[name=a]", "[name=a,saltedpassword=YCE=]", "[name=a,password=x,else=1]",
     "[name=a,password=x,iterations=4095]", "[name=a,password=x,iterations=16385]", "name=a",
     "[name=a,password=x", "[name]", "[name=a,password=x,salt=!]"],
)  # fmt: skip
def test_invalid_scram_credentials(config: str) -> None:
    with pytest.raises(WrongCredential):
        scram_record(f"SCRAM-SHA-256={config}", real_seams().entropy)
