"""Encryption of what is archived: a master key wraps the keys of tenants, and those seal payloads. AES-256-GCM.

A sealed payload is bound to its episode and to the chain that was closed over it, so it opens in no other row. The key
of a tenant is stored wrapped only; whoever deletes that makes everything sealed with it unreadable for ever, whatever
copies of the payloads there are. The first of the master keys wraps, the others open what was wrapped before a
rotation. Keys are never shown: not by `repr`, not in an error. Pure, but for random numbers; where wrapped keys lie is
left to `vault.py`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import struct
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tracker.errors import CorruptRecord, SettingsError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
NAME_BYTES: Final = 8
SEALED_MAGIC: Final = b"HONX\x01"
"""What a sealed payload begins with; one in plain begins otherwise (`codec.py`)."""
_GENERATION: Final = struct.Struct(">I")
_HEAD: Final = len(SEALED_MAGIC) + _GENERATION.size
HOW: Final = "write 32 random bytes in base64 (openssl rand -base64 32), the one to be used first, older ones behind it"


class MasterKeys:
    """The keys that wrap those of tenants, the current one first."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_name(key): key for key in keys}

    def __repr__(self) -> str:
        return f"MasterKeys({len(self._keys)})"

    @classmethod
    def parsed(cls, text: str, setting: str) -> MasterKeys:
        """Keys in base64, with commas or line ends between them; raises `SettingsError` that shows none of them."""
        keys: list[bytes] = []
        for part in text.replace(",", "\n").split():
            try:
                keys.append(base64.b64decode(part, validate=True))
            except (ValueError, binascii.Error) as error:
                raise SettingsError(f"{setting}: {HOW}.") from error
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise SettingsError(f"{setting}: {HOW}.")
        return cls(keys)

    def wrapped(self, key: bytes, tenant: str, generation: int) -> bytes:
        """A tenant's key, to be stored."""
        name, master = next(iter(self._keys.items()))
        return name + _encrypted(master, key, _tenant_context(tenant, generation))

    def unwrapped(self, stored: bytes, tenant: str, generation: int) -> bytes:
        """A stored key of a tenant; raises `SettingsError` if none of these wrapped it."""
        master = self._keys.get(stored[:NAME_BYTES])
        if master is None:
            raise SettingsError(
                f"HONE_ENCRYPTION_KEY: the key of tenant {tenant} was wrapped with another key than those given."
            )
        return _decrypted(master, stored[NAME_BYTES:], _tenant_context(tenant, generation), f"the key of {tenant}")

    def is_current(self, stored: bytes) -> bool:
        """Whether a stored key is wrapped with the first of these."""
        return stored[:NAME_BYTES] == next(iter(self._keys))


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def is_sealed(payload: bytes) -> bool:
    return payload.startswith(SEALED_MAGIC)


def generation_of(sealed: bytes) -> int:
    """Which of its tenant's keys a payload was sealed with. Raises `CorruptRecord`."""
    if len(sealed) < _HEAD:
        raise CorruptRecord("A sealed payload is cut short.")
    return _GENERATION.unpack_from(sealed, len(SEALED_MAGIC))[0]


def sealed(payload: bytes, key: bytes, generation: int, owner: tuple[str, str]) -> bytes:
    """A payload under a tenant's key; `owner` is its episode and the chain it was closed with."""
    return SEALED_MAGIC + _GENERATION.pack(generation) + _encrypted(key, payload, _payload_context(owner, generation))


def opened(stored: bytes, key: bytes, owner: tuple[str, str]) -> bytes:
    """What was sealed. Raises `CorruptRecord` if it was changed, or belongs to another episode."""
    context = _payload_context(owner, generation_of(stored))
    return _decrypted(key, stored[_HEAD:], context, f"the payload of episode {owner[0]}")


def _encrypted(key: bytes, plain: bytes, context: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, context)


def _decrypted(key: bytes, stored: bytes, context: bytes, what: str) -> bytes:
    try:
        return AESGCM(key).decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:], context)
    except (InvalidTag, ValueError) as error:
        raise CorruptRecord(f"Sealed bytes do not open: {what} was changed or moved.") from error


def _name(master: bytes) -> bytes:
    """What a master key is told by: it says nothing of the key."""
    return hashlib.blake2b(master, digest_size=NAME_BYTES, person=b"hone-master").digest()


def _tenant_context(tenant: str, generation: int) -> bytes:
    return b"hone/tenant-key/1\0" + _GENERATION.pack(generation) + tenant.encode()


def _payload_context(owner: tuple[str, str], generation: int) -> bytes:
    return b"hone/payload/1\0" + _GENERATION.pack(generation) + b"\0".join(part.encode() for part in owner)
