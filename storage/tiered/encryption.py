"""Envelope encryption of remote log segments with AES-GCM.

Each copy of a segment has its own random data key. The manifest has it wrapped (RFC 3394) with a
key of the broker. The nonce is the object type and the chunk number, so that a data key encrypts
each chunk once. The topic id and segment id are authenticated too, so that a chunk cannot replace
one of another segment. `cryptography` is imported with the first encrypted segment.

The key file has a line per key, `<id> <16 or 32 bytes in base64>`. The first key wraps new copies;
the others decrypt older ones.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping

from odradek.seams.entropy import Entropy
from odradek.seams.files import Buffer
from odradek.storage.tiered.errors import CorruptChunk
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentId

DATA_KEY_BYTES = 32

_NONCE_SPACES: Mapping[str, int] = {
    ".log": 0,
    ".index": 1,
    ".timeindex": 2,
    ".txnindex": 3,
    ".snapshot": 4,
    ".leader_epoch_checkpoint": 5,
}


def check_installed() -> None:
    """Raise ValueError if `cryptography` is not installed."""
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    except ImportError as error:
        raise ValueError("encryption needs `pip install odradek[encryption]`") from error


class SegmentCipher:
    """Encrypts and decrypts what belongs to one copy of a segment."""

    def __init__(self, data_key: bytes, segment: RemoteLogSegmentId) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aes = AESGCM(data_key)
        self._associated_data = segment.partition.topic_id.bytes + segment.id.bytes

    def encrypt(self, suffix: str, number: int, plain: Buffer) -> bytes:
        return self._aes.encrypt(_nonce(suffix, number), plain, self._associated_data)

    def decrypt(self, suffix: str, number: int, stored: Buffer) -> bytes:
        """Plain bytes of a chunk. Raises CorruptChunk."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._aes.decrypt(_nonce(suffix, number), stored, self._associated_data)
        except (InvalidTag, ValueError) as error:  # ValueError: shorter than a tag
            raise CorruptChunk("decryption failed") from error


def _nonce(suffix: str, number: int) -> bytes:
    return _NONCE_SPACES[suffix].to_bytes(4, "big") + number.to_bytes(8, "big")


class KeyRing:
    """Keys that wrap data keys."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Keys by id; the first one wraps new data keys."""
        self._keys = dict(keys)
        self.current_id = next(iter(keys))

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Parse a key file. Raises ValueError, whose message has the line number and not the key."""
        keys: dict[str, bytes] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or line.startswith("#"):
                continue
            try:
                key_id, encoded = words
                key = b64decode(encoded, validate=True)
            except ValueError:
                key_id, key = "", b""
            if len(key) not in (16, 32) or key_id in keys:
                raise ValueError(f"line {number} is not '<new id> <16 or 32 bytes in base64>'")
            keys[key_id] = key
        if not keys:
            raise ValueError("the file contains no key")
        return cls(keys)

    def new_data_key(self, entropy: Entropy) -> tuple[bytes, bytes]:
        """A new data key, plain and wrapped."""
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        data_key = entropy.bytes(DATA_KEY_BYTES)
        return data_key, aes_key_wrap(self._keys[self.current_id], data_key)

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Plain data key. Raises CorruptChunk if it was not wrapped with that key."""
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        try:
            return aes_key_unwrap(self._keys[key_id], wrapped)
        except (InvalidUnwrap, ValueError) as error:
            raise CorruptChunk(f"the data key cannot be unwrapped with key {key_id!r}") from error
