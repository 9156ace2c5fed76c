"""Bytes to messages and back: framing, the table of APIs, requests, record batches, records on disk.

Nothing here knows a socket, a file or the time. What comes from a peer or a disk is hostile until
read: every reader gives a value or raises `InvalidFrame` or `CorruptBatch`, in bounded memory.

The schemas of Kafka's requests and responses are kio's, the codec is our own: kio's native reader
trusts an array's count, and aborts the process on the first one that asks for 32 GiB.
"""

import odradek.protocol._kio  # noqa: F401  (before anything imports kio)
