"""Lists the segments of a store for the driver, without brokers.

A partition's summary lists its segments; manifests list those that are newer, or all of them if there is no
summary. The first page of a partition's listing has the name of the summary and the first remaining segment; one
more listing starts after the summary's last segment. The number of requests per partition thus does not grow with
its segments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import TypeVar

import numpy as np

from odradek.pipeline.decoding.record_selection import AbortedTransaction
from odradek.pipeline.errors import BadOption, MissingSegment, UnreadableSegment, with_skip_hint
from odradek.pipeline.leader_epoch_lineage import UnresolvedOffsets, prove_lineage
from odradek.pipeline.segment_columns import Segments, SegmentSlice, SegmentSlices
from odradek.pipeline.store_errors import STORE_ERRORS, object_error
from odradek.seams.entropy import RealEntropy
from odradek.seams.object_store import open_objects
from odradek.seams.objects import ObjectDenied, ObjectInfo, ObjectMissing, Objects
from odradek.seams.real_files import RealFiles
from odradek.storage.log.leader_epoch_cache import CorruptEpochs, EpochStart, parse_checkpoint
from odradek.storage.log.producer_snapshots import CorruptSnapshot, decode_snapshot
from odradek.storage.tiered.custom_metadata import needs_manifest
from odradek.storage.tiered.errors import CorruptRemoteData, RemoteResourceNotFound
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.object_names import (
    LOG_SUFFIX,
    MANIFEST_SUFFIX,
    ObjectName,
    keys_from,
    parse_directory,
    parse_key,
    parse_summary,
    partition_directory,
    segment_key,
)
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.partition_summary import TXN_INDEX_EMPTY, decode
from odradek.storage.tiered.remote_index_lookup import aborted_in, check_index
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager
from odradek.storage.tiered.remote_storage_settings import (
    CLASS_NAME,
    OBJECT_STORE,
    OWN_PREFIX,
    RemoteStorageSettings,
)
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from odradek.storage.tiered.store_location import directory_of, directory_of_store

log = logging.getLogger("odradek.pipeline")

CONCURRENT_REQUESTS = 32
"""Maximum number of concurrent requests for small objects."""
LINEAGES_MAX = 8
"""Maximum number of segments whose leader epochs are read if those of the last one are unreadable."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class FirstPage:
    """Listing of a partition's directory up to the page with the first segment."""

    summary: str | None
    """Summary of the latest leader."""
    manifests: Sequence[str]
    last: str
    """Last key of the listed pages."""


class Store:
    """Segments of a store. Synchronous and thread-safe; errors name the object."""

    def __init__(
        self, objects: Objects, storage: RemoteStorageManager, url: str = "memory:///"
    ) -> None:
        """`url` is the resolved URL, which is used in messages."""
        self._objects = objects
        self.storage = storage
        self.url = url

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(CONCURRENT_REQUESTS, thread_name_prefix="odradek-store")

    @property
    def objects(self) -> Objects:
        """Objects as they are stored."""
        return self._objects

    def partitions(
        self,
        includes_topic: Callable[[str], bool],
        is_read: Callable[[TopicIdPartition], bool] = lambda partition: True,
    ) -> dict[TopicIdPartition, FirstPage | None]:
        """Return the partitions with finished segments, of the topics that `includes_topic` selects; None for those
        that `is_read` excludes, which are not listed.
        """
        with _named("the list of topics in the store", "read"):
            names = self._objects.directories("")
        found = [
            each for name in names if (each := parse_directory(name)) and includes_topic(each.topic)
        ]
        wanted = [each for each in found if is_read(each)]
        first_pages = dict(
            zip(wanted, self._read_concurrently(self.first_page, wanted), strict=True)
        )
        empty = {tp for tp, first_page in first_pages.items() if not first_page.manifests}
        return {tp: first_pages.get(tp) for tp in found if tp not in empty}

    def first_page(self, partition: TopicIdPartition) -> FirstPage:
        summary, last = None, ""
        manifests: list[str] = []
        for page in self._pages(partition_directory(partition)):
            summary = max((key for key in page if parse_summary(key)), default=summary)
            manifests, last = _manifests(page), page[-1]
            if manifests:
                break
        return FirstPage(summary, manifests, last)

    def segments(
        self,
        partition: TopicIdPartition,
        first_page: FirstPage | None = None,
        pass_over: Callable[[UnreadableSegment], None] | None = None,
    ) -> Segments:
        """Return a partition's finished segments: those of its summary that still exist, and those of newer
        manifests.

        An unreadable manifest is passed to `pass_over`, from any thread; without that it raises.
        """
        first_page = first_page or self.first_page(partition)
        if not first_page.manifests:
            return Segments.of(partition, ())
        known = self._summarised(partition, first_page)
        if known is None:
            later = self._listed(partition, first_page.last)
            return Segments.of(partition, self._opened([*first_page.manifests, *later], pass_over))
        last_start = int(known.rows["start"][-1])
        ids = known.ids_at(last_start)
        later = self._listed(partition, keys_from(partition, last_start))
        new = [key for key in later if _name(key).id.id.bytes not in ids]
        added = self._opened(new, pass_over)
        return known.starting_from(_name(first_page.manifests[0]).start_offset).extended_by(added)

    def _summarised(self, partition: TopicIdPartition, first_page: FirstPage) -> Segments | None:
        """Return the segments of the summary; None if it is missing or unreadable, since the manifests have the
        same.
        """
        key = first_page.summary
        if key is None:
            return None
        with _named(key):
            try:
                found = Segments.from_summary(partition, decode(self._objects.get(key)))
            except (ObjectMissing, ObjectDenied, CorruptRemoteData) as error:
                log.warning("%s is skipped: %s", key, error)
                return None
        return found if len(found) else None

    def lineage(self, segments: Segments) -> list[EpochStart]:
        """Return the leader epochs of the latest segment."""
        return self._epochs(segments.latest())

    def lineage_and_unresolved(
        self, segments: Segments
    ) -> tuple[list[EpochStart], UnresolvedOffsets | None]:
        """Return the leader epochs and the offsets for which they are unknown.

        If those of the latest segment are unreadable, another segment may prove them; otherwise its own epochs
        remain.
        """
        try:
            return self.lineage(segments), None
        except UnreadableSegment as error:
            latest, *others = segments.latest_first(LINEAGES_MAX)
            first = int(segments.rows["start"][0])
            found = [*latest.epochs] if first >= latest.start_offset else None
            for each in others if found is None else ():
                with suppress(UnreadableSegment):
                    found = prove_lineage(self._epochs(each), latest.epochs)
                    break
            if found is None:
                return [*latest.epochs], UnresolvedOffsets(first, latest.start_offset, error)
            log.warning(
                "the leader epochs of %s are taken from another segment: %s",
                segments.partition,
                error,
            )
            return found, None

    def _epochs(self, segment: RemoteLogSegmentMetadata) -> list[EpochStart]:
        """Return the leader epochs up to the segment's end. Raises UnreadableSegment."""
        key = segment_key(segment, IndexType.LEADER_EPOCH.value)
        data = self._index(segment, IndexType.LEADER_EPOCH)
        try:
            found = [] if data is None else parse_checkpoint(data)
        except CorruptEpochs as error:
            raise object_error(key, error) from None
        if not found:
            text = f"{key}: the partition's leader epochs are not in the store"
            raise _with_key(key, MissingSegment(text))
        return found

    def aborted(
        self, slices: SegmentSlices, before: int, unresolved: list[UnresolvedOffsets] | None = None
    ) -> tuple[list[AbortedTransaction], int | None]:
        """Return the aborted transactions with offsets before `before`, and the offset from which no later marker
        is of these, None if unknown.

        Entries of a deposed leader's segment beyond its slice are ignored. An unreadable index is added to
        `unresolved` with its offsets; without that list it raises.
        """
        found: list[AbortedTransaction] = []
        listed = np.flatnonzero(slices.rows["flags"] & TXN_INDEX_EMPTY == 0)
        for at in range(0, len(listed), CONCURRENT_REQUESTS):
            some = listed[at : at + CONCURRENT_REQUESTS]
            indexes = self._read_concurrently(
                self._transactions, [each.segment for each in slices[some]]
            )
            for number, data in zip(some.tolist(), indexes, strict=True):
                (each,) = slices[number : number + 1]
                if isinstance(data, UnreadableSegment):
                    if unresolved is None:
                        raise data
                    unresolved_range = self._unresolved_at(slices, number, data)
                    if unresolved_range.low >= before:
                        return found, each.low
                    unresolved.append(unresolved_range)
                    continue
                more, is_all = aborted_in(data, each.low, before, each.high)
                found += [
                    AbortedTransaction(e.producer_id, e.first_offset, e.last_offset) for e in more
                ]
                if is_all:
                    return found, each.high
        return found, None

    def _unresolved_at(
        self, slices: SegmentSlices, number: int, error: UnreadableSegment
    ) -> UnresolvedOffsets:
        """Return the offsets of transactions that may have ended in the slice with the unreadable index, including
        those that were open at its start.
        """
        rows = slices.rows
        low, high = int(rows["low"][number]), int(rows["high"][number])
        if number:
            (last,) = slices[number - 1 : number]
            is_next = last.high == low == last.segment.end_offset + 1
            try:
                low = self.first_unstable_offset(last.segment) if is_next else slices.low
            except UnreadableSegment:
                low = slices.low
        return UnresolvedOffsets(low, high, error)

    def first_unstable_offset(self, segment: RemoteLogSegmentMetadata) -> int:
        """Return the first unstable offset at the segment's end, by its producer snapshot; the end offset if no
        transaction is open.
        """
        data = self._index(segment, IndexType.PRODUCER_SNAPSHOT)
        key = segment_key(segment, IndexType.PRODUCER_SNAPSHOT.value)
        if data is None:
            text = f"{key} is missing in the store; it lists the open transactions"
            raise _with_key(key, MissingSegment(text))
        try:
            producers = decode_snapshot(data)
        except CorruptSnapshot as error:
            raise object_error(key, error) from None
        open_at = [each.transaction_start for each in producers if each.transaction_start >= 0]
        return min([*open_at, segment.end_offset + 1])

    def run_concurrently(self, act: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Run `act` for several partitions concurrently; it may itself use the store concurrently."""
        if len(items) < 2:
            return [act(each) for each in items]
        with ThreadPoolExecutor(min(CONCURRENT_REQUESTS, len(items)), "odradek-plan") as pool:
            return list(pool.map(act, items))

    def _read_concurrently(self, read: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if len(items) < 2:
            return [read(each) for each in items]
        return list(self._pool.map(read, items))

    def lacking(self, slices: SegmentSlices) -> list[tuple[SegmentSlice, str]]:
        """Return the slices of segments that cannot be read from the store, each with the key of a missing object."""
        keys: set[str] = set()
        for page in self._pages(partition_directory(slices.partition)):
            keys.update(key for key in page if key.endswith((LOG_SUFFIX, MANIFEST_SUFFIX)))
        found = []
        for each in slices:
            needed = [segment_key(each.segment, LOG_SUFFIX)]
            if needs_manifest(each.segment.custom_metadata):
                needed.append(segment_key(each.segment, MANIFEST_SUFFIX))
            found += [(each, key) for key in needed if key not in keys][:1]
        return found

    def _pages(self, prefix: str, after: str = "") -> Iterator[Sequence[str]]:
        with _named(prefix, "listed"):
            for page in self._objects.pages(prefix, after):
                yield [each.key for each in page]

    def _listed(self, partition: TopicIdPartition, after: str) -> list[str]:
        """List the manifests after a key."""
        pages = self._pages(partition_directory(partition), after)
        return [key for page in pages for key in _manifests(page)]

    def _opened(
        self, keys: Sequence[str], pass_over: Callable[[UnreadableSegment], None] | None
    ) -> list[RemoteLogSegmentMetadata]:
        def opened(key: str) -> RemoteLogSegmentMetadata | None:
            try:
                return self._manifest(key)
            except UnreadableSegment as error:
                if pass_over is None:
                    raise with_skip_hint(error) from None
                pass_over(error)
                return None

        return [each for each in self._read_concurrently(opened, keys) if each is not None]

    def _manifest(self, key: str) -> RemoteLogSegmentMetadata | None:
        """Read a manifest; None if the segment was deleted since it was listed."""
        with _named(key):
            try:
                return Manifest.parse(self._objects.get(key)).metadata
            except ObjectMissing:
                return None

    def _transactions(self, segment: RemoteLogSegmentMetadata) -> bytes | UnreadableSegment:
        """Read the transaction index, or return the error: without it aborted records would appear as committed."""
        key = segment_key(segment, IndexType.TRANSACTION.value)
        try:
            data = self._index(segment, IndexType.TRANSACTION)
        except UnreadableSegment as error:
            return error
        text = f"{key} is missing in the store; it lists the aborted transactions"
        return _with_key(key, MissingSegment(text)) if data is None else data

    def _index(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes | None:
        with _named(segment_key(segment, kind.value)):
            try:
                data = bytes(self.storage.fetch_index(segment, kind))
                if kind is IndexType.TRANSACTION:
                    check_index(data, kind, segment)
                return data
            except RemoteResourceNotFound:
                return None


def _manifests(page: Sequence[str]) -> list[str]:
    return [key for key in page if key.endswith(MANIFEST_SUFFIX) and parse_key(key) is not None]


def _name(manifest: str) -> ObjectName:
    name = parse_key(manifest)
    assert name is not None, "it was listed as existing"
    return name


@contextmanager
def _named(key: str, done: str = "read") -> Iterator[None]:
    """Translate errors of the object or prefix to errors that name it."""
    try:
        yield
    except STORE_ERRORS as error:
        raise object_error(key, error, done) from error


def _with_key(key: str, error: UnreadableSegment) -> UnreadableSegment:
    error.key = key
    return error


def open_store(target: str, options: Mapping[str, str]) -> Store:
    """Open the store at `target`, a URL or a directory as in `serve --tiered`, with options of this object store
    (docs/remote-storage.md). Raises BadOption.
    """
    properties = {f"{OWN_PREFIX}{name}": value for name, value in options.items()}
    try:
        properties |= {
            CLASS_NAME: OBJECT_STORE,
            f"{OWN_PREFIX}url": str(directory_of(target) or target),
        }
        settings = RemoteStorageSettings(properties)
        url = settings.url(RealFiles())
        _check_directory(target, url)
        objects = open_objects(url, settings.store_options(), settings.timeouts())
        form = settings.form(RealFiles())
    except ValueError as error:
        raise BadOption(str(error).replace(OWN_PREFIX, "tiered.")) from None
    return Store(objects, ObjectStoreStorage(objects, RealEntropy(), form=form), url)


def _check_directory(target: str, url: str) -> None:
    """Check that the directory exists, since opening would create it. Raises BadOption."""
    directory = directory_of_store(url)
    if directory is not None and not directory.is_dir():
        raise BadOption(
            f"tiered.url is {target}, and {directory} is not a directory: give the directory"
            " at which the object store is mounted on this machine"
        )


@lru_cache(maxsize=8)
def store_at(target: str, options: tuple[tuple[str, str], ...]) -> Store:
    """Return the process's shared store."""
    return open_store(target, dict(options))


CONCURRENT_LISTINGS = 32
"""Maximum number of directories listed concurrently, with one page of each in memory."""

Page = Sequence[ObjectInfo]


def list_directories(
    objects: Objects, directories: Iterable[str]
) -> Iterator[tuple[str, Page | None]]:
    """Yield pages of many directories as they arrive, each directory's in order, and None after its last one.

    Directories are listed concurrently, because the pages of one listing are sequential.
    """
    left = iter(directories)
    with ThreadPoolExecutor(CONCURRENT_LISTINGS, thread_name_prefix="odradek-list") as pool:
        coming: dict[Future[Page | None], tuple[str, Iterator[Page]]] = {}

        def begin(count: int) -> None:
            for name in islice(left, count):
                pages = objects.pages(name)
                coming[pool.submit(next, pages, None)] = name, pages

        begin(CONCURRENT_LISTINGS)
        while coming:
            done, _ = wait(coming, return_when=FIRST_COMPLETED)
            for each in done:
                name, pages = coming.pop(each)
                page = each.result()
                if page is None:
                    begin(1)
                else:
                    coming[pool.submit(next, pages, None)] = name, pages
                yield name, page
