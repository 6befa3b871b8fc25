"""Every page of the dashboard on the stage, and whether it is for administrators alone."""

from __future__ import annotations

from tests.dashboard.stage import Stage
from tests.dashboard.stories import POLICY, RUN


def places(stage: Stage) -> dict[str, bool]:
    """path -> whether only an administrator gets there."""
    told = stage.told
    everybody = (
        "/dashboard",
        f"/dashboard?run={RUN}&success=0.9",
        "/dashboard/runs",
        f"/dashboard/runs/{RUN}",
        "/dashboard/runs/held-out",
        "/dashboard/groups",
        f"/dashboard/groups/{told.trained_groups[0]}",
        f"/dashboard/groups/{told.open_group}",
        "/dashboard/episodes",
        f"/dashboard/episodes/{told.tool_episode}",
        f"/dashboard/episodes/{told.open_episode}",
        "/dashboard/policies",
        f"/dashboard/policies/{POLICY}",
        "/dashboard/training",
        f"/dashboard/training/{told.batches[0]}",
        "/dashboard/engines",
        "/dashboard/keys",
        f"/dashboard/keys/{stage.key_ids['agent']}",
    )
    admins = ("/dashboard/keys/new", "/dashboard/audit", "/dashboard/settings")
    return dict.fromkeys(everybody, False) | dict.fromkeys(admins, True)
