"""Making a new disk one of a node's log directories: what `kafka-storage format` does in Kafka.

A node that has run takes no directory without `meta.properties` for its own (meta_properties.py), so
somebody has to say that it is. The new directory gets the cluster and the node of one that is the
node's already, and an id of its own; nothing else is touched. The node may run meanwhile: its next
start takes the directory in.
"""

from __future__ import annotations

from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, Path
from odradek.storage.directories import meta_properties
from odradek.storage.directories.errors import WrongDirectory
from odradek.storage.directories.meta_properties import (
    FILE_NAME,
    BadMetaProperties,
    MetaProperties,
    fresh_id,
)
from odradek.storage.directories.opening import METADATA_LOG


def format_like(files: Files, entropy: Entropy, new: Path, like: Path) -> MetaProperties:
    """Make `new`, or take it as it is, and say in it that it belongs to the node of `like`.

    Durable when it returns. Raises WrongDirectory, OSError.
    """
    try:
        owner = meta_properties.parse(files.read(like / FILE_NAME))
    except FileNotFoundError:
        raise WrongDirectory(f"there is no {FILE_NAME} in {like}: it belongs to no node") from None
    except BadMetaProperties as error:
        raise WrongDirectory(f"{like / FILE_NAME}: {error}") from None
    if owner.cluster_id is None or owner.node_id is None:
        raise WrongDirectory(f"{like / FILE_NAME} does not say whose it is")
    if files.exists(new / FILE_NAME):
        raise WrongDirectory(f"{new} is formatted already: there is a {FILE_NAME} in it")
    if files.exists(new / METADATA_LOG):
        raise WrongDirectory(f"{new} has had an owner: there is {METADATA_LOG} in it")
    if not files.is_directory(new):
        files.make_directory(new)
        files.sync_directory(new.parent)
    drawn = fresh_id(entropy.uuid, {owner.directory_id})
    properties = MetaProperties(1, owner.cluster_id, owner.node_id, drawn)
    files.write_new(new / FILE_NAME, meta_properties.format(properties))
    return properties
