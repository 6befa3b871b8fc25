"""What is sealed opens with its tenant's key, in its own row, as it was; and nothing shows a key."""

from __future__ import annotations

import base64
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.errors import CorruptRecord, SettingsError
from tracker.sealing import MasterKeys, generation_of, is_sealed, new_key, opened, sealed
from tracker.settings import load_stores

OWNER = ("ep-1", "chain")


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_what_is_sealed_opens_as_it_was_and_says_with_which_key(payload: bytes, generation: int) -> None:
    key = new_key()
    stored = sealed(payload, key, generation, OWNER)
    assert is_sealed(stored)
    assert (generation_of(stored), opened(stored, key, OWNER)) == (generation, payload)
    assert sealed(payload, key, generation, OWNER) != stored


@given(st.data())
def test_a_payload_that_was_changed_moved_or_cut_does_not_open(data: st.DataObject) -> None:
    key, other = new_key(), new_key()
    stored = sealed(b"tokens", key, 1, OWNER)
    place = data.draw(st.integers(5, len(stored) - 1))
    changed = stored[:place] + bytes([stored[place] ^ data.draw(st.integers(1, 255))]) + stored[place + 1 :]
    for wrong, with_key, owner in (
        (changed, key, OWNER),
        (stored[:place], key, OWNER),
        (stored, other, OWNER),
        (stored, key, ("ep-2", "chain")),
        (stored, key, ("ep-1", "other")),
    ):
        with pytest.raises(CorruptRecord):
            opened(wrong, with_key, owner)


def test_a_tenants_key_opens_under_any_of_the_master_keys_and_only_for_its_tenant() -> None:
    old, new, key = new_key(), new_key(), new_key()
    stored = MasterKeys([old]).wrapped(key, "acme", 1)
    rotated = MasterKeys([new, old])
    assert rotated.unwrapped(stored, "acme", 1) == key
    assert not rotated.is_current(stored)
    assert rotated.is_current(rotated.wrapped(key, "acme", 1))
    with pytest.raises(SettingsError, match="HONE_ENCRYPTION_KEY"):
        MasterKeys([new]).unwrapped(stored, "acme", 1)
    for tenant, generation in (("other", 1), ("acme", 2)):
        with pytest.raises(CorruptRecord):
            rotated.unwrapped(stored, tenant, generation)


def test_settings_take_keys_from_a_variable_or_a_file_and_never_show_them(tmp_path: Path) -> None:
    text = base64.b64encode(new_key()).decode()
    (tmp_path / "keys").write_text(f"{text}\n{base64.b64encode(new_key()).decode()}\n")
    given = load_stores({"HONE_ENCRYPTION_KEY": text}, tmp_path)
    named = load_stores({"HONE_ENCRYPTION_KEY_FILE": "keys"}, tmp_path)
    assert [repr(one.encryption_key) for one in (given, named)] == ["MasterKeys(1)", "MasterKeys(2)"]
    assert text not in repr(given) + repr(named) + given.model_dump_json(fallback=repr)
    for wrong in ("short", text[:-8], text + "x", f"{text},{text[:8]}"):
        with pytest.raises(SettingsError) as refused:
            load_stores({"HONE_ENCRYPTION_KEY": wrong}, tmp_path)
        assert text[:8] not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(SettingsError, match="cannot be read"):
        load_stores({"HONE_ENCRYPTION_KEY_FILE": "nothing"}, tmp_path)
