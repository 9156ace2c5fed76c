"""How a node opens its directories, the first thing it does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from odradek.broker.controller.quorum_settings import is_alone
from odradek.broker.lifecycle.errors import CannotStart
from odradek.storage.directories.opening import Directories, open_directories

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.seams import Seams


async def open_node_directories(seams: Seams, config: ServerConfig) -> Directories:
    """Lock and read them; format them where the node is a cluster by itself. Raises CannotStart."""
    from odradek.storage.directories.errors import DirectoryError

    opened = partial(
        open_directories,
        seams.files,
        seams.entropy,
        config.log_dirs,
        node_id=config.node_id,
        metadata_path=config.metadata_log_dir,
        may_format=is_alone(config),
    )
    try:
        return await seams.offload.run(opened, lane="start")
    except DirectoryError as error:
        raise CannotStart(str(error)) from None
