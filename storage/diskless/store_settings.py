"""Opens the object store of diskless topics from a broker's properties.

    diskless.storage.url     a directory or its file:// URL, s3://bucket/prefix, gs://…, az://…, memory:///
    diskless.storage.prefix  added before the names of all objects

and `diskless.storage.` with the properties of every object store (`store_properties.py`). All brokers of a cluster
use the same store. In a directory, the objects are in its subdirectory `diskless`. An invalid property raises
ValueError with its name and the valid values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from odradek.storage.store_properties import StoreProperties
from odradek.storage.tiered.store_location import directory_of

if TYPE_CHECKING:
    from odradek.seams import Seams
    from odradek.seams.files import Path
    from odradek.seams.objects import Objects

PREFIX: Final = "diskless.storage."
ENABLE: Final = "diskless.storage.system.enable"
URL: Final = "diskless.storage.url"


def open_diskless_store(
    properties: Mapping[str, str],
    seams: Seams,
    *,
    cluster_id: str,
    remembered_in: Path | None = None,
) -> Objects:
    """Open the store of a cluster. It sends no request, because the store may be unavailable when the broker starts.

    The path of a directory is stored in `remembered_in`, so that another directory is not used or created by mistake
    later. It blocks, so that the event loop calls it through Offload.
    """
    found = StoreProperties("the store of diskless topics", PREFIX, ("url", "prefix"))
    for name, value in sorted(properties.items()):
        if name.startswith(PREFIX) and name != ENABLE:
            found.take(name, name.removeprefix(PREFIX), value)
    return seams.open_objects(
        diskless_store_url(found.get("url"), found.get("prefix"), cluster_id),
        found.options(),
        found.timeouts(),
        None if remembered_in is None else str(remembered_in),
    )


def diskless_store_url(target: str, prefix: str, cluster_id: str) -> str:
    """URL of a cluster's part of the store that the value of `diskless.storage.url` names.

    Several clusters may have the same store: the orphan scan of one does not see the objects of the others. Raises
    ValueError for an invalid value.
    """
    if "://" not in target and not target.startswith(("/", "~")):
        raise ValueError(
            f"{URL} is {target!r}: set it to the URL of a store, like file:///var/lib/diskless, "
            "s3://bucket/prefix, gs://bucket or az://container"
        )
    try:
        directory = directory_of(target)
    except ValueError as error:
        raise ValueError(f"{URL}: {error}") from None
    prefix = f"{prefix.strip('/')}/{cluster_id}".lstrip("/")
    if directory is None:
        return f"{target.rstrip('/')}/{prefix}"
    return f"file://{quote(str(directory / prefix))}"
