"""What a replay answers with: recorded calls, found by what they were asked, each given once and in recorded order.

Only calls that were answered are there. Those of one request come in the order in which they began; when all were
given, one more is asked for than was recorded, which is a mismatch like any other.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path

from gateway.desk import open_ledger
from gateway.exporting.carried import whole_of
from gateway.paging import archived_of, pages
from gateway.replay.canonical import Asking, asking_of_call, difference, nearest
from tracker.errors import BadRequest, CorruptRecord, HoneError, NotFound, SettingsError
from tracker.settings import StoreSettings
from tracker.types import Call, CallState, Record

PAGE = 50


class Source(Record, frozen=True):
    """Where recorded episodes are taken from: one of these."""

    run: str | None = None
    episode_ids: tuple[str, ...] = ()
    path: Path | None = None
    tenant: str = "default"


class Mismatch(HoneError):
    """A request that nobody recorded. `lines` tell how it differs from the nearest that somebody did."""

    status = 409
    kind = "invalid_request_error"
    code = "replay_mismatch"

    def __init__(self, message: str, lines: Sequence[str]) -> None:
        super().__init__(message)
        self.lines = tuple(lines)


class Recordings:
    """The calls of a replay."""

    def __init__(self, calls: Iterable[Call]) -> None:
        answered = [call for call in calls if call.state is CallState.COMPLETED and call.choices]
        self._by_id = {call.call_id: call for call in answered}
        self._waiting: defaultdict[str, deque[Call]] = defaultdict(deque)
        self._askings: dict[str, Asking] = {}
        self.models = sorted({call.model for call in answered})
        self.num_recorded = len(answered)
        self.num_given = 0
        for call in sorted(answered, key=lambda call: (call.started_ms, call.episode_id, call.index)):
            asking = asking_of_call(call)
            self._askings[asking.digest] = asking
            self._waiting[asking.digest].append(call)

    def take(self, asking: Asking) -> Call:
        """The next answer to a request; raises `Mismatch`."""
        waiting = self._waiting.get(asking.digest)
        if waiting:
            self.num_given += 1
            return waiting.popleft()
        if asking.digest in self._askings:
            raise Mismatch("It is asked more often than it was recorded.", [])
        known = [asking for digest, asking in self._askings.items() if self._waiting[digest]]
        closest = nearest(asking, known or list(self._askings.values()))
        if closest is None:
            raise Mismatch("Nothing is recorded here.", [])
        raise Mismatch("It is none of the recorded requests.", list(difference(closest, asking)))

    def find(self, call_id: str) -> Call:
        """A call by the id of its answer; raises `NotFound`."""
        if call_id not in self._by_id:
            raise NotFound(f"There is no recorded answer {call_id[:200]!r}.")
        return self._by_id[call_id]


async def recordings_of(stores: StoreSettings, source: Source) -> Recordings:
    """Read the recorded calls; raises `NotFound` for an episode or run that is none, `SettingsError` for no call."""
    calls = [call async for call in (_in_file(source.path) if source.path is not None else _in_sql(stores, source))]
    recordings = Recordings(calls)
    if not recordings.num_recorded:
        raise SettingsError("There is no answered call to replay: name a run or episodes that are archived.")
    return recordings


async def _in_sql(stores: StoreSettings, source: Source) -> AsyncGenerator[Call]:
    async with open_ledger(stores) as ledger:
        if source.run is not None:
            await ledger.get_run(source.tenant, source.run)
        listed = pages(archived_of(ledger, source.tenant, source.run))
        episode_ids = list(source.episode_ids) or [row.head.episode_id async for rows, _ in listed for row in rows]
        for start in range(0, len(episode_ids), PAGE):
            named = episode_ids[start : start + PAGE]
            wholes = await ledger.whole_episodes(source.tenant, named)
            missing = set(named) - {whole.row.head.episode_id for whole in wholes}
            if missing:
                raise NotFound(f"There is no archived episode {sorted(missing)[0]!r}.")
            for whole in wholes:
                if not whole.timeline.shredded:
                    for call in whole.timeline.opened().calls:
                        yield call


async def _in_file(path: Path) -> AsyncGenerator[Call]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error
    with file:
        for number, line in enumerate(file, start=1):
            try:
                whole = whole_of(line)
            except (BadRequest, CorruptRecord) as error:
                raise type(error)(f"{path}, line {number}: {error.message}") from error
            for call in whole.timeline.opened().calls:
                yield call
