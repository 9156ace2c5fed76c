from odradek.seams.files import Buffer

def scan_records(
    body: Buffer, record_count: int, base_timestamp: int, /
) -> tuple[int, int, int, bool]: ...
