"""The remote tier in an object store: names, order, crashes, stores that lie, bytes that rot."""

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
    def test_they_are_those_of_kafkas_local_tiered_storage(self) -> None:
        """KIP-405's layout as `LocalTieredStorage` has it, and the manifest put last."""
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

    def test_what_kafka_put_there_is_read(self) -> None:
        """It has no manifest, and no custom metadata."""
        bucket = VirtualBucket()
        bucket.store(f"{STEM}.log", LOG)
        bucket.store(f"{STEM}.index", b"oo")
        storage = storage_at(bucket)
        assert bytes(storage.fetch_segment(METADATA, 5, 9)) == LOG[5:10]
        assert bytes(storage.fetch_index(METADATA, IndexType.OFFSET)) == b"oo"

    def test_taken_apart(self) -> None:
        assert parse_directory(DIRECTORY) == PARTITION
        assert parse_key(f"{STEM}.timeindex") == ObjectName(METADATA.id, 11, ".timeindex")

    @pytest.mark.parametrize(
        "key",
        [
            "", "x", f"{STEM}.log/x", f"{STEM}.log.tmp", f"{STEM}.other", f"{STEM}", f"{STEM}.LOG",
            f"{DIRECTORY}/11-bCqX9U-US-mk-UF_MUDWIw.log", f"a/{STEM}.log",
            f"{DIRECTORY[:-1]}/{STEM.partition('/')[2]}.log", STEM.partition("/")[2],
            f"{STEM[:-1]}x.log",  # bits that no UUID has
        ],
    )  # fmt: skip
    def test_what_is_no_name(self, key: str) -> None:
        assert parse_key(key) is None


class TestManifest:
    def test_it_says_what_is_there(self) -> None:
        bucket = VirtualBucket()
        storage_at(bucket).copy_segment(METADATA, DATA)
        manifest = Manifest.parse(bucket.objects[f"{STEM}.manifest"])
        assert manifest.metadata == replace(METADATA, state=SegmentState.COPY_SEGMENT_FINISHED)
        assert manifest.cluster_id == "cl"
        for suffix, stored in manifest.objects.items():
            data = bucket.objects[f"{STEM}{suffix}"]
            assert (stored.size, stored.crc32c) == (len(data), crc32c(data))
        assert len(manifest.objects) == 6

    def test_history_can_be_read_by_it_alone(self) -> None:
        """Chunks, data key and custom metadata stand in it: no broker is asked."""
        bucket = VirtualBucket()
        custom = storage_at(bucket, SEALED).copy_segment(METADATA, DATA)
        manifest = Manifest.parse(bucket.objects[f"{STEM}.manifest"])
        assert manifest.metadata.custom_metadata == custom
        assert bytes(storage_at(bucket, SEALED).fetch_segment(manifest.metadata, 0)) == LOG

    def test_rendered_and_parsed(self) -> None:
        bucket = VirtualBucket()
        storage_at(bucket, SEALED).copy_segment(METADATA, DATA)
        text = bucket.objects[f"{STEM}.manifest"]
        assert Manifest.parse(text).render() == text

    def test_fields_of_later_versions_are_passed_over(self) -> None:
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
    def test_what_is_none(self, text: bytes) -> None:
        with pytest.raises(ValueError):
            Manifest.parse(text)

    def test_a_field_that_is_missing_or_of_another_kind(self) -> None:
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
def test_a_copy_tells_whether_each_offset_has_a_record(
    form: StorageFormat, end_offset: int, dense: bool
) -> None:
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
    """What a power failure at each request leaves, and what comes after it (T-17, T-20, T-22)."""

    @pytest.mark.parametrize("kind", [StoreFaultKind.POWER_CUT, StoreFaultKind.POWER_CUT_AFTER])
    def test_of_a_copy(self, form: StorageFormat, kind: StoreFaultKind) -> None:
        """A manifest is there only with everything else; a second attempt makes it whole, and a
        deletion leaves nothing."""
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
    def test_of_a_copy_over_another(self, form: StorageFormat, kind: StoreFaultKind) -> None:
        for step in range(_requests_of_a_copy(form)):
            bucket, power = VirtualBucket(), Power()
            storage_at(bucket, form).copy_segment(METADATA, DATA)
            bucket.inject(StoreFault(kind, after=step, times=1))
            with pytest.raises(NodeCrashed):
                storage_at(bucket, form, power).copy_segment(METADATA, DATA)
            if f"{STEM}.manifest" in bucket.objects:
                _is_whole(bucket, form)

    @pytest.mark.parametrize("kind", [StoreFaultKind.POWER_CUT, StoreFaultKind.POWER_CUT_AFTER])
    def test_of_a_deletion(self, form: StorageFormat, kind: StoreFaultKind) -> None:
        """Something missing means no manifest."""
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
            StoreFaultKind.HALF_DONE, StoreFaultKind.LIES,
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("form", [StorageFormat(), SEALED])
    def test_no_copy_succeeds_that_is_not_whole(
        self, kind: StoreFaultKind, form: StorageFormat
    ) -> None:
        """Whatever goes wrong with whichever request: an error, or all of it is there."""
        for step in range(_requests_of_a_copy(form)):
            bucket = VirtualBucket()
            bucket.inject(StoreFault(kind, after=step, times=1))
            try:
                storage_at(bucket, form).copy_segment(METADATA, DATA)
            except RemoteStorageError:
                storage_at(bucket, form).copy_segment(METADATA, DATA)
            _is_whole(bucket, form)

    def test_a_store_that_has_not_what_it_took(self) -> None:
        bucket = VirtualBucket()
        bucket.inject(StoreFault(StoreFaultKind.LIES, "*.log", ("put",)))
        with pytest.raises(
            RemoteStorageError, match=r"8890 bytes were written.* the object has None"
        ):
            storage_at(bucket).copy_segment(METADATA, DATA)
        assert f"{STEM}.manifest" not in bucket.objects

    def test_a_store_that_is_away(self) -> None:
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
    def test_an_index_that_is_not_what_was_copied_is_an_error(self, data: bytes) -> None:
        """One with fewer transactions looks whole, and its reader would get what was aborted."""
        bucket = VirtualBucket()
        storage = storage_at(bucket)
        storage.copy_segment(METADATA, DATA)
        bucket.objects[f"{STEM}.txnindex"] = data
        with pytest.raises(CorruptRemoteData, match="does not match its manifest"):
            storage.fetch_index(METADATA, IndexType.TRANSACTION)
        del bucket.objects[f"{STEM}.manifest"]  # as Kafka's LocalTieredStorage copies
        assert bytes(storage_at(bucket).fetch_index(METADATA, IndexType.TRANSACTION)) == data

    def test_an_index_of_transactions_that_is_lost_is_not_one_that_never_was(self) -> None:
        """Its readers take a missing one for empty, since Kafka's older copies do not say whether there is
        one; ours do, and without it aborted records would be read."""
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
    def test_transactions_of_a_segment_that_is_being_deleted_are_not_none(
        self, form: StorageFormat
    ) -> None:
        """After each request of its deletion, by whoever has no manifest in memory."""
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
    def test_a_read_cut_short_is_an_error(self, form: StorageFormat) -> None:
        bucket = VirtualBucket()
        custom = storage_at(bucket, form).copy_segment(METADATA, DATA)
        bucket.inject(StoreFault(StoreFaultKind.HALF_DONE, operations=("get_range",)))
        with pytest.raises(CorruptRemoteData, match=r"-bCqX9U-US-mk-UF_MUDWIw\.log: "):
            storage_at(bucket, form).fetch_segment(replace(METADATA, custom_metadata=custom), 0)

    def test_a_segment_file_cut_short_is_not_copied(self) -> None:
        files = VirtualFiles(VirtualDisk())
        files.make_directory(Path("/d"))
        file = files.open(Path("/d/0.log"), create=True)
        file.append_v([LOG[:-1]])
        short = replace(DATA, log=FileSlice(file, 0, len(LOG)))
        bucket = VirtualBucket()
        with pytest.raises(RemoteStorageError, match=r"/d/0\.log is truncated after 8889 bytes"):
            storage_at(bucket).copy_segment(METADATA, short)
        assert f"{STEM}.manifest" not in bucket.objects


class TestSealed:
    def sealed(self) -> tuple[VirtualBucket, RemoteLogSegmentMetadata]:
        bucket = VirtualBucket()
        custom = storage_at(bucket, SEALED).copy_segment(METADATA, DATA)
        return bucket, replace(METADATA, custom_metadata=custom)

    def test_nothing_of_it_is_in_the_store(self) -> None:
        bucket, _ = self.sealed()
        for key, data in bucket.objects.items():
            if not key.endswith(".manifest"):
                assert data not in LOG
                assert data[:2] not in (b"oo", b"ii", b"tt", b"pp", b"ee")

    def test_any_byte_that_changes_is_found(self) -> None:
        """Of a log whose chunks are encrypted; in a compressed one by the frame's checksum."""
        bucket, metadata = self.sealed()
        good = bucket.objects[f"{STEM}.log"]
        for at in range(0, len(good), 97):
            bad = bytearray(good)
            bad[at] ^= 0x10
            bucket.store(f"{STEM}.log", bytes(bad))
            with pytest.raises(CorruptRemoteData, match=r"\.log: chunk \d at"):
                storage_at(bucket, SEALED).fetch_segment(metadata, 0)

    @pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.LZ4])
    def test_any_byte_that_changes_is_found_by_the_codec(self, compression: Compression) -> None:
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
            assert read == LOG  # a bit that says nothing

    def test_no_chunk_passes_for_another(self) -> None:
        """Nor for one of another segment: chunks of the same size, put in one another's place."""
        form = replace(SEALED, compression=Compression.NONE)
        bucket = VirtualBucket()
        custom = storage_at(bucket, form).copy_segment(METADATA, DATA)
        log = bucket.objects[f"{STEM}.log"]
        size = 2_000 + 16
        bucket.store(f"{STEM}.log", log[size : 2 * size] + log[:size] + log[2 * size :])
        with pytest.raises(CorruptRemoteData):
            storage_at(bucket, form).fetch_segment(replace(METADATA, custom_metadata=custom), 0)

    def test_a_new_key_still_reads_what_the_old_one_wrapped(self) -> None:
        bucket, metadata = self.sealed()
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
    def test_without_the_key(self, form: StorageFormat) -> None:
        bucket, metadata = self.sealed()
        with pytest.raises(
            RemoteStorageError, match=r"key 'k1', which is not in encryption\.key\.file"
        ):
            storage_at(bucket, form).fetch_segment(metadata, 0)

    def test_with_another_key_of_that_name(self) -> None:
        bucket, metadata = self.sealed()
        form = replace(SEALED, keys=KeyRing({"k1": bytes([1]) * 32}))
        with pytest.raises(CorruptRemoteData, match="cannot be unwrapped with key 'k1'"):
            storage_at(bucket, form).fetch_segment(metadata, 0)

    def test_it_is_read_whatever_the_form_of_new_copies(self) -> None:
        bucket, metadata = self.sealed()
        storage = storage_at(bucket, StorageFormat(keys=KEYS))
        assert bytes(storage.fetch_segment(metadata, 1, 5_000)) == LOG[1:5_001]
        assert bytes(storage.fetch_index(metadata, IndexType.OFFSET)) == b"oo"

    def test_a_range_is_its_chunks_and_no_more(self) -> None:
        bucket, metadata = self.sealed()
        storage = storage_at(bucket, SEALED)
        storage.fetch_segment(metadata, 0, 1)
        bucket.requests.clear()
        assert bytes(storage.fetch_segment(metadata, 2_000, 3_999)) == LOG[2_000:4_000]
        assert bucket.requests == [("get_range", f"{STEM}.log")]

    def test_without_its_manifest(self) -> None:
        bucket, metadata = self.sealed()
        bucket.remove(f"{STEM}.manifest")
        with pytest.raises(RemoteResourceNotFound):
            storage_at(bucket, SEALED).fetch_segment(metadata, 0)

    @pytest.mark.parametrize("text", [b"{", b'{"version":9}'])
    def test_with_a_broken_manifest(self, text: bytes) -> None:
        bucket, metadata = self.sealed()
        bucket.store(f"{STEM}.manifest", text)
        with pytest.raises(CorruptRemoteData, match=r"\.manifest: "):
            storage_at(bucket, SEALED).fetch_segment(metadata, 0)

    def test_custom_metadata_of_somebody_else(self) -> None:
        bucket, metadata = self.sealed()
        with pytest.raises(RemoteStorageError, match="another RemoteStorageManager"):
            storage_at(bucket, SEALED).fetch_segment(
                replace(metadata, custom_metadata=b"\x07abc"), 0
            )
        storage_at(bucket, SEALED).delete_segment(replace(metadata, custom_metadata=b"\x07abc"))
        assert bucket.objects == {}

    def test_not_more_manifests_are_kept_than_a_number(self) -> None:
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
