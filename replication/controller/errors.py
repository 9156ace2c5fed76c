"""What can be wrong with metadata records themselves."""

from __future__ import annotations


class InvalidMetadata(Exception):
    """Records that contradict the state they are to change, or a file that holds none.

    From a log or a snapshot it means that the disk lies; from an operation, a bug of ours. Either
    way the node must not go on with an image it cannot trust.
    """
