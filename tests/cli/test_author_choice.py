"""Who writes kernels, what the user is told about it, and how much models may cost."""

from __future__ import annotations

import pytest

from kernelpro.authors.choice import cap_dollars, choose_author
from kernelpro.records import BadInput

SERVER = "http://localhost:8000/v1#coder"


def test_without_a_model_the_playbook_writes_and_the_summary_says_how_to_use_an_llm() -> None:
    choice = choose_author(None, "", environment={})
    assert (choice.author, choice.models) == ("playbook", {})
    for hint in ("author: playbook", ".[llm]", "ANTHROPIC_API_KEY", "--model inbox:DIR", "KERNELPRO_MODEL"):
        assert hint in choice.summary


def test_a_key_selects_a_model() -> None:
    choice = choose_author(None, "", environment={"ANTHROPIC_API_KEY": "secret"})
    assert choice.author == "team" and choice.models["code"].startswith("anthropic:")
    assert "--author playbook" in choice.summary and "secret" not in choice.summary


def test_the_variable_overrides_keys_and_may_name_the_playbook() -> None:
    choice = choose_author(None, "", environment={"KERNELPRO_MODEL": SERVER, "OPENAI_API_KEY": "x"})
    assert choice.models == {"code": SERVER} and "from KERNELPRO_MODEL" in choice.summary
    choice = choose_author(None, "", environment={"KERNELPRO_MODEL": "playbook", "OPENAI_API_KEY": "x"})
    assert (choice.author, choice.models) == ("playbook", {})


def test_a_key_of_a_provider_without_a_default_model_asks_for_one() -> None:
    choice = choose_author(None, "", environment={"OPENROUTER_API_KEY": "x"})
    assert choice.author == "playbook" and "--model openrouter:MODEL" in choice.summary


def test_options_override_the_environment() -> None:
    environment = {"OPENAI_API_KEY": "x"}
    assert choose_author("files:there", "", environment=environment).author == "files:there"
    choice = choose_author(None, "inbox:here", {"plan": "inbox:there"}, environment)
    assert (choice.author, choice.models) == ("team", {"code": "inbox:here", "plan": "inbox:there"})
    assert choice.summary == "author: inbox:here; to use no LLM: --author playbook"


@pytest.mark.parametrize(
    ("author", "model", "roles", "message"),
    [
        ("playbook:random", "inbox:here", {}, "--author playbook:random uses no model"),
        ("playbook", "", {"plan": "inbox:here"}, "uses no model"),
        (
            "team",
            "inbox:here",
            {},
            "--author team: use playbook or files:DIR; choose an LLM with --model SPEC",
        ),
        (None, "", {"plan": "inbox:here"}, "needs a main model"),
    ],
)
def test_ambiguous_choices_are_rejected(
    author: str | None, model: str, roles: dict[str, str], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        choose_author(author, model, roles, {})


def test_a_model_with_a_price_is_capped_at_5_dollars(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic_ai")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    priced = {"code": choose_author(None, "", environment={"ANTHROPIC_API_KEY": "x"}).models["code"]}
    assert cap_dollars(None, priced, {}) == 5.0
    assert cap_dollars(1.5, priced, {}) == 1.5 and cap_dollars(0.0, priced, {}) == 0.0
    assert cap_dollars(None, {"code": SERVER}, {}) == 0.0, "a server without a price"
    assert cap_dollars(None, {"code": SERVER}, {"coder": "1/2"}) == 5.0
    assert cap_dollars(None, {"code": "inbox:here"}, {}) == 0.0 and cap_dollars(None, {}, {}) == 0.0
