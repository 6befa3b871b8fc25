"""The cookie: whose it is, until when, and that nobody else can make one."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.limiter import MAX_ADDRESSES, MAX_FAILURES, WINDOW_MS, SignInLimiter
from gateway.dashboard.session import LIFE_S, Sessions
from gateway.dashboard.signing import HOME, LOGIN, next_page
from tests.tracker.databases import Clock
from tracker.errors import TooManyRequests
from tracker.types import Key, Scope

KEY = Key(key_id="key-1", digest="d" * 64, tenant="t", scopes=(Scope.READ,))


def sessions(clock: Clock | None = None, secret: bytes = b"s" * 32) -> Sessions:
    return Sessions(secret, clock or Clock())


def test_a_session_is_read_until_it_is_over_and_by_every_gateway_with_the_secret() -> None:
    clock = Clock()
    cookie = sessions(clock).begin(KEY)
    found = sessions(clock).read(cookie)
    assert found is not None
    assert (found.tenant, found.key_id) == ("t", "key-1")
    assert sessions(clock, b"x" * 32).read(cookie) is None
    clock.at_ms += LIFE_S * 1000 - 1
    assert sessions(clock).read(cookie) is not None
    clock.at_ms += 1
    assert sessions(clock).read(cookie) is None


@given(st.integers(0, 10_000), st.characters(codec="utf-8"))
def test_a_cookie_with_another_character_is_none(place: int, character: str) -> None:
    cookie = sessions().begin(KEY)
    at = place % len(cookie)
    changed = cookie[:at] + character + cookie[at + 1 :]
    assert (sessions().read(changed) is None) == (changed != cookie)


@given(st.text(max_size=3_000))
def test_what_is_no_cookie_is_none(text: str) -> None:
    assert sessions().read(text) is None


def test_another_tenant_cannot_be_written_into_a_cookie() -> None:
    told, _, mac = sessions().begin(KEY).rpartition(".")
    fields = msgspec.json.decode(base64.urlsafe_b64decode(told + "=="))
    fields["tenant"] = "other"
    forged = base64.urlsafe_b64encode(msgspec.json.encode(fields)).decode().rstrip("=")
    assert sessions().read(f"{forged}.{mac}") is None


def test_a_session_fits_the_secret_that_its_key_had_and_no_later_one() -> None:
    found = sessions().read(sessions().begin(KEY))
    assert found is not None
    assert sessions().fits(found, KEY)
    assert not sessions().fits(found, msgspec.structs.replace(KEY, digest="e" * 64))


def test_a_token_is_its_sessions_own_and_no_key_or_digest_is_in_a_cookie() -> None:
    one, other = [sessions().begin(KEY) for _ in range(2)]
    first, second = sessions().read(one), sessions().read(other)
    assert first is not None
    assert second is not None
    assert sessions().token(first) != sessions().token(second)
    assert sessions().token(first) == sessions().token(first)
    assert KEY.digest not in base64.urlsafe_b64decode(one.rpartition(".")[0] + "==").decode()


@given(st.text(max_size=60) | st.builds("/dashboard{}".format, st.text(max_size=40)))
def test_nobody_is_sent_anywhere_but_to_a_page(asked: str) -> None:
    found = next_page(asked)
    assert found in (HOME, asked)
    assert found == HOME or found.startswith(("/dashboard/", "/dashboard?"))
    assert "\\" not in found
    assert not any(character <= " " for character in found)


@pytest.mark.parametrize(
    "asked",
    [
        "https://evil.example/dashboard",
        "//evil.example/dashboard/",
        "/dashboard.evil.example",
        "/dashboardx",
        "/dashboard/../v1/keys",
        "/dashboard/..",
        "/dashboard\\@evil.example",
        "/dashboard/\n//evil.example",
        "javascript:alert(1)",
        LOGIN,
        f"{LOGIN}?next=/dashboard/runs",
        "/dashboard/logout-and-more" * 200,
    ],
)
def test_what_is_no_page_of_ours_is_the_first_page(asked: str) -> None:
    assert next_page(asked) == HOME


def test_an_address_that_failed_too_often_waits_and_others_do_not() -> None:
    clock = Clock()
    limiter = SignInLimiter(clock)
    for _ in range(MAX_FAILURES):
        limiter.check("a")
        limiter.failed("a")
    with pytest.raises(TooManyRequests) as refused:
        limiter.check("a")
    assert refused.value.retry_after_s == WINDOW_MS / 1000
    limiter.check("b")
    for number in range(MAX_FAILURES):
        limiter.failed(f"2001:db8::{number}")
    with pytest.raises(TooManyRequests):
        limiter.check("2001:db8::ffff")  # of the same customer
    clock.at_ms += WINDOW_MS
    limiter.check("a")
    limiter.failed("a")
    limiter.check("a")


def test_failures_are_counted_in_bounded_memory() -> None:
    clock = Clock()
    limiter = SignInLimiter(clock)
    for number in range(MAX_ADDRESSES + 10):
        limiter.failed(str(number))
    assert len(limiter._failures) == MAX_ADDRESSES
