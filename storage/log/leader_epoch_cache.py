"""Leader epoch cache: start offset of each leader epoch (KIP-101, KIP-279), and its checkpoint file.

Epochs and start offsets increase along the list. The file (`leader-epoch-checkpoint`: `0`, the number of
entries, then `epoch startOffset` per line) may be older than the cache: it is written before the
recovery point passes the first batch of an epoch (`save`, from flush), and at once after a truncation.
Recovery finds a missing epoch in the batches past the recovery point; entries outside of the log are
removed when the file is loaded. Kafka writes the file at every new epoch; for 4,000 partitions that get
a leader together this would be 8,000 syncs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from threading import Lock

from odradek.seams.files import Files, Path
from odradek.seams.values import value_class
from odradek.storage.log.file_names import EPOCHS

NO_EPOCH = -1
NO_OFFSET = -1


@value_class
class EpochEnd:
    """An epoch and its end offset (exclusive); (-1, -1) if unknown."""

    epoch: int
    end_offset: int


@value_class
class EpochStart:
    epoch: int
    start_offset: int


class CorruptEpochs(Exception):
    """The leader epoch checkpoint file is invalid."""


class LeaderEpochCache:
    """Leader epochs of one log. `end_offset` returns the log end offset."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        end_offset: Callable[[], int],
        entries: Iterable[EpochStart] = (),
    ) -> None:
        self._files = files
        self.directory = directory
        self._end_offset = end_offset
        self._entries: tuple[EpochStart, ...] = ()
        self.latest: int | None = None
        """The epoch of the last entry."""
        self._dirty = False
        self._saving = Lock()
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)
        self._dirty = False

    @classmethod
    def load(cls, files: Files, directory: Path, end_offset: Callable[[], int]) -> LeaderEpochCache:
        """Load the checkpoint file, if it exists. Raises CorruptEpochs, OSError."""
        path = directory / EPOCHS
        try:
            data = files.read(path)
        except FileNotFoundError:
            return cls(files, directory, end_offset)
        return cls(files, directory, end_offset, parse_checkpoint(data))

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return self._entries

    @property
    def earliest(self) -> EpochStart | None:
        entries = self._entries
        return entries[0] if entries else None

    def epoch_for(self, offset: int) -> int | None:
        """Epoch of the batch at `offset`; None if it is before the first known epoch."""
        entries = self._entries
        slot = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
        return entries[slot - 1].epoch if slot else None

    def end_offset_for(self, epoch: int) -> EpochEnd:
        """Largest known epoch at or below `epoch`, and its end: the start of the next one, or the log
        end offset.

        An epoch before all known ones ends at their start; for one after all known ones the result is
        (-1, -1) (KIP-101, KIP-279).
        """
        entries = self._entries
        if entries and epoch == entries[-1].epoch:
            return EpochEnd(epoch, self._end_offset())
        slot = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if epoch == NO_EPOCH or slot == len(entries):
            return EpochEnd(NO_EPOCH, NO_OFFSET)
        found = entries[slot - 1].epoch if slot else epoch
        return EpochEnd(found, entries[slot].start_offset)

    def entries_in(self, start: int, end: int) -> tuple[EpochStart, ...]:
        """Epochs of offsets [start, end), for the checkpoint of a copied segment."""
        return _without_end(_without_start(self._entries, start), end)

    # Changes

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`, unless it is known.

        Conflicting entries (a later epoch, or a start at or past this one) are removed.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} cannot start at offset {start_offset}")
        entries = self._entries
        if entries:
            last = entries[-1]
            if epoch == last.epoch and start_offset >= last.start_offset:
                return
        kept = len(entries)
        while kept and (
            entries[kept - 1].epoch >= epoch or entries[kept - 1].start_offset >= start_offset
        ):
            kept -= 1
        self._set((*entries[:kept], EpochStart(epoch, start_offset)))

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or past `end_offset`."""
        self._set(_without_end(self._entries, end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that end before `start_offset`; the epoch that contains it begins there."""
        self._set(_without_start(self._entries, start_offset))

    def clear(self) -> None:
        self._set(())

    def restore(self, entries: tuple[EpochStart, ...]) -> None:
        """Set the entries, for example to undo changes that could not be saved."""
        self._set(entries)

    def _set(self, entries: tuple[EpochStart, ...]) -> None:
        if entries != self._entries:
            self._entries = entries
            self.latest = entries[-1].epoch if entries else None
            self._dirty = True

    # The file

    def move_to(self, directory: Path, saved: tuple[EpochStart, ...] | None = None) -> None:
        """Continue with the file in another directory. `saved` is the content of the file there; by
        default it is the same file."""
        with self._saving:
            self.directory = directory
            if saved is not None:
                self._dirty = saved != self._entries

    def save(self) -> None:
        """Write the file durably if it is out of date. Raises OSError."""
        with self._saving:
            if not self._dirty:
                return
            self._dirty = False
            try:
                self._files.write_new(self.directory / EPOCHS, format_checkpoint(self._entries))
            except OSError:
                self._dirty = True
                raise


def _without_end(entries: tuple[EpochStart, ...], end: int) -> tuple[EpochStart, ...]:
    kept = len(entries)
    while kept and entries[kept - 1].start_offset >= end:
        kept -= 1
    return entries[:kept]


def _without_start(entries: tuple[EpochStart, ...], start: int) -> tuple[EpochStart, ...]:
    slot = bisect_right(entries, start, key=lambda entry: entry.start_offset)
    if not slot:
        return entries
    return (EpochStart(entries[slot - 1].epoch, start), *entries[slot:])


def format_checkpoint(entries: Iterable[EpochStart]) -> bytes:
    lines = [f"{entry.epoch} {entry.start_offset}\n" for entry in entries]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def parse_checkpoint(data: bytes) -> list[EpochStart]:
    """The entries of a checkpoint file. Raises CorruptEpochs."""
    try:
        version, count, *lines = data.decode().splitlines()
        if int(version) != 0:
            raise CorruptEpochs(f"unrecognized version of {EPOCHS}: {version}")
        wanted = int(count)
        entries = [EpochStart(*map(int, line.split())) for line in lines if line.strip()]
        if any(entry.epoch < 0 or entry.start_offset < 0 for entry in entries):
            raise CorruptEpochs(f"a negative epoch or offset in {EPOCHS}")
    except (ValueError, TypeError) as error:
        raise CorruptEpochs(f"{EPOCHS} is invalid: {error}") from error
    if len(entries) != wanted:
        raise CorruptEpochs(f"expected {count} entries in {EPOCHS}, but found {len(entries)}")
    return entries
