"""Thinking in Anthropic's Messages: what the agent asks for, and what its blocks hold when they come back. Pure.

Without `thinking`, and with `disabled`, none is shown; `disabled` also asks the model's chat template for none,
`enabled` for some, `adaptive` leaves it to the model. A budget is a target in this dialect and `max_tokens` the limit:
nothing here cuts thinking short, since that would change what is sampled. With `display: omitted` a block is empty and
its signature carries the thinking, so that the engine gets it back; else the signature is only a digest, and what the
agent made of the text stands. What this gateway did not give and cannot read is refused, never dropped.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final, Literal

import msgspec

from gateway.dialects.base import Json
from tracker.errors import BadRequest

SEALED: Final = "hone-thinking-"
"""What the signature of an omitted block begins with; the thinking follows in base64."""
SIGNED: Final = "hone-digest-"
MIN_BUDGET: Final = 1024


class Thinking(msgspec.Struct):
    """The field `thinking`."""

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None

    @property
    def shows(self) -> bool:
        """Whether the answer has thinking blocks."""
        return self.type != "disabled"

    @property
    def omits(self) -> bool:
        """Whether those blocks are empty."""
        return self.display == "omitted"


def check_thinking(thinking: Thinking) -> None:
    """Raise on what the dialect does not allow."""
    if thinking.type == "enabled" and (thinking.budget_tokens or 0) < MIN_BUDGET:
        told = f"thinking.budget_tokens: write at least {MIN_BUDGET}; it is a target, max_tokens is the limit."
        raise BadRequest(told, param="thinking.budget_tokens")


def template_switches(thinking: Thinking | None) -> Json:
    """What chat templates that can turn thinking on and off are told, under both names that are in use."""
    if thinking is None or thinking.type not in ("enabled", "disabled"):
        return {}
    return {"enable_thinking": thinking.shows, "thinking": thinking.shows}


def sign(thinking: str, *, omits: bool) -> str:
    """The signature of a block."""
    data = thinking.encode("utf-8", "surrogatepass")
    if omits:
        return SEALED + base64.urlsafe_b64encode(data).decode()
    return SIGNED + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()


def read_thinking(thinking: str, signature: str, where: str) -> str:
    """The thinking that a block stands for when it comes back.

    >>> read_thinking("", sign("so be it", omits=True), "messages[1]")
    'so be it'
    """
    if thinking or not signature or signature.startswith(SIGNED):
        return thinking
    sealed = signature.removeprefix(SEALED)
    try:
        if sealed != signature:
            return base64.b64decode(sealed, altchars=b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _unreadable(where) from error
    raise _unreadable(where)


def _unreadable(where: str) -> BadRequest:
    told = f"{where}: this thinking is sealed and was not given by this gateway: leave the block out."
    return BadRequest(told, param=where, code="unsupported_block")
