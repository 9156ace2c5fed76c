"""One location for all spellings of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.seams.files import Path as FilePath
from odradek.seams.real_files import RealFiles
from odradek.seams.store_directory import MARKER_FILE
from odradek.storage.tiered.store_location import directory_of_store, resolved_url
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

FILES = RealFiles()
SPELLINGS = (
    "{home}/a tier",
    "{home}/a tier/",
    "{home}//a tier",
    "{home}/x/../a tier",
    "a tier",
    "./a tier/.",
    "~/a tier",
    "file://{home}/a tier",
    "file://{home}/a%20tier",
    "file://{home}/a%20tier/",
    "file://{home}//a%20tier",
    "file://localhost{home}/a%20tier",
    "FILE://{home}/a%20tier",
    "file://~/a%20tier",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory and the user's home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x").mkdir()
    return tmp_path


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("state", ["missing", "empty", "kafka", "objects", "marker"])
def test_spelling_of_a_directory_does_not_matter(home: Path, spelling: str, state: str) -> None:
    tier, kafkas = home / "a tier", home / "a tier" / "kafka-tiered-storage"
    expected = kafkas
    if state != "missing":
        tier.mkdir()
    if state == "kafka":
        kafkas.mkdir()
    elif state == "objects":
        (tier / "t-0-AAAAAAAAAAAAAAAAAAAAAQ").mkdir()
        expected = tier
    elif state == "marker":
        (tier / MARKER_FILE).write_text("id\n")
        expected = tier
    found = resolved_url(spelling.format(home=home), FILES)
    assert found == f"file://{expected}".replace(" ", "%20")
    assert resolved_url(found, FILES) == found
    assert directory_of_store(found) == expected


def test_special_characters_of_urls_in_a_directory(home: Path) -> None:
    """`?` and `#` do not end the path of a file:// URL."""
    found = resolved_url(f"file://{home}/a?b#c", FILES)
    assert found == resolved_url(str(home / "a?b#c"), FILES)
    assert found.endswith("/a%3Fb%23c/kafka-tiered-storage")
    assert resolved_url(str(home / "100%25"), FILES).endswith("/100%2525/kafka-tiered-storage")


def test_symbolic_link_is_kept(home: Path) -> None:
    (home / "disk" / "tier").mkdir(parents=True)
    (home / "link").symlink_to(home / "disk" / "tier")
    assert resolved_url("link", FILES) == f"file://{home}/link/kafka-tiered-storage"
    # The parent of the link's target, as for the system
    assert resolved_url("link/../new", FILES) == f"file://{home}/disk/new/kafka-tiered-storage"


def test_two_stores_in_one_directory_are_refused(home: Path) -> None:
    tier, kafkas = home / "tier", home / "tier" / "kafka-tiered-storage"
    kafkas.mkdir(parents=True)
    (tier / MARKER_FILE).write_text("one\n")
    assert resolved_url("tier", FILES) == f"file://{tier}"
    (kafkas / MARKER_FILE).write_text("two\n")
    with pytest.raises(ValueError, match=f"^{tier} and {kafkas} are both object stores: move one"):
        resolved_url("tier", FILES)
    assert resolved_url("tier", FILES, recorded=str(tier)) == f"file://{tier}"


def test_recorded_store_that_is_not_mounted(home: Path) -> None:
    """Otherwise a node would create another store in the mount point."""
    tier = home / "tier"
    tier.mkdir()
    assert resolved_url("tier", FILES, recorded=str(tier)) == f"file://{tier}"
    expected = f"file://{tier}/kafka-tiered-storage"
    assert resolved_url("tier", FILES, recorded=f"{tier}/kafka-tiered-storage") == expected
    assert resolved_url("tier", FILES, recorded="/elsewhere") == expected


def test_prefix_of_object_names(home: Path) -> None:
    found = resolved_url("tier", FILES, prefix="/a/b/")
    assert found == f"file://{home}/tier/kafka-tiered-storage/a/b"
    (home / "tier" / "a" / "b" / "t-0-AAAAAAAAAAAAAAAAAAAAAQ").mkdir(parents=True)
    assert resolved_url("tier", FILES, prefix="a/b") == f"file://{home}/tier/a/b"


@pytest.mark.parametrize("url", ["s3://bucket/a%20b/", "gs://b", "az://c/p", "memory:///"])
def test_url_of_object_storage_is_unchanged(url: str) -> None:
    assert resolved_url(url, FILES) == url
    assert directory_of_store(url) is None


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "is empty: specify a directory or a URL"),
        ("  ", "is empty"),
        ("s3:/bucket", "is not a valid URL: specify a directory or a URL"),
        ("file:/srv/tier", "is not a valid URL"),
        ("file://tier", "with three slashes, or the path 'tier'"),
        ("file://host/tier", "with three slashes"),
        ("file://", "with three slashes"),
    ],
)
def test_invalid_target_is_refused(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolved_url(target, FILES)


def test_files_of_a_simulated_node_are_used() -> None:
    files = VirtualFiles(VirtualDisk())
    files.make_directory(FilePath("/virtual/t-0-AAAAAAAAAAAAAAAAAAAAAQ"))
    assert resolved_url("/virtual", files) == "file:///virtual"
