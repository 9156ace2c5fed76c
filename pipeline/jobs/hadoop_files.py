"""Files where Spark keeps its own, whatever file system that is, as Hadoop knows it, asked by the driver: small ones to
read and write, those of tables to move and remove."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from odradek.pipeline.errors import FilesUnavailable
from odradek.seams.real_files import RealFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONLY_IF_NEW = "fs.option.create.conditional.overwrite"
"""For stores that would look first, and put then."""
REMOVALS_MAX = 5
"""Each may find what somebody has put there, or has not yet done with, since the one before."""
_LOCAL = RealFiles()
HELP = (
    "Spark's driver has to be able to read and write there (what the place needs is set by --conf"
    " spark.hadoop.NAME=VALUE, and a package for s3a:// and the like by --conf spark.jars.packages=…)"
)


class HadoopFiles:
    """Paths and URLs as Spark takes them. What Hadoop does not do is FilesUnavailable."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()

    def exists(self, path: str) -> bool:
        with _told(path, "looked at"):
            files, at = self._at(path)
            return bool(files.exists(at))

    def names(self, directory: str) -> list[str]:
        """What is in a directory; nothing where there is none."""
        with _told(directory, "listed"):
            files, at = self._at(directory)
            if not files.exists(at):
                return []
            return [entry.getPath().getName() for entry in files.listStatus(at)]

    def below(self, directory: str) -> list[str]:
        """The files in a directory and those that it has, as paths from there; without what is hidden."""
        with _told(directory, "listed"):
            files, at = self._at(directory)
            begin = len(files.makeQualified(at).toUri().getPath()) + 1
            found, entries = [], files.listFiles(at, True)
            while entries.hasNext():
                found.append(str(entries.next().getPath().toUri().getPath())[begin:])
        return [path for path in found if not any(name[0] in "_." for name in path.split("/"))]

    def read(self, path: str) -> str:
        with _told(path, "read"):
            files, at = self._at(path)
            stream = files.open(at)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write(self, path: str, text: str) -> None:
        """A new file, there as a whole or not at all. Raises OSError if it was there."""
        with _told(path, "written"):
            files, at = self._at(path)
            _, begun = self._at(f"{path}.new")
            _fill(files.create(begun, True), text)
            if files.exists(at) or not files.rename(begun, at):
                raise OSError(f"{path} could not be written: somebody else has written it")

    def create(self, path: str, text: str) -> bool:
        """A new file; False if it was there. Of several who ask at once it is one's; what it says may come
        a moment later."""
        from py4j.protocol import Py4JJavaError

        with _told(path, "written"):
            files, at = self._at(path)
            if str(files.getScheme()) == "file":  # Hadoop only looks before it creates there
                files.mkdirs(at.getParent())
                if not self._jvm.java.io.File(at.toUri().getPath()).createNewFile():
                    return False
                self.put(path, text)
                return True
            begun = files.createFile(at).overwrite(False).recursive().opt(ONLY_IF_NEW, "true")
            try:
                _fill(begun.build(), text)
            except Py4JJavaError:
                if files.exists(at):
                    return False
                raise
            return True

    def put(self, path: str, text: str) -> None:
        """In place of what was there."""
        with _told(path, "written"):
            files, at = self._at(path)
            _fill(files.create(at, True), text)

    def make(self, directory: str) -> None:
        """With those above it; no error if it is there."""
        with _told(directory, "made"):
            files, at = self._at(directory)
            if not files.mkdirs(at):
                raise FilesUnavailable(f"{directory} could not be made: {HELP}")

    def move(self, file: str, directory: str) -> bool:
        """Into a directory that is there, where nothing has its name; False if there is no such file."""
        from py4j.protocol import Py4JJavaError

        with _told(file, "moved"):
            files, at = self._at(file)
            _, to = self._at(f"{directory}/{at.getName()}")
            try:
                if files.rename(at, to):
                    return True
            except Py4JJavaError:
                if files.exists(at):
                    raise
            if files.exists(at):
                raise FilesUnavailable(f"{file} could not be moved to {directory}: {HELP}")
            return False

    def remove(self, path: str) -> None:
        """A file, or a directory with all that is in it; no error if there is none. Others may write and remove there
        at the same time: what was there when this was called is gone in any case."""
        from py4j.protocol import Py4JJavaError

        with _told(path, "removed"):
            files, at = self._at(path)
            for tries_left in reversed(range(REMOVALS_MAX)):
                try:
                    if files.delete(at, True) or not files.exists(at):
                        return
                except Py4JJavaError:
                    if not files.exists(at):
                        return
                    if not tries_left:
                        raise
            raise FilesUnavailable(f"{path} could not be removed: {HELP}")

    def sync(self, path: str) -> None:
        """What is in the file, or which files are in the directory, is on the disk; nothing where there is neither.
        On this machine's own file system: what another one makes of a file that was closed is its own affair, and
        Hadoop has no word for directories."""
        local = self.local(path)
        if local is None:
            return
        at = PurePosixPath(local)
        try:
            if _LOCAL.is_directory(at):
                _LOCAL.sync_directory(at)
            else:
                sync_file(at)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FilesUnavailable(f"{path} could not be written to the disk: {error}") from error

    def settings(self, prefix: str) -> dict[str, str]:
        """Of Hadoop's configuration, what begins so."""
        return {
            f"{prefix}{name}": str(value)
            for name, value in dict(self._conf.getPropsWithPrefix(prefix)).items()
        }

    def local(self, path: str) -> str | None:
        """What it is on this machine's own file system; None on another."""
        with _told(path, "looked at"):
            files, at = self._at(path)
            is_local = str(files.getScheme()) == "file"
            return str(files.makeQualified(at).toUri().getPath()) if is_local else None

    def _at(self, path: str) -> tuple[Any, Any]:
        at = self._jvm.org.apache.hadoop.fs.Path(path)
        return at.getFileSystem(self._conf), at


def sync_file(path: PurePosixPath) -> None:
    """What is in it is on the disk of this machine. Raises OSError."""
    file = _LOCAL.open(path)
    try:
        file.sync()
    finally:
        file.close()


@contextmanager
def _told(path: str, done: str) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        said = str(error.java_exception.toString()).partition("\n")[0]
        raise FilesUnavailable(
            f"{path} could not be {done}: {HELP}; Hadoop said: {said}"
        ) from error


def _fill(stream: Any, text: str) -> None:
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
