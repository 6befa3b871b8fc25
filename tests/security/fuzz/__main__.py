"""`python -m tests.security.fuzz TARGET [OPTIONS OF LIBFUZZER]`: one target under atheris, which coverage guides.

`all` is every target, told apart by the first byte: what a test has time for.
`make fuzz SECONDS=60` runs all of them. A finding is written to `.hone/fuzz/`, with its trace on the screen; a test
replays it once it is mended (`REGRESSIONS` in `tests/security/test_fuzz.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gateway", "tracker"], enable_loader_override=False):
    from tests.security.fuzz.targets import EVERY, SEEDS, TARGETS, WORDS, fuzz_every

FOLDER = Path(".hone/fuzz")
LONGEST = 4096


def main(arguments: list[str]) -> None:
    name, *options = arguments
    corpus = FOLDER / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS.get(name, EVERY)):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = FOLDER / "words"
    escaped = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in WORDS)
    words.write_text("".join(f'"{word}"\n' for word in escaped))
    own = [f"-dict={words}", f"-artifact_prefix={FOLDER}/{name}-", f"-max_len={LONGEST}", "-print_final_stats=0"]
    atheris.Setup([sys.argv[0], *own, *options, str(corpus)], TARGETS.get(name, fuzz_every))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
