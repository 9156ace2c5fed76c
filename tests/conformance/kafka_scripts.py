"""Kafka's `bin/` for suites that call its scripts: the tools from the jars, under the scripts' names."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.support.kafka_dist import kafka_dist
from tests.support.kafka_tools import TOOLS


def write_scripts(directory: Path) -> Path:
    """Write `bin/kafka-*.sh` into `directory`; returns `directory` as the value of KAFKA_PATH."""
    scripts = directory / "bin"
    scripts.mkdir(parents=True, exist_ok=True)
    for tool, main_class in TOOLS.items():
        command = shlex.join(kafka_dist().command(main_class))
        script = scripts / f"kafka-{tool}.sh"
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o755)
    return directory
