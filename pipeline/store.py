"""Which segments a store has, for the driver: by its manifests, without any broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

from odradek.pipeline.decoding.decoder import Aborted
from odradek.pipeline.errors import BadOption, CorruptSegment, StoreUnavailable
from odradek.pipeline.history import Stretch
from odradek.seams.entropy import RealEntropy
from odradek.seams.object_store import open_objects
from odradek.seams.objects import ObjectMissing, Objects, ObjectsUnavailable
from odradek.seams.real_files import RealFiles
from odradek.storage.log.epochs import EpochStart
from odradek.storage.log.producer_snapshots import CorruptSnapshot, decode_snapshot
from odradek.storage.log.transaction_index import ENTRY as ABORTED
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata, TopicIdPartition
from odradek.storage.tiered.object_names import (
    MANIFEST_SUFFIX,
    parse_key,
    partition_directory,
)
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.opening import (
    CLASS_NAME,
    LOCAL_TIERED_STORAGE,
    OBJECT_STORE,
    OWN_PREFIX,
    Settings,
)
from odradek.storage.tiered.remote_storage import IndexType, RemoteStorageManager

AT_ONCE = 32
"""Small objects fetched at the same time."""

T = TypeVar("T")
R = TypeVar("R")


class Store:
    """See the module. Synchronous; from any thread. Errors name the object."""

    def __init__(self, objects: Objects, storage: RemoteStorageManager) -> None:
        self._objects = objects
        self.storage = storage

    def partitions(self, wants: Callable[[str], bool]) -> list[TopicIdPartition]:
        """All that have a finished segment, of topics that are wanted. Lists the whole store."""
        found: dict[TopicIdPartition, None] = {}
        for key in self._keys(""):
            name = parse_key(key)
            if name is not None and wants(name.id.partition.topic):
                found[name.id.partition] = None
        return list(found)

    def segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """The finished ones of a partition, by their start offsets."""
        keys = list(self._keys(partition_directory(partition)))
        return [each for each in _at_once(self._manifest, keys) if each is not None]

    def lineage(self, segments: Sequence[RemoteLogSegmentMetadata]) -> list[EpochStart]:
        """The partition's leader epochs, as the segment has them that was written last."""
        latest = max(segments, key=lambda each: (each.epochs[-1].epoch, each.end_offset))
        text = bytes(self._index(latest, IndexType.LEADER_EPOCH) or b"").decode()
        lines = text.split("\n")[2:]
        found = [EpochStart(*map(int, line.split())) for line in lines if line]
        if not found:
            raise CorruptSegment(f"{latest.id}: its leader epochs are not in the store")
        return found

    def aborted(self, stretches: Iterable[Stretch]) -> list[Aborted]:
        """The transactions whose markers in these stretches say that they were given up. What a deposed
        leader's segment says of later offsets is not of the log."""
        listed = [each for each in stretches if not each.segment.txn_index_empty]
        indexes = _at_once(lambda each: self._index(each.segment, IndexType.TRANSACTION), listed)
        found = []
        for each, data in zip(listed, indexes, strict=True):
            for _, producer_id, first, last, _ in ABORTED.iter_unpack(data or b""):
                if each.low <= last < each.high:
                    found.append(Aborted(producer_id, first, last))
        return found

    def undecided_from(self, segment: RemoteLogSegmentMetadata) -> int:
        """The first offset of a transaction that was not ended where the segment ends; the offset behind
        it if there is none. How those ended, only a broker knows."""
        data = self._index(segment, IndexType.PRODUCER_SNAPSHOT)
        if data is None:
            return segment.end_offset + 1
        try:
            producers = decode_snapshot(data)
        except CorruptSnapshot as error:
            raise CorruptSegment(f"{segment.id}: the producer snapshot: {error}") from None
        open_at = [each.transaction_start for each in producers if each.transaction_start >= 0]
        return min([*open_at, segment.end_offset + 1])

    def _keys(self, prefix: str) -> Iterator[str]:
        with _named(prefix or "the store"):
            for page in self._objects.pages(prefix):
                yield from (each.key for each in page if each.key.endswith(MANIFEST_SUFFIX))

    def _manifest(self, key: str) -> RemoteLogSegmentMetadata | None:
        """None if it went since it was listed: the segment is being deleted."""
        with _named(key):
            try:
                return Manifest.parse(self._objects.get(key)).metadata
            except ObjectMissing:
                return None

    def _index(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes | None:
        with _named(str(segment.id)):
            try:
                return bytes(self.storage.fetch_index(segment, kind))
            except RemoteResourceNotFound:
                return None


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except (ObjectsUnavailable, RemoteStorageError) as error:
        if isinstance(error, CorruptRemoteData):
            raise CorruptSegment(f"{what}: {error}") from error
        raise StoreUnavailable(f"{what} cannot be read: {error}") from error
    except ValueError as error:
        raise CorruptSegment(f"{what}: {error}") from error


def _at_once(act: Callable[[T], R], items: Sequence[T]) -> list[R]:
    if len(items) < 2:
        return [act(each) for each in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), thread_name_prefix="odradek-plan") as pool:
        return list(pool.map(act, items))


def open_store(target: str, options: Mapping[str, str]) -> Store:
    """`target` is what a broker was given (`serve --tiered`): a URL, or a directory. `options` are those
    of its remote storage (docs/remote-storage.md). Raises BadOption."""
    properties = {f"{OWN_PREFIX}{name}": value for name, value in options.items()}
    if "://" in target:
        properties |= {CLASS_NAME: OBJECT_STORE, f"{OWN_PREFIX}url": target}
    else:
        properties |= {CLASS_NAME: LOCAL_TIERED_STORAGE, f"{OWN_PREFIX}dir": target}
    try:
        settings = Settings(properties)
        objects = open_objects(settings.url(), settings.store_options(), settings.patience())
        form = settings.form(RealFiles())
    except ValueError as error:
        raise BadOption(str(error).replace(OWN_PREFIX, "tiered.")) from None
    return Store(objects, ObjectStoreStorage(objects, RealEntropy(), form=form))


@lru_cache(maxsize=8)
def store_at(target: str, options: tuple[tuple[str, str], ...]) -> Store:
    """The process's own, for all its tasks."""
    return open_store(target, dict(options))
