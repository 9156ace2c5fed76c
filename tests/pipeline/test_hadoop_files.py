"""HadoopFiles with concurrent changes by other processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JJavaError

from odradek.pipeline.errors import FilesUnavailable
from odradek.pipeline.jobs.hadoop_files import REMOVALS_MAX, HadoopFiles


class JavaException(Py4JJavaError):
    """Exception of the JVM."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
        self.java_exception = SimpleNamespace(toString=lambda: text)

    def __str__(self) -> str:
        return str(self.args[0])


class SharedDirectory:
    """Directory that exists until it was removed `asked` times. Each time before, Hadoop returns False or raises,
    also if another process has removed it.
    """

    def __init__(self, asked: int, *, raises: bool, own: bool) -> None:
        self.left, self.raises, self.own = asked, raises, own

    def delete(self, at: object, recursive: bool) -> bool:
        self.left -= 1
        if self.left == 0 and self.own:
            return True
        if self.raises:
            raise JavaException("FileNotFoundException: x")
        return False

    def exists(self, at: object) -> bool:
        return self.left > 0

    def getFileSystem(self, conf: object) -> SharedDirectory:  # noqa: N802 - Hadoop's name
        return self

    def files(self) -> HadoopFiles:
        fs = SimpleNamespace(Path=lambda path: self)
        apache = SimpleNamespace(hadoop=SimpleNamespace(fs=fs))
        context = SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
        jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
        return HadoopFiles(cast(Any, SimpleNamespace(_jvm=jvm, sparkContext=context)))


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("asked", [1, 2, REMOVALS_MAX])
def test_directory_removed_concurrently_is_no_error(asked: int, own: bool, raises: bool) -> None:
    directory = SharedDirectory(asked, raises=raises, own=own)
    directory.files().remove("d")
    assert directory.left == 0


@pytest.mark.parametrize("raises", [False, True])
def test_directory_that_still_exists_is_an_error(raises: bool) -> None:
    directory = SharedDirectory(REMOVALS_MAX + 1, raises=raises, own=True)
    with pytest.raises(FilesUnavailable, match="d could not be removed: Spark's driver needs"):
        directory.files().remove("d")
