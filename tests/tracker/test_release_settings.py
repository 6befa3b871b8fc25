"""The table `[policies.release]`, read at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracker.errors import SettingsError
from tracker.release_settings import ReleaseSettings
from tracker.settings import load_stores
from tracker.trials import Rules

TOML = '[[policies]]\nname = "solver"\nmodel = "m"\n[policies.release]\n'


def release(tmp_path: Path, lines: str) -> ReleaseSettings:
    (tmp_path / "hone.toml").write_text(TOML + lines)
    return load_stores({}, tmp_path).policies[0].release


def test_a_policy_releases_directly_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert load_stores({"HONE_POLICIES": "solver=m"}, tmp_path).policies[0].release.mode == "direct"
    found = release(tmp_path, 'mode = "canary"\nshare = 20\nunit = "group"\nmax_kl = 0.1\n')
    assert (found.mode, found.share) == ("canary", 20)
    assert found.rules == Rules(unit="group", max_kl=0.1)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ('mode = "slow"', "release.mode"),
        ("share = 0", "release.share"),
        ("share = 100", "release.share"),
        ("alpha_promote = 0.5", "release.alpha_promote"),
        ("alpha_promote = 0.3\nalpha_roll_back = 0.3", "alpha_roll_back"),
        ("reward_low = 2", "reward_high"),
        ("min_episodes = 500", "min_episodes"),
        ("max_truncations = 1", "release.max_truncations"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(tmp_path: Path, lines: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        release(tmp_path, lines)
