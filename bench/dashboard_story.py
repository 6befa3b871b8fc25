"""A support desk's agent, as the calls of an episode: what the dashboard's pages are measured and pictured with.

Customers write, the agent looks orders up with a tool and answers; now and then it sends a helper to search the manual,
has its title made, or is cut by its limit. Conversations are written in tokens by the scripted engine's tokenizer, so
that ids are words. Always the same for the same seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.scripted.tokens import END, Tokens
from tracker.types import Call, CallState, Choice, Reason, Sampling

Json = dict[str, Any]
SYSTEM: Final = (
    "You answer customers of a shop for coffee machines. Look an order up before you say anything about it. "
    "Be short and kind, promise nothing that the order does not say, and end with what happens next."
)
TASKS: Final = {
    "refund": (
        ("wrong grinder", "I ordered the steel grinder and got the plastic one. Order {order}. I want my money back."),
        ("twice charged", "You charged me twice for order {order}!! What is going on?"),
        ("late cancel", "Can I still cancel {order}? It says shipped but the parcel has not moved for a week."),
        ("broken on arrival", "The boiler of {order} leaks. I am not going to drive 40 km to send it back."),
    ),
    "delivery": (
        ("where is it", "where is my parcel?? order {order}"),
        ("new address", "We are moving on Friday. Please send {order} to our new flat instead."),
        ("gift", "Is {order} going to be there before the 24th? It is a present."),
        ("half a parcel", "Only the portafilter came, the machine of order {order} is missing."),
    ),
    "advice": (
        ("descaling", "How often do I have to descale the M2? The water here is very hard."),
        ("no crema", "My espresso from order {order} has no crema at all, what am I doing wrong?"),
        ("grind size", "Which setting of the grinder for a moka pot?"),
        ("milk", "Can the M2 froth oat milk?"),
    ),
}
FOUND: Final = (
    {"state": "shipped", "carrier": "DPD", "expected": "2026-12-03", "items": ["M2 espresso machine"]},
    {"state": "delivered", "items": ["Steel grinder G4"], "charged": "129.00 EUR", "payments": 2},
    {"state": "packed", "items": ["Portafilter 58 mm", "M2 espresso machine"], "parcels": 2},
    {"state": "returned", "items": ["Boiler B1"], "refund": "open since 2026-11-12"},
)
GOOD: Final = (
    "I have found it: {order} is {state}. The refund is on its way to the card you paid with, three days at most. "
    "You will get a mail as soon as it is booked.",
    "Thank you for telling us. {order} is {state}; I have asked the carrier to look for it today and will write to you "
    "by tomorrow noon, whatever they say.",
    "That should not happen, and I am sorry. I have sent the missing part of {order} again, free of charge. It leaves "
    "our warehouse this evening.",
    "Descale it every six weeks with hard water, and rinse twice. The light at the left comes on when it is time.",
)
BAD: Final = (
    "Your order will certainly arrive tomorrow, I promise.",
    "Please contact support.",
    "I am sorry to hear that! I am sorry to hear that! I am sorry to hear that! Have a great day!",
    "Orders cannot be changed. Read our terms.",
)
NOTES: Final = (
    "Manual M2, page 14: descale every 200 cups or six weeks, whichever comes first.",
    "Terms, section 5: parts that arrive broken are replaced or paid back, carriage is ours.",
    "Carrier hand-book: a parcel without a scan for five days is searched for on request.",
)
TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "look_up_order",
            "description": "What is known of an order.",
            "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
        },
    }
]


class Storyteller:
    """Writes episodes of one tokenizer."""

    def __init__(self, tokens: Tokens, seed: int) -> None:
        self._tokens = tokens
        self._chosen = random.Random(seed)
        self._known: dict[str, tuple[int, ...]] = {}

    def episode(self, episode_id: str, task: str, version: Version, at_ms: int, good: bool) -> tuple[Call, ...]:
        """The calls of one attempt at a task."""
        writing = _Writing(self, episode_id, version, at_ms)
        chosen = self._chosen
        order = f"HM-{chosen.randrange(10_000, 99_999)}"
        family, name = task.split("/")
        words = dict(TASKS[family])[name].format(order=order)
        conversation: list[Json] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": words}]
        found = chosen.choice(FOUND)
        if chosen.random() < 0.12:
            asked = [{"role": "user", "content": f"Write a title of five words for: {words}"}]
            writing.call(asked, {"role": "assistant", "content": f"{name.capitalize()}, {order}"}, role="title")
        asks = {"name": "look_up_order", "arguments": json.dumps({"order": order})}
        answer: Json = {"role": "assistant", "content": None, "tool_calls": [_tool(writing.num_calls, asks)]}
        writing.call(conversation, answer)
        result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": json.dumps(found)}
        conversation = [*conversation, answer, result]
        if chosen.random() < 0.35:
            asked = [{"role": "system", "content": "Search the manual."}, {"role": "user", "content": words}]
            writing.call(asked, {"role": "assistant", "content": chosen.choice(NOTES)}, role="explore")
        said = chosen.choice(GOOD if good else BAD).format(order=order, state=found["state"])
        cut = not good and chosen.random() < 0.2
        writing.call(conversation, {"role": "assistant", "content": said}, truncated=cut)
        if chosen.random() < 0.4:
            thanks = {"role": "user", "content": "Thanks. And if it does not come?" if good else "That is no help."}
            conversation = [*conversation, {"role": "assistant", "content": said}, thanks]
            last = "Then write to me here and I will send it again the same day." if good else chosen.choice(BAD)
            writing.call(conversation, {"role": "assistant", "content": last})
        if chosen.random() < 0.04:
            writing.failed(conversation)
        return tuple(writing.calls)

    def long_episode(self, episode_id: str, version: Version, at_ms: int, size: tuple[int, int]) -> tuple[Call, ...]:
        """One conversation of so many calls that comes to about so many ids in all, and leaves its own history once."""
        num_calls, num_ids = size
        writing = _Writing(self, episode_id, version, at_ms)
        conversation: list[Json] = [{"role": "system", "content": SYSTEM}]
        for turn in range(num_calls):
            order = f"HM-{self._chosen.randrange(10_000, 99_999)}"
            pages = " ".join(self._chosen.choice(NOTES) for _ in range(max(1, num_ids // num_calls // 19 - 3)))
            conversation = [*conversation, {"role": "user", "content": f"Ticket {turn + 1}, {order}. {pages}"}]
            said = self._chosen.choice(GOOD).format(order=order, state="shipped")
            answer = {"role": "assistant", "content": f"Ticket {turn + 1}: {said}"}
            writing.call(conversation, answer)
            if turn == num_calls // 2:
                writing.call([*conversation, {"role": "user", "content": "Say it again, shorter."}], answer)
            conversation = [*conversation, answer]
        return tuple(writing.calls)

    def prompt(self, conversation: Sequence[Json]) -> tuple[int, ...]:
        """The ids of a conversation; what messages were written as is remembered."""
        ids: list[int] = list(self._written({"tools": TOOLS}))
        for message in conversation:
            ids += self._written(message)
        return (*ids, *self._opening())

    def answer(self, message: Json) -> tuple[int, ...]:
        """The ids that an answer is sampled as."""
        whole = self._written(message)
        head = len(self._opening())
        return whole[head : whole.index(END, head) + 1]

    def logprobs(self, num_ids: int, good: bool) -> tuple[float, ...]:
        """Mostly sure, now and then a surprise."""
        rate = 3.0 if good else 1.6
        return tuple(-round(self._chosen.expovariate(rate), 4) for _ in range(num_ids))

    def _opening(self) -> tuple[int, ...]:
        return self._written({})

    def _written(self, message: Json) -> tuple[int, ...]:
        key = json.dumps(message, sort_keys=True)
        if key not in self._known:
            self._known[key] = self._encoded(message)
        return self._known[key]

    def _encoded(self, message: Json) -> tuple[int, ...]:
        opening = self._tokens.prompt({"messages": []})
        if not message:
            return tuple(opening)
        body = {"messages": [], **message} if "tools" in message else {"messages": [message]}
        return tuple(self._tokens.prompt(body)[: -len(opening)])


class Version(msgspec.Struct, frozen=True):
    """The adapter that an episode is answered with."""

    policy: str
    version: int
    digest: str = ""


class _Writing:
    """The calls of one episode, as they come."""

    def __init__(self, teller: Storyteller, episode_id: str, version: Version, at_ms: int) -> None:
        self._teller = teller
        self._episode_id = episode_id
        self._version = version
        self._at_ms = at_ms
        self.calls: list[Call] = []

    @property
    def num_calls(self) -> int:
        return len(self.calls)

    def call(self, conversation: Sequence[Json], answer: Json, *, role: str = "main", truncated: bool = False) -> None:
        sampled = self._teller.answer(answer)
        sampled = sampled[: max(4, len(sampled) // 2)] if truncated else sampled
        choice = Choice(
            index=0,
            sampled_ids=sampled,
            logprobs=self._teller.logprobs(len(sampled), good=not truncated),
            finish_reason="length" if truncated else "tool_calls" if answer.get("tool_calls") else "stop",
            truncated=truncated,
            message=msgspec.json.encode(answer),
        )
        self._append(conversation, role=role, choices=(choice,), prompt_ids=self._teller.prompt(conversation))

    def failed(self, conversation: Sequence[Json]) -> None:
        """One that the engine gave up."""
        detail = "The engine at http://10.0.0.7:8610 does not answer: Server disconnected without sending a response."
        self._append(conversation, state=CallState.FAILED, reason=Reason.UPSTREAM_FAILED, detail=detail)

    def _append(self, conversation: Sequence[Json], **fields: Any) -> None:
        number = len(self.calls)
        started_ms = self._at_ms + 1_900 * number
        self.calls.append(
            Call(
                call_id=f"chatcmpl-{self._episode_id.removeprefix('ep-')}-{number}",
                episode_id=self._episode_id,
                index=number,
                policy=self._version.policy,
                model=self._version.policy,
                version=self._version.version,
                adapter_digest=self._version.digest,
                messages=tuple(msgspec.json.encode(message) for message in conversation),
                request=msgspec.json.encode({"model": self._version.policy, "tools": TOOLS, "max_tokens": 512}),
                sampling=Sampling(max_tokens=512),
                engine="http://127.0.0.1:8610",
                started_ms=started_ms,
                ended_ms=started_ms + 1_400,
                key_id="key-of-the-desk",
                **fields,
            )
        )


def _tool(number: int, function: Json) -> Json:
    return {"id": f"call_{number}", "type": "function", "function": function}
