"""A real tokenizer that needs no network: tiktoken's `o200k_base`, whose ranks lie in this package.

tiktoken downloads its encodings when they are first used; a gateway talks to nobody that its settings do not name. The
ranks are the file that tiktoken would download (MIT, its digest is checked), the pattern is that of tiktoken's own
definition. Loading takes half a second and holds no lock of the loop: do it in a thread.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Final

import tiktoken
import zstandard

from tracker.errors import SettingsError

NAME: Final = "o200k_base"
RANKS: Final = Path(__file__).with_name("encodings") / f"{NAME}.tiktoken.zst"
DIGEST: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of the ranks, as tiktoken itself checks it."""
PATTERN: Final = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def load_encoding() -> tiktoken.Encoding:
    """The encoding; raises `SettingsError` if this installation of Hone is damaged."""
    try:
        plain = zstandard.decompress(RANKS.read_bytes())
    except (OSError, zstandard.ZstdError) as error:
        raise SettingsError(f"{RANKS} cannot be read ({error}): install Hone again.") from error
    if hashlib.sha256(plain).hexdigest() != DIGEST:
        raise SettingsError(f"{RANKS} is damaged: install Hone again.")
    pairs = (line.split() for line in plain.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    return tiktoken.Encoding(NAME, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
