"""What `hone up` tells a person: where it is, which keys there are, what to paste, and what groups wait for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.local.keys import KEYS_FILE
from gateway.local.plan import LocalPlan
from tracker.types import Scope

NUM_WAITING_SHOWN: Final = 3


def welcome(plan: LocalPlan, keys: Mapping[Scope, str]) -> str:
    """The lines after everything is ready. Keys are shown only where nobody but this machine can reach the gateway."""
    policies = ", ".join(f"{policy.name} ({policy.model})" for policy in plan.settings.stores.policies)
    url, file = plan.settings.base_url, plan.settings.stores.data_dir / KEYS_FILE
    lines = [f"\nHone is up at {url}   policies: {policies}"]
    if not plan.named_policy:
        lines.append(
            'No policy was named, so this is the small model from the wheel. HONE_POLICIES="NAME=MODEL" names one.'
        )
    if not plan.settings.is_loopback:
        return "\n".join([*lines, f"The keys are in {file}.", ""])
    lines += [f"  {scope.value:8} {keys[scope]}" for scope in Scope]
    lines += [
        f"(also in {file})",
        f"Look at it: {url}/dashboard (sign in with the read or the admin key)",
        "",
        "Run your agent as it is; the header X-Hone-Episode of any answer says what to score:",
        f"  export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={keys[Scope.AGENT]}",
        f"  export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={keys[Scope.AGENT]}",
        "",
        "Or start an episode, run it with the env of the answer, and score it:",
        f"  curl {url}/v1/episodes -H 'Authorization: Bearer {keys[Scope.AGENT]}' -d '{{\"task\": \"my-task\"}}'",
        f"  curl {url}/v1/reward -H 'Authorization: Bearer {keys[Scope.REWARD]}' "
        '-d \'{"episode_id": "EPISODE", "reward": 1}\'',
        "",
    ]
    return "\n".join(lines)


def waiting_line(groups: Sequence[Mapping[str, Any]]) -> str:
    """What open groups wait for.

    >>> waiting_line([{"state": "open", "task": "lamp", "size": 8, "members": [{"reward": 1.0}, {"reward": None}]}])
    'waiting: lamp 1 of 8 scored'
    """
    open_groups = [group for group in groups if group["state"] == "open"]
    ready = sum(group["state"] in ("ready", "taken") for group in groups)
    if not open_groups:
        return f"{ready} groups are being trained" if ready else "waiting for episodes"
    told = [
        f"{group['task']} {sum(member['reward'] is not None for member in group['members'])} of {group['size']} scored"
        for group in open_groups[:NUM_WAITING_SHOWN]
    ]
    more = len(open_groups) - len(told)
    return "waiting: " + "; ".join(told) + (f"; and {more} more groups" if more else "")
