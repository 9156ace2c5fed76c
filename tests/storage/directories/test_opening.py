"""Opening the log directories of a node, on real files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path as RealPath

import pytest

from odradek.protocol.topics import TopicPartition
from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import Path
from odradek.seams.real_files import RealFiles
from odradek.storage.directories import meta_properties
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.formatting import format_like
from odradek.storage.directories.opening import LogDirectories, open_directories
from odradek.storage.errors import (
    DirectoryInUse,
    NoDirectory,
    NotFormatted,
    WrongDirectory,
)


def opened(*paths: RealPath, seed: int = 1, **more: object) -> LogDirectories:
    return open_directories(
        RealFiles(),
        SeededEntropy(random.Random(seed)),
        [Path(path) for path in paths],
        **{"node_id": 1, **more},  # type: ignore[arg-type]
    )


def test_first_start_creates_and_formats_directories(tmp_path: RealPath) -> None:
    directories = opened(tmp_path / "deep" / "a", tmp_path / "b")
    for directory in directories.all:
        text = meta_properties.parse((RealPath(directory.path) / "meta.properties").read_bytes())
        assert (text.version, text.node_id) == (1, 1)
        assert text.cluster_id == directories.cluster_id
        assert text.directory_id == directory.id
    assert directories.all[0].id != directories.all[1].id
    assert directories.metadata is directories.all[0]
    directories.close()


def test_next_start_reads_same_identity(tmp_path: RealPath) -> None:
    first = opened(tmp_path / "a", tmp_path / "b")
    first.close()
    second = opened(tmp_path / "b", tmp_path / "a", tmp_path / "c")
    assert second.cluster_id == first.cluster_id
    assert second.all[1].id == first.all[0].id
    assert len({directory.id for directory in second.all}) == 3
    second.close()


def test_node_of_a_cluster_does_not_generate_cluster_id(tmp_path: RealPath) -> None:
    with pytest.raises(NotFormatted, match="odradek storage format"):
        opened(tmp_path / "a", tmp_path / "b", may_format=False)
    assert not (tmp_path / "a" / "meta.properties").exists()
    first = opened(tmp_path / "a")
    first.close()
    second = opened(tmp_path / "a", tmp_path / "b", may_format=False)
    assert second.cluster_id == first.cluster_id
    second.close()


def test_node_with_metadata_log_formats_no_directory(tmp_path: RealPath) -> None:
    """An unmounted disk is an empty directory: it is offline, and nothing is written to it."""
    first = opened(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a" / "__cluster_metadata-0").mkdir()
    first.close()
    directories = opened(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert [directory.failed for directory in directories.all] == [False, False, True]
    assert "odradek log-dirs format" in str(directories.all[2].failure)
    assert not (tmp_path / "c" / "meta.properties").exists()
    made = format_like(
        RealFiles(), SeededEntropy(random.Random(3)), Path(tmp_path / "c"), Path(tmp_path / "a")
    )
    directories.close()
    again = opened(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert not any(directory.failed for directory in again.all)
    assert again.all[2].id == made.directory_id
    assert again.cluster_id == first.cluster_id == made.cluster_id
    again.close()


def test_format_like_refuses_directories_with_an_owner(tmp_path: RealPath) -> None:
    a, b, c = (Path(tmp_path / name) for name in "abc")
    opened(tmp_path / "a").close()

    def format(new: Path, like: Path) -> None:
        format_like(RealFiles(), SeededEntropy(random.Random(3)), new, like)

    with pytest.raises(WrongDirectory, match="the log directory is not formatted"):
        format(b, c)
    with pytest.raises(WrongDirectory, match="already formatted"):
        format(a, a)
    (tmp_path / "b" / "__cluster_metadata-0").mkdir(parents=True)
    with pytest.raises(WrongDirectory, match="contains __cluster_metadata-0"):
        format(b, a)
    (tmp_path / "a" / "meta.properties").write_text("version=7")
    with pytest.raises(WrongDirectory, match="unrecognized version 7"):
        format(c, a)
    assert not (tmp_path / "c").exists()


def test_second_broker_on_a_directory_is_refused_and_releases_locks(
    tmp_path: RealPath,
) -> None:
    first = opened(tmp_path / "a")
    with pytest.raises(
        DirectoryInUse, match=r"lock of log directory .*/a: another broker is using it.*--log-dirs"
    ):
        opened(tmp_path / "b", tmp_path / "a")
    opened(tmp_path / "b").close()
    first.close()
    opened(tmp_path / "a").close()


def test_directory_of_another_node_is_refused(tmp_path: RealPath) -> None:
    opened(tmp_path / "a").close()
    with pytest.raises(
        WrongDirectory,
        match=r"has node\.id=1 in its meta\.properties, but this node has node\.id=2",
    ):
        opened(tmp_path / "a", node_id=2)
    with pytest.raises(WrongDirectory, match=r"has cluster\.id="):
        opened(tmp_path / "a", cluster_id="another")
    opened(tmp_path / "a").close()  # the refused starts released the lock


def test_unusable_directory_is_offline_and_others_are_online(tmp_path: RealPath) -> None:
    (tmp_path / "b").write_text("a file where a directory should be")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "meta.properties").write_text("version=7\n")
    directories = opened(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert [directory.failed for directory in directories.all] == [False, True, True]
    assert [str(each.path) for each in directories.live] == [str(tmp_path / "a")]
    assert "unrecognized version 7" in str(directories.all[2].failure)
    directories.close()


def test_incomplete_meta_properties_is_completed_and_logged(
    tmp_path: RealPath, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path / "a", tmp_path / "b").close()
    assert "incomplete" not in caplog.text
    (tmp_path / "b" / "meta.properties").write_bytes(b"\x00garbage")
    directories = opened(tmp_path / "a", tmp_path / "b")
    assert f"{tmp_path / 'b'}: rewriting incomplete meta.properties" in caplog.text
    directories.close()


def test_directory_of_another_cluster_or_duplicate_id_is_offline(
    tmp_path: RealPath, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path / "a", tmp_path / "b").close()
    opened(tmp_path / "theirs", cluster_id="theirs", seed=2).close()
    shutil.copytree(tmp_path / "b", tmp_path / "copy")
    before = (tmp_path / "theirs" / "meta.properties").read_bytes()
    directories = opened(*(tmp_path / name for name in ("a", "b", "copy", "theirs")))
    assert [directory.failed for directory in directories.all] == [False, True, True, True]
    assert "in its meta.properties, but this cluster has cluster.id=" in caplog.text
    assert "have the same directory.id" in caplog.text
    opened(tmp_path / "theirs", cluster_id="theirs").close()  # its owner may use it
    assert (tmp_path / "theirs" / "meta.properties").read_bytes() == before
    directories.close()


def test_node_without_metadata_directory_does_not_start(tmp_path: RealPath) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(NoDirectory, match="metadata directory"):
        opened(tmp_path / "a", tmp_path / "b")
    with pytest.raises(NoDirectory, match="no log directory can be used"):
        opened(tmp_path / "a", metadata_path=Path(tmp_path / "b"))
    with pytest.raises(NoDirectory, match=r"set log\.dirs"):
        opened()
    with pytest.raises(WrongDirectory, match="duplicate directories"):
        opened(tmp_path / "b", tmp_path / "b")


def test_reordered_log_dirs_with_other_metadata_directory_are_refused(
    tmp_path: RealPath,
) -> None:
    """Once started with an empty metadata log, a node would set every partition aside."""
    opened(tmp_path / "a", tmp_path / "b").close()
    (tmp_path / "a" / "__cluster_metadata-0").mkdir()
    with pytest.raises(WrongDirectory, match=r"set metadata\.log\.dir=.*/a, or make it the first"):
        opened(tmp_path / "b", tmp_path / "a")
    opened(tmp_path / "b", tmp_path / "a", metadata_path=Path(tmp_path / "a")).close()
    opened(tmp_path / "a", tmp_path / "b").close()
    (tmp_path / "b" / "__cluster_metadata-0").mkdir()  # both are offline: either may be the copy
    with pytest.raises(WrongDirectory, match="contains __cluster_metadata-0"):
        opened(tmp_path / "a", tmp_path / "b")


def test_separate_metadata_directory_is_not_a_log_directory(tmp_path: RealPath) -> None:
    directories = opened(tmp_path / "a", metadata_path=Path(tmp_path / "meta"))
    assert [directory.path.name for directory in directories.all] == ["a"]
    assert directories.metadata.path.name == "meta"
    assert len(directories.every) == 2
    directories.close()
    holder = opened(tmp_path / "meta")
    with pytest.raises(DirectoryInUse):
        opened(tmp_path / "a", metadata_path=Path(tmp_path / "meta"))
    holder.close()


def test_partitions_are_found_by_directory_names(tmp_path: RealPath) -> None:
    directories = opened(tmp_path / "a", tmp_path / "b")
    for name in ("__cluster_metadata-0", "lost+found", "t-0.delete", f"t-0.{'0' * 32}-stray"):
        (tmp_path / "b" / name).mkdir()
    (tmp_path / "b" / "a_file-0").touch()
    assert directories.partitions_are_in() is None
    (tmp_path / "b" / "t-0").mkdir()
    assert directories.partitions_are_in() == Path(tmp_path / "b")
    directories.all[1].fail(OSError("gone"))
    assert directories.partitions_are_in() is None
    directories.close()


def test_clean_shutdown_file_is_removed_when_read(tmp_path: RealPath) -> None:
    directories = opened(tmp_path / "a")
    directory = directories.all[0]
    assert directory.remove_clean_shutdown_file() is None
    directory.write_clean_shutdown_file(5)
    mark = directory.remove_clean_shutdown_file()
    assert mark is not None
    assert mark.broker_epoch == 5
    assert directory.remove_clean_shutdown_file() is None
    directories.close()


def test_corrupt_checkpoint_is_treated_as_missing(
    tmp_path: RealPath, caplog: pytest.LogCaptureFixture
) -> None:
    directories = opened(tmp_path / "a")
    directory = directories.all[0]
    kind = Checkpoint.RECOVERY_POINT
    assert directory.read_checkpoint(kind) == {}
    directory.write_checkpoint(kind, {TopicPartition("t", 0): 9})
    assert directory.read_checkpoint(kind) == {TopicPartition("t", 0): 9}
    (tmp_path / "a" / kind.value).write_text("0\n2\nt 0 9\n")
    assert directory.read_checkpoint(kind) == {}
    assert "recovery-point-offset-checkpoint: line 2: expected 2 entries" in caplog.text
    directories.close()


@pytest.mark.parametrize("left", [None, "", "meta"])
def test_metadata_log_without_meta_properties_is_not_formatted(
    tmp_path: RealPath, left: str | None
) -> None:
    opened(tmp_path / "a").close()
    (tmp_path / "a" / "__cluster_metadata-0").mkdir()
    written = tmp_path / "a" / "meta.properties"
    written.unlink()
    if left is not None:
        written.write_text(left)
    with pytest.raises(WrongDirectory, match="missing or damaged"):
        opened(tmp_path / "a")
    assert (written.read_text() if written.exists() else None) == left
