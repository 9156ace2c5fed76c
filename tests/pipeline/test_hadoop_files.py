"""What Hadoop's files are asked to do is done, also where somebody else has files there at the same time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JJavaError

from odradek.pipeline.errors import FilesUnavailable
from odradek.pipeline.jobs.hadoop_files import REMOVALS_MAX, HadoopFiles


class Told(Py4JJavaError):
    """By the JVM."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
        self.java_exception = SimpleNamespace(toString=lambda: text)

    def __str__(self) -> str:
        return str(self.args[0])


class Directory:
    """One that is there until it has been removed `asked` times; each time before, Hadoop says that it was not, or
    raises. It may be somebody else who has removed it in the end."""

    def __init__(self, asked: int, *, raises: bool, ours: bool) -> None:
        self.left, self.raises, self.ours = asked, raises, ours

    def delete(self, at: object, recursive: bool) -> bool:
        self.left -= 1
        if self.left == 0 and self.ours:
            return True
        if self.raises:
            raise Told("FileNotFoundException: x")
        return False

    def exists(self, at: object) -> bool:
        return self.left > 0

    def getFileSystem(self, conf: object) -> Directory:  # noqa: N802 - Hadoop's name
        return self

    def files(self) -> HadoopFiles:
        fs = SimpleNamespace(Path=lambda path: self)
        apache = SimpleNamespace(hadoop=SimpleNamespace(fs=fs))
        context = SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
        jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
        return HadoopFiles(cast(Any, SimpleNamespace(_jvm=jvm, sparkContext=context)))


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("asked", [1, 2, REMOVALS_MAX])
def test_what_somebody_else_removes_at_the_same_time_is_gone(
    asked: int, ours: bool, raises: bool
) -> None:
    directory = Directory(asked, raises=raises, ours=ours)
    directory.files().remove("d")
    assert directory.left == 0


@pytest.mark.parametrize("raises", [False, True])
def test_what_is_there_still_is_an_error(raises: bool) -> None:
    directory = Directory(REMOVALS_MAX + 1, raises=raises, ours=True)
    with pytest.raises(FilesUnavailable, match="d could not be removed: Spark's driver needs"):
        directory.files().remove("d")
