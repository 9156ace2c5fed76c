"""`odradek storage info`: print and check the `meta.properties` of the directories of a node."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.types import ConfigError
from odradek.cli.errors import WrongUsage
from odradek.cli.output import print_lines
from odradek.protocol.uuids import uuid_to_text
from odradek.seams.files import Files, Path
from odradek.seams.real import real_seams
from odradek.storage.directories import meta_properties
from odradek.storage.directories.meta_properties import (
    FILE_NAME,
    BadMetaProperties,
    MetaProperties,
)


def load_config(files: Files, path: str) -> ServerConfig:
    """Load the config of a node, even if `odradek serve` does not support it. Raises WrongUsage, OSError."""
    try:
        return ServerConfig.load(files, Path(path), to_serve=False)
    except ConfigError as error:
        raise WrongUsage(f"{path}: {error}") from None


def every_directory(config: ServerConfig) -> list[Path]:
    """Log directories and metadata directory of a node, sorted by path."""
    return sorted({*config.log_dirs, config.metadata_log_dir}, key=str)


def storage_info(args: argparse.Namespace) -> int:
    """Print the directories, their metadata and problems; return 1 if there are problems."""
    files = real_seams().files
    directories = every_directory(load_config(files, args.config))
    there = [path for path in directories if files.is_directory(path)]
    if there:
        ending = "y" if len(there) == 1 else "ies"
        print_lines([f"Found log director{ending}:", *(f"  {path}" for path in there), ""])
    found, problems = _inspect(files, directories, there)
    if found is not None:
        print_lines([f"Found metadata: {_shown(found)}", ""])
    if problems:
        plural = "" if len(problems) == 1 else "s"
        print_lines([f"Found problem{plural}:", *(f"  {each}" for each in problems), ""])
    return 1 if problems else 0


def _inspect(
    files: Files, directories: Sequence[Path], there: Sequence[Path]
) -> tuple[MetaProperties | None, list[str]]:
    """Return the meta.properties of the first formatted directory, and the problems of all."""
    first: MetaProperties | None = None
    problems: list[str] = []
    for path in directories:
        if path not in there:
            what = "is not a directory" if files.exists(path) else "does not exist"
            problems.append(f"{path} {what}")
            continue
        if not files.exists(path / FILE_NAME):
            problems.append(f"{path} is not formatted.")
            continue
        try:
            found = meta_properties.parse(files.read(path / FILE_NAME))
        except (BadMetaProperties, OSError) as error:
            problems.append(f"Error loading {path / FILE_NAME}: {error}")
            continue
        first = first or found
        if found.cluster_id != first.cluster_id:
            problems.append("Mismatched cluster IDs between storage directories.")
        elif found.node_id != first.node_id:
            problems.append("Mismatched node IDs between storage directories.")
    if first is not None and first.version == 0:
        problems.append(
            "The kafka configuration file appears to be for a cluster in KRaft mode, but the "
            "directories are formatted for legacy mode."
        )
    return first, problems


def _shown(properties: MetaProperties) -> str:
    directory_id = properties.directory_id
    values = {
        "broker.id" if properties.version == 0 else "node.id": properties.node_id,
        "cluster.id": properties.cluster_id,
        "directory.id": None if directory_id is None else uuid_to_text(directory_id),
        "version": properties.version,
    }
    there = [f"{name}={value}" for name, value in sorted(values.items()) if value is not None]
    return "{" + ", ".join(there) + "}"
