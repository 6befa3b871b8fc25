"""How deeply JSON is nested, told from its bytes: asked before anything that goes into it by recursion.

A body with few brackets is done after two looks, so that an ordinary call pays next to nothing; any other costs a few
copies of its bytes, never objects. Of what is not JSON nothing is promised: whoever parses it refuses it. Pure.
"""

from __future__ import annotations

from typing import Final

from tracker.errors import BadRequest

MAX_DEPTH: Final = 64
"""Of lists and objects in a body. Schemas of tools, the deepest that agents send, are far below."""
_OTHER: Final = bytes(set(range(256)) - set(b"[]{}"))
_LISTS: Final = bytes.maketrans(b"{}", b"[]")


def refuse_deep(body: bytes, max_depth: int = MAX_DEPTH) -> None:
    """Raise `BadRequest` where lists and objects are nested further than this.

    >>> refuse_deep(b"[[1]]", max_depth=2)
    """
    num_marks = _num_up_to(body, b"{", max_depth) + _num_up_to(body, b"[", max_depth)
    if num_marks > max_depth and is_deep(body, max_depth):
        raise BadRequest(f"The body is nested more than {max_depth} deep, which is the limit.", code="invalid_json")


def is_deep(body: bytes, max_depth: int) -> bool:
    r"""Whether lists and objects are nested further than this.

    >>> is_deep(b"[[[]]]", 2), is_deep(b'[["[["], []]', 2), is_deep(b'[["\\"[["]]', 2)
    (True, False, False)
    """
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(plain.split(b'"')[::2])  # of strings: each has two quotes, now that none is escaped
    brackets = outside.translate(_LISTS, _OTHER)
    for _ in range(max_depth):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return bool(brackets)


def _num_up_to(body: bytes, mark: bytes, limit: int) -> int:
    """How often a mark is there, not counted any further than just beyond the limit."""
    return len(body.split(mark, limit + 1)) - 1
