"""Virtual disks after a power cut; later calls change nothing (DESIGN: six seams)."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.seams.files import Path, WouldBlock
from odradek.testing.power import NodeCrashed, Power
from odradek.testing.virtual_disk import SECTOR_BYTES, VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

HERE = Path("/data")
SEEDS = range(400)


def fresh() -> VirtualFiles:
    disk = VirtualDisk()
    disk.mount(HERE)
    return VirtualFiles(disk)


def after_crashes(files: VirtualFiles, look: Callable[[VirtualFiles], object]) -> set[object]:
    """Return the results of `look` on the disks of four hundred crash seeds."""
    return {look(VirtualFiles(files.disk.crash(seed))) for seed in SEEDS}


def test_synced_bytes_with_a_synced_name_survive() -> None:
    files = fresh()
    file = files.open(HERE / "f", create=True)
    file.append_v([b"kept"])
    file.sync()
    files.sync_directory(HERE)
    assert after_crashes(files, lambda f: f.read(HERE / "f")) == {b"kept"}


@pytest.mark.parametrize(("code", "is_kept"), [(errno.EIO, False), (errno.EMFILE, True)])
def test_sync_after_a_failed_sync_has_no_effect_unless_descriptors_ran_out(
    code: int, is_kept: bool
) -> None:
    """The kernel drops the pages of a failed sync (fsyncgate), unless it failed for lack of a
    descriptor."""
    files = fresh()
    file = files.open(HERE / "f", create=True)
    files.sync_directory(HERE)
    file.append_v([b"kept"])
    files.disk.fail("*/f", code, times=1)
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert (after_crashes(files, lambda f: f.read(HERE / "f")) == {b"kept"}) == is_kept


def test_unsynced_write_is_lost_kept_or_torn_at_a_sector() -> None:
    files = fresh()
    file = files.open(HERE / "f", create=True)
    file.append_v([b"s" * 100])
    file.sync()
    files.sync_directory(HERE)
    file.append_v([b"u" * 1500])
    sizes = after_crashes(files, lambda f: f.file_size(HERE / "f"))
    assert sizes == {100, 1600, SECTOR_BYTES, 2 * SECTOR_BYTES, 3 * SECTOR_BYTES}


def test_torn_write_may_lack_any_sectors() -> None:
    files = fresh()
    file = files.open(HERE / "f", create=True)
    files.sync_directory(HERE)
    file.append_v([b"u" * (3 * SECTOR_BYTES)])

    def sectors(f: VirtualFiles) -> str:
        content = f.read(HERE / "f")
        return "".join(chr(content[at] or 46) for at in range(0, len(content), SECTOR_BYTES))

    assert after_crashes(files, sectors) == {"", "u", "uu", ".u", "uuu", "u.u", ".uu", "..u"}


def test_large_torn_write_is_often_a_prefix() -> None:
    files = fresh()
    file = files.open(HERE / "f", create=True)
    files.sync_directory(HERE)
    whole = 40 * SECTOR_BYTES
    file.append_v([b"u" * whole])

    def left(f: VirtualFiles) -> str:
        content = f.read(HERE / "f")
        if 0 in content:
            return "holes"
        return {0: "nothing", whole: "all"}.get(len(content), "first sectors")

    found = Counter(left(VirtualFiles(files.disk.crash(seed))) for seed in SEEDS)
    assert found.keys() == {"nothing", "holes", "first sectors", "all"}
    assert min(found.values()) > len(SEEDS) // 20


def test_files_and_names_become_durable_independently() -> None:
    files = fresh()
    for name in "ab":
        files.open(HERE / name, create=True)
    files.sync_directory(HERE)
    for name in "ab":
        files.open(HERE / name, write=True).append_v([b"u"])
    files.open(HERE / "c", create=True)

    def left(f: VirtualFiles) -> tuple[bytes, bytes, bool]:
        return f.read(HERE / "a"), f.read(HERE / "b"), f.exists(HERE / "c")

    assert len(after_crashes(files, left)) == 8


def test_later_write_may_survive_without_an_earlier_one() -> None:
    files = fresh()
    file = files.open(HERE / "f", create=True)
    files.sync_directory(HERE)
    file.append_v([b"a" * 600])
    file.append_v([b"b" * 600])
    found = after_crashes(files, lambda f: f.read(HERE / "f"))
    assert bytes(600) + b"b" * 600 in found
    assert b"" in found
    assert b"a" * 600 + b"b" * 600 in found


def test_name_of_a_synced_file_may_be_lost() -> None:
    files = fresh()
    file = files.open(HERE / "f", create=True)
    file.append_v([b"x"])
    file.sync()
    assert after_crashes(files, lambda f: tuple(f.list(HERE))) == {(), ("f",)}


def test_name_changes_become_durable_in_order() -> None:
    files = fresh()
    for name in "abc":
        files.open(HERE / name, create=True)
    files.remove(HERE / "b")
    files.rename(HERE / "a", HERE / "z")
    expected = {(), ("a",), ("a", "b"), ("a", "b", "c"), ("a", "c"), ("c", "z")}
    assert after_crashes(files, lambda f: tuple(f.list(HERE))) == expected


def test_rename_between_directories_is_atomic() -> None:
    files = fresh()
    for name in "xy":
        files.make_directory(HERE / name)
    files.open(HERE / "x" / "f", create=True)
    for name in ("x", "y", ""):
        files.sync_directory(HERE / name)
    files.rename(HERE / "x" / "f", HERE / "y" / "g")

    def names(f: VirtualFiles) -> object:
        return tuple(f.list(HERE / "x")), tuple(f.list(HERE / "y"))

    assert after_crashes(files, names) == {(("f",), ()), ((), ("g",))}
    files.sync_directory(HERE / "y")
    assert after_crashes(files, names) == {((), ("g",))}


def test_file_renamed_before_its_sync_may_lose_bytes() -> None:
    """The mistake that `write_new` prevents."""
    files = fresh()
    files.write_new(HERE / "c", b"old")
    careless = files.open(HERE / "c.new", create=True)
    careless.append_v([b"new"])
    files.rename(HERE / "c.new", HERE / "c")
    files.sync_directory(HERE)
    assert b"" in after_crashes(files, lambda f: f.read(HERE / "c"))


def test_write_new_is_atomic_at_each_sync() -> None:
    for sync in range(3, 5):
        files = fresh()
        files.write_new(HERE / "c", b"old")
        assert files.syncs == 2
        files.cut_power_at(sync)
        with pytest.raises(NodeCrashed):
            files.write_new(HERE / "c", b"new")
        assert after_crashes(files, lambda f: f.read(HERE / "c")) <= {b"old", b"new"}
    files = fresh()
    files.write_new(HERE / "c", b"old")
    files.write_new(HERE / "c", b"new")
    assert after_crashes(files, lambda f: f.read(HERE / "c")) == {b"new"}


def test_directory_with_a_lost_name_loses_its_files() -> None:
    files = fresh()
    files.make_directory(HERE / "t-0")
    files.write_new(HERE / "t-0" / "c", b"x")
    assert after_crashes(files, lambda f: f.exists(HERE / "t-0" / "c")) == {True, False}
    files.sync_directory(HERE)
    assert after_crashes(files, lambda f: f.exists(HERE / "t-0" / "c")) == {True}


def test_unsynced_removal_may_be_undone() -> None:
    files = fresh()
    files.write_new(HERE / "c", b"x")
    files.remove(HERE / "c")
    assert after_crashes(files, lambda f: f.exists(HERE / "c")) == {True, False}
    files.sync_directory(HERE)
    assert after_crashes(files, lambda f: f.exists(HERE / "c")) == {False}


def test_unsynced_truncation_may_be_undone() -> None:
    files = fresh()
    files.write_new(HERE / "c", b"0123456789")
    file = files.open(HERE / "c", write=True)
    file.truncate(4)
    assert after_crashes(files, lambda f: f.read(HERE / "c")) == {b"0123", b"0123456789"}
    file.sync()
    assert after_crashes(files, lambda f: f.read(HERE / "c")) == {b"0123"}


def test_data_of_a_failed_sync_is_not_saved_by_a_later_sync() -> None:
    files = fresh()
    file = files.open(HERE / "f", create=True)
    files.sync_directory(HERE)
    file.append_v([b"x" * 10])
    fault = files.disk.fail("*/f", operations={"sync"})
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    files.disk.heal(fault)
    file.append_v([b"y" * 10])
    file.sync()
    assert after_crashes(files, lambda f: f.read(HERE / "f")) == {
        b"x" * 10 + b"y" * 10,
        bytes(10) + b"y" * 10,
    }


def test_same_seed_gives_the_same_disk() -> None:
    files = fresh()
    for n in range(20):
        files.open(HERE / str(n), create=True).append_v([bytes([n]) * 2000])
    for seed in SEEDS:
        image = files.disk.crash(seed)
        assert image.fingerprint() == files.disk.crash(seed).fingerprint()


def test_crash_returns_an_independent_disk() -> None:
    files = fresh()
    files.write_new(HERE / "c", b"x")
    before = files.disk.fingerprint()
    other = VirtualFiles(files.disk.crash(1))
    other.open(HERE / "c", write=True).append_v([b"y"])
    other.remove(HERE / "c")
    assert files.disk.fingerprint() == before
    assert other.disk.mount_of(HERE).used_bytes == 0
    assert files.disk.mount_of(HERE).used_bytes == 1


class TestPower:
    def test_sync_at_the_power_cut_has_no_effect(self) -> None:
        files = fresh()
        file = files.open(HERE / "f", create=True)
        files.sync_directory(HERE)
        file.append_v([b"x" * 10])
        files.cut_power_at(2)
        with pytest.raises(NodeCrashed):
            file.sync()
        assert b"" in after_crashes(files, lambda f: f.read(HERE / "f"))

    def test_sync_before_the_power_cut_is_durable(self) -> None:
        files = fresh()
        file = files.open(HERE / "f", create=True)
        files.sync_directory(HERE)
        file.append_v([b"x" * 10])
        files.cut_power_after(2)
        file.sync()
        with pytest.raises(NodeCrashed):
            file.append_v([b"y"])
        assert after_crashes(files, lambda f: f.read(HERE / "f")) == {b"x" * 10}

    def test_restarted_node_acquires_the_lock(self) -> None:
        disk = VirtualDisk()
        power = Power()
        VirtualFiles(disk, power).lock(Path("/.lock"))
        with pytest.raises(BlockingIOError):
            VirtualFiles(disk).lock(Path("/.lock"))
        power.cut()
        VirtualFiles(disk).lock(Path("/.lock"))

    @settings(max_examples=60, deadline=None)
    @given(seed=st.integers(0, 2**32), calls_before=st.integers(0, 60))
    def test_calls_after_a_crash_change_nothing(self, seed: int, calls_before: int) -> None:
        """Random calls of all kinds, on old and new handles, raise and have no effect."""
        rng = random.Random(seed)
        files = fresh()
        world = RandomCalls(files, rng)
        for _ in range(calls_before):
            world.call()
        files.power.cut()
        before = files.disk.fingerprint()
        for call in world.calls():
            with pytest.raises(NodeCrashed):
                call()
            assert files.disk.fingerprint() == before


class RandomCalls:
    """Calls of all methods of `Files` and `File`, on a few names."""

    def __init__(self, files: VirtualFiles, rng: random.Random) -> None:
        self.files = files
        self.rng = rng
        files.make_directory(HERE / "d")
        self.opened = [files.open(HERE / "open", create=True)]
        self.opened[0].append_v([b"0123456789"])
        self.lock = files.lock(HERE / "held")

    def path(self) -> Path:
        return HERE / self.rng.choice(("a", "b", "c", "d", "d/a", "d/b", "open"))

    def call(self) -> None:
        with suppress(OSError, ValueError):
            self.rng.choice(self.calls())()

    def calls(self) -> list[Callable[[], object]]:
        files, path, file = self.files, self.path(), self.rng.choice(self.opened)
        data = self.rng.randbytes(self.rng.randrange(2000))
        return [
            lambda: self.opened.append(files.open(path, create=True)),
            lambda: self.opened.append(files.open(path, write=True)),
            lambda: files.read(path),
            lambda: files.write_new(path, data),
            lambda: files.exists(path),
            lambda: files.is_directory(path),
            lambda: files.file_size(path),
            lambda: files.list(path),
            lambda: files.make_directory(path),
            lambda: files.rename(path, self.path()),
            lambda: files.remove(path, missing_ok=True),
            lambda: files.remove_tree(path),
            lambda: files.sync_directory(path),
            lambda: files.lock(path),
            lambda: files.disk_usage(path),
            lambda: file.append_v([data, b"x"]),
            lambda: file.write_at(5, data),
            lambda: file.read_at(0, 5),
            lambda: file.map_read(1),
            file.unmap,
            file.sync,
            lambda: file.truncate(0),
            lambda: file.preallocate(3000),
            lambda: file.moved(path),
            file.pin,
            file.unpin,
            file.close,
            self.lock.release,
        ]


class TestFaults:
    def test_fault_affects_paths_that_match_its_pattern(self) -> None:
        files = fresh()
        files.make_directory(HERE / "d1")
        files.make_directory(HERE / "d2")
        one = files.open(HERE / "d1" / "f", create=True)
        two = files.open(HERE / "d2" / "f", create=True)
        fault = files.disk.fail("/data/d1*")
        for use in (lambda: one.append_v([b"x"]), lambda: files.list(HERE / "d1"), one.sync):
            with pytest.raises(OSError) as caught:
                use()
            assert caught.value.errno == errno.EIO
        two.append_v([b"x"])
        files.disk.heal(fault)
        one.append_v([b"x"])

    def test_read_only_disk_rejects_changes(self) -> None:
        files = fresh()
        files.write_new(HERE / "f", b"0123")
        files.disk.make_read_only("/data*")
        file = files.open(HERE / "f", write=True)
        assert file.read_at(0, 4) == b"0123"
        for use in (
            lambda: file.append_v([b"x"]),
            lambda: files.write_new(HERE / "f", b"x"),
            lambda: files.remove(HERE / "f"),
            lambda: files.make_directory(HERE / "d"),
        ):
            with pytest.raises(OSError) as caught:
                use()
            assert caught.value.errno == errno.EROFS
        assert files.read(HERE / "f") == b"0123"

    def test_full_disk_accepts_writes_after_space_is_freed(self) -> None:
        disk = VirtualDisk()
        mount = disk.mount(Path("/small"), 1000)
        files = VirtualFiles(disk)
        file = files.open(Path("/small/f"), create=True)
        file.append_v([bytes(900)])
        with pytest.raises(OSError) as caught:
            file.append_v([bytes(200)])
        assert caught.value.errno == errno.ENOSPC
        mount.capacity_bytes = 2000
        assert file.append_v([bytes(200)]) == 900
        files.open(Path("/elsewhere"), create=True).append_v([bytes(5000)])

    def test_rename_out_of_a_mount_fails(self) -> None:
        disk = VirtualDisk()
        for name in ("/d1", "/d2"):
            disk.mount(Path(name))
        files = VirtualFiles(disk)
        files.make_directory(Path("/d1/t-0"))
        with pytest.raises(OSError) as caught:
            files.rename(Path("/d1/t-0"), Path("/d2/t-0"))
        assert caught.value.errno == errno.EXDEV

    def test_chilled_file_is_cold_until_a_blocking_read(self) -> None:
        files = fresh()
        files.write_new(HERE / "f", b"0123")
        file = files.open(HERE / "f")
        files.disk.chill("*/f")
        with pytest.raises(WouldBlock):
            file.read_at(0, 1, nowait=True)
        file.read_at(0, 1)
        assert file.read_at(0, 4, nowait=True) == b"0123"
        again = VirtualFiles(files.disk.crash(0)).open(HERE / "f")
        with pytest.raises(WouldBlock):
            again.read_at(0, 1, nowait=True)

    def test_slow_disk_is_cold_after_a_blocking_read(self) -> None:
        files = fresh()
        file = files.open(HERE / "f", create=True)
        file.append_v([b"0123"])
        files.disk.is_slow = True
        file.read_at(0, 1)
        with pytest.raises(WouldBlock):
            file.read_at(0, 1, nowait=True)
        files.disk.is_slow = False
        assert file.read_at(0, 4, nowait=True) == b"0123"


def test_unpinned_handle_of_a_removed_file_fails() -> None:
    """A real file would find the bytes as long as its descriptor is not evicted."""
    files = fresh()
    files.write_new(HERE / "f", b"0123")
    file = files.open(HERE / "f")
    files.rename(HERE / "f", HERE / "g")
    with pytest.raises(FileNotFoundError):
        file.read_at(0, 1)
    file.moved(HERE / "g")
    assert file.read_at(0, 1) == b"0"
    files.write_new(HERE / "g", b"another file")
    with pytest.raises(FileNotFoundError):
        file.read_at(0, 1)
