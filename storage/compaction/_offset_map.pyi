from odradek.storage.compaction import offset_map

def OffsetMap(slots: int, seed: bytes, /) -> offset_map.OffsetMap: ...  # noqa: N802
