"""How many bytes a new token costs: `python -m bench.storage` prints a table and writes bench/results/storage.json.

One episode of 50 turns in each shape of `agent_turns.py`, once through `RedisStore` into a real redis-server and once
through the archive codec, against what storing each call's whole history costs (ids as 4 bytes, messages as they came).
`early` and `late` are the first and last ten turns: where they differ much, storage follows history and not new tokens.
"""

import asyncio
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from bench.agent_turns import SHAPES, new_tokens, turns
from tracker.codec import encode_calls
from tracker.redis_server import EmbeddedRedis
from tracker.redis_store import RedisStore
from tracker.types import Call, EpisodeHead, Intent

NUM_TURNS = 50
WINDOW = 10
RESULTS = Path(__file__).parent / "results" / "storage.json"
FAR_MS = 2**50


def whole_history_bytes(calls: tuple[Call, ...]) -> int:
    """What the calls take where each is stored by itself."""
    ids = sum(4 * len(call.prompt_ids) for call in calls)
    sampled = sum(8 * len(choice.sampled_ids) + len(choice.message) for call in calls for choice in call.choices)
    return ids + sampled + sum(len(text) for call in calls for text in (*call.messages, call.request))


class Shelf:
    """What Redis holds of one episode, measured from outside."""

    def __init__(self, url: str, episode_id: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._keys = [f"hone:{{{episode_id}}}:{part}" for part in "mickbte"]

    def memory_bytes(self) -> int:
        return sum(self._client.memory_usage(key, samples=0) or 0 for key in self._keys)

    def encoded_bytes(self) -> int:
        """Values and fields, without what Redis adds to keep them."""
        lists = (self._client.lrange(key, 0, -1) for key in (self._keys[2], self._keys[6]))
        hashes = (self._client.hgetall(self._keys[place]) for place in (0, 1, 3, 4, 5))
        return sum(len(item) for one in lists for item in one) + sum(
            len(field) + len(value) for one in hashes for field, value in one.items()
        )

    def close(self) -> None:
        self._client.close()


async def record(store: RedisStore, call: Call) -> None:
    """One call, as the gateway does it."""
    intent = Intent(
        call_id=call.call_id,
        episode_id=call.episode_id,
        worker="bench",
        deadline_ms=FAR_MS,
        started_ms=call.started_ms,
        policy=call.policy,
    )
    await store.begin_call(intent, "episode", None)
    if not await store.end_call(call):
        raise RuntimeError(f"{call.call_id} was refused")


async def measure(url: str, shape: str) -> dict[str, Any]:
    """Bytes for each new token of one shape, in Redis and in the archive."""
    calls = tuple(turns(shape, NUM_TURNS, episode_id=f"ep-{shape}"))
    store = await RedisStore.connect(url)
    shelf = Shelf(url, f"ep-{shape}")
    await store.open(EpisodeHead(episode_id=f"ep-{shape}"))
    encoded, memory = [0], [0]
    for call in calls:
        await record(store, call)
        encoded.append(shelf.encoded_bytes())
        memory.append(shelf.memory_bytes())
    same = (await store.view(f"ep-{shape}")).calls == calls
    await store.close()
    shelf.close()
    return {"shape": shape, "read_back_equal": same, **figures(calls, encoded, memory)}


def figures(calls: tuple[Call, ...], encoded: list[int], memory: list[int]) -> dict[str, float]:
    """Bytes for each new token; `encoded` and `memory` after each turn, from zero turns on."""
    total = new_tokens(calls)
    per_turn = (total - len(calls[0].prompt_ids)) / len(calls)
    windows = {"early": (1, 1 + WINDOW), "late": (len(calls) - WINDOW, len(calls))}
    grown = {
        f"redis_{name}_{when}": (sizes[last] - sizes[first]) / WINDOW / per_turn
        for name, sizes in (("encoded", encoded), ("memory", memory))
        for when, (first, last) in windows.items()
    }
    return {
        "num_tokens": total,
        "whole_history": whole_history_bytes(calls) / total,
        "redis_encoded": encoded[-1] / total,
        "redis_memory": memory[-1] / total,
        "archive_blob": len(encode_calls(calls)) / total,
        **grown,
    }


async def measure_all() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedRedis(Path(folder))
        await server.start()
        try:
            return [await measure(server.url, shape) for shape in SHAPES]
        finally:
            await server.stop()


def main() -> None:
    rows = asyncio.run(measure_all())
    columns = [name for name in rows[0] if name not in ("shape", "read_back_equal", "num_tokens")]
    print(f"bytes for each new token, {NUM_TURNS} turns")
    print(f"{'':22}" + "".join(f"{row['shape']:>12}" for row in rows))
    for name in columns:
        print(f"{name:22}" + "".join(f"{row[name]:12.2f}" for row in rows))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    told = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.platform(),
        "command": "python -m bench.storage",
        "unit": "bytes for each new token",
        "num_turns": NUM_TURNS,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(told, indent=2) + "\n")
    if not all(row["read_back_equal"] for row in rows):
        sys.exit("what was read back differs from what was stored")


if __name__ == "__main__":
    main()
