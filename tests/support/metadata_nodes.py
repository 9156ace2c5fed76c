"""Metadata nodes on virtual disks, and records to commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from odradek.protocol.records.batch import batches
from odradek.protocol.records.control import ControlType, control_type
from odradek.protocol.records.records import decode
from odradek.protocol.schemas.serde import (
    decode_metadata_record,
)
from odradek.protocol.schemas.topic_records import ConfigRecord, TopicRecord
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import BROKER, Endpoint, MetadataImage
from odradek.replication.raft.metadata_log import MetadataLog, MetadataLogSettings
from odradek.replication.raft.metadata_manager import MetadataManager, MetadataSettings
from odradek.replication.raft.quorum_recovery import QuorumMember
from odradek.seams import Seams
from odradek.seams.files import Files, Path
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualNode, VirtualWorld

ROOT = Path("/data")
LOG_DIRECTORY = ROOT / "__cluster_metadata-0"
FIRST_SEGMENT = LOG_DIRECTORY / "00000000000000000000.log"
RECOVERY_POINT = LOG_DIRECTORY / "recovery-point-offset-checkpoint"
DIRECTORY_ID = UUID(int=(1 << 127) + 7)


def new_node(world: VirtualWorld | None = None) -> VirtualNode:
    """Return a node with an empty metadata directory, which is durable."""
    disk = VirtualDisk()
    disk.mount(ROOT)
    return (world or VirtualWorld()).node("node", disk)


def again(node: VirtualNode) -> VirtualNode:
    """Return a restarted node on the same disk."""
    return VirtualWorld(1).node("again", node.disk)


def metadata_on(
    seams: Seams,
    *,
    node_id: int = 1,
    directory_id: UUID = DIRECTORY_ID,
    settings: MetadataLogSettings | None = None,
    controller_listeners: Sequence[Endpoint] = (),
    on_full: Callable[[OSError], None] = lambda error: None,
    find_partitions: Callable[[], Path | None] = lambda: None,
    bootstrap_servers: Sequence[tuple[str, int]] = (),
) -> MetadataManager:
    member = QuorumMember(
        node_id,
        "cluster",
        directory_id,
        tuple(controller_listeners),
        bootstrap_servers=tuple(bootstrap_servers),
    )
    return MetadataManager(
        seams,
        ROOT,
        member,
        settings=MetadataSettings(log=settings or MetadataLogSettings()),
        on_full=on_full,
        find_partitions=find_partitions,
    )


async def started(
    node: VirtualNode, *, settings: MetadataLogSettings | None = None, **changes: Any
) -> MetadataManager:
    metadata = metadata_on(node.seams, settings=settings, **changes)
    await metadata.start()
    return metadata


def set_config(name: str, value: str | None = "1") -> ConfigRecord:
    return ConfigRecord(resource_type=BROKER, resource_name="", name=name, value=value)


def new_topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"topic-{number}", topic_id=UUID(int=(1 << 100) + number))


def configs(image: MetadataImage) -> dict[str, str]:
    """Return the configs that `set_config` has set."""
    return {
        name: value
        for name, value in image.config(BROKER, "").items()
        if name != "min.insync.replicas"
    }


def planning(*records: Any, result: Any = None) -> Callable[[MetadataImage], ControllerResult[Any]]:
    return lambda image: ControllerResult(records, result)


def described(record: Any) -> str:
    """Return a short description of a metadata or control record."""
    kind = type(record).__name__.removesuffix("Record")
    name = getattr(record, "name", None)
    return kind if name is None else f"{kind} {name}"


def log_of(files: Files, path: Path = FIRST_SEGMENT) -> list[list[str]]:
    """Return the record descriptions of a segment or a snapshot, by batch."""
    found = []
    for batch in batches(memoryview(files.read(path)), check=True, allow_partial=True):
        lines = []
        for record in decode(batch):
            if batch.is_control:
                lines.append(ControlType(control_type(record.key)).name)
            else:
                lines.append(described(decode_metadata_record(record.value or b"")))
        found.append(lines)
    return found


def names(files: Files, suffix: str) -> Sequence[str]:
    return [name for name in files.list(LOG_DIRECTORY) if name.endswith(suffix)]


def raw_log(disk: VirtualDisk, *, formatted: bool = True) -> MetadataLog:
    """Open the log of a stopped node for writing."""
    node = VirtualWorld(2).node("raw", disk)
    if not formatted:
        node.files.make_directory(LOG_DIRECTORY)
    log = MetadataLog(node.files, ROOT, node.seams.clock, MetadataLogSettings())
    log.open()
    return log
