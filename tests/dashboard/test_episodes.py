"""Groups, episodes and one episode over HTTP: what is told, to whom, and what an action does."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, text

from tests.dashboard.stage import Stage, staged
from tests.dashboard.stories import NUM_STEPS, POLICY, RUN

pytestmark = pytest.mark.slow
Signed = Callable[..., httpx.Client]


def text_of(client: httpx.Client, path: str, expected: int = 200, /, **params: Any) -> str:
    answer = client.get(path, params=params)
    assert answer.status_code == expected, answer.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def ids_in(client: httpx.Client, **params: Any) -> list[str]:
    """The episodes that a list links to, in order."""
    page = client.get("/dashboard/episodes", params=params)
    assert page.status_code == 200, page.text
    return re.findall(r'<th scope="row"><a class="id" href="/dashboard/episodes/([^"]+)"', page.text)


def test_each_filter_finds_what_the_stories_told(http: Signed, stage: Stage) -> None:
    client, told = http("read"), stage.told
    everything = ids_in(client)
    assert told.open_episode in everything
    assert ids_in(client, run="held-out") == [told.eval_episode]
    assert ids_in(client, task="a task that fails") == [told.failed_episode]
    assert ids_in(client, status="failed") == [told.failed_episode]
    assert told.open_episode in ids_in(client, status="open")
    assert ids_in(client, policy="checker") == [told.tool_episode]
    assert told.tool_episode in ids_in(client, role="main", policy=POLICY, version="0")
    newest = ids_in(client, version=str(NUM_STEPS))
    assert newest
    assert set(newest) < set(everything)
    assert ids_in(client, role="nobody") == []
    assert ids_in(client, min_reward="0.99", max_reward="1", run="held-out") == [told.eval_episode]
    assert ids_in(client, run="", task="", status="", policy="", version="", role="", min_reward="") == everything
    assert told.other_episode not in everything


def test_what_is_no_filter_is_said_to_be_none(http: Signed) -> None:
    client = http("read")
    assert "finite number" in text_of(client, "/dashboard/episodes", 400, min_reward="lots")
    for wrong in ("two", "-1", "9" * 10, "٣"):
        assert "version is a whole number" in text_of(client, "/dashboard/episodes", 400, version=wrong)
    assert "status is one of" in text_of(client, "/dashboard/episodes", 400, status="fine")
    assert "state is one of" in text_of(client, "/dashboard/groups", 400, state="fine")
    assert "next_cursor" in text_of(client, "/dashboard/episodes", 400, cursor="x")


def test_an_id_leads_to_its_page(http: Signed, stage: Stage) -> None:
    client, told = http("read"), stage.told
    call = re.findall(r"/calls/([^\"?]+)", client.get(f"/dashboard/episodes/{told.tool_episode}").text)[0]
    for name, path in (
        (told.tool_episode, f"episodes/{told.tool_episode}"),
        (f"  {call} ", f"episodes/{told.tool_episode}/calls/{call}"),
        (told.open_group, f"groups/{told.open_group}"),
        (told.batches[0], f"training/{told.batches[0]}"),
        (stage.key_ids["agent"], f"keys/{stage.key_ids['agent']}"),
        ("", "episodes"),
    ):
        answer = client.get("/dashboard/find", params={"id": name}, follow_redirects=True)
        assert (answer.status_code, answer.url.path) == (200, f"/dashboard/{path}")
    for nothing in ("nobody", "ep-0", told.other_episode, "javascript:alert(1)", "//evil.example", "../login"):
        answer = client.get("/dashboard/find", params={"id": nothing}, follow_redirects=True)
        assert (answer.status_code, answer.url.host) == (404, client.base_url.host)
    assert client.get("/dashboard/find", params={"id": "x" * 1000}).status_code == 400
    assert http(None).get("/dashboard/find", params={"id": told.open_episode}).status_code == 303


def test_an_episode_says_first_whether_it_was_trained(http: Signed, stage: Stage) -> None:
    client, told = http("read"), stage.told

    def fate_of_a_member(group_id: str) -> str:
        page = client.get(f"/dashboard/groups/{group_id}").text
        member = re.findall(r"/dashboard/episodes/(ep-[0-9a-f]+)\"", page)[0]
        (fate,) = re.findall(r'<p class="alert[^"]* fate">(.*?)</p>', client.get(f"/dashboard/episodes/{member}").text)
        return unescape(re.sub(r"<[^>]+>", "", fate))

    assert fate_of_a_member(told.trained_groups[0]).startswith("It was trained. Its group Step 0.1 of solver")
    assert "rewarded alike" in fate_of_a_member(told.skipped_group)
    assert fate_of_a_member(told.open_group).startswith("It is not trained yet: its group is open.")
    assert fate_of_a_member(told.ready_group).startswith("It is not trained yet: its group waits for the trainer.")
    assert "no place in a group" in text_of(client, f"/dashboard/episodes/{told.eval_episode}")


def test_a_group_says_what_it_waits_for_or_why_it_is_not_trained(http: Signed, stage: Stage) -> None:
    client, told = http("read"), stage.told
    groups = text_of(client, "/dashboard/groups")
    assert "waits: 1 of 4 scored, 1 ended; settled in" in groups
    assert "rewarded alike" in groups
    opened = text_of(client, f"/dashboard/groups/{told.open_group}")
    assert "Waits: 1 of 4 scored" in opened
    assert "provisional" in opened
    trained = client.get(f"/dashboard/groups/{told.trained_groups[0]}").text
    assert "frozen" in trained
    assert f"/dashboard/training/{told.batches[0]}" in trained
    assert "rewarded alike" in text_of(client, f"/dashboard/groups/{told.skipped_group}")
    assert told.trained_groups[0] in client.get("/dashboard/groups", params={"state": "trained"}).text
    assert told.trained_groups[0] not in client.get("/dashboard/groups", params={"state": "skipped"}).text
    assert f"/dashboard/groups/{told.ready_group}" in client.get("/dashboard/groups", params={"run": RUN}).text
    text_of(http("other"), f"/dashboard/groups/{told.open_group}", 404)


def test_an_episode_tells_its_tree_its_words_and_why_calls_are_not_trained(http: Signed, stage: Stage) -> None:
    client = http("read")
    told = text_of(client, f"/dashboard/episodes/{stage.told.tool_episode}")
    assert "What is 7 * 6? look it up" in told
    assert "calls look_up" in told
    assert '"question": "7 * 6"' in told
    assert "checker 0" in told
    assert "4 main solver 0" in told
    assert "first look" in told
    assert "judge" in told
    assert "closed" in told
    assert '"from": "the tests"' in told
    assert "2 messages as in #0 , then its answer." in told
    billed = text_of(client, f"/dashboard/episodes/{stage.told.bill_episode}")
    assert "it was not sampled from the policy's own distribution" in billed
    assert "oracle" in billed
    live = text_of(client, f"/dashboard/episodes/{stage.told.open_episode}")
    assert "what is 2 + 2" in live
    assert "It is sealed when it ends." in live


def test_tokens_are_told_with_their_chance_and_whose_they_are(http: Signed, stage: Stage) -> None:
    client = http("read")
    page = client.get(f"/dashboard/episodes/{stage.told.tool_episode}/tokens", params={"branch": 0})
    titles = re.findall(r'<span class="t ([^"]+)" title="([^"]+)">', page.text)
    trained = [title for kind, title in titles if kind.startswith("trained")]
    assert any("id 202, log-probability -1.400 (24.7 %), trained, version 0" in title for title in trained)
    assert any(kind.startswith("trained lp-9") is False and "lp-6" in kind for kind, _ in titles)
    assert ("context ids", "token 0, id 1, context") in titles
    assert client.get(f"/dashboard/episodes/{stage.told.tool_episode}/tokens?branch=99").status_code == 404


def test_receipts_are_checked_when_somebody_asks(http: Signed, stage: Stage) -> None:
    client = http("read")
    assert "Verified." in text_of(client, f"/dashboard/episodes/{stage.told.tool_episode}/check")
    assert "not yet" in text_of(client, f"/dashboard/episodes/{stage.told.open_episode}/check", 404)


def test_a_call_has_a_page_of_its_own(http: Signed, stage: Stage) -> None:
    client = http("read")
    path = f"/dashboard/episodes/{stage.told.tool_episode}"
    calls = list(dict.fromkeys(re.findall(rf"{path}/calls/([^\"?]+)", client.get(path).text)))
    assert len(calls) == 5
    second = text_of(client, f"{path}/calls/{calls[1]}")
    assert "Goes on from #0" in second
    assert "temperature 1, top_p 1" in second
    whole = text_of(client, f"{path}/calls/{calls[1]}", whole="true")
    assert "Answer in one line." in whole
    assert "Answer in one line." not in second.split("Raw")[0]
    assert "has no call" in text_of(client, f"{path}/calls/none", 404)


def test_what_was_trained_on_an_episode_is_told(http: Signed, stage: Stage) -> None:
    client = http("read")
    group = client.get(f"/dashboard/groups/{stage.told.trained_groups[0]}").text
    (member, *_) = re.findall(r"/dashboard/episodes/(ep-[0-9a-f]+)\"", group)
    page = client.get(f"/dashboard/episodes/{member}").text
    assert f"/dashboard/training/{stage.told.batches[0]}" in page


@pytest.mark.parametrize("tail", ["", "/tokens", "/check", "/delete", "/calls/x"])
def test_another_tenant_finds_nothing(http: Signed, stage: Stage, tail: str) -> None:
    for name in ("other", "other-admin"):
        answer = http(name).get(f"/dashboard/episodes/{stage.told.tool_episode}{tail}")
        assert answer.status_code in (403, 404)
        assert "look it up" not in answer.text
    assert stage.told.tool_episode not in http("other").get("/dashboard/episodes").text


def test_rest_finds_what_the_page_finds(stage: Stage, http: Signed) -> None:
    for params in ({"role": "main", "policy": POLICY}, {"min_reward": "0.9"}, {"version": "1"}, {"status": "failed"}):
        answer = httpx.get(
            f"{stage.url}/v1/episodes", params=params, headers={"Authorization": f"Bearer {stage.keys['read']}"}
        )
        assert [row["episode_id"] for row in answer.json()["data"]] == ids_in(http("read"), **params)
    wrong = httpx.get(
        f"{stage.url}/v1/episodes?max_reward=nan", headers={"Authorization": f"Bearer {stage.keys['read']}"}
    )
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_reward")


def test_what_is_gone_of_an_episode_is_said(tmp_path: Any) -> None:
    with staged(tmp_path) as own, httpx.Client(base_url=own.url, timeout=30) as client:
        assert client.post("/dashboard/login", data={"key": own.keys["admin"]}).status_code == 303
        kept = f"/dashboard/episodes/{own.told.eval_episode}"
        assert "Retention removed" not in text_of(client, kept)
        changed = {"run": "held-out", "mode": "eval", "retention": {"tokens_days": 0.0000001}}
        own.run(own.gateway.admin.post("/v1/runs", json=changed)).raise_for_status()
        while not own.run(own.gateway.ledger.get_episode("default", own.told.eval_episode)).removed:
            own.run(own.gateway.ledger.apply_retention())
        told = text_of(client, kept)
        assert "Retention removed its tokens." in told
        assert "its tokens were removed" in told
        assert "Its tokens are gone" in text_of(client, f"{kept}/tokens", 404)
        assert "tokens were removed by retention" in text_of(client, f"{kept}/check", 404)
        assert "no tokens" in text_of(client, "/dashboard/episodes", run="held-out")

        def damage(connection: Connection) -> None:
            named = {"name": own.told.failed_episode}
            connection.execute(text("UPDATE timelines SET blob = X'00' WHERE episode_id = :name"), named)

        own.run(own.gateway.ledger.write(damage))
        broken = f"/dashboard/episodes/{own.told.failed_episode}"
        assert "Nothing of its calls can be read" in text_of(client, broken)
        assert "Not what was sealed" in text_of(client, f"{broken}/check")


def test_only_an_administrator_deletes_and_only_with_a_word(stage: Stage, http: Signed, tmp_path: Any) -> None:
    with staged(tmp_path) as own:
        client = httpx.Client(base_url=own.url, timeout=30)
        assert client.post("/dashboard/login", data={"key": own.keys["admin"]}).status_code == 303
        path = f"/dashboard/episodes/{own.told.tool_episode}"
        token = re.findall(r'name="csrf" value="([^"]+)"', client.get(f"{path}/delete").text)[0]
        assert client.post(f"{path}/delete", data={"csrf": token}).status_code == 400
        assert client.post(f"{path}/delete", data={"csrf": "x", "confirm": "yes"}).status_code == 403
        reader = httpx.Client(base_url=own.url, timeout=30)
        reader.post("/dashboard/login", data={"key": own.keys["read"]})
        theirs = re.findall(r'name="csrf" value="([^"]+)"', reader.get(path).text)[0]
        assert reader.post(f"{path}/delete", data={"csrf": theirs, "confirm": "yes"}).status_code == 403
        assert "Delete" not in text_of(reader, path)
        assert "look it up" in text_of(client, path)
        assert client.post(f"{path}/delete", data={"csrf": token, "confirm": "yes"}).headers["location"] == path
        assert "was deleted" in text_of(client, path, 410)
        assert own.told.tool_episode not in ids_in(client)
        acts = own.run(own.gateway.ledger.list_acts("default", 50, None))[0]
        assert [act.outcome for act in acts if act.act == "episode.delete"] == ["ok", "insufficient_scope"]
        client.close()
        reader.close()
    assert "There is no" in text_of(http("admin"), "/dashboard/episodes/none", 404)
