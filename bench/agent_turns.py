"""Episodes of a made-up agent, turn by turn, in the three shapes that matter to storage. Pure and seeded.

`plain`: each prompt is the last one, its answer and a tool's result. `header`: a header at the front changes every
turn. `stripped`: the template drops the thinking of earlier answers, so each prompt forks from the last sequence. In
all of them the template's generation prompt stands only at the end of a prompt and is not part of the history.
"""

import json
import random
from collections.abc import Iterator

from tracker.types import Call, Choice

SHAPES = ("plain", "header", "stripped")
VOCABULARY = 50_000
SYSTEM_TOKENS = 400
THINKING_TOKENS = 90
ANSWER_TOKENS = 60
RESULT_TOKENS = 120
GENERATION_PROMPT = (11, 12, 13)
TURN_END = (14, 15)
WORDS = ("find", "the", "price", "of", "item", "list", "open", "order", "and", "check", "stock", "then", "report")


def turns(shape: str, num_turns: int, *, episode_id: str = "ep-1", seed: int = 0) -> Iterator[Call]:
    """The calls of one episode, in order."""
    dice = random.Random(seed)
    history = _ids(dice, SYSTEM_TOKENS)
    messages = [_message(dice, "system", SYSTEM_TOKENS)]
    for index in range(num_turns):
        header = _ids(dice, 30) if shape == "header" else ()
        thinking, answer = _ids(dice, THINKING_TOKENS), _ids(dice, ANSWER_TOKENS)
        reply = _message(dice, "assistant", ANSWER_TOKENS)
        sampled = thinking + answer
        yield Call(
            call_id=f"chatcmpl-{index}",
            episode_id=episode_id,
            index=index,
            policy="solver",
            model="solver",
            prompt_ids=header + history + GENERATION_PROMPT,
            choices=(Choice(index=0, sampled_ids=sampled, logprobs=_logprobs(dice, len(sampled)), message=reply),),
            messages=tuple(messages),
            request=b'{"model":"solver","temperature":1.0,"tools":' + json.dumps([WORDS] * 20).encode() + b"}",
            engine="vllm 0.32.0",
            started_ms=1_790_000_000_000 + 4000 * index,
            ended_ms=1_790_000_003_000 + 4000 * index,
            key_id="key-1",
            body_digest=f"{dice.getrandbits(256):064x}",
        )
        kept = answer if shape == "stripped" else sampled
        history += GENERATION_PROMPT[:1] + kept + TURN_END + _ids(dice, RESULT_TOKENS)
        messages += [reply, _message(dice, "tool", RESULT_TOKENS)]


def new_tokens(calls: tuple[Call, ...]) -> int:
    """Tokens that no earlier call of the episode had: the first prompt, then each result and each answer."""
    sampled = sum(len(choice.sampled_ids) for call in calls for choice in call.choices)
    return len(calls[0].prompt_ids) + sampled + RESULT_TOKENS * (len(calls) - 1)


def _ids(dice: random.Random, count: int) -> tuple[int, ...]:
    return tuple(dice.randrange(100, VOCABULARY) for _ in range(count))


def _logprobs(dice: random.Random, count: int) -> tuple[float, ...]:
    """Multiples of 2**-20: floats as an engine reports them."""
    return tuple(-dice.randrange(1, 1 << 22) / (1 << 20) for _ in range(count))


def _message(dice: random.Random, role: str, num_tokens: int) -> bytes:
    text = " ".join(dice.choice(WORDS) for _ in range(num_tokens))
    return json.dumps({"role": role, "content": text}).encode()
