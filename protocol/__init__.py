"""Encoding and decoding: frames, the table of APIs, requests, responses, record batches and stored records.

Nothing here uses a socket, a file or a clock. Bytes from a peer or a disk are not trusted: every reader returns
a value or raises `InvalidFrame`, `CorruptBatch` or `InvalidRecord`, and uses bounded memory.

The schemas of Kafka's requests and responses are kio's. The codec is Odradek's, because kio's native reader
trusts the count of an array and aborts the process at a count that needs 32 GiB.

This package prevents kio from importing hypothesis. Where hypothesis is installed, kio's phantom types import it to
register strategies for tests, which costs a broker 0.25 s and 60 MB at start. So every module imports this package
before kio. A process that has already imported hypothesis is not affected.
"""

import sys

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # `import hypothesis` now fails
    try:
        import kio.static._phantom
    finally:
        del sys.modules["hypothesis"]

import kio.static._phantom  # noqa: F401
