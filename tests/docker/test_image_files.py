"""Checks of the image's build files that need no container engine."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
COMPOSE = (ROOT / "docker" / "compose.yaml").read_text()
IGNORE = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()


def instructions() -> list[str]:
    joined = re.sub(r"\\\n", " ", DOCKERFILE)
    lines = [line.strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def last_stage() -> list[str]:
    found = instructions()
    return found[max(at for at, line in enumerate(found) if line.startswith("FROM")) :]


def test_image_is_slim_multi_stage_and_runs_as_user() -> None:
    stages = [line for line in instructions() if line.startswith("FROM")]
    assert len(stages) == 2
    assert all("-slim" in stage for stage in stages)
    user = [line for line in last_stage() if line.startswith("USER")]
    assert user == ["USER odradek"]
    assert last_stage().index("USER odradek") < next(
        at for at, line in enumerate(last_stage()) if line.startswith("ENTRYPOINT")
    )


def test_image_runs_tested_entry_point() -> None:
    text = " ".join(last_stage())
    assert 'ENTRYPOINT ["python", "/opt/odradek/entrypoint.py"]' in text
    assert '"/opt/odradek/healthcheck.py"' in text
    assert "HEALTHCHECK" in text
    for program in ("entrypoint.py", "healthcheck.py", "dependencies.py"):
        assert (ROOT / "docker" / program).is_file()


def test_image_has_no_fixed_architecture() -> None:
    assert not re.search(r"amd64|arm64|x86_64|aarch64", "\n".join(instructions()))


def test_build_context_has_every_layer_and_the_files_of_setup() -> None:
    setup = (ROOT / "setup.py").read_text()
    layers = re.search(r"LAYERS = \[(.*?)\]", setup, re.DOTALL)
    assert layers is not None
    wanted = re.findall(r'"(\w+)"', layers[1])
    wanted += ["package", "pyproject.toml", "setup.py", "constraints.txt", "LICENSE", "README.md"]
    assert {f"!{name}" for name in wanted} <= set(IGNORE)


def test_dependency_layer_has_packages_of_a_broker_and_re2() -> None:
    program = runpy.run_path(str(ROOT / "docker" / "dependencies.py"))
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["regex"]]
    assert program["dependencies"](text) == wanted


def test_compose_publishes_host_listener() -> None:
    assert '"127.0.0.1:9092:9092"' in COMPOSE
    assert "hostname: broker" in COMPOSE
    assert "dockerfile: docker/Dockerfile" in COMPOSE
    assert "data:/var/lib/odradek" in COMPOSE
    assert "\t" not in COMPOSE
