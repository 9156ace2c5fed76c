"""The package works with the lowest versions of its dependencies that it accepts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.install.environments import HERE, REPOSITORY, copy_source, new_environment, run
from tests.install.lowest_versions import declared_requirements, lowest, read_project
from tests.install.smoke_program import PARTS

MODULES_MIN = 500
TEST_WITH_BROKER = """
def test_broker_is_running(kafka_broker, kafka_bootstrap):
    assert kafka_bootstrap == kafka_broker.bootstrap
"""


def test_lowest_version_is_that_of_the_bound() -> None:
    assert lowest(["trio>=0.29", "kio>=0.6.5,<0.7"]) == ["trio==0.29", "kio==0.6.5"]


@pytest.mark.parametrize(
    "requirement", ["trio", "trio<1", "trio==0.29", "trio>=0.29; python_version<'3'"]
)
def test_requirement_without_a_plain_lower_bound_is_an_error(requirement: str) -> None:
    with pytest.raises(ValueError, match="no lower bound"):
        lowest([requirement])


def test_every_requirement_has_a_lower_bound() -> None:
    assert lowest(declared_requirements(read_project(REPOSITORY / "pyproject.toml")))


@pytest.mark.slow
def test_package_works_with_the_lowest_versions(tmp_path: Path) -> None:
    """Imports all modules, and uses a broker and the pytest plugin. Transitive dependencies have their newest versions."""
    project = read_project(REPOSITORY / "pyproject.toml")
    if project["requires-python"] != ">={}.{}".format(*sys.version_info):
        pytest.skip("old versions of dependencies have wheels for the oldest Python only")
    python = new_environment(tmp_path / "venv")
    pinned = lowest(declared_requirements(project))
    run(
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
        copy_source(tmp_path / "source"),
        *pinned,
    )
    run(python, "-m", "pip", "check")
    assert int(run(python, HERE / "import_all.py", PYTHONPATH="")) > MODULES_MIN
    printed = run(python, HERE / "smoke_program.py", tmp_path / "data", PYTHONPATH="")
    assert printed.split() == PARTS
    (tmp_path / "test_plugin.py").write_text(TEST_WITH_BROKER)
    assert "1 passed" in run(
        python, "-m", "pytest", "-q", tmp_path / "test_plugin.py", PYTHONPATH=""
    )
