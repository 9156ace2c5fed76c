"""Formatting of log directories: files, rejected directories, and power loss."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest

from odradek.protocol.records.batch import batches
from odradek.protocol.records.control import ControlType, control_type
from odradek.protocol.records.records import decode
from odradek.protocol.schemas.control_records import VotersRecord
from odradek.protocol.schemas.serde import decode as decode_body
from odradek.replication.controller.release_versions import (
    UnknownReleaseVersion,
    initial_levels,
    release_version_level,
)
from odradek.replication.raft.bootstrap import read_bootstrap_records
from odradek.replication.raft.formatting import CannotFormat, NodeFormat, format_node
from odradek.replication.raft.metadata_manager import MetadataManager
from odradek.replication.raft.quorum_recovery import QuorumMember
from odradek.replication.raft.voters import Voter, VoterEndpoint, voters_of
from odradek.seams.files import Files, Path
from odradek.storage.directories.meta_properties import FILE_NAME, MetaProperties, format, parse
from odradek.storage.directories.opening import open_directories
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualNode, VirtualWorld

ONE, TWO = Path("/one"), Path("/two")
SNAPSHOT = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


def a_voter(number: int) -> Voter:
    endpoint = VoterEndpoint("CONTROLLER", f"host-{number}", 9090 + number)
    return Voter(number, UUID(int=(1 << 127) + number), (endpoint,))


VOTERS = (a_voter(1), a_voter(2), a_voter(3))
WANTED = NodeFormat(
    node_id=1,
    cluster_id="some-cluster",
    directories=(ONE, TWO),
    metadata=ONE,
    levels=initial_levels(None, {}, is_dynamic=True),
    voters=VOTERS,
)


def new_node() -> VirtualNode:
    disk = VirtualDisk()
    disk.mount(ONE)
    disk.mount(TWO)
    return VirtualWorld(1).node("node", disk)


def formatted(node: VirtualNode, wanted: NodeFormat = WANTED) -> list[str]:
    output: list[str] = []
    format_node(node.files, node.seams.entropy, wanted, now_ms=1000, report=output.append)
    return output


def properties_of(files: Files, directory: Path) -> MetaProperties:
    return parse(files.read(directory / FILE_NAME))


def levels_of(files: Files, directory: Path) -> Mapping[str, int]:
    return {each.name: each.feature_level for each in read_bootstrap_records(files, directory)}


def voters_in(files: Files, directory: Path) -> tuple[Voter, ...]:
    for batch in batches(memoryview(files.read(directory / SNAPSHOT)), check=True):
        for record in decode(batch):
            if batch.is_control and control_type(record.key) is ControlType.KRAFT_VOTERS:
                return voters_of(decode_body(VotersRecord, 0, record.value or b""))
    return ()


def test_voter_is_formatted_with_its_directory_id_and_the_voters_snapshot() -> None:
    node = new_node()
    output = formatted(node)
    mine = properties_of(node.files, ONE)
    assert (mine.cluster_id, mine.node_id, mine.directory_id) == (
        "some-cluster",
        1,
        VOTERS[0].directory_id,
    )
    other = properties_of(node.files, TWO)
    assert other.directory_id not in (None, mine.directory_id)
    assert voters_in(node.files, ONE) == VOTERS
    assert not node.files.exists(TWO / "__cluster_metadata-0")
    assert levels_of(node.files, TWO) == levels_of(node.files, ONE)
    assert "kraft.version" not in levels_of(node.files, ONE)
    assert output[1:] == [
        "Formatting data directory /two with metadata.version 4.3-IV0.",
        "Formatting dynamic metadata voter directory /one with metadata.version 4.3-IV0.",
    ]


def test_non_voter_is_formatted_with_a_random_directory_id_and_the_voters_snapshot() -> None:
    node = new_node()
    output = formatted(node, replace(WANTED, node_id=7))
    assert properties_of(node.files, ONE).directory_id not in [each.directory_id for each in VOTERS]
    assert voters_in(node.files, ONE) == VOTERS
    assert "Formatting dynamic metadata directory /one" in output[-1]


def test_static_quorum_is_formatted_without_snapshot() -> None:
    node = new_node()
    levels = initial_levels(None, {}, is_dynamic=False)
    output = formatted(node, replace(WANTED, voters=(), levels=levels))
    assert not node.files.exists(ONE / "__cluster_metadata-0")
    assert "Formatting metadata directory /one" in output[-1]


def test_formatted_node_opens_with_its_ids() -> None:
    node = new_node()
    formatted(node)
    opened = open_directories(
        node.files, node.seams.entropy, [ONE, TWO], node_id=1, cluster_id="some-cluster"
    )
    assert [each.failure for each in opened.all] == [None, None]
    assert opened.metadata.id == VOTERS[0].directory_id


async def test_standalone_voter_starts_with_formatted_feature_levels() -> None:
    node = new_node()
    levels = initial_levels("3.9", {"group.version": 0}, is_dynamic=True)
    formatted(node, replace(WANTED, voters=(VOTERS[0],), levels=levels))
    metadata = MetadataManager(
        node.seams,
        ONE,
        QuorumMember(1, "some-cluster", VOTERS[0].directory_id),
    )
    await metadata.start()
    assert metadata.image.features == {"metadata.version": 21}
    assert metadata.kraft_version == 1
    await metadata.close()


def test_formatted_directory_is_rejected_or_ignored() -> None:
    node = new_node()
    formatted(node, replace(WANTED, directories=(ONE,)))
    with pytest.raises(CannotFormat, match=r"/one is already formatted\. Use --ignore-formatted"):
        formatted(node)
    before = node.files.read(ONE / SNAPSHOT)
    again = replace(WANTED, ignore_formatted=True)
    assert any("/two" in line for line in formatted(node, again))
    assert node.files.read(ONE / SNAPSHOT) == before
    assert formatted(node, again) == ["All of the log directories are already formatted."]


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (MetaProperties(1, "another", 1, UUID(int=1 << 90)), "Invalid cluster.id in: /two"),
        (MetaProperties(1, "some-cluster", 2, UUID(int=1 << 90)), "Stored node id 2 doesn't match"),
        (MetaProperties(1, "some-cluster", 1, UUID(int=2)), "Invalid reserved directory ID"),
    ],
)
def test_directories_of_other_nodes_or_clusters_are_rejected(
    properties: MetaProperties, reason: str
) -> None:
    node = new_node()
    node.files.write_new(TWO / FILE_NAME, format(properties))
    with pytest.raises(CannotFormat, match=reason):
        formatted(node, replace(WANTED, ignore_formatted=True))
    assert not node.files.exists(ONE / FILE_NAME)


def test_duplicate_directory_id_is_rejected() -> None:
    node = new_node()
    copied = format(MetaProperties(1, "some-cluster", 1, UUID(int=1 << 90)))
    for path in (ONE, TWO):
        node.files.write_new(path / FILE_NAME, copied)
    with pytest.raises(CannotFormat, match="Duplicate directory ID"):
        formatted(node, replace(WANTED, ignore_formatted=True))


def test_metadata_log_without_meta_properties_is_rejected() -> None:
    node = new_node()
    node.files.make_directory(ONE / "__cluster_metadata-0")
    node.files.open(ONE / "__cluster_metadata-0/00000000000000000000.log", create=True).close()
    with pytest.raises(CannotFormat, match="belongs to a cluster"):
        formatted(node)
    assert not node.files.exists(TWO / FILE_NAME)


def test_power_loss_at_every_sync_allows_formatting_again() -> None:
    node = new_node()
    formatted(node)
    for sync in range(1, node.files.syncs + 1):
        cut = new_node()
        cut.files.cut_power_at(sync)
        with suppress(NodeCrashed):
            formatted(cut)
        for seed in range(4):
            after = VirtualWorld(seed).node("after", cut.disk.crash(seed))
            if after.files.exists(ONE / FILE_NAME):  # the last file: the directory is complete
                assert after.files.exists(TWO / FILE_NAME)
                assert voters_in(after.files, ONE) == VOTERS
            formatted(after, replace(WANTED, ignore_formatted=True))
            assert properties_of(after.files, ONE).directory_id == VOTERS[0].directory_id
            assert voters_in(after.files, ONE) == VOTERS
            assert levels_of(after.files, TWO)["metadata.version"] == 30


# Release versions and feature levels


def test_release_version_accepts_every_name() -> None:
    names = {"3.3-IV3": 7, "3.5": 11, "3.9.1": 21, "4.0": 25, "4.3-IV0": 30, "4.3": 30, "4.3.0": 30}
    assert {name: release_version_level(name) for name in names} == names
    for unknown in ("3.2", "4.4", "5.0-IV0", "", "4"):
        with pytest.raises(
            UnknownReleaseVersion, match=r"Supported metadata.version are: 3\.3-IV3, "
        ):
            release_version_level(unknown)


def test_features_default_to_the_release_unless_specified() -> None:
    assert initial_levels("4.0", {"transaction.version": 1}, is_dynamic=False) == {
        "metadata.version": 25,
        "eligible.leader.replicas.version": 0,
        "group.version": 1,
        "kraft.version": 0,
        "share.version": 0,
        "streams.version": 0,
        "transaction.version": 1,
    }


@pytest.mark.parametrize(
    ("release", "wanted", "is_dynamic", "reason"),
    [
        (None, {"nothing": 1}, True, "Unsupported feature: nothing. Supported features are: elig"),
        ("4.0", {"metadata.version": 25}, True, "Use --release-version instead of"),
        (None, {"metadata.version": 6}, True, "Valid feature levels are from 7 to 30"),
        (None, {"group.version": 2}, True, "No feature:group.version with feature level 2"),
        (None, {"kraft.version": 0}, True, "Cannot set kraft.version to 0"),
        (None, {"kraft.version": 1}, False, "Cannot set kraft.version to 1 unless"),
        ("3.9", {"eligible.leader.replicas.version": 1}, True, "depends on metadata.version level"),
    ],
)
def test_incompatible_feature_levels_are_rejected(
    release: str | None, wanted: Mapping[str, int], is_dynamic: bool, reason: str
) -> None:
    with pytest.raises(UnknownReleaseVersion, match=reason):
        initial_levels(release, wanted, is_dynamic=is_dynamic)
