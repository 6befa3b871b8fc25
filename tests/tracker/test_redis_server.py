import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tracker.errors import SettingsError, Unavailable
from tracker.redis_server import MAX_SOCKET_CHARS, EmbeddedRedis
from tracker.redis_store import RedisStore
from tracker.types import EpisodeHead


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path)
    await server.start()
    yield server
    await server.stop()


async def test_a_started_server_answers_and_a_stopped_one_does_not(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    await server.start()
    await server.ping()
    await server.stop()
    with pytest.raises(Unavailable):
        await server.ping()


async def test_it_is_strong_enough_for_a_strict_store(server: EmbeddedRedis) -> None:
    store = await RedisStore.connect(server.url, strict=True)
    await store.close()


async def test_a_live_server_is_used_as_it_is_and_left_running(server: EmbeddedRedis, tmp_path: Path) -> None:
    other = EmbeddedRedis(tmp_path)
    await other.start()
    assert other.pid is None
    await other.stop()
    await server.ping()


async def test_a_server_whose_starter_was_killed_is_ended_by_the_last_that_used_it(tmp_path: Path) -> None:
    start = (
        f"import asyncio, tracker.redis_server as r; asyncio.run(r.EmbeddedRedis(r.Path({str(tmp_path)!r})).start())"
    )
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", start)
    assert await starter.wait() == 0
    one, other = EmbeddedRedis(tmp_path), EmbeddedRedis(tmp_path)
    await one.start()
    assert one.pid is None
    await other.stop()
    await one.ping()
    store = await RedisStore.connect(other.url)
    await one.stop()
    await other.ping()
    await store.close()
    await other.stop()
    with pytest.raises(Unavailable):
        await other.ping()


async def test_a_server_that_died_is_revived_also_by_one_that_only_used_it(tmp_path: Path) -> None:
    server, other = EmbeddedRedis(tmp_path), EmbeddedRedis(tmp_path)
    await server.start()
    await other.start()
    await other.revive()
    assert other.pid is None
    await server.kill()
    await asyncio.gather(*(one.revive() for one in (server, other)))
    await other.ping()
    assert [one.pid is None for one in (server, other)].count(True) == 1
    await asyncio.gather(*(one.stop() for one in (server, other)))


async def test_a_server_that_is_only_slow_is_not_started_twice(server: EmbeddedRedis, tmp_path: Path) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    other = EmbeddedRedis(tmp_path)
    try:
        await other.revive()
        assert other.pid is None
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.slow
async def test_a_server_that_is_only_slow_is_waited_for_at_a_start(server: EmbeddedRedis, tmp_path: Path) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    other = EmbeddedRedis(tmp_path)
    starting = asyncio.create_task(other.start())
    try:
        done, _ = await asyncio.wait([starting], timeout=1.2)
        assert not done
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await starting
    assert other.pid is None
    await other.stop()


@pytest.mark.slow
async def test_two_that_start_at_once_run_one_server(tmp_path: Path) -> None:
    both = EmbeddedRedis(tmp_path), EmbeddedRedis(tmp_path)
    await asyncio.gather(*(one.start() for one in both))
    assert [one.pid is None for one in both].count(True) == 1
    await asyncio.gather(*(one.stop() for one in both))


async def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    await server.start()
    store = await RedisStore.connect(server.url)
    await store.open(EpisodeHead(episode_id="ep-1"))
    await store.close()
    await server.stop()
    await server.start()
    store = await RedisStore.connect(server.url)
    assert (await store.head("ep-1")).episode_id == "ep-1"
    await store.close()
    await server.stop()


async def test_only_the_owner_reaches_the_folder_of_the_socket(server: EmbeddedRedis) -> None:
    folder = Path(server.url.removeprefix("unix://")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_a_data_folder_with_a_long_path_has_its_socket_in_a_short_one(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / ("deep" * 30))
    assert len(server.url.removeprefix("unix://")) <= MAX_SOCKET_CHARS
    await server.start()
    store = await RedisStore.connect(server.url)
    await store.close()
    await server.stop()
    Path(server.url.removeprefix("unix://")).parent.rmdir()


async def test_a_folder_of_someone_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "redis").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="HONE_DATA_DIR"):
        await EmbeddedRedis(tmp_path).start()


async def test_a_server_that_cannot_load_its_file_says_what_its_log_says(tmp_path: Path) -> None:
    files = tmp_path / "redis" / "appendonlydir"
    files.mkdir(parents=True)
    (files / "appendonly.aof.manifest").write_text("nonsense")
    with pytest.raises(SettingsError, match="redis-server exited"):
        await EmbeddedRedis(tmp_path).start()
