"""`--role` and `--price`: what is understood, and what is said of the rest."""

from __future__ import annotations

import pytest

from kernelpro.cli.parsing import prices, roles
from kernelpro.records import BadInput, Role


def test_a_role_may_have_a_model_and_settings_of_its_own() -> None:
    models, asked = roles(
        [
            "plan:effort=high,temperature=0.7",
            "debug:model=http://h:1/v1#m",
            "plan:timeout=60",
            "code:max_output_tokens=8000",
        ]
    )
    assert models == {"debug": "http://h:1/v1#m"}
    assert asked == {"plan": Role(0.7, "high", None, 60.0), "code": Role(max_output_tokens=8000)}


@pytest.mark.parametrize(
    "text",
    ["plan", "plan:", "plan:hotness=3", "plan:temperature=warm", "code:max_output_tokens=1.5", "plan:effort"],
)
def test_a_role_that_makes_no_sense_is_one_clear_line(text: str) -> None:
    with pytest.raises(BadInput, match="say ROLE:KEY=VALUE") as caught:
        roles([text])
    assert f"--role {text}: " in str(caught.value) and "\n" not in str(caught.value)


def test_prices_are_per_million_tokens_by_model() -> None:
    assert prices(["gpt-x=1.25/10", "http://h:1/v1?a=b#m=0/0"]) == {
        "gpt-x": "1.25/10",
        "http://h:1/v1?a=b#m": "0/0",
    }
    for bad in ("gpt-x", "gpt-x=1", "gpt-x=1/cheap", "=1/2"):
        with pytest.raises(BadInput, match="dollars per million tokens"):
            prices([bad])
