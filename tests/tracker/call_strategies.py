"""Calls for tests: plain ones by hand, any by hypothesis, and the turns of an agent's episode."""

import msgspec
from hypothesis import strategies as st

from tracker.types import Call, CallState, Choice, Intent, Prompting, Reason, Sampling, Usage

IDS = st.lists(st.integers(0, 2**33), max_size=40).map(tuple)
JSON = st.binary(max_size=300)
WORDS = st.text(max_size=12)
MILLISECONDS = st.integers(0, 2**45)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(-1, 100),
    min_p=st.floats(0, 1),
    max_tokens=st.none() | st.integers(0, 2**31),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    constrained=st.booleans(),
    biased=st.booleans(),
)


@st.composite
def choices(draw: st.DrawFn, index: int) -> Choice:
    width = draw(st.sampled_from((32, 64)))
    return Choice(
        index=index,
        sampled_ids=draw(IDS),
        logprobs=tuple(draw(st.lists(st.floats(width=width, allow_nan=False), max_size=20))),
        finish_reason=draw(st.none() | WORDS),
        truncated=draw(st.booleans()),
        message=draw(JSON),
        reason=draw(st.none() | st.sampled_from(Reason)),
    )


USAGES = st.builds(
    Usage,
    prompt_tokens=st.integers(0, 2**31),
    completion_tokens=st.integers(0, 2**31),
    counted=WORDS,
    cost=st.none() | st.floats(0, 1e6),
)

PROMPTINGS = st.builds(
    Prompting,
    mode=WORDS,
    source=WORDS,
    choice=st.integers(0, 9),
    num_stored=st.integers(0, 2**31),
    reason=WORDS,
    history=st.binary(max_size=16),
    thoughts=st.lists(st.tuples(st.integers(0, 99), st.binary(max_size=16)), max_size=2).map(tuple),
)


@st.composite
def calls(draw: st.DrawFn, index: int, episode_id: str = "ep-1") -> Call:
    """A call in which every field may have any value."""
    return Call(
        call_id=f"call-{index}",
        episode_id=episode_id,
        index=index,
        dialect=draw(WORDS),
        policy=draw(st.none() | st.sampled_from(("solver", "checker"))),
        model=draw(WORDS),
        version=draw(st.integers(0, 2**31)),
        adapter_digest=draw(WORDS),
        role=draw(WORDS),
        state=draw(st.sampled_from(CallState)),
        reason=draw(st.none() | st.sampled_from(Reason)),
        detail=draw(WORDS),
        prompt_ids=draw(IDS),
        choices=tuple(draw(choices(place)) for place in range(draw(st.integers(0, 3)))),
        messages=tuple(draw(st.lists(JSON, max_size=4))),
        request=draw(JSON),
        sampling=draw(SAMPLINGS),
        engine=draw(WORDS),
        started_ms=draw(MILLISECONDS),
        ended_ms=draw(MILLISECONDS),
        key_id=draw(WORDS),
        body_digest=draw(WORDS),
        retry=draw(st.integers(0, 9)),
        usage_completion_tokens=draw(st.none() | st.integers(0, 2**31)),
        usage=draw(st.none() | USAGES),
        prompting=draw(st.none() | PROMPTINGS),
    )


@st.composite
def episodes(draw: st.DrawFn, episode_id: str = "ep-1") -> tuple[Call, ...]:
    """Calls of one episode, some of which go on from an earlier one, whole or cut, as agents do."""
    made: list[Call] = []
    for index in range(draw(st.integers(1, 6))):
        call = draw(calls(index, episode_id))
        if made and draw(st.booleans()):
            parent = draw(st.sampled_from(made))
            sampled = parent.choices[0].sampled_ids if parent.choices else ()
            whole = (parent.prompt_ids + sampled) * draw(st.integers(1, 8))
            start = draw(st.integers(0, len(whole)))
            prompt = draw(IDS) + whole[start:] + call.prompt_ids
            call = msgspec.structs.replace(call, prompt_ids=prompt, messages=parent.messages + call.messages)
        made.append(call)
    return tuple(made)


def intent(call_id: str = "c0", episode_id: str = "ep-1", **fields: object) -> Intent:
    """An intent of a live worker with a far deadline."""
    base = {"worker": "worker-1", "deadline_ms": 2**50, "started_ms": 5, "policy": "solver"}
    return msgspec.convert({"call_id": call_id, "episode_id": episode_id, **base, **fields}, Intent)


def call_of(begun: Intent, index: int, *, prompt: tuple[int, ...] = (1, 2), sampled: tuple[int, ...] = (3, 4)) -> Call:
    """The call that an intent became."""
    return Call(
        call_id=begun.call_id,
        episode_id=begun.episode_id,
        index=index,
        policy=begun.policy,
        prompt_ids=prompt,
        choices=(Choice(index=0, sampled_ids=sampled, logprobs=(-0.5,) * len(sampled), message=b'"hi"'),),
        messages=(b'{"role":"user","content":"hello"}',),
    )
