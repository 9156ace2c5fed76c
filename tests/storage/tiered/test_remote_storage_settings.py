"""Remote storage from a broker's properties (T-02, T-04)."""

from __future__ import annotations

import random
from base64 import b64encode
from functools import partial
from pathlib import Path as OsPath

import pytest

from odradek.seams.files import Path
from odradek.seams.objects import DEFAULT_STORE_TIMEOUTS, StoreTimeouts
from odradek.seams.real import real_seams
from odradek.seams.store_directory import MARKER_FILE
from odradek.storage.tiered.chunks import Compression
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.object_store import StorageFormat
from odradek.storage.tiered.remote_storage_settings import (
    RemoteStorageSettings,
    open_remote_storage,
)
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from odradek.testing.virtual_world import VirtualWorld
from tests.storage.tiered.stored_segment import DATA, LOG, METADATA, STEM

KAFKAS_NAME = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
OURS = {"remote.log.storage.manager.class.name": "odradek.ObjectStore"}
KAFKAS = {"remote.log.storage.manager.class.name": KAFKAS_NAME}
BROKERS = {"node.id": "1", "remote.log.storage.system.enable": "true"}
NO_FILES = VirtualFiles(VirtualDisk())


def settings(**values: str) -> RemoteStorageSettings:
    """`aws_region="x"` is remote.log.storage.aws_region; `__` stands for a dot."""
    return RemoteStorageSettings(
        OURS
        | BROKERS
        | {f"remote.log.storage.{k.replace('__', '.')}": v for k, v in values.items()}
    )


class TestStoreUrl:
    def test_url_is_passed_to_remote_storage(self) -> None:
        """T-04: properties with the prefix remote.log.storage. are passed to the remote storage."""
        assert settings(url="s3://bucket/here").url(NO_FILES) == "s3://bucket/here"

    def test_impl_prefix_takes_precedence(self) -> None:
        """T-04 as in Kafka 4.x: remote.log.storage.manager.impl.prefix, rsm.config. by default."""
        both = OURS | {"remote.log.storage.url": "file:///a", "rsm.config.url": "file:///b"}
        assert RemoteStorageSettings(both).url(NO_FILES) == "file:///b/kafka-tiered-storage"
        own = both | {"remote.log.storage.manager.impl.prefix": "my.", "my.url": "file:///c"}
        assert RemoteStorageSettings(own).url(NO_FILES) == "file:///c/kafka-tiered-storage"

    def test_prefix_of_object_names(self) -> None:
        assert settings(url="s3://bucket/", prefix="/a/b/").url(NO_FILES) == "s3://bucket/a/b"

    def test_local_tiered_storage_of_kafka(self) -> None:
        found = RemoteStorageSettings(KAFKAS | {"rsm.config.dir": "/data/a b"}).url(NO_FILES)
        assert found == "file:///data/a%20b/kafka-tiered-storage"

    def test_store_options(self) -> None:
        found = settings(
            url="s3://b", aws_region="eu", aws__endpoint="http://h:1", compression="lz4"
        )
        assert found.store_options() == {"aws_region": "eu", "aws_endpoint": "http://h:1"}

    def test_timeouts_and_retries(self) -> None:
        assert settings().timeouts() == DEFAULT_STORE_TIMEOUTS
        found = settings(
            connect__timeout__ms="1000", request__timeout__ms="2000", retries="0",
            retry__backoff__ms="5", retry__backoff__max__ms="50", retry__timeout__ms="3000",
        )  # fmt: skip
        assert found.timeouts() == StoreTimeouts(1.0, 2.0, 0, 0.005, 0.05, 3.0)


class TestForm:
    def test_default_format_is_unchanged(self) -> None:
        assert settings().form(NO_FILES) == StorageFormat()

    def test_compression_in_chunks(self) -> None:
        found = settings(compression="zstd", chunk__bytes="65536").form(NO_FILES)
        assert found == StorageFormat(Compression.ZSTD, 65536)

    @pytest.mark.parametrize("encrypts", ["true", "false"])
    def test_encryption_keys(self, encrypts: str) -> None:
        files = VirtualFiles(VirtualDisk())
        files.make_directory(Path("/etc"))
        key = b64encode(bytes(32)).decode()
        files.write_new(Path("/etc/keys"), f"new {key}\nold {key}\n".encode())
        found = settings(
            encryption__key__file="/etc/keys", encryption__enabled=encrypts
        ).form(files)  # fmt: skip
        assert found.encrypts == (encrypts == "true")
        assert found.keys is not None
        assert found.keys.current_id == "new"
        assert "old" in found.keys

    @pytest.mark.parametrize(
        "text", ["", "# nothing", "k1", "k1 AAAA", "k1 ?", "k1 {0}\nk1 {0}", "k1 {0} {0}", "\xff"]
    )
    def test_invalid_key_files_are_refused(self, text: str) -> None:
        files = VirtualFiles(VirtualDisk())
        files.make_directory(Path("/etc"))
        key = b64encode(bytes(32)).decode()
        files.write_new(Path("/etc/keys"), text.replace("{0}", key).encode("latin-1"))
        with pytest.raises(
            ValueError, match=r"remote\.log\.storage\.encryption\.key\.file: /etc/k"
        ):
            settings(encryption__key__file="/etc/keys").form(files)


class TestInvalidSettings:
    @pytest.mark.parametrize(
        ("properties", "says"),
        [
            ({}, r"class\.name is '': set it to odradek\.ObjectStore, with remote\.log\.storage\.url"),
            ({"remote.log.storage.manager.class.name": "io.aiven.X"}, "Java plug-ins are not supported"),
            (OURS | {"remote.log.storage.urls": "x"}, r"storage\.urls is not a .*did you mean url\?"),
            (OURS | {"rsm.config.transferer.class": "x"}, r"rsm\.config\.transferer\.class is no"),
            (KAFKAS | {"rsm.config.delete.enable": "false"}, "only 'true' is supported"),
        ],
    )  # fmt: skip
    def test_missing_class_and_unknown_properties_are_refused(
        self, properties: dict[str, str], says: str
    ) -> None:
        """T-02: the class is mandatory."""
        with pytest.raises(ValueError, match=says):
            RemoteStorageSettings(properties)

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("compression", "gzip", "one of none, zstd, lz4"),
            ("chunk__bytes", "12", "a whole number from 1024 on"),
            ("chunk__bytes", "1e6", "a whole number"),
            ("encryption__enabled", "yes", "true or false"),
            ("encryption__enabled", "true", r"encryption\.key\.file is '': set it to the path"),
            ("encryption__key__file", "/none", "/none"),
        ],
    )
    def test_invalid_format_properties_are_refused(self, name: str, value: str, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            settings(**{name: value}).form(NO_FILES)

    @pytest.mark.parametrize("url", [None, "", "bucket", "just/a/path"])
    def test_invalid_url_is_refused(self, url: str | None) -> None:
        with pytest.raises(ValueError, match=r"remote\.log\.storage\.url .*file:///.*s3://"):
            settings(**({} if url is None else {"url": url})).url(NO_FILES)

    @pytest.mark.parametrize("name", ["retries", "request__timeout__ms"])
    def test_invalid_timeouts_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="whole number"):
            settings(**{name: "-1"}).timeouts()

    @pytest.mark.parametrize(
        "place",
        [{"url": "gopher://x"}, {"url": "s3://b", "aws_colour": "blue"}, {"url": "s3://"}],
    )
    def test_invalid_store_options_are_refused(self, place: dict[str, str]) -> None:
        named = {f"remote.log.storage.{name}": value for name, value in place.items()}
        with pytest.raises(ValueError):
            open_remote_storage(OURS | named, real_seams())


def test_simulated_node_uses_store_of_world() -> None:
    """For any URL."""
    world = VirtualWorld(random.Random(1).randrange(100))
    properties = OURS | BROKERS | {"remote.log.storage.url": "s3://b"}
    storage = open_remote_storage(properties, world.node("n").seams)
    storage.copy_segment(METADATA, DATA)
    assert world.bucket.objects[f"{STEM}.log"] == LOG


def test_local_tiered_storage_uses_kafka_directory(tmp_path: OsPath) -> None:
    """The directory of Kafka's LocalTieredStorage, with its names."""
    storage = open_remote_storage(KAFKAS | {"rsm.config.dir": str(tmp_path)}, real_seams())
    storage.copy_segment(METADATA, DATA)
    assert (tmp_path / "kafka-tiered-storage" / f"{STEM}.log").read_bytes() == LOG
    assert bytes(storage.fetch_segment(METADATA, 3, 5)) == LOG[3:6]


@pytest.mark.parametrize("spelling", ["{}", "file://{}", "file://{}/"])
def test_unmounted_store_without_subdirectory_is_not_replaced(
    tmp_path: OsPath, spelling: str
) -> None:
    """A store that was created in the directory itself; its location is recorded."""
    tier, elsewhere, record = tmp_path / "tier", tmp_path / "elsewhere", tmp_path / "record"
    tier.mkdir()
    (tier / MARKER_FILE).write_text("id\n")
    properties = OURS | {"rsm.config.url": spelling.format(tier)}
    opened = partial(open_remote_storage, properties, real_seams(), remembered_in=Path(str(record)))
    opened().copy_segment(METADATA, DATA)
    assert (tier / f"{STEM}.log").read_bytes() == LOG
    tier.rename(elsewhere)
    tier.mkdir()  # the mount point
    storage = opened()
    with pytest.raises(RemoteStorageError, match="is not the directory that it was"):
        storage.copy_segment(METADATA, DATA)
    assert not list(tier.iterdir())
    tier.rmdir()
    elsewhere.rename(tier)
    storage.copy_segment(METADATA, DATA)
