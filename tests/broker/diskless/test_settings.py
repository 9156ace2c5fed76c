"""The check of the object store of diskless topics at the start, and its location."""

from __future__ import annotations

from pathlib import Path as OsPath

import pytest

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.diskless.settings import (
    DisklessSettings,
    check_other_directory,
    check_same_store,
    check_store,
)
from odradek.seams.files import Path
from odradek.seams.object_store import open_objects
from odradek.seams.real_files import RealFiles
from odradek.testing.virtual_object_store import StoreFault, StoreFaultKind
from odradek.testing.virtual_world import VirtualWorld


def test_unavailable_store_is_logged_every_minute_until_it_responds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = VirtualWorld()
    world.clock.jumping = True
    seams = world.node("a").seams
    world.bucket.inject(StoreFault(StoreFaultKind.FAILS, times=30))

    async def main() -> None:
        await check_store(seams.open_objects("memory:///"), seams)

    world.run(main)
    unavailable = [text for text in caplog.messages if "diskless topics is unavailable" in text]
    assert 2 <= len(unavailable) <= 4
    assert "is available after" in caplog.messages[-1]


def test_available_store_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = VirtualWorld()
    world.clock.jumping = True
    seams = world.node("a").seams

    async def main() -> None:
        await check_store(seams.open_objects("memory:///"), seams)

    world.run(main)
    assert not caplog.messages


@pytest.mark.parametrize("directory", ["/tier", "/tier/kafka-tiered-storage"])
def test_directory_of_tiered_storage_is_refused(directory: str) -> None:
    properties = {
        "remote.log.storage.manager.class.name": "odradek.ObjectStore",
        "remote.log.storage.url": "file:///tier",
        "diskless.storage.url": directory,
    }
    with pytest.raises(ValueError, match="the directory of tiered storage"):
        check_other_directory(properties, RealFiles())
    check_other_directory(properties | {"diskless.storage.url": "/objects"}, RealFiles())


def test_another_store_is_refused_while_diskless_topics_exist(tmp_path: OsPath) -> None:
    """A broker with another store could not read the objects of the others."""
    used, moved, other = (tmp_path / name for name in ("used", "moved", "other"))
    remembered = Path(tmp_path / "diskless-store")
    files = RealFiles()
    check_same_store(f"file://{used}", remembered, files)  # nothing is stored yet
    open_objects(f"file://{used}", identity_file=str(remembered)).put("a", [b"x"])
    check_same_store(f"file://{used}", remembered, files)
    used.rename(moved)
    check_same_store(f"file://{moved}", remembered, files)
    other.mkdir()
    for url in (f"file://{other}", "s3://bucket"):
        with pytest.raises(
            ValueError, match=f"objects of diskless topics in {used}: change it back"
        ):
            check_same_store(url, remembered, files)


def test_settings_have_units_of_their_names() -> None:
    config = ServerConfig.from_properties({}, test_node=True)
    settings = DisklessSettings(config)
    assert settings.commit_interval_seconds == 0.25
    assert settings.buffer_bytes_max == 8 << 20
    assert settings.fetch_poll_interval_seconds == 0.05
    assert settings.object_cache_bytes_max == 256 << 20
    assert settings.producer_id_expiration_ms == config.get_int("producer.id.expiration.ms")
