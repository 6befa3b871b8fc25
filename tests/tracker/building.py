"""Calls and whole episodes for tests, by hand and by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tracker.types import Call, CallState, Choice, Credit, Reason, RunSettings, Sampling

RUN = RunSettings(run="r")
PLAIN = RunSettings(run="r", credit=Credit(std=False))


def choice(sampled: Sequence[int], logprobs: Sequence[float] | None = None, index: int = 0, **fields: object) -> Choice:
    """A choice with made-up, distinct log-probabilities where none are given."""
    given = [-(position + 1) / 8 for position in range(len(sampled))] if logprobs is None else logprobs
    return Choice(index=index, sampled_ids=tuple(sampled), logprobs=tuple(given), **fields)  # type: ignore[arg-type]


def call(name: str, index: int, prompt: Sequence[int], *sampled: Sequence[int], **fields: object) -> Call:
    """A call of policy `p` in episode `e`; each of `sampled` is one choice."""
    choices = tuple(choice(ids, index=position) for position, ids in enumerate(sampled))
    known: dict[str, object] = {"episode_id": "e", "policy": "p", "choices": choices}
    return Call(call_id=name, index=index, prompt_ids=tuple(prompt), **(known | fields))  # type: ignore[arg-type]


def chain_of(lengths: int, episode: str = "e", first: int = 1) -> tuple[Call, ...]:
    """A conversation of that many turns, each continuing the one before."""
    calls: list[Call] = []
    prompt = [first]
    for turn in range(lengths):
        calls.append(call(f"{episode}-{turn}", turn, prompt, [50 + turn, 99], episode_id=episode))
        prompt = [*prompt, 50 + turn, 99, 98, turn]
    return tuple(calls)


_ids = st.lists(st.integers(0, 2), min_size=1, max_size=3)
_bad_logprobs = st.sampled_from([float("nan"), float("inf"), float("-inf"), -9999.0, -1e9])


@st.composite
def episodes(draw: st.DrawFn, max_calls: int = 9, amiss: bool = True) -> list[Call]:
    """Calls of a few agents over a tiny alphabet, so that prefixes, forks and equal samples are common.

    With `amiss`, some calls failed, were retried, or have something wrong with their tokens.
    """
    calls: list[Call] = []
    heads: list[list[int]] = [[]]
    for index in range(draw(st.integers(0, max_calls))):
        prompt = draw(st.sampled_from(heads)) + draw(_ids if draw(st.booleans()) else st.just([]))
        prompt = prompt or draw(_ids)
        sampled = draw(st.lists(_ids, min_size=1, max_size=2))
        made = call(f"c{index}", index, prompt, *sampled, policy=draw(st.sampled_from(["p", "p", "q"])))
        calls.append(_spoiled(draw, made) if amiss and draw(st.integers(0, 3)) == 0 else made)
        heads += [prompt + ids for ids in sampled]
    return calls


def _spoiled(draw: st.DrawFn, made: Call) -> Call:
    fields: dict[str, object] = {name: getattr(made, name) for name in made.__struct_fields__}
    first = made.choices[0]
    fields |= draw(
        st.sampled_from(
            [
                {"state": CallState.FAILED},
                {"state": CallState.ABORTED},
                {"state": CallState.LOST, "choices": ()},
                {"reason": Reason.IMAGES},
                {"policy": None},
                {"prompt_ids": ()},
                {"choices": ()},
                {"choices": (choice([]), *made.choices[1:])},
                {"choices": (choice(first.sampled_ids, [-0.5] * (len(first.sampled_ids) + 1)), *made.choices[1:])},
                {"choices": (choice(first.sampled_ids, [draw(_bad_logprobs)] * len(first.sampled_ids)),)},
                {"usage_completion_tokens": 1000},
                {"sampling": Sampling(temperature=0.0)},
                {"role": "judge"},
                {"body_digest": "same", "retry": draw(st.integers(0, 2))},
                {"version": 1},
            ]
        )
    )
    return Call(**fields)  # type: ignore[arg-type]
