from odradek.seams.files import Buffer
from odradek.storage.compaction.offset_map import FilteredRecords

class OffsetMap:
    def __init__(self, slots: int, seed: bytes, /) -> None: ...
    @property
    def slots(self) -> int: ...
    @property
    def size(self) -> int: ...
    def put(
        self,
        body: Buffer,
        record_count: int,
        base_offset: int,
        last_offset: int,
        first_offset: int,
        keys_max: int,
        /,
    ) -> int | None: ...
    def filter(
        self,
        body: Buffer,
        record_count: int,
        base_offset: int,
        last_offset: int,
        covered_to: int,
        removes_tombstones: bool,
        /,
    ) -> FilteredRecords: ...
