"""Option values with a syntax of their own."""

from __future__ import annotations

import pytest

from kernelpro.cli.options import BaselineChoice, BaselineOptions
from kernelpro.cli.parsing import parse_prices, parse_roles, select_baselines
from kernelpro.records import BadInput, Role


def test_a_role_may_have_a_model_and_settings_of_its_own() -> None:
    models, asked = parse_roles(
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
    with pytest.raises(BadInput, match="use ROLE:KEY=VALUE") as caught:
        parse_roles([text])
    assert f"--role {text}: " in str(caught.value) and "\n" not in str(caught.value)


def test_prices_are_per_million_tokens_by_model() -> None:
    assert parse_prices(["gpt-x=1.25/10", "http://h:1/v1?a=b#m=0/0"]) == {
        "gpt-x": "1.25/10",
        "http://h:1/v1?a=b#m": "0/0",
    }
    for bad in ("gpt-x", "gpt-x=1", "gpt-x=1/cheap", "=1/2"):
        with pytest.raises(BadInput, match="dollars per million tokens"):
            parse_prices([bad])


def test_baselines_are_added_to_the_default_ones() -> None:
    names = select_baselines(BaselineOptions(baseline=[BaselineChoice.max_autotune]))
    assert names == ("eager_fp32", "eager_tf32", "compile", "max_autotune")
    fewer = BaselineOptions(no_baseline=[BaselineChoice.compile])
    assert select_baselines(fewer) == ("eager_fp32", "eager_tf32")
    none = BaselineOptions(no_baseline=[*BaselineChoice])
    assert select_baselines(none, may_be_empty=True) == ()
    with pytest.raises(BadInput, match="at least one baseline"):
        select_baselines(none)
