"""`hone export` and `hone import` of what a whole gateway recorded: forms that TRL reads, and what never leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import Dataset, load_dataset
from trl.data_utils import apply_chat_template, is_conversational

from gateway.exporting.bringing import bring
from gateway.exporting.export import Order, export
from gateway.exporting.forms import Form, Wanted
from gateway.exporting.parts import State
from tests.fakes.gateways import RunningGateway
from tests.fakes.recording import SYSTEM, bodies, converse, record
from tests.fakes.scripted_answers import END, Answer, Script
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.worded_model import tokenizer
from tracker.clock import SystemClock
from tracker.errors import BadRequest, Conflict, CorruptRecord, NotFound
from tracker.ledger import SqlLedger
from tracker.settings import StoreSettings
from tracker.types import Scope

pytestmark = pytest.mark.slow
Json = dict[str, Any]
CHAT = "/v1/chat/completions"
ASKED: list[Json] = [SYSTEM, {"role": "user", "content": "hello"}]
TEMPLATE = (
    "{% for tool in tools or [] %}<{{ tool.function.name }}>{% endfor %}"
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}"
    "{% for call in message.tool_calls or [] %}({{ call.function.name }}{{ call.function.arguments | tojson }})"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def told(state: State) -> None:
    del state


async def exported(gateway: RunningGateway, out: Path, form: Form, file_format: str = "jsonl", **wanted: Any) -> State:
    order = Order(run="r", tenant="default", wanted=Wanted(form=form, **wanted), format=file_format)
    return await export(gateway.settings.stores, order, out, told)


def lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def loaded(path: Path, cache: Path) -> Dataset:
    kind = "parquet" if path.suffix == ".parquet" else "json"
    return load_dataset(kind, data_files=str(path), split="train", cache_dir=str(cache))


def rendered(example: Json) -> Json:
    """What TRL's SFT and DPO trainers do with an example before they tokenise it."""
    chat = tokenizer()
    chat.chat_template = TEMPLATE
    tools = example.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    return apply_chat_template(example, chat, tools=tools)


@pytest.fixture
async def group(gateway: RunningGateway, engine: ScriptedEngine) -> list[str]:
    """Four attempts at one task of two turns, better and worse ones, each with answers of its own."""
    await gateway.admin.post("/v1/runs", json={"run": "r", "group_size": 4, "group_timeout_s": 3600})
    found: list[str] = []
    for number, reward in enumerate((1.0, 0.0, 0.75, 0.25)):
        first, second = 10 + number, 20 + number
        engine.script(said((1, 2), first))
        engine.script(said((1, 2, first, END, 3), second))
        found.append(await converse(gateway, ASKED, 2, reward, run="r", task="sum"))
    return found


def said(prompt: tuple[int, ...], word: int) -> Script:
    return Script(prompt_ids=prompt, choices=(Answer(ids=(word, END), texts=(f"word {word}", "")),))


async def test_rows_are_what_the_samples_endpoint_tells(
    gateway: RunningGateway, group: list[str], tmp_path: Path
) -> None:
    state = await exported(gateway, tmp_path / "rows.jsonl", Form.ROWS, threshold=0.5)
    rows = lines(tmp_path / "rows.jsonl")
    assert (state.num_rows, state.num_episodes, len(rows)) == (8, 4, 8)
    for episode_id in group:
        own = sorted((row for row in rows if row["episode_id"] == episode_id), key=lambda row: len(row["prompt_ids"]))
        (sample,) = (await gateway.admin.get(f"/v1/episodes/{episode_id}/samples")).json()["samples"]
        last = own[-1]
        assert last["prompt_ids"] + last["sampled_ids"] == sample["input_ids"]
        trained = [logprob for logprob in sample["logprobs"] if logprob is not None]
        assert [logprob for row in own for logprob in row["logprobs"]] == trained
        assert [row["parent_call_id"] for row in own] == [None, own[0]["call_id"]]
        assert {row["role"] for row in own} == {"main"}
        assert {row["correct"] for row in own} == {own[0]["reward"] >= 0.5}
    samples = tmp_path / "samples.jsonl"
    await exported(gateway, samples, Form.SAMPLES)
    assert sorted(sum(row["loss_mask"]) for row in lines(samples)) == sorted(
        sum(len(row["sampled_ids"]) for row in rows if row["episode_id"] == episode_id) for episode_id in group
    )


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
async def test_trl_takes_what_is_exported_in_its_forms(
    gateway: RunningGateway, group: list[str], tmp_path: Path, file_format: str
) -> None:
    for path, body in bodies(7).items():
        if path != "/v1/completions":
            await record(gateway, path, body, 1.0, run="r", task=path)
    for form in (Form.GRPO, Form.SFT, Form.DPO):
        out = tmp_path / f"{form}.{file_format}"
        state = await exported(gateway, out, form, file_format)
        data = loaded(out, tmp_path / "cache")
        assert len(data) == state.num_rows > 0
        for example in data:
            assert is_conversational(example)
            text = rendered(example)
            assert text["prompt"].endswith(("[user]hello", "[user]and then? (0)", "[user]question 7", "[assistant]"))
            assert all(text[name] for name in ("completion", "chosen", "rejected") if name in example)
    with_tools = [row for row in loaded(tmp_path / f"sft.{file_format}", tmp_path / "cache") if row["tools"] != "null"]
    assert len(with_tools) == 2
    assert {rendered(row)["prompt"].partition("[")[0] for row in with_tools} == {"<look>"}
    systems = [row["prompt"][0] for row in loaded(tmp_path / f"sft.{file_format}", tmp_path / "cache")]
    assert systems == [SYSTEM] * len(systems)  # of every dialect the same conversation


async def test_the_best_of_a_group_is_preferred_to_the_worst(
    gateway: RunningGateway, group: list[str], tmp_path: Path
) -> None:
    await exported(gateway, tmp_path / "dpo.jsonl", Form.DPO)
    rows = lines(tmp_path / "dpo.jsonl")
    assert [(row["chosen_reward"], row["rejected_reward"]) for row in rows] == [(1.0, 0.0), (0.75, 0.25)]
    words = [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows]
    assert words == [("word 10", "word 11"), ("word 12", "word 13")]
    assert [row["prompt"] for row in rows] == [ASKED, ASKED]  # what came after was asked of nobody else
    assert [row["chosen_episode_id"] for row in rows] == [group[0], group[2]]
    state = await exported(gateway, tmp_path / "apart.jsonl", Form.DPO, margin=0.6)
    assert [row["chosen_reward"] for row in lines(tmp_path / "apart.jsonl")] == [1.0]
    assert state.left_out == {"no_pair": 6}
    await exported(gateway, tmp_path / "correct.jsonl", Form.DPO, threshold=0.8)
    assert [row["chosen_correct"] for row in lines(tmp_path / "correct.jsonl")] == [True]


async def test_what_is_not_trained_never_leaves(gateway: RunningGateway, tmp_path: Path) -> None:
    await gateway.admin.post("/v1/runs", json={"run": "r", "roles": {"judge": "context"}})
    body = bodies(1)[CHAT]
    await record(gateway, CHAT, {**body, "response_format": {"type": "json_object"}}, 1.0, run="r")
    kept = await record(gateway, CHAT, body, None, run="r")
    other = await gateway.client(*Scope, tenant="acme")
    async with other:
        assert (await other.post("/v1/runs", json={"run": "r"})).is_success
        assert (await other.post("/v1/episodes", json={"task": "t", "run": "r"})).is_success
    for form in (Form.ROWS, Form.SFT, Form.SAMPLES):
        state = await exported(gateway, tmp_path / f"{form}.jsonl", form)
        assert [row["episode_id"] for row in lines(tmp_path / f"{form}.jsonl")] == [kept]
        assert state.left_out == {"not_policy_distribution": 1}
    state = await exported(gateway, tmp_path / "grpo.jsonl", Form.GRPO)
    assert (lines(tmp_path / "grpo.jsonl"), state.left_out["unscored"]) == ([], 1)


async def test_completions_are_texts_and_one_file_has_one_kind_of_prompts(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    await gateway.admin.post("/v1/runs", json={"run": "r"})
    await record(gateway, CHAT, bodies(1)[CHAT], 1.0, run="r")
    await record(gateway, "/v1/completions", bodies(2)["/v1/completions"], 1.0, run="r")
    state = await exported(gateway, tmp_path / "sft.parquet", Form.SFT, "parquet")
    (row,) = loaded(tmp_path / "sft.parquet", tmp_path / "cache")
    assert (row["prompt"], isinstance(row["completion"], str), is_conversational(row)) == ("question 2", True, False)
    assert state.left_out == {"other_kind": 1}


async def test_an_export_that_is_there_or_of_no_run_is_refused(gateway: RunningGateway, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no run 'r'"):
        await exported(gateway, tmp_path / "out.jsonl", Form.ROWS)
    await gateway.admin.post("/v1/runs", json={"run": "r"})
    state = await exported(gateway, tmp_path / "out.parquet", Form.SFT, "parquet")
    assert (state.num_rows, pq.read_table(tmp_path / "out.parquet").num_rows) == (0, 0)
    with pytest.raises(BadRequest, match="is there already"):
        await exported(gateway, tmp_path / "out.parquet", Form.SFT, "parquet")


async def test_whole_episodes_go_to_another_installation_and_stay_what_they_were(
    gateway: RunningGateway, group: list[str], tmp_path: Path
) -> None:
    for path, body in bodies(3).items():
        await record(gateway, path, {**body, "stream": False}, 0.5, run="r", metadata={"a": [1, {"b": None}]})
    await gateway.admin.post(
        "/v1/reward", json={"episode_id": group[0], "reward": 2.0, "name": "late", "metadata": {"x": 1}}
    )
    out = tmp_path / "whole.jsonl"
    state = await exported(gateway, out, Form.EPISODES)
    assert (state.num_rows, state.left_out) == (8, {})
    there = await elsewhere(tmp_path)
    brought = await bring(there, out, "acme", None, lambda _: None)
    assert (brought.num_brought, brought.num_here) == (8, 0)
    again = await bring(there, out, "acme", None, lambda _: None)
    assert (again.num_brought, again.num_here) == (0, 8)
    order = Order(run="r", tenant="acme", wanted=Wanted(form=Form.EPISODES))
    await export(there, order, tmp_path / "back.jsonl", told)
    for was, now in zip(lines(out), lines(tmp_path / "back.jsonl"), strict=True):
        assert now["episode"].pop("tenant") == "acme"
        assert was["episode"].pop("tenant") == "default"
        for line in (was, now):
            del line["digest"], line["group"]["state"]
            line["group"].pop("reason", None)
        assert now == was
    training = Order(run="r", tenant="acme", wanted=Wanted(form=Form.ROWS))
    await export(there, training, tmp_path / "there.jsonl", told)
    await exported(gateway, tmp_path / "here.jsonl", Form.ROWS)
    assert lines(tmp_path / "there.jsonl") == lines(tmp_path / "here.jsonl")


async def test_what_was_tampered_with_is_refused_with_its_place(
    gateway: RunningGateway, group: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "whole.jsonl"
    await exported(gateway, out, Form.EPISODES)
    there = await elsewhere(tmp_path)
    whole = lines(out)
    tampered = tmp_path / "tampered.jsonl"

    async def refused(place: int, line: Json, match: str) -> None:
        changed = [*whole[:place], line, *whole[place + 1 :]]
        tampered.write_text(
            "".join(json.dumps(one, separators=(",", ":"), ensure_ascii=False) + "\n" for one in changed)
        )
        with pytest.raises((CorruptRecord, BadRequest), match=f"line {place + 1}: .*{match}"):
            await bring(there, tampered, "default", None, lambda _: None)

    line = json.loads(json.dumps(whole[2]))
    call = line["calls"][1]
    call["choices"][0]["sampled_ids"][0] += 1
    await refused(2, line, f"episode {line['episode']['episode_id']}, call {call['call_id']}, choice 0, offset")
    line = json.loads(json.dumps(whole[2]))
    line["rewards"][0]["value"] = 9.0
    await refused(2, line, "rewards or settings are not what was exported")
    line = json.loads(json.dumps(whole[2]))
    del line["calls"][1], line["receipts"][1]
    await refused(2, line, "chain")
    await refused(0, {"prompt": "no episode"}, "no episode exported")
    assert (await bring(there, out, "default", None, lambda _: None)).num_here == 2
    with pytest.raises(Conflict, match="is taken"):
        await bring(there, out, "acme", None, lambda _: None)


async def elsewhere(tmp_path: Path) -> StoreSettings:
    """The settings of another installation."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    url = f"sqlite:///{folder}/hone.db"
    await (await SqlLedger.connect(url, SystemClock())).close()
    return StoreSettings(data_dir=folder, database_url=url)
