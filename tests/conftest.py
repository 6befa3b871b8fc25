"""Fixtures that every suite shares: a real Redis, empty for each test, and a guard over what a test leaves in it."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings

from tracker.redis_server import EmbeddedRedis

# How long an example takes says more about what else the machine does than about the law.
settings.register_profile("hone", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("hone"), max_examples=10)


def pytest_configure(config: pytest.Config) -> None:
    """All examples, unless `--hypothesis-profile quick` asks for few (`make check` does)."""
    settings.load_profile(config.getoption("--hypothesis-profile") or "hone")


WHOLLY_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What holds no fast test is not even imported for the fast ones: half of their time would be its libraries."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    is_tested = collection_path.name.startswith(("test_", "conftest"))
    return True if not is_tested or WHOLLY_SLOW.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason why something was not tried."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    for reason, number in sorted(Counter(why[2] for why in skipped if isinstance(why, tuple)).items()):
        terminalreporter.write_line(f"{number} not tried: {reason.removeprefix('Skipped: ')}", yellow=True)


OWNED = re.compile(r"^[^:]+:(due|finishing|routing:.+|pins:.+)$")
"""Global keys, which stay; every other key has a time to live."""


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A real redis-server for the whole session; a test that harms it starts one of its own."""
    server = EmbeddedRedis(Path(tmp_path_factory.mktemp("redis-data")))
    with ThreadPoolExecutor(max_workers=1) as elsewhere:  # an async fixture may ask, whose loop runs in this thread
        elsewhere.submit(asyncio.run, server.start()).result()
        yield server
        elsewhere.submit(asyncio.run, server.stop()).result()


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> Iterator[str]:
    """The server's URL, flushed; the test fails if it leaves a key without a time to live or an owner."""
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    client.script_flush()
    yield redis_server.url
    forever = [key.decode() for key in client.scan_iter("*") if client.pttl(key) == -1]
    client.close()
    stray = [key for key in forever if not OWNED.match(key)]
    assert not stray, f"keys without a time to live or an owner: {stray}"
