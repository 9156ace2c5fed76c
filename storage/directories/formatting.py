"""Adds a new disk to the log directories of a node, as `kafka-storage format` does in Kafka.

A node that has a metadata log does not use a directory without `meta.properties` (meta_properties.py), so the operator
must format it. The new directory gets the cluster id and the node id of another directory of the node, and an id of
its own. No other file is written. The node may run meanwhile; it uses the directory after its next start.
"""

from __future__ import annotations

from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, Path
from odradek.storage.directories import meta_properties
from odradek.storage.directories.meta_properties import (
    FILE_NAME,
    BadMetaProperties,
    MetaProperties,
    fresh_id,
)
from odradek.storage.directories.opening import METADATA_LOG
from odradek.storage.errors import WrongDirectory


def format_like(files: Files, entropy: Entropy, new: Path, like: Path) -> MetaProperties:
    """Create the directory `new` if it is missing, and write `meta.properties` with the ids of the node of `like`.

    Durable on return. Raises WrongDirectory, OSError.
    """
    try:
        owner = meta_properties.parse(files.read(like / FILE_NAME))
    except FileNotFoundError:
        raise WrongDirectory(
            f"no {FILE_NAME} found in {like}: the log directory is not formatted"
        ) from None
    except BadMetaProperties as error:
        raise WrongDirectory(f"{like / FILE_NAME}: {error}") from None
    if owner.cluster_id is None or owner.node_id is None:
        raise WrongDirectory(f"{like / FILE_NAME} lacks cluster.id or node.id")
    if files.exists(new / FILE_NAME):
        raise WrongDirectory(f"log directory {new} is already formatted: it contains {FILE_NAME}")
    if files.exists(new / METADATA_LOG):
        raise WrongDirectory(f"log directory {new} contains {METADATA_LOG} of another node")
    if not files.is_directory(new):
        files.make_directory(new)
        files.sync_directory(new.parent)
    drawn = fresh_id(entropy.uuid, {owner.directory_id})
    properties = MetaProperties(1, owner.cluster_id, owner.node_id, drawn)
    files.write_new(new / FILE_NAME, meta_properties.format(properties))
    return properties
