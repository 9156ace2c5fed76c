"""meta.properties: Kafka's text in and out, and the decision whose directories these are."""

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
from odradek.storage.directories.errors import WrongDirectory
from odradek.storage.directories.meta_properties import (
    BadMetaProperties,
    Identity,
    MetaProperties,
    decide_identity,
)

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


def test_kafkas_file_is_read() -> None:
    assert meta_properties.parse(KAFKAS) == MetaProperties(1, "5L6g3nShT-eMCtK--X86sw", 1, ONE)


def test_what_is_written_is_read_back() -> None:
    written = MetaProperties(1, "a cluster", 4, TWO)
    assert meta_properties.parse(meta_properties.format(written)) == written


def test_version_0_calls_the_node_broker_and_may_lack_everything() -> None:
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
def test_javas_ways_to_write_the_same(text: bytes) -> None:
    assert meta_properties.parse(text) == MetaProperties(1, "x", 1, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"version=2\n", "version=2 is unknown"),
        (b"version=one\n", "version=one is not a number"),
        (b"version=1\nnode.id=1\n", "cluster.id is missing"),
        (b"version=1\ncluster.id=x\n", "node.id is missing"),
        (b"version=1\ncluster.id=x\nnode.id=1\ndirectory.id=short\n", "directory.id"),
    ],
)
def test_a_bad_file_says_what_is_wrong(text: bytes, says: str) -> None:
    with pytest.raises(BadMetaProperties, match=says):
        meta_properties.parse(text)


@given(st.binary(max_size=200))
def test_garbage_is_refused_not_crashed_on(data: bytes) -> None:
    with contextlib.suppress(BadMetaProperties):
        meta_properties.parse(data)


def test_a_first_start_draws_a_cluster_and_an_id_for_each_directory() -> None:
    identity = decide_identity(
        {A: None, B: None}, node_id=1, cluster_id=None, draw=drawing(ONE, TWO, THREE)
    )
    cluster = uuid_to_text(ONE)
    assert identity == Identity(
        cluster,
        {A: MetaProperties(1, cluster, 1, TWO), B: MetaProperties(1, cluster, 1, THREE)},
        (A, B),
    )


def test_a_new_directory_joins_the_cluster_of_the_others() -> None:
    known = MetaProperties(1, "theirs", 1, ONE)
    identity = decide_identity(
        {A: None, B: known}, node_id=1, cluster_id=None, draw=drawing(ONE, UUID(int=2), TWO)
    )
    assert identity.cluster_id == "theirs"
    assert identity.properties[A].directory_id == TWO  # neither taken nor reserved
    assert identity.to_write == (A,)


def test_version_0_is_written_back_as_version_1() -> None:
    identity = decide_identity(
        {A: MetaProperties(0, "c", 1, None)}, node_id=1, cluster_id=None, draw=drawing(ONE)
    )
    assert identity.properties[A] == MetaProperties(1, "c", 1, ONE)
    assert identity.to_write == (A,)


@pytest.mark.parametrize(
    ("found", "insist", "says"),
    [
        ({A: MetaProperties(1, "c", 2, ONE)}, None, "/a belongs to node 2.*node.id=2"),
        ({A: MetaProperties(1, "c", 1, ONE)}, "other", "/a belongs to cluster 'c', not 'other'"),
        (
            {A: MetaProperties(1, "c", 1, ONE), B: MetaProperties(1, "d", 1, TWO)},
            None,
            "/a and /b belong to different clusters",
        ),
        (
            {
                A: MetaProperties(1, "c", 1, ONE),
                B: None,
                C: MetaProperties(1, "c", 1, ONE),
            },
            None,
            "/a and /c have the same directory.id",
        ),
    ],
)
def test_directories_that_disagree_are_refused(
    found: dict[Path, MetaProperties | None], insist: str | None, says: str
) -> None:
    with pytest.raises(WrongDirectory, match=says):
        decide_identity(found, node_id=1, cluster_id=insist, draw=drawing(THREE))
