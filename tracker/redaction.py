"""Redaction: what rules find in a call is not kept, before anything of it is stored.

The rule: nothing that was sampled is changed and trained. `mask` hides the words a pattern finds, in every string of
messages, request and answers, behind `[name]`; an answer it was found in stays as context and is not trained, since
nobody here can tell which of its tokens the words are. Its ids are kept, and whoever has the tokenizer can read them;
with `ids: drop` the ids of the whole call go, and it is excluded. `exclude` keeps no words and no ids of the call. The
agent's answer is none of this module's business. Patterns are RE2's: linear in the length of the text, whatever is
written into it. JSON that no rule finds anything in stays as it was, byte for byte. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import re2
from msgspec.structs import replace

from tracker.errors import BadRequest
from tracker.types import ID_PATTERN, Call, Choice, Reason, Redaction

MAX_RULES: Final = 64
MAX_PATTERN_CHARS: Final = 1_000
MAX_MEMORY: Final = 2**23
"""Bytes that one pattern may take; RE2 refuses one that needs more."""
CHOICES: Final = {
    "action": ("mask", "exclude"),
    "where": ("prompt", "answer", "both"),
    "ids": ("keep", "drop"),
}
MAX_NESTED: Final = 2
"""JSON inside a string inside JSON is looked into: arguments of tools are."""
_SCALAR: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")(\s*+:)?|-?[0-9][0-9.eE+-]*+', re.DOTALL)
"""A string or a number, wherever it stands in a JSON text; a string with a colon behind it is the name of a field."""
_Find = Callable[[str], str]


class Redactor:
    """The rules of one run, compiled."""

    def __init__(self, rules: Sequence[Redaction]) -> None:
        self._prompt = [_Rule(rule) for rule in rules if rule.where != "answer"]
        self._answer = [_Rule(rule) for rule in rules if rule.where != "prompt"]

    def redacted(self, call: Call) -> Call:
        """The call as it may be kept."""
        asked, said = _Search(self._prompt), [_Search(self._answer) for _ in call.choices]
        messages = tuple(asked.hidden(message) for message in call.messages)
        request, said_of_it = asked.hidden(call.request), asked.text(call.detail)
        answers = [search.hidden(choice.message) for search, choice in zip(said, call.choices, strict=True)]
        found = {rule.name: rule for search in (asked, *said) for rule in search.found}
        if not found:
            return call
        detail = f"redacted: {', '.join(found)}" + (f"; {said_of_it}" if said_of_it else "")
        if any(rule.action == "exclude" for rule in found.values()):
            return _without_ids(replace(call, messages=(), request=b"{}", detail=detail), [b"null"] * len(answers))
        kept = replace(call, messages=messages, request=request, detail=detail)
        if any(rule.ids == "drop" for rule in found.values()):
            return _without_ids(kept, answers)
        pairs = zip(call.choices, answers, said, strict=True)
        return replace(kept, choices=tuple(_masked(choice, text, search) for choice, text, search in pairs))


class Redactors:
    """The redactor of each run: the rules of the settings, then its own."""

    def __init__(self, rules: Sequence[Redaction]) -> None:
        self._rules = tuple(rules)
        self._kept: dict[tuple[Redaction, ...], Redactor] = {}

    def of(self, own: tuple[Redaction, ...]) -> Redactor | None:
        """`None` where there is no rule."""
        rules = self._rules + own
        if not rules:
            return None
        if rules not in self._kept:
            self._kept[rules] = Redactor(rules)
        return self._kept[rules]


def parse_rules(value: object, setting: str = "redactions") -> tuple[Redaction, ...]:
    """Check rules as `[[redactions]]` or a run gives them; raises `BadRequest` that names the rule."""
    if not isinstance(value, list | tuple):
        raise BadRequest(f"{setting} is a list of rules, each {{name, pattern, action}}.", param=setting)
    rules = tuple(_parsed(item, setting) for item in cast("Sequence[object]", value))
    if len(rules) > MAX_RULES or len({rule.name for rule in rules}) < len(rules):
        raise BadRequest(f"{setting}: at most {MAX_RULES} rules, each with a name of its own.", param=setting)
    return rules


class _Rule:
    """A rule with its pattern."""

    def __init__(self, rule: Redaction) -> None:
        self.rule = rule
        self._pattern = _compiled(rule.pattern)
        self._shown = f"[{rule.name}]"

    def hide(self, text: str) -> str:
        """The text without what the pattern finds; the same object where it finds nothing."""
        return self._pattern.sub(self._instead, text) if self._pattern.search(text) else text

    def _instead(self, found: object) -> str:
        """A function: in a text a backslash would stand for a group."""
        del found
        return self._shown


class _Search:
    """Looks through JSON texts and notes which rules found something."""

    def __init__(self, rules: Iterable[_Rule]) -> None:
        self._rules = list(rules)
        self.found: list[Redaction] = []

    def hidden(self, body: bytes, nested: int = 0) -> bytes:
        """A JSON text without what was found in its strings and numbers."""
        if not self._rules:
            return body

        def shown(scalar: re.Match[bytes]) -> bytes:
            whole, string, colon = scalar[0], scalar[1] or b"", scalar[2] or b""
            if colon and not nested:
                return whole  # what the API calls its fields are nobody's words
            text = _text_of(string) if string else whole.decode()
            if text is None:
                return self.text(string.decode()).encode() + colon
            left = self._looked(text, nested)
            return whole if left == text else json.dumps(left).encode() + colon

        return _SCALAR.sub(shown, body)

    def text(self, text: str) -> str:
        """A text without what was found in it."""
        return self._looked(text, MAX_NESTED)

    def _looked(self, text: str, nested: int) -> str:
        """The text without what was found. Half a surrogate pair is no text: it is looked at as a question mark."""
        clean = text.encode("utf-8", "replace").decode()
        left = clean
        for rule in self._rules:
            before, left = left, rule.hide(left)
            if left is not before and rule.rule not in self.found:
                self.found.append(rule.rule)
        if nested < MAX_NESTED and clean[:1] in ("{", "["):
            left = self.hidden(left.encode(), nested + 1).decode()
        return text if left == clean else left


def _text_of(string: bytes) -> str | None:
    """What a JSON string says; `None` for what only looks like one, in a text that is no JSON after all."""
    try:
        return json.loads(string.decode(), strict=False)
    except ValueError:
        return None


def _without_ids(call: Call, answers: Sequence[bytes]) -> Call:
    """The call without ids, excluded whatever else was amiss."""
    choices = tuple(
        replace(choice, sampled_ids=(), logprobs=(), message=answer)
        for choice, answer in zip(call.choices, answers, strict=True)
    )
    return replace(call, prompt_ids=(), choices=choices, reason=call.reason or Reason.REDACTED)


def _masked(choice: Choice, answer: bytes, search: _Search) -> Choice:
    reason = choice.reason or (Reason.REDACTED if search.found else None)
    return replace(choice, message=answer, reason=reason)


def _parsed(value: object, setting: str) -> Redaction:
    if isinstance(value, dict):
        unknown = set(cast("Mapping[str, Any]", value)) - set(Redaction.__struct_fields__)
        if unknown:
            known = ", ".join(Redaction.__struct_fields__)
            raise BadRequest(f"A redaction has no field {sorted(unknown)[0]!r}; it has {known}.", param=setting)
    try:
        rule = msgspec.convert(value, Redaction)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{setting}: {error}.", param=setting) from error
    _check(rule, setting)
    return rule


def _check(rule: Redaction, setting: str) -> None:
    param = f"{setting}.{rule.name[:64]}"
    if not re.fullmatch(ID_PATTERN, rule.name):
        raise BadRequest(f"The name of a redaction matches {ID_PATTERN}.", param=setting)
    for field, choices in CHOICES.items():
        if getattr(rule, field) not in choices:
            told = f"{field} is one of {', '.join(choices)}, not {getattr(rule, field)!r}."
            raise BadRequest(f"Redaction {rule.name}: {told}", param=param)
    if not 0 < len(rule.pattern) <= MAX_PATTERN_CHARS:
        raise BadRequest(f"Redaction {rule.name}: a pattern has 1 to {MAX_PATTERN_CHARS} characters.", param=param)
    try:
        matches_nothing = _compiled(rule.pattern).search("") is not None
    except (re2.error, UnicodeEncodeError) as error:
        told = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise BadRequest(f"Redaction {rule.name}: the pattern is none of RE2's: {told}.", param=param) from error
    if matches_nothing:
        raise BadRequest(f"Redaction {rule.name}: the pattern finds the empty text, so it is everywhere.", param=param)


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    return re2.compile(pattern, options=options)
