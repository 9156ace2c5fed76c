"""Contract of `Files` and `File`, for real and virtual files."""

from __future__ import annotations

import errno

import pytest

from odradek.seams.files import File, Files, FileSlice, Path


def written(files: Files, path: Path, data: bytes = b"0123456789") -> File:
    file = files.open(path, create=True)
    file.append_v([data])
    return file


class TestOpening:
    def test_new_file_is_empty_and_writable(self, files: Files, directory: Path) -> None:
        file = files.open(directory / "new", create=True)
        assert (file.size, file.path, file.pins) == (0, directory / "new", 0)
        assert file.append_v([b"abc"]) == 0
        assert files.read(directory / "new") == b"abc"

    def test_create_of_existing_file_fails(self, files: Files, directory: Path) -> None:
        written(files, directory / "f")
        with pytest.raises(FileExistsError):
            files.open(directory / "f", create=True)
        assert files.read(directory / "f") == b"0123456789"

    def test_open_of_missing_file_fails(self, files: Files, directory: Path) -> None:
        with pytest.raises(FileNotFoundError):
            files.open(directory / "none")
        with pytest.raises(FileNotFoundError):
            files.open(directory / "none" / "file", create=True)

    def test_open_of_directory_fails(self, files: Files, directory: Path) -> None:
        with pytest.raises(IsADirectoryError):
            files.open(directory)

    def test_read_of_directory_names_it_in_the_error(self, files: Files, directory: Path) -> None:
        with pytest.raises(IsADirectoryError) as caught:
            files.read(directory)
        assert caught.value.filename == str(directory)

    def test_reopened_file_has_its_size(self, files: Files, directory: Path) -> None:
        written(files, directory / "f")
        again = files.open(directory / "f", write=True)
        assert again.size == 10
        assert again.append_v([b"more"]) == 10
        assert files.read(directory / "f") == b"0123456789more"

    def test_read_only_file_cannot_be_written(self, files: Files, directory: Path) -> None:
        written(files, directory / "f")
        file = files.open(directory / "f")
        with pytest.raises(OSError) as caught:
            file.append_v([b"x"])
        assert caught.value.errno == errno.EBADF

    def test_closed_file_cannot_be_used(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        file.close()
        file.close()
        for use in (lambda: file.read_at(0, 1), lambda: file.append_v([b"x"]), file.pin):
            with pytest.raises(ValueError):
                use()
        assert file.size == 10


class TestWriting:
    def test_append_keeps_the_order_of_parts(self, files: Files, directory: Path) -> None:
        file = files.open(directory / "f", create=True)
        assert file.append_v([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""]) == 0
        assert file.append_v([b"gh"]) == 6
        assert file.append_v([]) == 8
        assert file.read_at(0, 100) == b"abcdefgh"
        assert file.size == 8

    def test_append_of_more_parts_than_one_system_call_takes(
        self, files: Files, directory: Path
    ) -> None:
        file = files.open(directory / "f", create=True)
        parts = [b"%05d" % n for n in range(5000)]
        file.append_v(parts)
        assert file.size == 25_000
        assert file.read_at(0, 25_000) == b"".join(parts)

    @pytest.mark.parametrize("more_bytes", [0, 1])
    def test_append_of_large_buffer(self, files: Files, directory: Path, more_bytes: int) -> None:
        file = written(files, directory / "f")
        data = bytes(range(256)) * 1024 + b"!" * more_bytes
        assert file.append_v([data]) == 10
        assert file.size == 10 + len(data)
        assert file.read_at(10, 2 * len(data)) == data

    def test_write_in_place_and_past_the_end(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        file.write_at(2, b"xx")
        assert file.size == 10
        file.write_at(12, memoryview(b"end"))
        assert file.size == 15
        assert file.read_at(0, 20) == b"01xx456789\0\0end"

    def test_write_out_keeps_the_file_usable(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        file.write_out(2, 4, wait=False)
        file.write_out(0, 10, wait=True)
        assert file.append_v([b"more"]) == 10
        file.close()
        with pytest.raises(ValueError):
            file.write_out(0, 10, wait=True)

    def test_append_of_slice_of_another_file(self, files: Files, directory: Path) -> None:
        source, target = written(files, directory / "f"), written(files, directory / "g", b"ab")
        assert target.append_slice(FileSlice(source, 3, 5)) == 5
        assert (target.size, files.read(directory / "g")) == (7, b"ab34567")
        assert target.append_slice(FileSlice(source, 8, 5)) == 2, "the source ends"
        assert target.append_slice(FileSlice(source, 10, 5)) == 0
        assert target.append_v([b"!"]) == 9
        assert files.read(directory / "g") == b"ab3456789!"
        assert files.read(directory / "f") == b"0123456789"

    def test_append_of_slice_of_removed_file(self, files: Files, directory: Path) -> None:
        source, target = written(files, directory / "f"), written(files, directory / "g", b"")
        source.pin()
        files.remove(directory / "f")
        assert target.append_slice(FileSlice(source, 0, 10)) == 10
        source.unpin()
        assert files.read(directory / "g") == b"0123456789"

    def test_append_after_truncation_continues_at_the_new_end(
        self, files: Files, directory: Path
    ) -> None:
        file = written(files, directory / "f")
        file.truncate(4)
        assert (file.size, files.file_size(directory / "f")) == (4, 4)
        assert file.append_v([b"x"]) == 4
        assert file.read_at(0, 9) == b"0123x"

    def test_truncate_does_not_grow_the_file(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        with pytest.raises(ValueError):
            file.truncate(11)
        file.truncate(10)
        assert file.size == 10

    def test_preallocated_bytes_are_zeros(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        file.preallocate(5000)
        assert (file.size, files.file_size(directory / "f")) == (5000, 5000)
        assert file.read_at(0, 9999) == b"0123456789" + bytes(4990)
        file.preallocate(100)
        assert file.size == 5000

    def test_sync(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        file.sync()
        files.open(directory / "f").sync()
        files.sync_directory(directory)


class TestReading:
    def test_read_is_short_only_at_the_end(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        assert file.read_at(3, 4) == b"3456"
        assert file.read_at(8, 100) == b"89"
        assert file.read_at(10, 1) == b""
        assert file.read_at(99, 1) == b""
        assert file.read_at(0, 0) == b""

    def test_written_bytes_are_in_memory(self, files: Files, directory: Path) -> None:
        big = bytes(range(256)) * 4096
        file = written(files, directory / "f", big)
        assert file.read_at(0, len(big), nowait=True) == big
        assert file.read_at(len(big) - 3, 9, nowait=True) == big[-3:]
        assert file.read_at(len(big), 9, nowait=True) == b""
        assert file.is_in_memory(0, len(big))
        assert file.is_in_memory(5, 1)

    def test_mapping_has_the_requested_size(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        assert bytes(file.map_read(4)) == b"0123"
        assert bytes(file.map_read(10)) == b"0123456789"
        assert len(file.map_read(0)) == 0
        assert file.map_read(4).readonly
        with pytest.raises(ValueError):
            file.map_read(11)

    def test_mapping_shows_later_writes(self, files: Files, directory: Path) -> None:
        file = files.open(directory / "f", create=True)
        file.preallocate(4096)
        assert bytes(file.map_read(8)) == bytes(8)
        file.write_at(0, b"entry")
        assert bytes(file.map_read(5)) == b"entry"

    def test_mapping_grows_with_the_file(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        assert bytes(file.map_read(10)) == b"0123456789"
        file.append_v([b"x" * 10_000])
        assert bytes(file.map_read(10_010)) == b"0123456789" + b"x" * 10_000

    def test_truncate_drops_the_mapping(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f", bytes(10_000))
        assert len(file.map_read(10_000)) == 10_000
        file.truncate(1)
        with pytest.raises(ValueError):
            file.map_read(2)
        file.append_v([b"new"])
        assert bytes(file.map_read(4)) == b"\0new"

    def test_truncate_fails_while_a_view_is_held(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f", bytes(10_000))
        view = file.map_read(10_000)
        with pytest.raises(BufferError):
            file.truncate(1)
        with pytest.raises(BufferError):
            file.unmap()
        assert view[9_999] == 0
        del view
        file.unmap()
        file.unmap()
        file.truncate(1)


class TestPins:
    def test_pinned_bytes_survive_close_and_removal(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        file.pin()
        file.pin()
        assert file.pins == 2
        file.close()
        files.remove(directory / "f")
        assert not files.exists(directory / "f")
        assert file.read_at(0, 10) == b"0123456789"
        file.unpin()
        assert file.read_at(0, 2) == b"01"
        file.unpin()
        assert file.pins == 0
        with pytest.raises(ValueError):
            file.read_at(0, 1)

    def test_pinned_bytes_survive_removal_of_the_tree(self, files: Files, directory: Path) -> None:
        files.make_directory(directory / "t-0" / "deep")
        file = written(files, directory / "t-0" / "deep" / "f")
        file.pin()
        files.remove_tree(directory / "t-0")
        assert file.read_at(0, 10) == b"0123456789"
        file.unpin()
        file.close()

    def test_pinned_bytes_survive_rename_onto_the_file(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        written(files, directory / "g", b"other")
        file.pin()
        files.rename(directory / "g", directory / "f")
        assert file.read_at(0, 10) == b"0123456789"
        assert files.read(directory / "f") == b"other"
        file.unpin()
        file.close()

    def test_pinned_closed_file_is_followed_through_a_rename(
        self, files: Files, directory: Path
    ) -> None:
        """The partition is closed and its directory renamed to `-delete` while a response is being sent."""
        files.make_directory(directory / "t-0")
        file = written(files, directory / "t-0" / "f")
        file.pin()
        file.close()
        files.rename(directory / "t-0", directory / "t-0.x-delete")
        assert file.read_at(0, 10) == b"0123456789"
        files.remove_tree(directory / "t-0.x-delete")
        assert file.read_at(0, 10) == b"0123456789"
        file.unpin()

    def test_unpin_without_pin_fails(self, files: Files, directory: Path) -> None:
        file = written(files, directory / "f")
        with pytest.raises(ValueError):
            file.unpin()


class TestNames:
    def test_list_and_exists_of_existing_entries(self, files: Files, directory: Path) -> None:
        written(files, directory / "b")
        written(files, directory / "a")
        files.make_directory(directory / "c" / "d")
        files.make_directory(directory / "c" / "d")
        assert files.list(directory) == ["a", "b", "c"]
        assert files.exists(directory / "a")
        assert files.exists(directory / "c")
        assert not files.exists(directory / "x" / "y")
        assert files.is_directory(directory / "c" / "d")
        assert not files.is_directory(directory / "a")
        assert not files.is_directory(directory / "x")
        assert files.file_size(directory / "a") == 10

    def test_missing_entries_raise_file_not_found(self, files: Files, directory: Path) -> None:
        nothing = directory / "nothing"
        for use in (files.read, files.list, files.file_size, files.remove, files.remove_tree):
            with pytest.raises(FileNotFoundError):
                use(nothing)
        with pytest.raises(FileNotFoundError):
            files.rename(nothing, directory / "x")
        with pytest.raises(FileNotFoundError):
            files.sync_directory(nothing)
        files.remove(nothing, missing_ok=True)

    def test_path_below_a_file_raises_not_a_directory(self, files: Files, directory: Path) -> None:
        """A log directory that was replaced by a file has failed (E22)."""
        written(files, directory / "f")
        for use in (files.exists, files.is_directory, files.read, files.remove, files.list):
            with pytest.raises(NotADirectoryError):
                use(directory / "f" / "below")
        with pytest.raises(NotADirectoryError):
            files.make_directory(directory / "f" / "below")
        with pytest.raises(FileExistsError):
            files.make_directory(directory / "f")

    def test_rename_replaces_a_file(self, files: Files, directory: Path) -> None:
        written(files, directory / "old", b"old")
        written(files, directory / "new", b"new")
        files.rename(directory / "new", directory / "old")
        assert files.list(directory) == ["old"]
        assert files.read(directory / "old") == b"new"

    def test_rename_between_file_and_directory_fails(self, files: Files, directory: Path) -> None:
        written(files, directory / "f")
        files.make_directory(directory / "d" / "inside")
        files.make_directory(directory / "e")
        with pytest.raises(IsADirectoryError):
            files.rename(directory / "f", directory / "d")
        with pytest.raises(NotADirectoryError):
            files.rename(directory / "d", directory / "f")
        with pytest.raises(OSError) as caught:
            files.rename(directory / "e", directory / "d")
        assert caught.value.errno == errno.ENOTEMPTY

    def test_open_files_follow_the_rename_of_their_directory(
        self, files: Files, directory: Path
    ) -> None:
        files.make_directory(directory / "t-0.move")
        file = written(files, directory / "t-0.move" / "f")
        files.rename(directory / "t-0.move", directory / "t-0")
        file.moved(directory / "t-0" / "f")
        assert file.path == directory / "t-0" / "f"
        assert file.append_v([b"!"]) == 10
        assert bytes(file.map_read(11)) == b"0123456789!"
        file.sync()

    def test_remove_deletes_files_and_directories(self, files: Files, directory: Path) -> None:
        written(files, directory / "f")
        files.make_directory(directory / "d")
        files.remove(directory / "f")
        with pytest.raises(IsADirectoryError):
            files.remove(directory / "d")
        assert files.list(directory) == ["d"]
        files.remove_tree(directory / "d")
        assert files.list(directory) == []

    def test_write_new_replaces_the_file_without_leftovers(
        self, files: Files, directory: Path
    ) -> None:
        written(files, directory / "c.tmp", b"of a crash")
        files.write_new(directory / "c", b"one")
        files.write_new(directory / "c", b"two")
        assert files.read(directory / "c") == b"two"
        assert files.list(directory) == ["c"]

    def test_file_has_one_lock(self, files: Files, directory: Path) -> None:
        lock = files.lock(directory / ".lock")
        with pytest.raises(BlockingIOError):
            files.lock(directory / ".lock")
        other = files.lock(directory / "other")
        lock.release()
        lock.release()
        again = files.lock(directory / ".lock")
        again.release()
        other.release()
        assert files.exists(directory / ".lock")

    def test_lock_check_fails_if_its_file_is_gone(self, files: Files, directory: Path) -> None:
        files.make_directory(directory / "d")
        lock = files.lock(directory / "d" / ".lock")
        lock.check()
        files.rename(directory / "d", directory / "away")
        with pytest.raises(FileNotFoundError):
            lock.check()
        written(files, directory / "d", b"a file where the directory was")
        with pytest.raises(NotADirectoryError):
            lock.check()
        files.remove(directory / "d")
        files.make_directory(directory / "d")
        written(files, directory / "d" / ".lock", b"of another file system, it may be")
        with pytest.raises(OSError, match=r"another file|[Ss]tale"):
            lock.check()
        lock.release()

    def test_disk_usage_of_directory(self, files: Files, directory: Path) -> None:
        usage = files.disk_usage(directory)
        assert 0 < usage.free_bytes <= usage.total_bytes
        with pytest.raises(FileNotFoundError):
            files.disk_usage(directory / "nothing")
