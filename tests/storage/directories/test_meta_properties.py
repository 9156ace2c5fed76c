"""meta.properties: Kafka's format, and the decision which log directories belong to the node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.uuids import uuid_to_text
from odradek.seams.files import Path
from odradek.storage.directories import meta_properties
from odradek.storage.directories.meta_properties import (
    BadMetaProperties,
    MetaProperties,
    NodeIdentity,
    decide_identity,
)
from odradek.storage.errors import WrongDirectory

ONE, TWO, THREE = (UUID(int=number << 64) for number in (1, 2, 3))
A, B, C = Path("/a"), Path("/b"), Path("/c")

KAFKAS = b"""#
#Thu Nov 20 19:15:00 UTC 2025
cluster.id=5L6g3nShT-eMCtK--X86sw
directory.id=AAAAAAAAAAEAAAAAAAAAAA
node.id=1
version=1
"""


def drawing(*ids: UUID) -> Callable[[], UUID]:
    left = iter(ids)
    return lambda: next(left)


def test_kafka_meta_properties_is_parsed() -> None:
    assert meta_properties.parse(KAFKAS) == MetaProperties(1, "5L6g3nShT-eMCtK--X86sw", 1, ONE)


def test_written_meta_properties_are_parsed_back() -> None:
    written = MetaProperties(1, "a cluster", 4, TWO)
    assert meta_properties.parse(meta_properties.format(written)) == written


def test_version_0_uses_broker_id_and_allows_missing_fields() -> None:
    assert meta_properties.parse(b"version=0\nbroker.id=3\n") == MetaProperties(0, None, 3, None)
    assert meta_properties.parse(b"") == MetaProperties(0, None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        b"version = 1\nnode.id : 1\ncluster.id\tx\n",
        b"! a comment\r\nversion:1\r\n  node.id=1\r\n\r\ncluster.id=x\r\nextra=kept out",
        b"version=1\nnode.\\\n   id=1\ncluster.id=\\u0078\n",
    ],
)
def test_java_properties_syntax_is_parsed(text: bytes) -> None:
    assert meta_properties.parse(text) == MetaProperties(1, "x", 1, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"version=2\n", "unrecognized version 2"),
        (b"version=one\n", "version=one is not a number"),
        (b"version=1\nnode.id=1\n", "cluster.id is missing"),
        (b"version=1\ncluster.id=x\n", "node.id is missing"),
        (b"version=1\ncluster.id=x\nnode.id=1\ndirectory.id=short\n", "directory.id"),
    ],
)
def test_invalid_file_error_contains_reason(text: bytes, reason: str) -> None:
    with pytest.raises(BadMetaProperties, match=reason):
        meta_properties.parse(text)


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_bad_meta_properties(data: bytes) -> None:
    with contextlib.suppress(BadMetaProperties):
        meta_properties.parse(data)


def test_first_start_generates_cluster_id_and_directory_ids() -> None:
    identity = decide_identity(
        {A: None, B: None}, node_id=1, cluster_id=None, metadata=A, draw=drawing(ONE, TWO, THREE)
    )
    cluster = uuid_to_text(ONE)
    assert identity == NodeIdentity(
        cluster,
        {A: MetaProperties(1, cluster, 1, TWO), B: MetaProperties(1, cluster, 1, THREE)},
        (A, B),
        {},
    )


def test_new_directory_gets_cluster_id_of_others() -> None:
    known = MetaProperties(1, "theirs", 1, ONE)
    identity = decide_identity(
        {A: known, B: None},
        node_id=1,
        cluster_id=None,
        metadata=A,
        draw=drawing(ONE, UUID(int=2), TWO),
    )
    assert identity.cluster_id == "theirs"
    assert identity.properties[B].directory_id == TWO  # neither taken nor reserved
    assert identity.to_write == (B,)


def test_unformatted_directory_after_first_run_is_excluded() -> None:
    """It may be a mount point without its disk; Kafka does not format it either."""
    identity = decide_identity(
        {A: MetaProperties(1, "theirs", 1, ONE), B: None},
        node_id=1,
        cluster_id=None,
        metadata=A,
        draw=drawing(TWO),
        has_run=True,
    )
    assert list(identity.properties) == [A]
    assert identity.to_write == ()
    assert "mount the disk" in str(identity.left_out[B])


def test_version_0_is_rewritten_as_version_1() -> None:
    identity = decide_identity(
        {A: MetaProperties(0, "c", 1, None)},
        node_id=1,
        cluster_id=None,
        metadata=A,
        draw=drawing(ONE),
    )
    assert identity.properties[A] == MetaProperties(1, "c", 1, ONE)
    assert identity.to_write == (A,)


def known(cluster: str = "c", node: int = 1, directory: UUID = ONE) -> MetaProperties:
    return MetaProperties(1, cluster, node, directory)


Found = dict[Path, MetaProperties | None]


@pytest.mark.parametrize(
    ("found", "insist", "reason"),
    [
        ({A: known(node=2)}, None, "/a has node.id=2 in its meta.properties.*start with node.id=2"),
        (
            {A: known()},
            "other",
            "/a has cluster.id=c in its meta.properties, but this cluster has cluster.id=other",
        ),
        (
            {A: None, B: known("c"), C: known("d", directory=TWO)},
            None,
            "/b and /c have different cluster ids",
        ),
        (
            {A: None, B: known()},
            None,
            "the metadata log directory /a is not formatted, but /b.*mount the disk",
        ),
        ({A: None, B: known()}, "c", "the metadata log directory /a is not formatted"),
    ],
)
def test_metadata_directory_of_another_node_is_refused(
    found: Found, insist: str | None, reason: str
) -> None:
    with pytest.raises(WrongDirectory, match=reason):
        decide_identity(found, node_id=1, cluster_id=insist, metadata=A, draw=drawing(THREE))


@pytest.mark.parametrize(
    ("found", "left_out"),
    [
        (
            {A: known(), B: known("d", directory=TWO)},
            {B: "has cluster.id=d in its meta.properties, but this cluster has cluster.id=c"},
        ),
        (
            {A: known(), B: known(node=7, directory=TWO)},
            {B: "has node.id=7 in its meta.properties"},
        ),
        ({A: known(), B: None, C: known()}, {C: "/a and /c have the same directory.id"}),
        (
            {A: known(directory=THREE), B: known(), C: known()},
            {B: "/b and /c have the same", C: "/b and /c have the same"},
        ),
        ({A: known(), B: known("d")}, {B: "has cluster.id=d"}),
        ({B: known(), C: known("d", directory=TWO)}, {C: "has cluster.id=d"}),
    ],
)
def test_directories_that_differ_from_metadata_directory_are_excluded(
    found: Found, left_out: dict[Path, str]
) -> None:
    metadata = A if A in found else B
    draws = drawing(UUID(int=9 << 64), UUID(int=10 << 64))
    identity = decide_identity(found, node_id=1, cluster_id=None, metadata=metadata, draw=draws)
    assert identity.cluster_id == "c"
    assert {path: str(wrong) for path, wrong in identity.left_out.items()}.keys() == left_out.keys()
    for path, reason in left_out.items():
        assert reason in str(identity.left_out[path])
    assert not left_out.keys() & {*identity.properties, *identity.to_write}


def test_metadata_directory_is_written_first() -> None:
    """Else a crash in between would leave one that is new among others that are not."""
    draws = drawing(*(UUID(int=number << 64) for number in range(1, 5)))
    identity = decide_identity(
        {A: None, B: None, C: None}, node_id=1, cluster_id=None, metadata=C, draw=draws
    )
    assert identity.to_write == (C, A, B)
