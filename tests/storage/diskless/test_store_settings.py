"""The object store of diskless topics from a broker's properties."""

from __future__ import annotations

from pathlib import Path as OsPath

import pytest

from odradek.seams.files import Path
from odradek.seams.real import real_seams
from odradek.seams.store_directory import MARKER_FILE
from odradek.storage.diskless.store_settings import diskless_store_url, open_diskless_store

ENABLED = {"diskless.storage.system.enable": "true"}


@pytest.mark.parametrize(
    ("target", "prefix", "url"),
    [
        ("/data/a b", "", "file:///data/a%20b/c1"),
        ("file:///data/x", "/p/", "file:///data/x/p/c1"),
        ("s3://bucket/here/", "", "s3://bucket/here/c1"),
        ("s3://bucket/here/", "/p/q", "s3://bucket/here/p/q/c1"),
    ],
)
def test_url_of_store(target: str, prefix: str, url: str) -> None:
    assert diskless_store_url(target, prefix, "c1") == url


@pytest.mark.parametrize("target", ["", "data", "s3:bucket", "file://host/data"])
def test_invalid_url_is_refused_with_config_name(target: str) -> None:
    with pytest.raises(ValueError, match=r"diskless\.storage\.url"):
        diskless_store_url(target, "", "c1")


def test_objects_are_stored_in_directory(tmp_path: OsPath) -> None:
    record = tmp_path / "record"
    properties = ENABLED | {"diskless.storage.url": str(tmp_path / "store")}
    objects = open_diskless_store(
        properties, real_seams(), cluster_id="c1", remembered_in=Path(str(record))
    )
    objects.put("diskless/1-1-x", [b"batch"])
    assert (tmp_path / "store" / "c1" / "diskless" / "1-1-x").read_bytes() == b"batch"
    assert (tmp_path / "store" / "c1" / MARKER_FILE).exists()
    assert record.exists()
    other = open_diskless_store(properties, real_seams(), cluster_id="c2")
    assert not other.list("diskless")  # its orphan scan deletes nothing of the first cluster


def test_unknown_property_is_refused_with_its_name(tmp_path: OsPath) -> None:
    properties = ENABLED | {
        "diskless.storage.url": str(tmp_path),
        "diskless.storage.retrys": "3",
    }
    with pytest.raises(ValueError, match=r"diskless\.storage\.retrys .* did you mean retries"):
        open_diskless_store(properties, real_seams(), cluster_id="c1")
