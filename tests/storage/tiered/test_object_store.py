"""RemoteStorageManager in an object store: object names, manifests, crashes, failures of the
store, corruption, encryption."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from uuid import UUID

import pytest
from crc32c import crc32c

from odradek.protocol.records.records import Record, build_batch
from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import FileSlice, Path
from odradek.storage.tiered.chunks import Compression
from odradek.storage.tiered.custom_metadata import is_dense
from odradek.storage.tiered.encryption import KeyRing
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteResourceNotFound,
    RemoteSegmentNotFound,
    RemoteStorageError,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.object_names import ObjectName, parse_directory, parse_key
from odradek.storage.tiered.object_store import ObjectStoreStorage, StorageFormat
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
)
from odradek.testing.power import NodeCrashed, Power
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from odradek.testing.virtual_object_store import (
    StoreFault,
    StoreFaultKind,
    VirtualBucket,
    VirtualObjectStore,
)
from tests.storage.tiered.stored_segment import DATA, DIRECTORY, LOG, METADATA, PARTITION, STEM

KEYS = KeyRing({"k1": bytes(32)})
SEALED = StorageFormat(Compression.ZSTD, 2_000, KEYS, encrypts=True)


def storage_at(
    bucket: VirtualBucket, form: StorageFormat | None = None, power: Power | None = None
) -> ObjectStoreStorage:
    entropy = SeededEntropy(random.Random(len(bucket.requests)))
    return ObjectStoreStorage(
        VirtualObjectStore(bucket, power), entropy, form=form or StorageFormat(), cluster_id="cl"
    )


class TestNames:
    def test_object_names_equal_kafka_local_tiered_storage(self) -> None:
        """KIP-405's layout as in `LocalTieredStorage`; the manifest is put last."""
        bucket = VirtualBucket()
        storage_at(bucket).copy_segment(METADATA, DATA)
        assert bucket.objects.keys() == {
            f"{STEM}{suffix}"
            for suffix in (
                ".log", ".index", ".timeindex", ".txnindex", ".snapshot",
                ".leader_epoch_checkpoint", ".manifest",
            )
        }  # fmt: skip
        assert bucket.objects[f"{STEM}.log"] == LOG
        assert bucket.objects[f"{STEM}.leader_epoch_checkpoint"] == b"ee"
        puts = [key for operation, key in bucket.requests if operation == "put"]
        assert puts[-2:] == [f"{STEM}.log", f"{STEM}.manifest"]

    def test_segment_copied_by_kafka_is_read(self) -> None:
        """It has no manifest and no custom metadata."""
        bucket = VirtualBucket()
        bucket.store(f"{STEM}.log", LOG)
        bucket.store(f"{STEM}.index", b"oo")
        storage = storage_at(bucket)
        assert bytes(storage.fetch_segment(METADATA, 5, 9)) == LOG[5:10]
        assert bytes(storage.fetch_index(METADATA, IndexType.OFFSET)) == b"oo"

    def test_object_name_is_parsed(self) -> None:
        assert parse_directory(DIRECTORY) == PARTITION
        assert parse_key(f"{STEM}.timeindex") == ObjectName(METADATA.id, 11, ".timeindex")

    @pytest.mark.parametrize(
        "key",
        [
            "", "x", f"{STEM}.log/x", f"{STEM}.log.tmp", f"{STEM}.other", f"{STEM}", f"{STEM}.LOG",
            f"{DIRECTORY}/11-bCqX9U-US-mk-UF_MUDWIw.log", f"a/{STEM}.log",
            f"{DIRECTORY[:-1]}/{STEM.partition('/')[2]}.log", STEM.partition("/")[2],
            f"{STEM[:-1]}x.log",  # not a UUID
        ],
    )  # fmt: skip
    def test_invalid_object_name_is_none(self, key: str) -> None:
        assert parse_key(key) is None


class TestManifest:
    def test_manifest_describes_objects(self) -> None:
        bucket = VirtualBucket()
        storage_at(bucket).copy_segment(METADATA, DATA)
        manifest = Manifest.parse(bucket.objects[f"{STEM}.manifest"])
        assert manifest.metadata == replace(METADATA, state=SegmentState.COPY_SEGMENT_FINISHED)
        assert manifest.cluster_id == "cl"
        for suffix, stored in manifest.objects.items():
            data = bucket.objects[f"{STEM}{suffix}"]
            assert (stored.size, stored.crc32c) == (len(data), crc32c(data))
        assert len(manifest.objects) == 6

    def test_manifest_describes_chunks_key_and_custom_metadata(self) -> None:
        """The store is readable without a broker."""
        bucket = VirtualBucket()
        custom = storage_at(bucket, SEALED).copy_segment(METADATA, DATA)
        manifest = Manifest.parse(bucket.objects[f"{STEM}.manifest"])
        assert manifest.metadata.custom_metadata == custom
        assert bytes(storage_at(bucket, SEALED).fetch_segment(manifest.metadata, 0)) == LOG

    def test_rendered_manifest_is_parsed_back(self) -> None:
        bucket = VirtualBucket()
        storage_at(bucket, SEALED).copy_segment(METADATA, DATA)
        text = bucket.objects[f"{STEM}.manifest"]
        assert Manifest.parse(text).render() == text

    def test_unknown_manifest_fields_are_ignored(self) -> None:
        bucket = VirtualBucket()
        storage_at(bucket).copy_segment(METADATA, DATA)
        text = bucket.objects[f"{STEM}.manifest"]
        fields = json.loads(text)
        assert fields["version"] == 1
        later = json.dumps({**fields, "colour": "blue"}).encode()
        assert Manifest.parse(later) == Manifest.parse(text)

    @pytest.mark.parametrize(
        "text", [b"", b"{}", b"[]", b"7", b'{"version":2}', b"\xff", b"null", b"[" * 100_000]
    )
    def test_invalid_manifest_is_refused(self, text: bytes) -> None:
        with pytest.raises(ValueError):
            Manifest.parse(text)

    def test_manifest_with_missing_or_wrong_field_is_refused(self) -> None:
        bucket = VirtualBucket()
        storage_at(bucket, SEALED).copy_segment(METADATA, DATA)
        fields = json.loads(bucket.objects[f"{STEM}.manifest"])
        for name in fields:
            if name == "custom_metadata":
                continue
            without = {key: value for key, value in fields.items() if key != name}
            if name not in ("chunks", "encryption"):
                with pytest.raises(ValueError):
                    Manifest.parse(json.dumps(without).encode())
        for name in ("topic_id", "leader_epochs", "objects", "chunks", "encryption"):
            with pytest.raises(ValueError):
                Manifest.parse(json.dumps({**fields, name: 7}).encode())


@pytest.mark.parametrize("form", [StorageFormat(), StorageFormat(Compression.ZSTD, 100), SEALED])
@pytest.mark.parametrize(("end_offset", "dense"), [(29, True), (30, False)])
def test_copy_sets_dense_flag(form: StorageFormat, end_offset: int, dense: bool) -> None:
    records = [Record(-1, 0, None, b"%d" % at) for at in range(11, 30)]
    log = bytes(build_batch(records, base_offset=11))
    metadata = replace(METADATA, end_offset=end_offset, size_bytes=len(log))
    bucket = VirtualBucket()
    custom = storage_at(bucket, form).copy_segment(metadata, replace(DATA, log=log))
    assert is_dense(custom) is dense
    copied = replace(metadata, custom_metadata=custom)
    assert bytes(storage_at(bucket, form).fetch_segment(copied, 0)) == log


@pytest.mark.parametrize("form", [StorageFormat(), SEALED])
class TestCrashes:
    """Objects after a power failure at each request, and the following attempts (T-17, T-20,
    T-22)."""

    @pytest.mark.parametrize("kind", [StoreFaultKind.POWER_CUT, StoreFaultKind.POWER_CUT_AFTER])
    def test_crash_during_copy(self, form: StorageFormat, kind: StoreFaultKind) -> None:
        """The manifest exists only with all other objects; a second attempt completes the copy,
        and a deletion removes all objects."""
        for step in range(_requests_of_a_copy(form)):
            bucket, power = VirtualBucket(), Power()
            bucket.inject(StoreFault(kind, after=step, times=1))
            with pytest.raises(NodeCrashed):
                storage_at(bucket, form, power).copy_segment(METADATA, DATA)
            if f"{STEM}.manifest" in bucket.objects:
                _is_whole(bucket, form)
            left = dict(bucket.objects)
            storage_at(bucket, form).copy_segment(METADATA, DATA)
            _is_whole(bucket, form)
            bucket.objects = left
            storage_at(bucket, form).delete_segment(METADATA)
            assert bucket.objects == {}

    @pytest.mark.parametrize("kind", [StoreFaultKind.POWER_CUT, StoreFaultKind.POWER_CUT_AFTER])
    def test_crash_during_repeated_copy(self, form: StorageFormat, kind: StoreFaultKind) -> None:
        for step in range(_requests_of_a_copy(form)):
            bucket, power = VirtualBucket(), Power()
            storage_at(bucket, form).copy_segment(METADATA, DATA)
            bucket.inject(StoreFault(kind, after=step, times=1))
            with pytest.raises(NodeCrashed):
                storage_at(bucket, form, power).copy_segment(METADATA, DATA)
            if f"{STEM}.manifest" in bucket.objects:
                _is_whole(bucket, form)

    @pytest.mark.parametrize("kind", [StoreFaultKind.POWER_CUT, StoreFaultKind.POWER_CUT_AFTER])
    def test_crash_during_deletion(self, form: StorageFormat, kind: StoreFaultKind) -> None:
        """If an object is missing, the manifest is missing too."""
        for step in range(7):
            bucket, power = VirtualBucket(), Power()
            storage_at(bucket, form).copy_segment(METADATA, DATA)
            bucket.inject(StoreFault(kind, after=step, times=1))
            with pytest.raises(NodeCrashed):
                storage_at(bucket, form, power).delete_segment(METADATA)
            if f"{STEM}.manifest" in bucket.objects:
                _is_whole(bucket, form)
            storage_at(bucket, form).delete_segment(METADATA)
            assert bucket.objects == {}


def _requests_of_a_copy(form: StorageFormat) -> int:
    bucket = VirtualBucket()
    storage_at(bucket, form).copy_segment(METADATA, DATA)
    return len(bucket.requests)


def _is_whole(bucket: VirtualBucket, form: StorageFormat) -> None:
    manifest = Manifest.parse(bucket.objects[f"{STEM}.manifest"])
    for suffix, stored in manifest.objects.items():
        data = bucket.objects[f"{STEM}{suffix}"]
        assert (len(data), crc32c(data)) == (stored.size, stored.crc32c)
    storage = storage_at(bucket, form)
    assert bytes(storage.fetch_segment(manifest.metadata, 0)) == LOG
    assert bytes(storage.fetch_index(manifest.metadata, IndexType.TRANSACTION)) == b"tt"


class TestFaults:
    @pytest.mark.parametrize(
        "kind",
        [
            StoreFaultKind.FAILS, StoreFaultKind.THROTTLED, StoreFaultKind.HANGS, StoreFaultKind.RESPONSE_LOST,
            StoreFaultKind.HALF_DONE, StoreFaultKind.FALSE_SUCCESS,
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("form", [StorageFormat(), SEALED])
    def test_successful_copy_is_complete(self, kind: StoreFaultKind, form: StorageFormat) -> None:
        """Every request may fail in every way: the copy raises, or all objects exist."""
        for step in range(_requests_of_a_copy(form)):
            bucket = VirtualBucket()
            bucket.inject(StoreFault(kind, after=step, times=1))
            try:
                storage_at(bucket, form).copy_segment(METADATA, DATA)
            except RemoteStorageError:
                storage_at(bucket, form).copy_segment(METADATA, DATA)
            _is_whole(bucket, form)

    def test_copy_to_store_that_loses_object_raises(self) -> None:
        bucket = VirtualBucket()
        bucket.inject(StoreFault(StoreFaultKind.FALSE_SUCCESS, "*.log", ("put",)))
        with pytest.raises(
            RemoteStorageError, match=r"8890 bytes were written.* the object has None"
        ):
            storage_at(bucket).copy_segment(METADATA, DATA)
        assert f"{STEM}.manifest" not in bucket.objects

    def test_unavailable_store_raises(self) -> None:
        bucket = VirtualBucket()
        storage = storage_at(bucket)
        storage.copy_segment(METADATA, DATA)
        bucket.inject(StoreFault(StoreFaultKind.THROTTLED))
        for use in (
            lambda: storage.copy_segment(METADATA, DATA),
            lambda: storage.fetch_segment(METADATA, 0),
            lambda: storage.fetch_index(METADATA, IndexType.OFFSET),
            lambda: storage.delete_segment(METADATA),
        ):
            with pytest.raises(RemoteStorageUnavailable, match="503"):
                use()

    @pytest.mark.parametrize("data", [b"", b"t", b"tu", b"ttt"])
    def test_index_that_differs_from_manifest_raises(self, data: bytes) -> None:
        """An index with fewer transactions looks valid, and readers would receive aborted
        records."""
        bucket = VirtualBucket()
        storage = storage_at(bucket)
        storage.copy_segment(METADATA, DATA)
        bucket.objects[f"{STEM}.txnindex"] = data
        with pytest.raises(CorruptRemoteData, match="does not match its manifest"):
            storage.fetch_index(METADATA, IndexType.TRANSACTION)
        del bucket.objects[f"{STEM}.manifest"]  # like a copy of Kafka's LocalTieredStorage
        assert bytes(storage_at(bucket).fetch_index(METADATA, IndexType.TRANSACTION)) == data

    def test_lost_transaction_index_is_not_empty(self) -> None:
        """Readers treat a missing index of Kafka's older copies as empty. For own copies it is
        known whether there was one; otherwise aborted records would be read."""
        bucket = VirtualBucket()
        storage = storage_at(bucket)
        storage.copy_segment(METADATA, DATA)
        del bucket.objects[f"{STEM}.txnindex"]
        with pytest.raises(CorruptRemoteData, match="is missing"):
            storage.fetch_index(METADATA, IndexType.TRANSACTION)
        del bucket.objects[f"{STEM}.manifest"]
        with pytest.raises(RemoteResourceNotFound) as caught:
            storage_at(bucket).fetch_index(METADATA, IndexType.TRANSACTION)
        assert not isinstance(caught.value, RemoteSegmentNotFound), (
            "Kafka's copies have no manifest"
        )
        del bucket.objects[f"{STEM}.log"]
        with pytest.raises(RemoteSegmentNotFound):
            storage_at(bucket).fetch_index(METADATA, IndexType.TRANSACTION)
        storage.copy_segment(METADATA, replace(DATA, transaction_index=None))
        with pytest.raises(RemoteResourceNotFound):
            storage.fetch_index(METADATA, IndexType.TRANSACTION)

    @pytest.mark.parametrize("form", [StorageFormat(), SEALED])
    def test_transaction_index_of_segment_being_deleted_is_not_empty(
        self, form: StorageFormat
    ) -> None:
        """After each request of the deletion, without the manifest in memory."""
        told = set[str]()
        for step in range(7):
            bucket, power = VirtualBucket(), Power()
            custom = storage_at(bucket, form).copy_segment(METADATA, DATA)
            metadata = replace(METADATA, custom_metadata=custom)
            bucket.inject(StoreFault(StoreFaultKind.POWER_CUT, after=step, times=1))
            with pytest.raises(NodeCrashed):
                storage_at(bucket, form, power).delete_segment(metadata)
            try:
                storage_at(bucket, form).fetch_index(metadata, IndexType.TRANSACTION)
                told.add("there")
            except RemoteSegmentNotFound:
                told.add("gone")
            except RemoteResourceNotFound:
                told.add("the manifest is gone" if f"{STEM}.txnindex" in bucket.objects else "none")
        assert told <= {"there", "gone", "the manifest is gone"}
        assert "gone" in told

    @pytest.mark.parametrize("form", [StorageFormat(), SEALED])
    def test_truncated_read_raises(self, form: StorageFormat) -> None:
        bucket = VirtualBucket()
        custom = storage_at(bucket, form).copy_segment(METADATA, DATA)
        bucket.inject(StoreFault(StoreFaultKind.HALF_DONE, operations=("get_range",)))
        with pytest.raises(CorruptRemoteData, match=r"-bCqX9U-US-mk-UF_MUDWIw\.log: "):
            storage_at(bucket, form).fetch_segment(replace(METADATA, custom_metadata=custom), 0)

    def test_truncated_segment_file_is_not_copied(self) -> None:
        files = VirtualFiles(VirtualDisk())
        files.make_directory(Path("/d"))
        file = files.open(Path("/d/0.log"), create=True)
        file.append_v([LOG[:-1]])
        short = replace(DATA, log=FileSlice(file, 0, len(LOG)))
        bucket = VirtualBucket()
        with pytest.raises(RemoteStorageError, match=r"/d/0\.log is truncated after 8889 bytes"):
            storage_at(bucket).copy_segment(METADATA, short)
        assert f"{STEM}.manifest" not in bucket.objects


class TestEncryption:
    def copy_encrypted(self) -> tuple[VirtualBucket, RemoteLogSegmentMetadata]:
        bucket = VirtualBucket()
        custom = storage_at(bucket, SEALED).copy_segment(METADATA, DATA)
        return bucket, replace(METADATA, custom_metadata=custom)

    def test_encrypted_objects_contain_no_plain_text(self) -> None:
        bucket, _ = self.copy_encrypted()
        for key, data in bucket.objects.items():
            if not key.endswith(".manifest"):
                assert data not in LOG
                assert data[:2] not in (b"oo", b"ii", b"tt", b"pp", b"ee")

    def test_change_of_any_byte_is_detected(self) -> None:
        """Encrypted chunks by their tags, compressed ones by the checksum of the frame."""
        bucket, metadata = self.copy_encrypted()
        good = bucket.objects[f"{STEM}.log"]
        for at in range(0, len(good), 97):
            bad = bytearray(good)
            bad[at] ^= 0x10
            bucket.store(f"{STEM}.log", bytes(bad))
            with pytest.raises(CorruptRemoteData, match=r"\.log: chunk \d at"):
                storage_at(bucket, SEALED).fetch_segment(metadata, 0)

    @pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.LZ4])
    def test_change_of_any_byte_is_detected_by_codec(self, compression: Compression) -> None:
        form = StorageFormat(compression, 2_000)
        bucket = VirtualBucket()
        custom = storage_at(bucket, form).copy_segment(METADATA, DATA)
        metadata = replace(METADATA, custom_metadata=custom)
        good = bucket.objects[f"{STEM}.log"]
        for at in range(0, len(good), 131):
            bad = bytearray(good)
            bad[at] ^= 0x10
            bucket.store(f"{STEM}.log", bytes(bad))
            try:
                read = bytes(storage_at(bucket, form).fetch_segment(metadata, 0))
            except CorruptRemoteData:
                continue
            assert read == LOG  # the bit has no effect

    def test_swapped_chunks_are_detected(self) -> None:
        """Chunks of the same size, also of another segment."""
        form = replace(SEALED, compression=Compression.NONE)
        bucket = VirtualBucket()
        custom = storage_at(bucket, form).copy_segment(METADATA, DATA)
        log = bucket.objects[f"{STEM}.log"]
        size = 2_000 + 16
        bucket.store(f"{STEM}.log", log[size : 2 * size] + log[:size] + log[2 * size :])
        with pytest.raises(CorruptRemoteData):
            storage_at(bucket, form).fetch_segment(replace(METADATA, custom_metadata=custom), 0)

    def test_segments_of_old_key_are_read_after_key_rotation(self) -> None:
        bucket, metadata = self.copy_encrypted()
        ring = KeyRing.parse("# rotated\nk2 AAECAwQFBgcICQoLDA0ODw==\nk1 " + "A" * 43 + "=")
        storage = storage_at(bucket, replace(SEALED, keys=ring))
        assert bytes(storage.fetch_segment(metadata, 0)) == LOG
        assert b'"key_id":"k2"' not in bucket.objects[f"{STEM}.manifest"]
        storage.copy_segment(METADATA, DATA)
        assert b'"key_id":"k2"' in bucket.objects[f"{STEM}.manifest"]
        assert bytes(storage.fetch_segment(metadata, 0)) == LOG

    @pytest.mark.parametrize(
        "form", [StorageFormat(), replace(SEALED, keys=KeyRing({"k9": bytes(32)}))]
    )
    def test_missing_key_raises(self, form: StorageFormat) -> None:
        bucket, metadata = self.copy_encrypted()
        with pytest.raises(
            RemoteStorageError, match=r"key 'k1', which is not in encryption\.key\.file"
        ):
            storage_at(bucket, form).fetch_segment(metadata, 0)

    def test_wrong_key_with_same_id_raises(self) -> None:
        bucket, metadata = self.copy_encrypted()
        form = replace(SEALED, keys=KeyRing({"k1": bytes([1]) * 32}))
        with pytest.raises(CorruptRemoteData, match="cannot be unwrapped with key 'k1'"):
            storage_at(bucket, form).fetch_segment(metadata, 0)

    def test_segment_is_read_with_any_format_of_new_copies(self) -> None:
        bucket, metadata = self.copy_encrypted()
        storage = storage_at(bucket, StorageFormat(keys=KEYS))
        assert bytes(storage.fetch_segment(metadata, 1, 5_000)) == LOG[1:5_001]
        assert bytes(storage.fetch_index(metadata, IndexType.OFFSET)) == b"oo"

    def test_range_read_fetches_only_its_chunks(self) -> None:
        bucket, metadata = self.copy_encrypted()
        storage = storage_at(bucket, SEALED)
        storage.fetch_segment(metadata, 0, 1)
        bucket.requests.clear()
        assert bytes(storage.fetch_segment(metadata, 2_000, 3_999)) == LOG[2_000:4_000]
        assert bucket.requests == [("get_range", f"{STEM}.log")]

    def test_chunked_log_without_manifest_raises(self) -> None:
        bucket, metadata = self.copy_encrypted()
        bucket.remove(f"{STEM}.manifest")
        with pytest.raises(RemoteResourceNotFound):
            storage_at(bucket, SEALED).fetch_segment(metadata, 0)

    @pytest.mark.parametrize("text", [b"{", b'{"version":9}'])
    def test_chunked_log_with_corrupt_manifest_raises(self, text: bytes) -> None:
        bucket, metadata = self.copy_encrypted()
        bucket.store(f"{STEM}.manifest", text)
        with pytest.raises(CorruptRemoteData, match=r"\.manifest: "):
            storage_at(bucket, SEALED).fetch_segment(metadata, 0)

    def test_custom_metadata_of_another_remote_storage_manager_is_refused(self) -> None:
        bucket, metadata = self.copy_encrypted()
        with pytest.raises(RemoteStorageError, match="another RemoteStorageManager"):
            storage_at(bucket, SEALED).fetch_segment(
                replace(metadata, custom_metadata=b"\x07abc"), 0
            )
        storage_at(bucket, SEALED).delete_segment(replace(metadata, custom_metadata=b"\x07abc"))
        assert bucket.objects == {}

    def test_number_of_cached_manifests_is_limited(self) -> None:
        bucket = VirtualBucket()
        storage = storage_at(bucket, SEALED)
        made = []
        for number in range(1, 300):
            metadata = replace(METADATA, id=RemoteLogSegmentId(PARTITION, UUID(int=number)))
            custom = storage.copy_segment(metadata, DATA)
            made.append(replace(metadata, custom_metadata=custom))
        for metadata in made:
            storage.fetch_segment(metadata, 0, 0)
        bucket.requests.clear()
        for metadata in reversed(made):
            storage.fetch_segment(metadata, 0, 0)
        asked = [key for operation, key in bucket.requests if operation == "get"]
        assert len(asked) == 299 - 256
