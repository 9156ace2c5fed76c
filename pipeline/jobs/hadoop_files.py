"""Files of the driver in Spark's file systems, by Hadoop's API: small files to read and write, and tables' files to
move and remove.
"""

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
"""Hadoop option for stores that would otherwise check for the object first and then put it."""
REMOVALS_MAX = 5
"""Maximum number of attempts, since others may create or remove files in the directory meanwhile."""
_LOCAL = RealFiles()
HELP = (
    "Spark's driver needs read and write access to it (set the options of its file system"
    " with --conf spark.hadoop.NAME=VALUE, and add the package of a file system such as"
    " s3a:// with --conf spark.jars.packages=…)"
)


class HadoopFiles:
    """Operations on paths and URLs as Spark accepts them. Errors of Hadoop are raised as FilesUnavailable."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()

    def exists(self, path: str) -> bool:
        with _translate_hadoop_errors(path, "checked"):
            files, at = self._at(path)
            return bool(files.exists(at))

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""
        with _translate_hadoop_errors(directory, "listed"):
            files, at = self._at(directory)
            if not files.exists(at):
                return []
            return [entry.getPath().getName() for entry in files.listStatus(at)]

    def below(self, directory: str) -> list[str]:
        """Return all files below a directory as relative paths, without hidden ones."""
        with _translate_hadoop_errors(directory, "listed"):
            files, at = self._at(directory)
            begin = len(files.makeQualified(at).toUri().getPath()) + 1
            found, entries = [], files.listFiles(at, True)
            while entries.hasNext():
                found.append(str(entries.next().getPath().toUri().getPath())[begin:])
        return [path for path in found if not any(name[0] in "_." for name in path.split("/"))]

    def read(self, path: str) -> str:
        with _translate_hadoop_errors(path, "read"):
            files, at = self._at(path)
            stream = files.open(at)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write(self, path: str, text: str) -> None:
        """Create a file atomically. Raises OSError if it exists."""
        with _translate_hadoop_errors(path, "written"):
            files, at = self._at(path)
            _, begun = self._at(f"{path}.new")
            _fill(files.create(begun, True), text)
            if files.exists(at) or not files.rename(begun, at):
                raise OSError(f"{path} could not be written: another process has written it")

    def create(self, path: str, text: str) -> bool:
        """Create a file; return False if it exists. Of concurrent calls only one succeeds. The contents may appear
        a moment later.
        """
        from py4j.protocol import Py4JJavaError

        with _translate_hadoop_errors(path, "written"):
            files, at = self._at(path)
            if str(files.getScheme()) == "file":  # Hadoop's create is not atomic there
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
        """Write a file, replacing an existing one."""
        with _translate_hadoop_errors(path, "written"):
            files, at = self._at(path)
            _fill(files.create(at, True), text)

    def make(self, directory: str) -> None:
        """Create a directory and its parents, unless it exists."""
        with _translate_hadoop_errors(directory, "made"):
            files, at = self._at(directory)
            if not files.mkdirs(at):
                raise FilesUnavailable(f"{directory} could not be created: {HELP}")

    def move(self, file: str, directory: str) -> bool:
        """Move a file into an existing directory without a file of that name; return False if the file does not
        exist.
        """
        from py4j.protocol import Py4JJavaError

        with _translate_hadoop_errors(file, "moved"):
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
        """Remove a file, or a directory with its contents, if it exists. Concurrent changes by others are possible:
        everything that existed at the call is removed.
        """
        from py4j.protocol import Py4JJavaError

        with _translate_hadoop_errors(path, "removed"):
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
        """Sync a file or a directory of the local file system; nothing if it does not exist. On other file systems
        nothing is done: closed files are their responsibility, and Hadoop cannot sync directories.
        """
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
        """Return the settings of Hadoop's configuration with this prefix."""
        return {
            f"{prefix}{name}": str(value)
            for name, value in dict(self._conf.getPropsWithPrefix(prefix)).items()
        }

    def local(self, path: str) -> str | None:
        """Return the path on the local file system; None for other file systems."""
        with _translate_hadoop_errors(path, "checked"):
            files, at = self._at(path)
            is_local = str(files.getScheme()) == "file"
            return str(files.makeQualified(at).toUri().getPath()) if is_local else None

    def _at(self, path: str) -> tuple[Any, Any]:
        at = self._jvm.org.apache.hadoop.fs.Path(path)
        return at.getFileSystem(self._conf), at


def sync_file(path: PurePosixPath) -> None:
    """Sync a local file. Raises OSError."""
    file = _LOCAL.open(path)
    try:
        file.sync()
    finally:
        file.close()


@contextmanager
def _translate_hadoop_errors(path: str, done: str) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        message = str(error.java_exception.toString()).partition("\n")[0]
        raise FilesUnavailable(
            f"{path} could not be {done}: {HELP}; Hadoop reported: {message}"
        ) from error


def _fill(stream: Any, text: str) -> None:
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
