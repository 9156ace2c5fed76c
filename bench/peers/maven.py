"""Class paths by Maven: from its local repository, or from wherever the machine's Maven looks.

What a pom comes to is kept under the pom's own digest, and resolved anew if jars of it have gone.
"""

from __future__ import annotations

import os
from pathlib import Path

from odradek.bench.obtaining import cache_directory, digest, kept, needed_program, run_build


def class_path(pom: Path, what: str) -> list[str]:
    """The jars that `pom` names, with all they need; PeerUnavailable says that `what` can't be had."""

    def resolve(written: Path) -> None:
        run_build(
            [needed_program("mvn", "Maven"), "-q", "-B", "-Dstyle.color=never", "-f", str(pom),
             "dependency:build-classpath", f"-Dmdep.outputFile={written}"],
            f"resolving {what} with Maven",
        )  # fmt: skip

    name = f"classpath-{digest(pom)}.txt"
    jars = kept(name, resolve).read_text().split(os.pathsep)
    if not all(Path(jar).exists() for jar in jars):  # Maven's repository was cleaned
        (cache_directory() / name).unlink(missing_ok=True)
        jars = kept(name, resolve).read_text().split(os.pathsep)
    return jars
