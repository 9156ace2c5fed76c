"""An object store in a directory: its mark lets a node recognize it, also after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path as OsPath

import pytest

from odradek.seams.object_store import open_objects
from odradek.seams.objects import Objects, ObjectsUnavailable
from odradek.seams.store_directory import MARKER_FILE, declare_replacement


class Store:
    """A store's directory, and two nodes that open it; each remembers the mark in a file of its own."""

    def __init__(self, tmp_path: OsPath) -> None:
        self.root = tmp_path / "mounted" / "store"
        self.elsewhere = tmp_path / "elsewhere"
        self._tmp_path = tmp_path

    def identity_file(self, node: int = 1) -> OsPath:
        return self._tmp_path / f"memory-{node}"

    def opened(self, node: int = 1) -> Objects:
        return open_objects(f"file://{self.root}", identity_file=str(self.identity_file(node)))

    def unmount(self) -> None:
        self.root.rename(self.elsewhere)

    def mount(self) -> None:
        if self.root.exists():
            self.root.rmdir()
        self.elsewhere.rename(self.root)


@pytest.fixture
def store(tmp_path: OsPath) -> Store:
    return Store(tmp_path)


def is_away(objects: Objects) -> bool:
    uses: list[Callable[[], object]] = [
        lambda: objects.put("new", [b"x"]),
        lambda: objects.get("k"),
        lambda: objects.head("k"),
        lambda: objects.delete("k"),
        lambda: objects.list(""),
    ]
    for use in uses:
        with pytest.raises(ObjectsUnavailable, match="mount it again"):
            use()
    return True


@pytest.mark.parametrize("is_there", [False, True])
def test_restarted_node_rejects_directory_of_unmounted_store(store: Store, is_there: bool) -> None:
    store.opened().put("k", [b"kept"])
    store.unmount()
    if is_there:
        store.root.mkdir()  # the mount point, or a directory of another process
    objects = store.opened()
    assert is_away(objects)
    assert [*store.root.parent.rglob("*")] == ([store.root] if is_there else [])
    store.mount()
    assert bytes(objects.get("k")) == b"kept"
    objects.put("new", [b"x"])
    assert sorted(info.key for info in objects.list("")) == ["k", "new"]


def test_remounted_store_is_recognized(store: Store) -> None:
    """A new mount may have another device number, and a copy other inodes."""
    objects = store.opened()
    objects.put("k", [b"kept"])
    store.unmount()
    store.root.mkdir()
    for path in store.elsewhere.iterdir():
        (store.root / path.name).write_bytes(path.read_bytes())
    assert bytes(objects.get("k")) == b"kept"
    assert bytes(store.opened().get("k")) == b"kept"


def test_nodes_share_the_mark_of_the_store(store: Store) -> None:
    one, two = store.opened(1), store.opened(2)
    one.put("k", [b"x"])
    assert bytes(two.get("k")) == b"x"
    mark = (store.root / MARKER_FILE).read_bytes()
    store.unmount()
    assert is_away(store.opened(1))
    assert is_away(store.opened(2))
    store.mount()
    assert (store.root / MARKER_FILE).read_bytes() == mark


def test_other_store_in_the_same_directory_is_rejected(store: Store) -> None:
    store.opened(1).put("k", [b"x"])
    store.unmount()
    store.opened(2).put("k", [b"y"])
    assert is_away(store.opened(1))


def test_node_without_objects_accepts_store_mounted_later(store: Store) -> None:
    """A new node that only reads while the store is unmounted puts no mark into the mount point."""
    store.opened(1).put("k", [b"kept"])
    store.unmount()
    for objects in (store.opened(2), store.opened(2)):
        assert objects.list("") == []
    assert [*store.root.iterdir()] == []
    store.mount()
    assert bytes(objects.get("k")) == b"kept"
    store.unmount()
    assert is_away(store.opened(2))


@pytest.mark.parametrize("is_begun", [False, True])
def test_operator_can_replace_a_lost_store(
    store: Store, caplog: pytest.LogCaptureFixture, is_begun: bool
) -> None:
    """Running nodes and nodes that start later accept the new directory, and only this one."""
    nodes = [store.opened(1), store.opened(2)]
    nodes[0].put("k", [b"x"])
    assert nodes[1].list("")
    store.unmount()
    with pytest.raises(ObjectsUnavailable, match=f"give-up --url file://{store.root}"):
        nodes[0].list("")
    if is_begun:  # by a node that has never used the lost store
        nodes.append(store.opened(3))
        nodes[2].put("new", [b"z"])
        assert is_away(nodes[0])
    declare_replacement(store.root)
    for node in nodes:
        assert "k" not in [info.key for info in node.list("")]
        node.put("again", [b"y"])
    declare_replacement(store.root)
    for objects in (store.opened(1), store.opened(4)):
        assert bytes(objects.get("again")) == b"y"
    assert sum("in place of one that was given up" in each for each in caplog.messages) == 2
    store.root.rename(store.root.with_name("second"))
    store.mount()
    assert is_away(store.opened(1)), "the one that was given up"


def test_changed_store_url_is_accepted_and_logged(
    store: Store, tmp_path: OsPath, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong directory or bucket would not have the copied segments."""
    store.opened()
    places = [f"file://{tmp_path}/other", "memory:///b", "memory:///b", f"file://{store.root}"]
    for place in places:
        assert open_objects(place, identity_file=str(store.identity_file())).list("") == []
    assert [each.args for each in caplog.records] == [
        (str(store.root), f"{tmp_path}/other"),
        (f"{tmp_path}/other", "memory:///b"),
        ("memory:///b", str(store.root)),
    ]


def test_moved_store_is_accepted_without_log_message(
    store: Store, tmp_path: OsPath, caplog: pytest.LogCaptureFixture
) -> None:
    store.opened().put("k", [b"kept"])
    store.unmount()
    moved = open_objects(f"file://{store.elsewhere}", identity_file=str(store.identity_file()))
    assert bytes(moved.get("k")) == b"kept"
    assert caplog.records == []


def test_mark_is_not_listed_as_an_object(store: Store) -> None:
    objects = store.opened()
    objects.put("t-0/a", [b"x"])
    assert [info.key for info in objects.list("")] == ["t-0/a"]


def test_error_names_directory_that_cannot_be_created(tmp_path: OsPath) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=f"the directory {tmp_path}/file/store cannot be created"):
        open_objects(f"file://{tmp_path}/file/store")
