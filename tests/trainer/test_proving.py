"""Negative controls: whatever is not what engines sampled is refused before the step and found by a later check.

Each control changes what is stored, as somebody with the database could: the calls of an archive, an adapter, a
manifest, the credit. Both lines name the place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from tests.tracker.building import RUN, call, choice
from tracker.errors import CorruptRecord
from tracker.evidence import Adapter, Archived
from tracker.manifests import (
    NO_MANIFEST,
    Manifest,
    TrainedSpan,
    decode_manifest,
    encode_manifest,
    manifest_digest,
)
from tracker.receipts import decode_receipts, seal
from tracker.types import Batch, Call, CallCredit, Record
from tracker.verification import Stored, verify
from trainer.proving import checked

AA, BB = "a" * 64, "b" * 64


def sampled_calls(episode: str) -> tuple[Call, ...]:
    """Three turns. The first answer begins with thinking, 90 and 91, which the agent's template leaves out later."""
    known = {"episode_id": episode, "version": 1, "adapter_digest": AA}
    return (
        call(f"{episode}-0", 0, (1, 2), (90, 91, 7, 99), **known),
        call(f"{episode}-1", 1, (1, 2, 7, 99, 98), (8, 99), **known),
        call(f"{episode}-2", 2, (1, 2, 7, 99, 98, 8, 99, 97), (9, 99), **known),
    )


class Scene(Record, frozen=True):
    """What is stored of a batch of two episodes."""

    batch: Batch
    episodes: dict[str, Archived]
    adapters: dict[int, Adapter]

    def with_calls(self, episode: str, calls: Sequence[Call]) -> Scene:
        """The archive re-written whole, as an honest encoder would; chain and receipts as they were sealed."""
        return replace(self, episodes=self.episodes | {episode: replace(self.episodes[episode], calls=tuple(calls))})

    def with_call(self, number: int, **fields: object) -> Scene:
        calls = list(self.episodes["e0"].calls)
        calls[number] = replace(calls[number], **fields)
        return self.with_calls("e0", calls)

    def with_manifest(self, change: Callable[[Manifest], Manifest]) -> Scene:
        """The stored manifest edited, its own digest made to fit."""
        edited = change(decode_manifest(self.batch.manifest))
        edited = replace(edited, digest=manifest_digest(edited))
        return replace(self, batch=replace(self.batch, manifest=encode_manifest(edited)))

    def step(self) -> bytes:
        """What a trainer does before it steps; the manifest."""
        return checked(self.batch, RUN, self.episodes, self.adapters).manifest

    def found(self) -> list[str]:
        """What a check of the stored batch finds."""
        episodes = {name: (archived, RUN) for name, archived in self.episodes.items()}
        stored = Stored(batch=self.batch, episodes=episodes, adapters=self.adapters)
        return [fault.line() for fault in verify(stored).faults]


def scene() -> Scene:
    """As it is when nothing is amiss, with the manifest stored."""
    episodes: dict[str, Archived] = {}
    credit: list[CallCredit] = []
    for episode, advantage in (("e0", 0.5), ("e1", -0.5)):
        calls = sampled_calls(episode)
        chain, receipts = seal(calls)
        episodes[episode] = Archived(episode_id=episode, chain=chain, calls=calls, receipts=decode_receipts(receipts))
        credit += [CallCredit(episode_id=episode, call_id=made.call_id, advantage=advantage) for made in calls]
    batch = Batch(batch_id="b", policy="p", step=1, epoch=0, fence=1, group_ids=("g",), credit=tuple(credit))
    fresh = Scene(batch=batch, episodes=episodes, adapters={1: Adapter(registered=AA, folder="p@1-a", found=AA)})
    return replace(fresh, batch=replace(batch, manifest=fresh.step(), state="trained"))


def with_span(manifest: Manifest, number: int, **fields: object) -> Manifest:
    spans = list(manifest.spans)
    spans[number] = replace(spans[number], **fields)
    return replace(manifest, spans=tuple(spans))


def swapped(calls: Sequence[Call]) -> list[Call]:
    return [calls[0], calls[2], calls[1]]


def other_credit(credit: tuple[CallCredit, ...]) -> tuple[CallCredit, ...]:
    return (replace(credit[0], advantage=5.0), *credit[1:])


CONTROLS: dict[str, tuple[Callable[[Scene], Scene], str, str]] = {
    "a flipped token": (
        lambda all: all.with_call(1, choices=(choice([8, 96]),)),
        "episode e0, call e0-1, choice 0, offset 5: the 2 sampled ids are not those of its receipt",
        "episode e0, call e0-1, choice 0, offset 5: other ids were trained than the call has",
    ),
    "thinking stripped and merged anyway": (
        lambda all: all.with_call(1, prompt_ids=(1, 2, 90, 91, 7, 99, 98)),
        "episode e0, call e0-1, offset 0: the prompt ids are not those of its receipt",
        "episode e0, call e0-1, choice 0, offset 0: it was trained under another context than the call had",
    ),
    "the same text as other ids": (
        lambda all: all.with_call(2, choices=(choice([4, 5, 99]),)),
        "episode e0, call e0-2, choice 0, offset 8: the 3 sampled ids are not those of its receipt",
        "episode e0, call e0-2, choice 0, offset 8: trained at offsets 8 to 10, the call's ids stand at 8 to 11",
    ),
    "a changed log-probability": (
        lambda all: all.with_call(0, choices=(choice([90, 91, 7, 99], [-0.125, -0.25, -0.375, -0.51]),)),
        "episode e0, call e0-0, choice 0, offset 2: the log-probabilities are not those of its receipt",
        "episode e0, call e0-0, choice 0, offset 2: the log-probabilities are not those it was trained with",
    ),
    "calls re-ordered": (
        lambda all: all.with_calls("e0", swapped(all.episodes["e0"].calls)),
        "episode e0, call e0-2: calls are re-ordered: it stands at place 1, where e0-1 was sealed",
        "episode e0, call e0-2: calls are re-ordered: it stands at place 1, where e0-1 was sealed",
    ),
    "a dropped call": (
        lambda all: all.with_calls("e0", all.episodes["e0"].calls[1:]),
        "episode e0, call e0-0: it was sealed with the episode and is missing",
        "episode e0, call e0-0, choice 0: there is no such call and choice with a receipt",
    ),
    "an added call": (
        lambda all: all.with_calls("e1", [*all.episodes["e1"].calls, call("new", 3, (1,), (2,), episode_id="e1")]),
        "episode e1, call new: it was not there when the episode was sealed",
        "episode e1, call new: it was not there when the episode was sealed",
    ),
    "another version": (
        lambda all: all.with_call(0, version=2),
        "episode e0, call e0-0: the version is 2, its receipt says 1",
        "episode e0, call e0-0, choice 0: trained as version 1, it was sampled with version 2",
    ),
    "the archive of another episode": (
        lambda all: replace(all, episodes=all.episodes | {"e0": replace(all.episodes["e1"], episode_id="e0")}),
        "episode e0, call e1-0: it is a call of episode e1",
        "episode e0: it was trained on with the chain",
    ),
    "another chain": (
        lambda all: replace(all, episodes=all.episodes | {"e1": replace(all.episodes["e1"], chain="00")}),
        "episode e1: its receipts do not close to the chain it was sealed with",
        "episode e1: its receipts do not close to the chain it was sealed with",
    ),
    "a swapped adapter, as it is registered": (
        lambda all: replace(all, adapters={1: Adapter(registered=BB)}),
        f"episode e0, call e0-0, choice 0: it was sampled with {AA}, version 1 is registered as {BB}",
        f"it was sampled with {AA}, version 1 is registered as {BB}",
    ),
    "a swapped adapter, as it lies in the data folder": (
        lambda all: replace(all, adapters={1: Adapter(registered=AA, folder="p@1-a", found=BB)}),
        f"episode e0, call e0-0, choice 0: adapters/p@1-a holds {BB}, version 1 is {AA}",
        f"adapters/p@1-a holds {BB}, version 1 is {AA}",
    ),
    "a version that was never registered": (
        lambda all: replace(all, adapters={}),
        "episode e0, call e0-0, choice 0: version 1 was never registered",
        "version 1 was never registered",
    ),
    "an edited manifest": (
        lambda all: replace(all, batch=replace(all.batch, manifest=all.batch.manifest.replace(b'"end":7', b'"end":6'))),
        "the manifest was edited: it breaks its own digest",
        "the manifest was edited: it breaks its own digest",
    ),
    "an edited span": (
        lambda all: all.with_manifest(lambda stored: with_span(stored, 1, start=7, end=9)),
        "the batch is not the one that was stored when it was taken: episode e0, call e0-1, choice 0 is trained as",
        "episode e0, call e0-1, choice 0, offset 5: trained at offsets 7 to 9, the call's ids stand at 5 to 7",
    ),
    "a span under the context of another call": (
        lambda all: all.with_manifest(
            lambda stored: with_span(stored, 1, prompt=stored.spans[2].prompt, receipt=stored.spans[2].receipt)
        ),
        "the batch is not the one that was stored when it was taken: episode e0, call e0-1, choice 0 is trained as",
        "episode e0, call e0-1, choice 0, offset 0: it was trained under another context than the call had",
    ),
    "a span left out": (
        lambda all: all.with_manifest(lambda stored: replace(stored, spans=stored.spans[1:])),
        "the batch is not the one that was stored when it was taken: it has 6 trained spans, not 5",
        "episode e0, call e0-0: it has credit and no trained span",
    ),
    "another adapter in the manifest": (
        lambda all: all.with_manifest(lambda stored: replace(stored, versions={"1": BB})),
        "the batch is not the one that was stored when it was taken: versions differ",
        "episode e0, call e0-0, choice 0: it was sampled with another adapter than version 1 of the manifest",
    ),
    "the manifest of another batch": (
        lambda all: all.with_manifest(lambda stored: replace(stored, batch_id="c")),
        "the batch is not the one that was stored when it was taken: batch_id differs",
        "its manifest is that of another batch: batch_id 'c' instead of 'b'",
    ),
    "other credit": (
        lambda all: replace(all, batch=replace(all.batch, credit=other_credit(all.batch.credit))),
        "the batch is not the one that was stored when it was taken: credit differs",
        "episode e0, call e0-0, choice 0: trained with the advantage 0.5, its credit is 5.0",
    ),
}


def test_what_is_as_it_was_sampled_is_trained_and_found_so_later():
    whole = scene()
    assert whole.step() == whole.batch.manifest
    assert whole.found() == []


@pytest.mark.parametrize(("corrupt", "line", "_"), CONTROLS.values(), ids=CONTROLS)
def test_what_is_not_as_it_was_sampled_is_refused_before_the_step(corrupt: Callable[[Scene], Scene], line: str, _: str):
    with pytest.raises(CorruptRecord) as refused:
        corrupt(scene()).step()
    assert refused.value.message.startswith(line)


@pytest.mark.parametrize("name", [name for name in CONTROLS if "manifest" not in name and "span" not in name])
def test_it_is_refused_at_the_first_look_too_when_no_manifest_is_stored_yet(name: str):
    corrupt, line, _ = CONTROLS[name]
    fresh = corrupt(scene())
    fresh = replace(fresh, batch=replace(fresh.batch, manifest=NO_MANIFEST, state="taken"))
    if name == "other credit":
        assert decode_manifest(fresh.step()).spans[0].advantage == 5.0
        return
    with pytest.raises(CorruptRecord) as refused:
        fresh.step()
    assert refused.value.message.startswith(line)


@pytest.mark.parametrize(("corrupt", "_", "line"), CONTROLS.values(), ids=CONTROLS)
def test_what_was_changed_after_the_step_is_found_in_the_stored_batch(
    corrupt: Callable[[Scene], Scene], _: str, line: str
):
    found = corrupt(scene()).found()
    assert any(told.startswith(line) for told in found), found


def test_an_episode_that_was_deleted_before_the_step_is_refused():
    whole = scene()
    rest = replace(whole, episodes={"e1": whole.episodes["e1"]}, batch=replace(whole.batch, manifest=NO_MANIFEST))
    with pytest.raises(CorruptRecord, match="episode e0, call e0-0: it has credit and no row any more, like 2 others"):
        rest.step()


def test_the_manifest_of_a_batch_has_every_span_with_what_proves_it():
    manifest = msgspec.json.decode(scene().batch.manifest, type=Manifest)
    assert (manifest.batch_id, manifest.policy, manifest.step, manifest.loss) == ("b", "p", 1, "dapo")
    assert manifest.versions == {"1": AA}
    assert [(span.call_id, span.start, span.end, span.advantage) for span in manifest.spans[:3]] == [
        ("e0-0", 2, 6, 0.5),
        ("e0-1", 5, 7, 0.5),
        ("e0-2", 8, 10, 0.5),
    ]
    assert isinstance(manifest.spans[0], TrainedSpan)
    assert (manifest.checked.context, manifest.checked.sampled, manifest.coverage.sampled_tokens) == (16, 16, 16)
