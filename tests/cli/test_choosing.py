"""`kernelpro optimize TASK` and nothing else: who writes, and what is said about it."""

from __future__ import annotations

import pytest

from kernelpro.cli.choosing import choose
from kernelpro.records import BadInput, Limits


def test_without_a_model_the_playbook_writes_and_the_line_says_how_to_get_one() -> None:
    chosen = choose(None, {}, {})
    assert (chosen.author, chosen.models) == ("playbook", {})
    for way in ("the playbook writes", ".[llm]", "ANTHROPIC_API_KEY", "--model inbox:DIR", "KERNELPRO_MODEL"):
        assert way in chosen.why


def test_a_key_brings_a_model_that_may_spend_little() -> None:
    chosen = choose(None, {}, {"ANTHROPIC_API_KEY": "secret"})
    assert chosen.author == "team" and chosen.models["code"].startswith("anthropic:")
    assert "--author playbook" in chosen.why and "5 dollars" in chosen.why and "secret" not in chosen.why
    assert chosen.capped(Limits(10)).dollars == 5.0
    assert (
        chosen.capped(Limits(10, dollars=1.0)).dollars == 1.0 and chosen.capped(Limits(10, tokens=9)).dollars == 0.0
    )


def test_a_server_is_configured_by_a_variable_which_goes_before_keys() -> None:
    server = "http://localhost:8000/v1#coder"
    chosen = choose(None, {}, {"KERNELPRO_MODEL": server, "OPENAI_API_KEY": "x"})
    assert chosen.models == {"code": server} and chosen.capped(Limits(10)).dollars == 0.0


def test_a_key_of_a_provider_without_a_model_of_its_own_asks_which() -> None:
    chosen = choose(None, {}, {"OPENROUTER_API_KEY": "x"})
    assert chosen.author == "playbook" and "--model openrouter:MODEL" in chosen.why


def test_what_was_said_is_taken_and_the_line_says_how_to_get_another() -> None:
    assert choose("files:there", {}, {"OPENAI_API_KEY": "x"}).author == "files:there"
    said = choose(None, {"code": "inbox:here"}, {"OPENAI_API_KEY": "x"})
    assert (said.author, said.models) == ("team", {"code": "inbox:here"})
    assert said.why == "inbox:here writes; without an LLM: --author playbook"
    assert choose("playbook", {}, {"OPENAI_API_KEY": "x"}).why == choose(None, {}, {}).why
    with pytest.raises(BadInput, match="asks no model"):
        choose("playbook:random", {"code": "inbox:here"}, {})
