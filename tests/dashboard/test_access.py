"""Who sees what, and who may do what: on a running gateway, without a browser."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.dashboard.app import HEADERS
from tests.dashboard.places import places
from tests.dashboard.stage import Stage
from tracker.types import Scope

pytestmark = pytest.mark.slow
Http = Callable[..., httpx.Client]
FROM = itertools.count(1)


@pytest.fixture
def elsewhere() -> dict[str, str]:
    """Headers of an address that has not failed yet."""
    number = next(FROM)
    return {"X-Forwarded-For": f"203.0.113.{number}"}


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
    assert found, page[:500]
    return found[1]


def assert_is_page(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>" in answer.text


def acts(stage: Stage, tenant: str = "default") -> list[tuple[str, str, str]]:
    """(act, target, outcome), newest first."""
    found, _ = stage.run(stage.gateway.ledger.list_acts(tenant, 200, None))
    return [(act.act, act.target, act.outcome) for act in found]


# signing in


@pytest.mark.parametrize("name", ["read", "admin", "other"])
def test_a_read_or_admin_key_signs_in_and_the_cookie_is_guarded(http: Http, stage: Stage, name: str) -> None:
    client = http(None)
    answer = client.post("/dashboard/login", data={"key": stage.keys[name]})
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/dashboard", "Max-Age=43200"):
        assert part in cookie
    assert "Secure" not in cookie, "the gateway speaks plain HTTP on loopback"
    assert stage.keys[name] not in cookie
    assert_is_page(client.get("/dashboard"), 200)
    assert ("dashboard.sign_in", stage.key_ids[name], "ok") in acts(stage, "other" if name == "other" else "default")


def test_json_signs_in_too(http: Http, stage: Stage) -> None:
    client = http(None)
    assert client.post("/dashboard/login", json={"key": stage.keys["read"]}).status_code == 303
    assert_is_page(client.get("/dashboard/runs"), 200)


@pytest.mark.parametrize("name", ["agent", "reward", "trainer"])
def test_a_key_without_read_is_told_so(http: Http, stage: Stage, name: str, elsewhere: dict[str, str]) -> None:
    client = http(None)
    answer = client.post("/dashboard/login", data={"key": stage.keys[name]}, headers=elsewhere)
    assert_is_page(answer, 403)
    assert "needs the scope read or admin" in answer.text
    assert "set-cookie" not in answer.headers
    assert client.get("/dashboard").status_code == 303
    assert ("dashboard.sign_in", stage.key_ids[name], "insufficient_scope") in acts(stage)


def test_a_session_key_of_an_episode_does_not_sign_in(http: Http, stage: Stage, elsewhere: dict[str, str]) -> None:
    key = stage.run(stage.gateway.open(task="a session key"))["api_key"]
    assert_is_page(http(None).post("/dashboard/login", data={"key": key}, headers=elsewhere), 403)


@pytest.mark.parametrize(
    "body",
    [b"", b"key=", b"key=hone-sk-none", b"key=%C3%A4", b"key=x%00y", b"other=1", b"key=" + b"x" * 5_000],
)
def test_what_is_no_key_is_refused_in_the_form(http: Http, body: bytes, elsewhere: dict[str, str]) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded", **elsewhere}
    answer = http(None).post("/dashboard/login", content=body, headers=headers)
    assert_is_page(answer, 401)
    assert "not valid" in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b"[" * 9_000, 400), (b"x" * 70_000, 413)])
def test_a_body_that_is_no_object_is_refused_with_a_page(http: Http, body: bytes, status: int) -> None:
    answer = http(None).post("/dashboard/login", content=body, headers={"Content-Type": "application/json"})
    assert_is_page(answer, status)


def test_whoever_fails_too_often_waits(http: Http, stage: Stage, elsewhere: dict[str, str]) -> None:
    client = http(None)
    for _ in range(10):
        assert client.post("/dashboard/login", data={"key": "wrong"}, headers=elsewhere).status_code == 401
    answer = client.post("/dashboard/login", data={"key": stage.keys["read"]}, headers=elsewhere)
    assert_is_page(answer, 429)
    assert int(answer.headers["retry-after"]) > 0
    assert client.post("/dashboard/login", data={"key": stage.keys["read"]}).status_code == 303


@pytest.mark.parametrize("next_page", ["https://evil.example", "//evil.example", "/v1/keys", "/dashboard\\@evil"])
def test_nobody_is_sent_elsewhere(http: Http, stage: Stage, next_page: str) -> None:
    answer = http(None).post("/dashboard/login", data={"key": stage.keys["read"], "next": next_page})
    assert answer.headers["location"] == "/dashboard"
    page = http(None).get("/dashboard/login", params={"next": next_page})
    assert 'name="next" value="/dashboard"' in page.text


def test_signing_in_leads_to_the_page_that_was_asked_for(http: Http, stage: Stage) -> None:
    client = http(None)
    asked = client.get("/dashboard/episodes", params={"task": "a&b"})
    assert asked.status_code == 303
    form = client.get(asked.headers["location"])
    target = re.search(r'name="next" value="([^"]+)"', form.text)
    assert target
    assert target[1] == "/dashboard/episodes?task=a%26b"
    answer = client.post("/dashboard/login", data={"key": stage.keys["read"], "next": target[1]})
    assert answer.headers["location"] == target[1]


def test_a_part_of_a_page_that_is_asked_for_too_late_leads_to_the_form(http: Http, stage: Stage) -> None:
    headers = {"HX-Request": "true", "HX-Target": "health", "HX-Current-URL": f"{stage.url}/dashboard/runs"}
    answer = http(None).get("/dashboard", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["hx-redirect"] == "/dashboard/login?next=%2Fdashboard%2Fruns"


# the end of a session


def test_signing_out_takes_the_cookie_away(http: Http) -> None:
    client = http("read")
    token = csrf_of(client.get("/dashboard").text)
    assert client.post("/dashboard/logout", data={"csrf": token}).headers["location"] == "/dashboard/login"
    assert client.get("/dashboard").status_code == 303


def test_a_revoked_key_loses_its_session_at_the_next_request(http: Http, stage: Stage) -> None:
    key, key_id = stage.key(Scope.READ)
    client = http(key)
    assert client.get("/dashboard").status_code == 200
    stage.run(stage.gateway.ledger.revoke_key("default", key_id, 1))
    assert client.get("/dashboard").status_code == 303


def test_a_key_that_expires_loses_its_session(http: Http, stage: Stage) -> None:
    key, key_id = stage.key(Scope.READ)
    client = http(key)
    assert client.get("/dashboard").status_code == 200
    stage.run(stage.gateway.ledger.write(_expire, key_id))
    assert client.get("/dashboard").status_code == 303


def _expire(connection: Any, key_id: str) -> None:
    connection.exec_driver_sql(f"UPDATE keys SET expires_ms = 1 WHERE key_id = '{key_id}'")


def test_a_rotated_key_takes_the_sessions_of_its_old_secret_along(http: Http, stage: Stage) -> None:
    key, key_id = stage.key(Scope.READ)
    thief = http(key)
    assert thief.get("/dashboard").status_code == 200
    admin = http("admin")
    token = csrf_of(admin.get(f"/dashboard/keys/{key_id}").text)
    answer = admin.post(f"/dashboard/keys/{key_id}/rotate", data={"csrf": token, "grace_hours": "1"})
    new = re.search(r"hone-sk-[\w-]+", answer.text)
    assert new
    assert thief.get("/dashboard").status_code == 303
    refused = http(None).post("/dashboard/login", data={"key": key})
    assert (refused.status_code, "was rotated" in refused.text) == (401, True)
    assert http(new[0]).get("/dashboard").status_code == 200
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx.get(f"{stage.url}/v1/runs", headers=headers).status_code == 200, "its grace is not over"


@pytest.mark.parametrize("cookie", ["x", "x.y", "." * 5_000, "eyJ0ZW5hbnQiOiJkZWZhdWx0In0.0000", "\u00e4"])
def test_a_forged_cookie_is_nobody(http: Http, cookie: str) -> None:
    answer = http(None).get("/dashboard", headers={"Cookie": f"hone_session={cookie}".encode()})
    assert answer.status_code == 303


# forms


def _foreign() -> list[tuple[str, dict[str, str]]]:
    return [
        ("no token", {}),
        ("a wrong token", {"csrf": "0" * 64}),
        ("no text", {"csrf": "\u00e4"}),
    ]


@pytest.mark.parametrize(("why", "fields"), _foreign())
def test_a_form_without_the_token_of_its_session_does_nothing(
    http: Http, stage: Stage, why: str, fields: dict[str, str]
) -> None:
    del why
    client = http("admin")
    _, key_id = stage.key(Scope.AGENT)
    assert_is_page(client.post(f"/dashboard/keys/{key_id}/revoke", data=fields), 403)
    assert stage.run(stage.gateway.ledger.get_key("default", key_id)).revoked_ms is None


def test_the_token_of_another_session_is_none(http: Http, stage: Stage) -> None:
    one, other = http("admin"), http("admin")
    _, key_id = stage.key(Scope.AGENT)
    token = csrf_of(other.get("/dashboard").text)
    assert_is_page(one.post(f"/dashboard/keys/{key_id}/revoke", data={"csrf": token}), 403)
    assert one.post("/dashboard/logout", data={"csrf": token}).status_code == 403
    assert other.post(f"/dashboard/keys/{key_id}/revoke", data={"csrf": token}).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_form_of_another_site_is_refused_even_with_the_token(
    http: Http, stage: Stage, headers: dict[str, str]
) -> None:
    client = http("admin")
    _, key_id = stage.key(Scope.AGENT)
    token = csrf_of(client.get("/dashboard").text)
    answer = client.post(f"/dashboard/keys/{key_id}/revoke", data={"csrf": token}, headers=headers)
    assert_is_page(answer, 403)
    assert client.post("/dashboard/login", data={"key": stage.keys["read"]}, headers=headers).status_code == 403


def test_the_token_may_come_as_a_header(http: Http, stage: Stage) -> None:
    client = http("admin")
    _, key_id = stage.key(Scope.AGENT)
    token = csrf_of(client.get("/dashboard").text)
    answer = client.post(f"/dashboard/keys/{key_id}/revoke", headers={"X-CSRF-Token": token, "Origin": stage.url})
    assert answer.status_code == 303
    assert ("key.revoke", key_id, "ok") in acts(stage)


# who sees what


def test_every_page_is_there_for_whom_it_is(http: Http, stage: Stage) -> None:
    clients = {name: http(name) for name in ("read", "admin")} | {"nobody": http(None)}
    for path, is_admins in places(stage).items():
        assert_is_page(clients["admin"].get(path), 200)
        assert_is_page(clients["read"].get(path), 403 if is_admins else 200)
        assert clients["nobody"].get(path).status_code == 303


def test_a_reader_is_offered_no_act_and_may_do_none(http: Http, stage: Stage) -> None:
    client = http("read")
    for path in (path for path, is_admins in places(stage).items() if not is_admins):
        forms = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]+)"', client.get(path).text)
        assert forms == ["/dashboard/logout"], path
    token = csrf_of(client.get("/dashboard").text)
    key_id = stage.key_ids["agent"]
    for path in ("/dashboard/keys", *(f"/dashboard/keys/{key_id}/{act}" for act in ("rotate", "limits", "revoke"))):
        assert_is_page(client.post(path, data={"csrf": token, "scopes": "admin"}), 403)


def test_another_tenants_things_read_as_unknown(http: Http, stage: Stage) -> None:
    told = stage.told
    other = http("other")
    for path in (
        f"/dashboard/episodes/{told.tool_episode}",
        f"/dashboard/groups/{told.open_group}",
        "/dashboard/runs/sums",
        f"/dashboard/keys/{stage.key_ids['agent']}",
    ):
        assert_is_page(other.get(path), 404)
    for path in ("/dashboard", "/dashboard/runs", "/dashboard/episodes", "/dashboard/groups", "/dashboard/keys"):
        text = other.get(path).text
        for mine in (told.tool_episode, told.open_group, "sums", stage.key_ids["agent"]):
            assert mine not in text, path
    mine = http("admin").get(f"/dashboard/episodes/{told.other_episode}")
    assert_is_page(mine, 404)
    admin = http("other-admin")
    token = csrf_of(admin.get("/dashboard").text)
    assert_is_page(admin.post(f"/dashboard/keys/{stage.key_ids['agent']}/revoke", data={"csrf": token}), 404)
    assert "run.create" not in admin.get("/dashboard/audit").text


def test_no_page_tells_a_key_or_a_digest(http: Http, stage: Stage) -> None:
    client = http("admin")
    text = "".join(client.get(path).text for path in places(stage))
    for secret in (*stage.keys.values(), "sk-of-the-oracle"):
        assert secret not in text


# headers and errors


def test_every_answer_has_the_headers_of_all(http: Http, stage: Stage) -> None:
    client = http("admin")
    paths = [*places(stage), "/dashboard/none", "/dashboard/a%2fb", "/dashboard/login", "/dashboard/runs/none"]
    answers = [client.get(path) for path in paths]
    answers += [client.put("/dashboard/login"), client.post("/dashboard/logout"), http(None).get("/dashboard")]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, answer.url
        assert answer.headers["cache-control"] == "no-store"
        assert "'unsafe" not in answer.headers["content-security-policy"]


def test_styles_and_scripts_are_kept_for_good_under_a_name_that_changes_with_them(http: Http) -> None:
    page = http(None).get("/dashboard/login").text
    found = re.findall(r'(?:href|src)="(/dashboard/static/[^"]+)"', page)
    assert len(found) >= 4
    for path in found:
        answer = http(None).get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert re.search(r"\?v=[0-9a-f]{12}$", path)


@pytest.mark.parametrize("name", ["none.css", "..%2fframe.py", "hone.css%00", "htmx.LICENSE.txt"])
def test_nothing_else_lies_with_the_styles(http: Http, name: str) -> None:
    assert_is_page(http(None).get(f"/dashboard/static/{name}"), 404)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/dashboard/none", 404),
        ("GET", "/dashboard/runs/none", 404),
        ("GET", "/dashboard/runs/%2e%2e", 404),
        ("GET", "/dashboard/x%5cy", 404),
        ("GET", "/dashboard?success=nan", 400),
        ("GET", "/dashboard?success=x", 400),
        ("GET", "/dashboard?run=none", 404),
        ("GET", "/dashboard/audit?cursor=none", 400),
        ("GET", "/dashboard/keys?cursor=none", 400),
        ("GET", "/dashboard/keys/none", 404),
        ("DELETE", "/dashboard/keys", 405),
        ("PUT", "/dashboard", 405),
        ("GET", "/dashboard/logout", 405),
    ],
)
def test_errors_are_pages_too(http: Http, method: str, path: str, status: int) -> None:
    assert_is_page(http("admin").request(method, path), status)


def test_errors_elsewhere_are_still_json(stage: Stage) -> None:
    for path in ("/dashboards", "/none", "/v1/none", "/v1/dashboard"):
        answer = httpx.get(stage.url + path)
        assert answer.status_code == 404
        assert "error" in json.loads(answer.text)
        assert "content-security-policy" not in answer.headers


def test_slashes_too_many_mean_the_same_page(http: Http) -> None:
    assert_is_page(http("read").get("/dashboard//runs/"), 200)


# keys


def test_a_key_is_made_shown_once_and_works(http: Http, stage: Stage) -> None:
    client = http("admin")
    token = csrf_of(client.get("/dashboard/keys/new").text)
    fields = {"csrf": token, "scopes": ["agent", "read"], "label": "<b>new</b>", "expires_in_days": "1"}
    answer = client.post("/dashboard/keys", data={**fields, "token_budget": "5000"})
    assert_is_page(answer, 201)
    (secret,) = set(re.findall(r"hone-sk-[\w-]+", answer.text))
    assert "&lt;b&gt;new" in answer.text
    (key_id,) = set(re.findall(r"/dashboard/keys/(key-[0-9a-f]+)", answer.text))
    assert httpx.get(f"{stage.url}/v1/runs", headers={"x-api-key": secret}).status_code == 200
    for path in ("/dashboard/keys", f"/dashboard/keys/{key_id}", "/dashboard/audit"):
        assert secret not in client.get(path).text
    stored = stage.run(stage.gateway.ledger.get_key("default", key_id))
    assert (stored.scopes, stored.limits.token_budget) == ((Scope.AGENT, Scope.READ), 5000)
    assert stored.expires_ms == stored.created_ms + 86_400_000
    assert ("key.create", key_id, "ok") in acts(stage)


def test_a_form_that_asks_for_no_key_comes_back_as_it_was(http: Http) -> None:
    client = http("admin")
    token = csrf_of(client.get("/dashboard/keys/new").text)
    answer = client.post(
        "/dashboard/keys", data={"csrf": token, "scopes": "agent", "label": "mine", "token_budget": "x"}
    )
    assert_is_page(answer, 400)
    assert "Tokens in all: write a whole number" in answer.text
    assert 'value="mine"' in answer.text
    assert re.search(r'value="agent" checked', answer.text)
    assert_is_page(client.post("/dashboard/keys", data={"csrf": token}), 400)


def test_limits_are_set_and_taken_away(http: Http, stage: Stage) -> None:
    client = http("admin")
    _, key_id = stage.key(Scope.AGENT)
    token = csrf_of(client.get("/dashboard").text)
    path = f"/dashboard/keys/{key_id}/limits"
    assert client.post(path, data={"csrf": token, "max_concurrent": "3", "token_budget": "9"}).status_code == 303
    limits = stage.run(stage.gateway.ledger.get_key("default", key_id)).limits
    assert (limits.max_concurrent, limits.token_budget) == (3, 9)
    assert client.post(path, data={"csrf": token, "max_concurrent": ""}).status_code == 303
    limits = stage.run(stage.gateway.ledger.get_key("default", key_id)).limits
    assert (limits.max_concurrent, limits.token_budget) == (None, None)
    assert_is_page(client.post(path, data={"csrf": token, "max_concurrent": "0"}), 400)


def test_whoever_rotates_his_own_key_stays_signed_in(http: Http, stage: Stage) -> None:
    key, key_id = stage.key(Scope.ADMIN)
    client = http(key)
    token = csrf_of(client.get("/dashboard").text)
    assert_is_page(client.post(f"/dashboard/keys/{key_id}/rotate", data={"csrf": token}), 200)
    assert_is_page(client.get("/dashboard"), 200)
    assert httpx.get(f"{stage.url}/v1/runs", headers={"x-api-key": key}).status_code == 401


def test_an_administrator_gives_no_more_than_a_key_can_hold_and_a_dead_key_is_not_rotated(
    http: Http, stage: Stage
) -> None:
    client = http("admin")
    _, key_id = stage.key(Scope.AGENT)
    token = csrf_of(client.get("/dashboard").text)
    assert client.post(f"/dashboard/keys/{key_id}/revoke", data={"csrf": token}).status_code == 303
    assert "Rotate" not in client.get(f"/dashboard/keys/{key_id}").text
    assert_is_page(client.post(f"/dashboard/keys/{key_id}/rotate", data={"csrf": token}), 409)
