"""Which segments a store has, for the driver, without any broker: by a summary for each partition, by the
manifests where there is none, and behind what it has.

The first page of a partition's listing has the name of its summary and tells what the partition begins
with now; another says what lies behind the summary's last segment. So a partition costs about as many
requests with ten thousand segments as with ten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from odradek.pipeline.decoding.selection import Aborted
from odradek.pipeline.errors import BadOption, MissingSegment, UnreadableSegment, or_without
from odradek.pipeline.lineage import Doubt, proven_lineage
from odradek.pipeline.segment_columns import Segments, Stretches
from odradek.pipeline.store_errors import STORE_ERRORS, of_object
from odradek.seams.entropy import RealEntropy
from odradek.seams.object_store import open_objects
from odradek.seams.objects import ObjectDenied, ObjectInfo, ObjectMissing, Objects
from odradek.seams.real_files import RealFiles
from odradek.storage.log.epochs import CorruptEpochs, EpochStart, parse_checkpoint
from odradek.storage.log.producer_snapshots import CorruptSnapshot, decode_snapshot
from odradek.storage.tiered.errors import CorruptRemoteData, RemoteResourceNotFound
from odradek.storage.tiered.index_lookup import aborted_in, check_index
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata, TopicIdPartition
from odradek.storage.tiered.object_names import (
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
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager
from odradek.storage.tiered.remote_storage_settings import (
    CLASS_NAME,
    LOCAL_TIERED_STORAGE,
    OBJECT_STORE,
    OWN_PREFIX,
    RemoteStorageSettings,
)
from odradek.storage.tiered.summary import TXN_INDEX_EMPTY, decode

log = logging.getLogger("odradek.pipeline")

AT_ONCE = 32
"""Small objects fetched at the same time."""
LINEAGES_MAX = 8
"""So many segments are asked for leader epochs, where those of the last one cannot be read."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Beginning:
    """What a partition's directory begins with: its listing as far as the page with the first segment."""

    summary: str | None
    """That of the latest leader."""
    manifests: Sequence[str]
    last: str
    """The last key of those pages."""


class Store:
    """See the module. Synchronous; from any thread. Errors name the object."""

    def __init__(self, objects: Objects, storage: RemoteStorageManager) -> None:
        self._objects = objects
        self.storage = storage

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="odradek-store")

    @property
    def objects(self) -> Objects:
        """As they are in the store."""
        return self._objects

    def partitions(
        self,
        wants: Callable[[str], bool],
        is_read: Callable[[TopicIdPartition], bool] = lambda partition: True,
    ) -> dict[TopicIdPartition, Beginning | None]:
        """All that have a finished segment, of topics that are wanted; of those that are not read nobody
        asks whether they have (None)."""
        with _named("the list of all topics in the store", "read"):
            names = self._objects.directories("")
        found = [each for name in names if (each := parse_directory(name)) and wants(each.topic)]
        asked = [each for each in found if is_read(each)]
        beginnings = dict(zip(asked, self._at_once(self.beginning, asked), strict=True))
        empty = {where for where, beginning in beginnings.items() if not beginning.manifests}
        return {where: beginnings.get(where) for where in found if where not in empty}

    def beginning(self, partition: TopicIdPartition) -> Beginning:
        summary, last = None, ""
        manifests: list[str] = []
        for page in self._pages(partition_directory(partition)):
            summary = max((key for key in page if parse_summary(key)), default=summary)
            manifests, last = _manifests(page), page[-1]
            if manifests:
                break
        return Beginning(summary, manifests, last)

    def segments(
        self,
        partition: TopicIdPartition,
        beginning: Beginning | None = None,
        pass_over: Callable[[UnreadableSegment], None] | None = None,
    ) -> Segments:
        """The finished ones of a partition: what its summary says, but for those that went since, and the
        manifests of those that are not in it. A manifest that cannot be read is passed over by
        `pass_over`, which is told of it, from any thread; without that it raises."""
        beginning = beginning or self.beginning(partition)
        if not beginning.manifests:
            return Segments.of(partition, ())
        known = self._summarised(partition, beginning)
        if known is None:
            later = self._listed(partition, beginning.last)
            return Segments.of(partition, self._opened([*beginning.manifests, *later], pass_over))
        last_start = int(known.rows["start"][-1])
        ids = known.ids_at(last_start)
        later = self._listed(partition, keys_from(partition, last_start))
        new = [key for key in later if _name(key).id.id.bytes not in ids]
        added = self._opened(new, pass_over)
        return known.starting_from(_name(beginning.manifests[0]).start_offset).and_also(added)

    def _summarised(self, partition: TopicIdPartition, beginning: Beginning) -> Segments | None:
        """None if there is no summary, or none that can be read: the manifests tell too."""
        key = beginning.summary
        if key is None:
            return None
        with _named(key):
            try:
                found = Segments.summarised(partition, decode(self._objects.get(key)))
            except (ObjectMissing, ObjectDenied, CorruptRemoteData) as error:
                log.warning("%s is passed over: %s", key, error)
                return None
        return found if len(found) else None

    def lineage(self, segments: Segments) -> list[EpochStart]:
        """The partition's leader epochs, as the segment has them that was written last."""
        return self._epochs(segments.latest())

    def lineage_and_doubt(self, segments: Segments) -> tuple[list[EpochStart], Doubt | None]:
        """The same. Where those of the last segment cannot be read: what others prove, or what that one
        has itself, and which offsets are in doubt then."""
        try:
            return self.lineage(segments), None
        except UnreadableSegment as error:
            latest, *others = segments.latest_first(LINEAGES_MAX)
            first = int(segments.rows["start"][0])
            found = [*latest.epochs] if first >= latest.start_offset else None
            for each in others if found is None else ():
                with suppress(UnreadableSegment):
                    found = proven_lineage(self._epochs(each), latest.epochs)
                    break
            if found is None:
                return [*latest.epochs], Doubt(first, latest.start_offset, error)
            log.warning("others tell the leader epochs of %s: %s", segments.partition, error)
            return found, None

    def _epochs(self, segment: RemoteLogSegmentMetadata) -> list[EpochStart]:
        """The leader epochs up to its end. Raises UnreadableSegment."""
        key = segment_key(segment, IndexType.LEADER_EPOCH.value)
        data = self._index(segment, IndexType.LEADER_EPOCH)
        try:
            found = [] if data is None else parse_checkpoint(data)
        except CorruptEpochs as error:
            raise of_object(key, error) from None
        if not found:
            text = f"{key}: the partition's leader epochs are not in the store"
            raise _with_key(key, MissingSegment(text))
        return found

    def aborted(
        self, stretches: Stretches, before: int, doubts: list[Doubt] | None = None
    ) -> tuple[list[Aborted], int | None]:
        """The transactions whose markers in these stretches say that they were given up, as far as that
        concerns offsets before `before`; and from which offset on no marker is of any of these, None if that
        is not known. What a deposed leader's segment says of later offsets is not of the log. An index that cannot be read is
        added to `doubts`, with the offsets that it concerns; without them it raises."""
        found: list[Aborted] = []
        listed = np.flatnonzero(stretches.rows["flags"] & TXN_INDEX_EMPTY == 0)
        for at in range(0, len(listed), AT_ONCE):
            some = listed[at : at + AT_ONCE]
            indexes = self._at_once(self._transactions, [each.segment for each in stretches[some]])
            for number, data in zip(some.tolist(), indexes, strict=True):
                (each,) = stretches[number : number + 1]
                if isinstance(data, UnreadableSegment):
                    if doubts is None:
                        raise data
                    doubt = self._doubt(stretches, number, data)
                    if doubt.low >= before:
                        return found, each.low
                    doubts.append(doubt)
                    continue
                more, is_all = aborted_in(data, each.low, before, each.high)
                found += [Aborted(e.producer_id, e.first_offset, e.last_offset) for e in more]
                if is_all:
                    return found, each.high
        return found, None

    def _doubt(self, stretches: Stretches, number: int, error: UnreadableSegment) -> Doubt:
        """What may be of transactions that ended in a stretch whose index cannot be read: of those, too,
        that were open where the one before it ends."""
        rows = stretches.rows
        low, high = int(rows["low"][number]), int(rows["high"][number])
        if number:
            (last,) = stretches[number - 1 : number]
            is_next = last.high == low == last.segment.end_offset + 1
            try:
                low = self.undecided_from(last.segment) if is_next else stretches.low
            except UnreadableSegment:
                low = stretches.low
        return Doubt(low, high, error)

    def undecided_from(self, segment: RemoteLogSegmentMetadata) -> int:
        """The first offset of a transaction that was not ended where the segment ends; the offset behind
        it if there is none. How those ended, only a broker knows."""
        data = self._index(segment, IndexType.PRODUCER_SNAPSHOT)
        key = segment_key(segment, IndexType.PRODUCER_SNAPSHOT.value)
        if data is None:
            text = f"{key} is not in the store, and tells which transactions are open"
            raise _with_key(key, MissingSegment(text))
        try:
            producers = decode_snapshot(data)
        except CorruptSnapshot as error:
            raise of_object(key, error) from None
        open_at = [each.transaction_start for each in producers if each.transaction_start >= 0]
        return min([*open_at, segment.end_offset + 1])

    def at_once(self, act: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Of several partitions; `act` may ask the store for several objects at once."""
        if len(items) < 2:
            return [act(each) for each in items]
        with ThreadPoolExecutor(min(AT_ONCE, len(items)), "odradek-plan") as pool:
            return list(pool.map(act, items))

    def _at_once(self, ask: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if len(items) < 2:
            return [ask(each) for each in items]
        return list(self._pool.map(ask, items))

    def _pages(self, prefix: str, after: str = "") -> Iterator[Sequence[str]]:
        with _named(prefix, "listed"):
            for page in self._objects.pages(prefix, after):
                yield [each.key for each in page]

    def _listed(self, partition: TopicIdPartition, after: str) -> list[str]:
        """The manifests behind a key."""
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
                    raise or_without(error) from None
                pass_over(error)
                return None

        return [each for each in self._at_once(opened, keys) if each is not None]

    def _manifest(self, key: str) -> RemoteLogSegmentMetadata | None:
        """None if it went since it was listed: the segment is being deleted."""
        with _named(key):
            try:
                return Manifest.parse(self._objects.get(key)).metadata
            except ObjectMissing:
                return None

    def _transactions(self, segment: RemoteLogSegmentMetadata) -> bytes | UnreadableSegment:
        """The index of a segment that has one, or why it cannot be read: without it aborted records would
        pass for committed."""
        key = segment_key(segment, IndexType.TRANSACTION.value)
        try:
            data = self._index(segment, IndexType.TRANSACTION)
        except UnreadableSegment as error:
            return error
        text = f"{key} is not in the store, and tells what was aborted"
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
    assert name is not None, "it was listed as one"
    return name


@contextmanager
def _named(key: str, done: str = "read") -> Iterator[None]:
    """What goes wrong with the object, or with those whose keys begin so, is an error that names it."""
    try:
        yield
    except STORE_ERRORS as error:
        raise of_object(key, error, done) from error


def _with_key(key: str, error: UnreadableSegment) -> UnreadableSegment:
    error.key = key
    return error


def open_store(target: str, options: Mapping[str, str]) -> Store:
    """`target` is what a broker was given (`serve --tiered`): a URL, or a directory. `options` are those
    of its remote storage (docs/remote-storage.md). Raises BadOption."""
    properties = {f"{OWN_PREFIX}{name}": value for name, value in options.items()}
    if "://" in target:
        properties |= {CLASS_NAME: OBJECT_STORE, f"{OWN_PREFIX}url": target}
    else:
        properties |= {CLASS_NAME: LOCAL_TIERED_STORAGE, f"{OWN_PREFIX}dir": target}
    try:
        settings = RemoteStorageSettings(properties)
        url = settings.url()
        _check_directory(target, url)
        objects = open_objects(url, settings.store_options(), settings.patience())
        form = settings.form(RealFiles())
    except ValueError as error:
        raise BadOption(str(error).replace(OWN_PREFIX, "tiered.")) from None
    return Store(objects, ObjectStoreStorage(objects, RealEntropy(), form=form))


def _check_directory(target: str, url: str) -> None:
    """To open one that is not there would make it, and find it empty. Raises BadOption."""
    directory = Path(unquote(urlsplit(url).path))
    if url.startswith("file:") and not directory.is_dir():
        raise BadOption(
            f"tiered.url is {target}, and there is no directory {directory}: name the one that segments are"
            " copied to, as this machine sees it"
        )


@lru_cache(maxsize=8)
def store_at(target: str, options: tuple[tuple[str, str], ...]) -> Store:
    """The process's own, for all its tasks."""
    return open_store(target, dict(options))


AT_ONCE = 32
"""Directories, of each of which a page is kept until it is taken."""

Page = Sequence[ObjectInfo]


def pages_of(objects: Objects, directories: Iterable[str]) -> Iterator[tuple[str, Page | None]]:
    """Pages as they come, each directory's in order, and None behind its last one. Raises what the store
    raises."""
    left = iter(directories)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="odradek-list") as pool:
        coming: dict[Future[Page | None], tuple[str, Iterator[Page]]] = {}

        def begin(count: int) -> None:
            for name in islice(left, count):
                pages = objects.pages(name)
                coming[pool.submit(next, pages, None)] = name, pages

        begin(AT_ONCE)
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
