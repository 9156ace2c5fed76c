"""What a partition log is made of, and what happens when its disk fails.

`PartitionLog` adds the calls; roll.py, flush.py, truncation.py and deletion.py change this state in
the order that their texts give. Who reads on another thread takes `tip` and the list of segments as
of some moment: they are replaced, never changed. What may pull files away from under a reader
(truncation, deletion, renaming) does it within `replacing`, which makes `generation` odd. Reads wait
for its end, and one that it has overtaken is done again: so a slice is handed out, and pinned,
either before the first file is touched or after the last.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, OutOfDescriptors, Path
from odradek.storage.directories.failure import ODD, takes_offline
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors, StorageError
from odradek.storage.log.config import LogConfig
from odradek.storage.log.epochs import LeaderEpochCache
from odradek.storage.log.loader import LoadedLog
from odradek.storage.log.producer_replay import replay
from odradek.storage.log.producer_snapshots import ProducerSnapshots
from odradek.storage.log.producers import ProducerStates
from odradek.storage.log.read import Tip
from odradek.storage.log.segment import Segment
from odradek.storage.log.segment_deletion import PendingDeletions
from odradek.storage.log.segments import Segments

_log = logging.getLogger(__name__)


class LogState:
    """See the module. Complete after `use`."""

    epochs: LeaderEpochCache
    snapshots: ProducerSnapshots
    tip: Tip
    log_start_offset: int
    """Where the log begins, in whichever tier; `set_log_start` moves it."""
    local_log_start_offset: int
    """Where it begins on this disk: past the log's start only where what lies between is, or was, in
    the remote tier."""
    high_watermark: int
    recovery_point: int
    """All below it is durable: data, indexes, epochs, the directory's names."""
    last_accepted_gap_end: int
    """Where recovery let the last gap between two segments be, past the recovery point."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        topic: str,
        partition: int,
        config: LogConfig,
        clock: Clock,
        entropy: Entropy | None,
        producer_id_expiration_ms: Callable[[], int],
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id: UUID | None = None
        self.config = config
        self.clock = clock
        self.highest_copied_offset = -1
        """The last offset (inclusive) that is in the remote tier, of a copy that is finished; -1: none,
        or not known yet. Nothing past it may leave the disk (T-30)."""
        self.failure: BaseException | None = None
        """Why the log is offline; None while it is well."""
        self.segment_list = Segments()
        self.deletions = PendingDeletions(files)
        self.generation = 0
        """Odd while files are being replaced."""
        self._replacing = threading.Lock()
        self.flushing = threading.Lock()
        """Held by a flush, and by what must not run beside one."""
        self.directory_needs_sync = False
        """Whether the directory is to be synced before the recovery point may move. Set once a name is
        there, and cleared before a sync: one that begins in a thread in between is not taken for it."""
        self.needs_clean_close = False
        """Whether anything is to be written on closing."""
        self.is_checkpointed = False
        """Whether its directory's checkpoint has ever had a recovery point of it."""
        self.cleaned_to: int | None = None
        """All below this offset was compacted together (cleaner-offset-checkpoint); None: no cleaner has
        begun with it."""
        self.on_failure: Callable[[OSError], None] | None = None
        self.on_full: Callable[[OSError], None] | None = None
        self.on_log_failed: Callable[[], None] | None = None
        self.on_checkpoint_due: Callable[[], None] | None = None
        self.on_flush_due: Callable[[int], None] | None = None
        self.on_flushed: Callable[[], None] | None = None
        """Told on the loop that more may be durable than before."""
        self.on_appended: Callable[[memoryview], None] | None = None
        """Told of what was written at the end, once the log ends after it; must not raise. Where it takes
        the log offline, the append fails."""
        self.on_truncated: Callable[[Segment, Segment, Tip], None] | None = None
        """Told by a truncation, in its thread: what is left of a segment, and where the log ends."""
        self._entropy = entropy
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._producers: ProducerStates | None = None
        self._loading_producers = threading.Lock()

    def use(self, loaded: LoadedLog) -> None:
        """Start with what was found."""
        self.segment_list = Segments(loaded.segments)
        self.epochs = loaded.epochs
        self.snapshots = loaded.snapshots
        self._producers = loaded.producers
        if loaded.producers is not None:
            # It was recovered: what the process before left unsynced is this one's to sync.
            self.directory_needs_sync = True
            self.needs_clean_close = True
        active = self.segment_list.active
        self.tip = Tip(loaded.end_offset, active, active.size)
        self.set_log_start(loaded.log_start_offset)
        self.high_watermark = self.local_log_start_offset  # what is copied was replicated before
        self.recovery_point = loaded.recovery_point
        self.last_accepted_gap_end = loaded.last_accepted_gap_end

    @property
    def end_offset(self) -> int:
        return self.tip.end_offset

    # The tiers

    @property
    def is_tiered(self) -> bool:
        """Whether the log may begin in the remote tier (KIP-405): on a node that has none, no log's
        config says so."""
        return self.config.remote_storage_enable

    @property
    def is_copied(self) -> bool:
        """Whether its segments go to the remote tier, and from the disk only after that."""
        return self.is_tiered and not self.config.remote_log_copy_disable

    def set_log_start(self, log_start_offset: int) -> None:
        """The log begins there; also whenever another segment is the first."""
        self.log_start_offset = log_start_offset
        self.local_log_start_offset = max(log_start_offset, self.segment_list.first.base_offset)

    def advance_highest_copied_offset(self, offset: int) -> None:
        """All up to `offset` (inclusive) is in the remote tier; never down within one leadership."""
        self.highest_copied_offset = max(self.highest_copied_offset, offset)

    @property
    def local_only_bytes(self) -> int:
        """Bytes of the segments that are not in the remote tier yet."""
        copied = self.highest_copied_offset
        found = self.segment_list.past(copied)
        return sum(each.size for each in found if each.base_offset > copied)

    def reset_highest_copied_offset(self) -> None:
        """Another leadership: what is in the remote tier is to be found out anew."""
        self.highest_copied_offset = -1

    def new_segment(self, base_offset: int) -> Segment:
        """Create an empty one. Raises OSError, and then there is none."""
        config = self.config
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        self.needs_clean_close = True
        fresh = Segment.create(
            self.files,
            self.directory,
            base_offset,
            index_interval_bytes=config.index_interval_bytes,
            created_ms=self.clock.wall_ms(),
            roll_jitter_ms=self._entropy.below(jitter_ms) if jitter_ms and self._entropy else 0,
        )
        self.directory_needs_sync = True
        return fresh

    def flushed(self) -> None:
        """A flush has ended, or was not needed any more; on the loop."""
        if self.on_flushed is not None:
            self.on_flushed()

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Files are renamed, cut or closed within; `tip` already ends before what will be cut."""
        with self._replacing:
            self.generation += 1
            try:
                yield
            finally:
                self.generation += 1

    def settled(self) -> int:
        """The generation, waiting until it is even."""
        generation = self.generation
        while generation & 1:
            with self._replacing:
                generation = self.generation
        return generation

    # The producers

    @property
    def producers(self) -> ProducerStates:
        """LoadedLog from the latest snapshot when first asked for, after a clean shutdown. Raises LogFailed,
        NoDescriptors."""
        producers = self._producers
        return self._load_producers() if producers is None else producers

    @property
    def producers_if_loaded(self) -> ProducerStates | None:
        return self._producers

    def new_producers(self) -> ProducerStates:
        return ProducerStates(
            f"{self.topic}-{self.partition}", expiration_ms=self._producer_id_expiration_ms
        )

    def _load_producers(self) -> ProducerStates:
        with self._loading_producers:
            if self._producers is None:
                states = self.new_producers()
                end = self.tip.end_offset
                if self.snapshots.latest is None:
                    states.reset(end)  # as Kafka: closed cleanly, and never had a producer
                else:
                    try:
                        self.rebuild_producers_at(states, end)
                    except OSError as error:
                        raise self.handle_io_error(error) from error
                self._producers = states
            return self._producers

    def rebuild_producers_at(self, states: ProducerStates, offset: int) -> None:
        """Set `states` to what they were when the log ended at `offset`. Raises OSError."""
        start, fresh = self.log_start_offset, self.new_producers()
        self.snapshots.load(fresh, up_to=offset, start=start, now_ms=self.clock.wall_ms())
        replay(fresh, self.segment_list.all, start, offset)
        fresh.replicated_to(self.high_watermark)
        states.replace_with(fresh)

    # Failing

    def fail(self, error: BaseException) -> None:
        """Take the log offline (its directory failed): every later call raises LogFailed."""
        if self.failure is None:
            self.failure = error

    def take_offline_alone(self, error: BaseException) -> None:
        """Take the log offline by itself: its directory is well, so nobody hears of it by that."""
        if self.failure is None:
            self.failure = error
            if self.on_log_failed is not None:
                self.on_log_failed()

    def check_online(self) -> None:
        if self.failure is not None:
            raise self.offline()

    def offline(self) -> LogFailed:
        return LogFailed(f"{self.topic}-{self.partition} is offline: {self.failure}")

    def handle_io_error(self, error: OSError, *, undone: bool = False) -> StorageError:
        """What to raise for `error`; `undone` says that the files are as they were before.

        DiskFull or NoDescriptors if the log can go on; else it is offline from here on: by itself where
        a name in its directory is not what it should be.
        """
        if not takes_offline(error, undone=undone):
            if isinstance(error, OutOfDescriptors):
                return NoDescriptors(f"{self.directory}: {error}")
            if self.on_full is not None:
                self.on_full(error)
            return DiskFull(f"{self.directory}: {error}")
        if self.failure is None:
            _log.error("%s is offline: %s", self.directory, error)
            if error.errno in ODD:
                self.take_offline_alone(error)
            else:
                self.failure = error
                if self.on_failure is not None:
                    self.on_failure(error)
        return self.offline()

    @contextmanager
    def offline_on_failure(self) -> Iterator[None]:
        """Around steps of which none may be done without the others.

        Where one fails the files are neither as before nor as they were to be: the log is offline, by
        itself where the error says nothing of the disk (no descriptors), until a start finds it not
        closed cleanly and puts it right. Raises LogFailed, whatever it was.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, OSError) and takes_offline(error):
                raise self.handle_io_error(error) from error
            if self.failure is None:
                _log.error("%s is offline, something was done by half: %s", self.directory, error)
                self.take_offline_alone(error)
            raise self.offline() from error
