"""The cap holds for all roles together, stops in the middle of things, and forgets nothing."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from llm.asking import KERNEL, QUICK, ask, question, search_tool
from llm.server import Call, Fail, Say, serving

from kernelpro.llm import CapReached, SpendingCap, Transcripts, create_model
from kernelpro.llm.prices import Price, Tokens
from kernelpro.records import BadInput


def test_a_prompt_that_does_not_fit_is_not_sent() -> None:
    with serving(Say(KERNEL)) as server, pytest.raises(CapReached, match="cap of 50 tokens"):
        ask(create_model(f"{server.url}/v1#m", QUICK, SpendingCap(tokens=50)))
    assert server.requests == []


def test_a_cap_reached_in_the_middle_of_a_tool_loop_stops_it_and_what_was_spent_is_counted(
    tmp_path: Path,
) -> None:
    cap, transcripts = SpendingCap(tokens=2500), Transcripts(tmp_path / "t.jsonl")
    round_trip = Call((("search", {"words": "tma"}),), (1000, 200, 0, 0))
    with serving(round_trip, round_trip, round_trip, Say(KERNEL)) as server:
        asked = create_model(f"{server.url}/v1#m", QUICK, cap, transcripts)
        with pytest.raises(CapReached) as caught:
            ask(asked, question(tools=(search_tool(lambda words: "found"),)))
    assert len(server.requests) == 2, "the third request would pass the cap"
    assert cap.spent.tokens_in == 2000 and cap.spent.tokens_out == 400 and cap.spent.calls == 2
    assert caught.value.cost == cap.spent
    (line,) = transcripts.entries()
    assert line.status == "capped" and line.cost == cap.spent
    assert [m["role"] for m in line.messages] == ["system", "user", "assistant", "tool", "assistant", "tool"]


def test_a_cap_in_dollars_stops_a_re_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    cap = SpendingCap(dollars=0.02)
    with serving(Say("no code", (2000, 2000, 0, 0)), Say(KERNEL)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        with pytest.raises(CapReached, match=r"cap of \$0\.02 is reached: \$0\.0225 spent"):
            ask(create_model("openai-chat:gpt-5", QUICK, cap))
    assert cap.dollars == Decimal("0.0225") and len(server.requests) == 1


def test_a_cap_in_dollars_needs_a_price() -> None:
    with pytest.raises(BadInput, match=r"unknown price.* --price qwen=INPUT/OUTPUT .*limit tokens"):
        create_model("http://localhost:1/v1#qwen", QUICK, SpendingCap(dollars=1))
    cap = SpendingCap(dollars=0.02)
    with (
        serving(Say("no code", (2000, 2000, 0, 0)), Say(KERNEL)) as server,
        pytest.raises(CapReached, match=r"\$0\.0225 spent"),
    ):
        ask(
            create_model(
                f"{server.url}/v1#qwen", replace(QUICK, prices={"qwen": Price.parse("1.25/10")}), cap
            )
        )
    create_model("openai:gpt-5", QUICK, SpendingCap(dollars=1))
    create_model("http://localhost:1/v1#qwen", QUICK, SpendingCap(tokens=100))


def test_an_answer_that_was_paid_for_is_given_even_if_it_empties_the_purse() -> None:
    cap = SpendingCap(tokens=1000)
    with serving(Say(KERNEL, (900, 900, 0, 0)), Say(KERNEL)) as server:
        asked = create_model(f"{server.url}/v1#m", QUICK, cap)
        assert ask(asked).text == KERNEL
        with pytest.raises(CapReached):
            ask(asked, question("step-2/code"))


def test_failed_attempts_give_back_what_they_announced() -> None:
    cap = SpendingCap(tokens=1000)
    with serving(*[Fail(500)] * 3, Say(KERNEL)) as server:
        ask(create_model(f"{server.url}/v1#m", QUICK, cap))
    assert cap.spent.tokens_in == 100


def test_requests_in_flight_count() -> None:
    cap = SpendingCap(dollars=1, tokens=100)
    with cap.request(60, Decimal(0)):
        with pytest.raises(CapReached), cap.request(60, Decimal(0)):
            pass
        with pytest.raises(CapReached), cap.request(1, Decimal("1.01")):
            pass
    with cap.request(60, Decimal(0)):
        pass


def test_all_roles_share_the_purse_and_each_is_counted(tmp_path: Path) -> None:
    cap, transcripts = SpendingCap(), Transcripts(tmp_path / "t.jsonl")
    with serving(Say(KERNEL), Say("no"), Say(KERNEL)) as server:
        for role in ("plan", "code"):
            ask(
                create_model(f"{server.url}/v1#{role}-model", QUICK, cap, transcripts),
                question(f"step-1/{role}", role=role),
            )
    assert {role: cost.calls for role, cost in cap.by_role().items()} == {"plan": 1, "code": 2}
    assert {key: cost.tokens_in for key, cost in cap.by_key().items()} == {
        "step-1/plan": 100,
        "step-1/code": 200,
    }

    again = SpendingCap(tokens=400)
    again.restore(Transcripts(tmp_path / "t.jsonl").spent())
    assert again.spent == cap.spent and again.by_role() == cap.by_role() and again.by_key() == cap.by_key()
    with pytest.raises(CapReached), again.request(100, Decimal(0)):
        pass


def test_prices_are_read_and_multiplied_exactly() -> None:
    price = Price.parse("1.25/10/0.125")
    assert price.cost(Tokens(1000, 200, 400, 0)) == Decimal("0.0028")
    assert Price(Decimal(1), Decimal(5), Decimal("0.1"), Decimal("1.25")).cost(
        Tokens(1000, 0, 500, 100)
    ) == Decimal("0.000575")
    for bad in ("", "1", "1/x", "1/-2", "1/2/3/4", "nan/1"):
        with pytest.raises(BadInput, match="dollars per million"):
            Price.parse(bad)
