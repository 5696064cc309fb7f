"""Rewording a prompt loses no rule: every rule has an id, and the list of ids is kept by hand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kernelpro.authors.team import templates

HERE = Path(__file__).parent
TEAM = Path(templates.__file__).parent
RULES = {
    f"{group}.{name}": text
    for group, rules in tomllib.loads((HERE / "prompt_rules.toml").read_text()).items()
    for name, text in rules.items()
}
RULE_ID = re.compile(r"<!-- ([a-z0-9.-]+) -->")
LITERAL = re.compile(r"`([^`]+)`|(\$\w+|\b\w*[A-Z_]\w*_\w*\b|\b\d+\b)")
"""Code in backticks, placeholders, identifiers and whole numbers: these must survive a rewording as they are."""


def rule_lines() -> dict[str, list[str]]:
    """The lines of all templates that state a rule, by the rule's id."""
    lines: dict[str, list[str]] = {}
    for path in sorted([*TEAM.glob("prompts/*.md"), *TEAM.glob("guides/*.md")]):
        for line in path.read_text().splitlines():
            for rule in RULE_ID.findall(line):
                lines.setdefault(rule, []).append(line)
    return lines


def test_every_rule_stands_in_exactly_one_template() -> None:
    lines = rule_lines()
    assert set(lines) == set(RULES)
    assert not [rule for rule, places in lines.items() if len(places) != 1]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_keeps_its_literals(rule: str) -> None:
    (line,) = rule_lines()[rule]
    literals = [code or word for code, word in LITERAL.findall(RULES[rule])]
    assert not [literal for literal in literals if literal not in line]


def test_every_bullet_is_a_rule() -> None:
    for path in [*TEAM.glob("prompts/*.md"), *TEAM.glob("guides/*.md")]:
        bullets = [line for line in path.read_text().splitlines() if line.startswith("- ")]
        assert not [line for line in bullets if not RULE_ID.search(line)], path.name


def test_models_do_not_see_the_ids() -> None:
    values = {"precision": "fp32", "precision_words": "", "arch": "90a"}
    assert "<!--" not in templates.prompt("contract", **values) + templates.guide("cuda", **values)
