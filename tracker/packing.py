"""Numbers and bodies as few bytes: ids, log-probabilities, and text compressed where that is shorter.

Lossless: what comes out equals what went in, bit by bit. Pure; what the bytes belong to is left to `records.py`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import zstandard

from tracker.errors import CorruptRecord

LEVEL: Final = 3
MIN_COMPRESSED_BYTES: Final = 128
"""Shorter bodies are kept as they are."""
_PLAIN, _ZSTD = b"\0", b"\1"
_ID_TYPES: Final = ("H", "I", "q")
"""Unsigned 2 and 4 bytes, signed 8."""


def hashed_ids(ids: Iterable[int]) -> bytes:
    """Ids as digests are taken of them: eight bytes each, the lowest first."""
    return _little_endian(array("q", ids))


def hashed_logprobs(logprobs: Sequence[float]) -> bytes:
    """The same of log-probabilities: doubles, whatever they are stored as."""
    return _little_endian(array("d", logprobs))


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids, little-endian, in as many bytes each as the largest needs (2, 4 or 8).

    >>> pack_ids((1, 2))
    b'H\\x01\\x00\\x02\\x00'
    """
    for code in _ID_TYPES[:-1]:
        try:
            return code.encode() + _little_endian(array(code, ids))
        except OverflowError:
            continue
    return b"q" + hashed_ids(ids)


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """What `pack_ids` packed."""
    return tuple(int(number) for number in _unpacked(packed, "HIq"))


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """As floats if each comes back the same double, else as doubles."""
    exact = array("d", logprobs)
    short = array("f", logprobs)
    if array("d", short).tobytes() == exact.tobytes():
        return b"f" + _little_endian(short)
    return b"d" + _little_endian(exact)


def unpack_logprobs(packed: bytes) -> tuple[float, ...]:
    """What `pack_logprobs` packed."""
    return tuple(_unpacked(packed, "fd"))


def body_compressor() -> zstandard.ZstdCompressor:
    """What `pack_body` takes; for one thread at a time. To make one costs more than to use it."""
    return zstandard.ZstdCompressor(level=LEVEL)


def pack_body(plain: bytes, compressor: zstandard.ZstdCompressor | None = None) -> bytes:
    """A body with a flag before it that says whether it is compressed, which it is where it gets shorter."""
    if compressor is not None and len(plain) >= MIN_COMPRESSED_BYTES:
        short = compressor.compress(plain)
        if len(short) < len(plain):
            return _ZSTD + short
    return _PLAIN + plain


def unpack_body(packed: bytes) -> bytes:
    """What `pack_body` packed. Raises `CorruptRecord`."""
    if packed[:1] != _ZSTD:
        return packed[1:]
    try:
        return zstandard.decompress(packed[1:])
    except zstandard.ZstdError as error:
        raise CorruptRecord(f"Its stored bytes do not decompress: {error}") from error


def _little_endian(numbers: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _unpacked(packed: bytes, codes: str) -> array[int] | array[float]:
    code = packed[:1].decode("latin-1")
    if code not in codes or not code:
        raise CorruptRecord(f"Its numbers are of the unknown kind {code!r}.")
    numbers: array[int] | array[float] = array(code)
    try:
        numbers.frombytes(packed[1:])
    except ValueError as error:
        raise CorruptRecord(f"Its numbers are cut: {error}") from error
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
