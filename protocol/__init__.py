"""Encoding and decoding: frames, the table of APIs, requests, responses, record batches and stored records.

Nothing here uses a socket, a file or a clock. Bytes from a peer or a disk are not trusted: every reader returns
a value or raises `InvalidFrame`, `CorruptBatch` or `InvalidRecord`, and uses bounded memory.

The schemas of Kafka's requests and responses are kio's. The codec is Odradek's, because kio's native reader
trusts the count of an array and aborts the process at a count that needs 32 GiB.
"""

import odradek.protocol._kio  # noqa: F401  (before anything imports kio)
