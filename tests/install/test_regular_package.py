"""`odradek` is a regular package, so that a clone next to a script does not replace the installed package."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from tests.install.environments import REPOSITORY, copy_source, run
from tests.install.lowest_versions import read_project

SCRIPT = """
import json, sys
import odradek
loaded = [name for name in sys.modules if name.startswith(("odradek", "trio"))]
import odradek.testing.embedded
print(json.dumps([loaded, odradek.__file__, odradek.testing.__file__, odradek.__version__]))
"""


def test_root_of_the_repository_is_no_package() -> None:
    """With an `__init__.py`, a clone named `odradek` next to a script would be imported as the package."""
    assert not (REPOSITORY / "__init__.py").exists()


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installed wheel, without its dependencies."""
    directory = tmp_path_factory.mktemp("wheel")
    source = copy_source(directory / "source")
    options = ["-q", "--no-deps", "--no-build-isolation", "-w", directory]
    run(sys.executable, "-m", "pip", "wheel", *options, source)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "installed")
    return directory / "installed"


@pytest.mark.slow
def test_script_next_to_a_clone_imports_the_installed_package(
    tmp_path: Path, installed: Path
) -> None:
    (tmp_path / "odradek").symlink_to(REPOSITORY)
    (tmp_path / "script.py").write_text(SCRIPT)
    printed = run(sys.executable, tmp_path / "script.py", cwd=tmp_path, PYTHONPATH=str(installed))
    loaded, package, testing, version = json.loads(printed)
    assert loaded == ["odradek"]
    assert package == str(installed / "odradek" / "__init__.py")
    assert testing == str(installed / "odradek" / "testing" / "__init__.py")
    assert version == read_project(REPOSITORY / "pyproject.toml")["version"]


@pytest.mark.slow
def test_installed_package_has_types_and_all_layers(installed: Path) -> None:
    packages = {path.parent.name for path in installed.glob("odradek/*/__init__.py")}
    layers = {path.parent.name for path in REPOSITORY.glob("*/py.typed")} - {"package"}
    assert packages == layers
    assert (installed / "odradek" / "py.typed").exists()
    assert not (installed / "odradek" / "package").exists()
