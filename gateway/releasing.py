"""Trials of versions as the gateway runs them: looked at in the background, decided by their rules, or by a person.

Every gateway looks; what is decided is one transaction, so that one of them does it. A verdict takes a while to reach
where episodes are many: a thread does it, and again only when more is known. What a trial amounts to is in
`tracker/judging.py`, what becomes of versions in `hotswap.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from gateway.hotswap import HotSwap
from tracker.clock import Clock
from tracker.errors import Conflict, NotFound
from tracker.judging import judge, packed_verdict
from tracker.settings import PolicySettings, StoreSettings
from tracker.store import Ledger
from tracker.trials import (
    OPEN,
    Facts,
    Outcome,
    ReleaseEvent,
    Seen,
    Shadow,
    Tally,
    Trial,
    TrialState,
    Verdict,
)
from tracker.types import Policy, Record, Version

LOG: Final = logging.getLogger("hone.releasing")
DECIDE_S: Final = 2.0
"""Between two looks at what is on trial."""
HONE: Final = "hone"
"""Who did what the rules say."""
MIN_SCORED: Final = 200
"""Tokens that a shadow has scored, below which its distance says nothing."""
PAST_EVENTS: Final = 20


class _Told(msgspec.Struct):
    kl: float | None = None


class Release(Record, frozen=True):
    """How the versions of a policy stand."""

    settings: PolicySettings
    policy: Policy
    trials: tuple[Trial, ...]
    """Newest version first."""
    verdict: Verdict | None
    """Of the trial that goes on."""
    counts: dict[str, int]
    """Episodes begun in it: `stable`, `canary`."""
    shadow: Shadow | None
    tallies: tuple[Tally, ...]
    events: tuple[ReleaseEvent, ...]
    """The newest."""

    @property
    def trial(self) -> Trial | None:
        """The one that goes on."""
        return next((trial for trial in self.trials if trial.state in OPEN), None)


class Releasing:
    """Looks at trials, and does what people ask for."""

    def __init__(self, stores: StoreSettings, ledger: Ledger, swap: HotSwap, clock: Clock) -> None:
        self._stores = stores
        self._ledger = ledger
        self._swap = swap
        self._clock = clock
        self._judged: dict[tuple[str, int, bool], tuple[list[Seen], Facts, Verdict]] = {}

    async def decide(self) -> None:
        """One look at everything that is on trial."""
        trials = [trial for trial in await self._ledger.open_trials() if self._stores.policy(trial.policy) is not None]
        for trial in trials:
            if (await self.verdict(trial, bounded=False)).outcome is not Outcome.GOES_ON:
                await self._act(trial, await self.verdict(trial))
        going_on = {(trial.policy, trial.version) for trial in trials}
        self._judged = {name: kept for name, kept in self._judged.items() if name[:2] in going_on}

    async def verdict(self, trial: Trial, *, bounded: bool = True) -> Verdict:
        """What a trial amounts to now; `bounded`: with the bounds of the difference, which take a while."""
        settings = self._settings(trial.policy)
        seen = await self._ledger.trial_episodes(trial)
        facts = await self._facts(trial)
        kept = self._judged.get((trial.policy, trial.version, bounded))
        if kept is not None and kept[:2] == (seen, facts):
            return kept[2]
        found = await asyncio.to_thread(judge, seen, settings.release.rules, facts, bounded=bounded)
        self._judged[trial.policy, trial.version, bounded] = (seen, facts, found)
        return found

    async def release(self, name: str) -> Release:
        """How a policy's versions stand; raises `NotFound`."""
        settings = self._settings(name)
        policy = await self._ledger.ensure_policy(settings.name)
        trials = await self._ledger.list_trials(settings.name)
        going_on = next((trial for trial in trials if trial.state in OPEN), None)
        shadows = await self._ledger.list_shadows()
        events, _ = await self._ledger.list_releases(settings.name, PAST_EVENTS, None)
        return Release(
            settings=settings,
            policy=policy,
            trials=tuple(trials),
            verdict=None if going_on is None else await self.verdict(going_on),
            counts={} if going_on is None else await self._ledger.trial_counts(settings.name, going_on.version),
            shadow=next((shadow for shadow in shadows if shadow.policy == settings.name), None),
            tallies=tuple(await self._ledger.list_tallies(settings.name)),
            events=tuple(events),
        )

    async def change_share(self, name: str, version: int, share: float, by: str) -> Trial:
        """Give the version on trial another share (percent) of new groups; `Conflict` where it is not on trial."""
        settings = self._settings(name)
        await self._on_trial(settings, version)
        event = self._event(settings, version, "share", by, f"{share:g} %")
        return await self._ledger.change_trial(settings.name, event, share=share / 100)

    async def pause(self, name: str, by: str) -> Trial:
        """New groups get the stable version until `resume`."""
        return await self._set_state(name, TrialState.PAUSED, "paused", by)

    async def resume(self, name: str, by: str) -> Trial:
        return await self._set_state(name, TrialState.RUNNING, "resumed", by)

    async def promote(self, name: str, version: int, by: str) -> Policy:
        """Give the version on trial to all, whatever is known of it."""
        settings = self._settings(name)
        trial = await self._on_trial(settings, version)
        verdict = await self.verdict(trial)
        event = self._event(settings, version, "promoted", by, "asked for", verdict)
        policy = await self._swap.promote(settings.name, version, event)
        if policy is None:
            raise Conflict(f"The trial of version {version} of {settings.name} has ended meanwhile.", param="version")
        return policy

    async def shadow(self, name: str, version: int | None, share: float, by: str) -> Shadow | None:
        """Have a published version get copies of a share (percent) of calls; `None`: nobody does."""
        settings = self._settings(name)
        shadow = None if version is None else Shadow(policy=settings.name, version=version, share=share / 100)
        why = "" if version is None else f"{share:g} %"
        event = self._event(settings, version or 0, "shadow" if shadow else "shadow_ended", by, why)
        await self._swap.serve_shadow(settings.name, shadow, event)
        return shadow

    def rolled_back(self, name: str, version: int, by: str) -> ReleaseEvent:
        """What is noted where somebody goes back to a version."""
        settings = self._settings(name)
        return self._event(settings, version, "rolled_back_to", by, "asked for")

    async def _act(self, trial: Trial, verdict: Verdict) -> None:
        settings = self._settings(trial.policy)
        match verdict.outcome:
            case Outcome.GOES_ON:
                return
            case Outcome.PROMOTE if trial.state is TrialState.PAUSED:
                return
            case Outcome.PROMOTE:
                event = self._event(settings, trial.version, "promoted", HONE, verdict.why, verdict)
                done = await self._swap.promote(trial.policy, trial.version, event)
            case Outcome.ROLL_BACK:
                event = self._event(settings, trial.version, "rolled_back", HONE, verdict.why, verdict)
                done = await self._swap.withdraw(trial.policy, trial.version, event)
        if done is not None:
            LOG.warning("version %s of %s is %s: %s", trial.version, trial.policy, event.kind, verdict.why)

    async def _set_state(self, name: str, state: TrialState, kind: str, by: str) -> Trial:
        settings = self._settings(name)
        return await self._ledger.change_trial(settings.name, self._event(settings, 0, kind, by), state=state)

    async def _on_trial(self, settings: PolicySettings, version: int) -> Trial:
        """The trial of this version; `Conflict` that says what to do instead."""
        trials = [trial for trial in await self._ledger.open_trials() if trial.policy == settings.name]
        if trials and trials[0].version == version:
            return trials[0]
        raise Conflict(await self._why_not(settings, version, trials[0] if trials else None), param="version")

    async def _why_not(self, settings: PolicySettings, version: int, other: Trial | None) -> str:
        name = settings.name
        policy = await self._ledger.ensure_policy(name)
        if version <= policy.active:
            told = f"Version {policy.active} of {name} is active, and releases only go forward"
            return f"{told}: POST /v1/policies/{name}/rollback goes back to {version}."
        if other is not None:
            return (
                f"Version {other.version} of {name} is on trial: promote it, or roll back to {policy.active}; the "
                f"newest version that waits is next."
            )
        if settings.release.mode == "direct":
            return (
                f'No version of {name} is on trial: with release.mode = "direct" a version gets all traffic when it is '
                f'published. Write mode = "canary" under [policies.release] in hone.toml and publish.'
            )
        return f"Version {version} of {name} is not on trial: publish it (POST /v1/policies/{name}/versions)."

    async def _facts(self, trial: Trial) -> Facts:
        version = await self._ledger.get_version(trial.policy, trial.version)
        tallies = await self._ledger.list_tallies(trial.policy)
        ours = [one for one in tallies if (one.version, one.against) == (trial.version, trial.stable)]
        return Facts(trained_kl=_trained_kl(version), shadow_kl=shadow_kl(ours[0]) if ours else None)

    def _settings(self, name: str) -> PolicySettings:
        settings = self._stores.policy(name)
        if settings is None:
            names = ", ".join(policy.name for policy in self._stores.policies)
            raise NotFound(f"There is no policy {name!r}; there is {names}.", param="policy")
        return settings

    def _event(
        self, settings: PolicySettings, version: int, kind: str, by: str, why: str = "", verdict: Verdict | None = None
    ) -> ReleaseEvent:
        return ReleaseEvent(
            policy=settings.name,
            version=version,
            at_ms=self._clock.now_ms(),
            kind=kind,
            by=by,
            why=why,
            numbers=b"null" if verdict is None else packed_verdict(verdict),
        )


def shadow_kl(tally: Tally) -> float | None:
    """Nats a token by which a shadow gives the stable version's answers less than it did itself: an estimate of the KL
    divergence of the shadow from it."""
    scored = tally.numbers.get("num_scored", 0.0)
    return tally.numbers.get("gap", 0.0) / scored if scored >= MIN_SCORED else None


def _trained_kl(version: Version) -> float | None:
    """As the trainer told it in the metrics of its step."""
    try:
        return msgspec.json.decode(version.metrics, type=_Told).kl
    except msgspec.MsgspecError:  # whatever else a publisher says of it
        return None
