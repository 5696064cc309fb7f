"""What each role is shown, word for word, and what becomes of its answers.

Prompts are held by golden files; after rewording on purpose renew them with `python tests/authors/test_team.py`.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelpro.authors.author import AnswerPending, Assignment, BudgetExhausted, Draft, KnownCandidate
from kernelpro.authors.team import sections, templates
from kernelpro.authors.team.team import RoleModels, Team
from kernelpro.code_search import TOOLS, definition, grep, read, register, search
from kernelpro.llm.question import AnswerOutstanding, CapReached, Question, Reply, Tool
from kernelpro.records import Cost, Hardware, Interval, Status, Task, Verdict

GOLDEN = Path(__file__).parent / "golden"
SOURCE = """import torch

BLOCK = 128


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        return y + 1
"""
TASK = Task("class Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 2 + 1\n", "affine")
PASSED = Verdict(
    "step 3",
    Status.PASSED,
    "correct; slower than compile (0.80x)",
    times={"candidate": Interval(0.5, 0.49, 0.51)},
    speedup={"compile": Interval(0.8, 0.79, 0.81), "eager_fp32": Interval(2.0, 1.9, 2.1)},
    faster="no",
    language="cuda",
)
WRONG = Verdict(
    "step 4",
    Status.WRONG,
    "on inputs spikes: relative error 1.0e+00; worst at [3, 4]: got 0, should be 7",
    language="cuda",
)
BASE = Assignment(
    step=5,
    turn=4,
    action="improve",
    task=TASK,
    target="cuda",
    precision="tf32",
    tolerance=2.5e-4,
    floor_ms=0.1,
    baselines={"eager_fp32": 1.0, "compile": 0.4},
    hardware=Hardware(
        "NVIDIA H200", 4.3e12, rates={"tf32": 3.85e14}, facts={"capability": "9.0", "sms": "132"}
    ),
    parent=KnownCandidate(3, SOURCE, "one pass", PASSED),
    children=(KnownCandidate(4, SOURCE.replace("128", "64"), "smaller blocks", WRONG),),
    siblings=(KnownCandidate(2, SOURCE.replace("128", "32"), "tiny blocks", PASSED),),
    cousins=(KnownCandidate(1, SOURCE.replace("128", "16"), "cousin's idea", PASSED),),
    leaders=(KnownCandidate(2, SOURCE, "tiny blocks", PASSED),),
    concurrent=(KnownCandidate(6, "", "wide loads", None), KnownCandidate(7, "", "", None)),
    guidance="Bound by memory (confidence high).\n1. [high] narrow_access: 32 bits a thread.",
    evidence="## Time of a call\nmeasured 0.5000 ms",
    memory="Tried from here: smaller blocks (wrong)",
    knowledge="- wide loads: 1.30x expected (3 of 4 times faster)",
)
SECOND = KnownCandidate(
    2,
    SOURCE.replace("x * 2", "x + x"),
    "another design",
    replace(PASSED, speedup={"compile": Interval(0.4 / 0.45, 0.8, 0.9)}),
)
ANSWERS = {
    "design": f"plan: one fused pass\nhypothesis: DRAM, 0.11 ms\n\n```python\n{SOURCE}```",
    "plan": (
        "transformation: fuse\nhypothesis: fewer instructions\nexpected: 1.4x\nfinding: narrow_access\nkind: edit\n"
        "language: cuda\n\n"
        "One expression.\n\n```anchor body\n        y = x * 2\n        return y + 1\n```"
    ),
    "code": "```python body\n        return x * 2 + 1\n```",
    "debug": "diagnosis: the factor\n```find a\n        y = x * 2\n```\n```python a\n        y = x * 3\n```",
}


class Scripted:
    """A model whose answers are known; it keeps what it was asked."""

    name = "scripted"

    def __init__(self, failure: Exception | None = None, messages: list[dict[str, Any]] | None = None):
        self.asked: list[Question[Any]] = []
        self._failure, self._messages = failure, messages or []

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        self.asked.append(question)
        if self._failure:
            raise self._failure
        text = ANSWERS[question.role]
        return Reply(question.answer_format.parse(text), text, Cost(0.01, 100, 50, 1), self._messages)


def written(assignment: Assignment, failure: Exception | None = None) -> tuple[Draft, list[Question[Any]]]:
    model = Scripted(failure)
    return asyncio.run(Team(RoleModels(model, model, model)).write(assignment)), model.asked


def cases() -> dict[str, Question[Any]]:
    """A question of every role, and a plan that combines."""
    debug = replace(BASE, action="debug", parent=KnownCandidate(4, SOURCE, "smaller blocks", WRONG))
    seed = replace(BASE, action="seed", parent=None, guidance="", evidence="")
    asked = [*written(seed)[1], *written(BASE)[1], *written(debug)[1]]
    combine = replace(BASE, action="combine", donor=SECOND)
    return {question.role: question for question in asked} | {"combine": written(combine)[1][0]}


def page(question: Question[Any]) -> str:
    return f"{question.system}\n=====\n{question.full_prompt}"


@pytest.mark.parametrize("role", ["design", "plan", "code", "debug", "combine"])
def test_a_role_sees_its_window_and_nothing_else(role: str) -> None:
    assert page(cases()[role]) == (GOLDEN / f"{role}.md").read_text(encoding="utf-8")


def test_a_draft_carries_plan_hypothesis_promise_and_cost() -> None:
    draft, asked = written(BASE)
    assert [question.key for question in asked] == ["step-5/plan", "step-5/code"]
    assert draft.source == SOURCE.replace(
        "        y = x * 2\n        return y + 1\n", "        return x * 2 + 1\n"
    )
    assert (draft.plan, draft.expected_speedup, draft.diagnostic, draft.cost.dollars) == (
        "fuse",
        1.4,
        "narrow_access",
        0.02,
    )


def test_a_fix_says_what_was_wrong() -> None:
    draft, _ = written(
        replace(BASE, action="debug", parent=KnownCandidate(4, SOURCE, "smaller blocks", WRONG))
    )
    assert draft.plan == "fix: the factor" and "x * 3" in draft.source


def test_a_planner_sees_the_code_of_the_fastest_kernel_in_whatever_language_and_one_factor_for_one_time() -> (
    None
):
    best = min(BASE.baselines.values())
    speedup = {"compile": Interval(best / 0.3, 1.3, 1.4)}
    slow_machine = {"candidate": Interval(0.9, 0.89, 0.91)}  # all that it judges takes three times as long
    faster = replace(PASSED, times=slow_machine, language="triton", speedup=speedup)
    others = {"slower": PASSED, "faster": faster}
    shown = {
        name: written(replace(BASE, leaders=(KnownCandidate(9, f"# code of {name}", name, verdict),)))[1][
            0
        ].prompt
        for name, verdict in others.items()
    }
    assert [name for name, prompt in shown.items() if f"# code of {name}" in prompt] == ["faster"]
    assert f"0.3000 ms ({best / 0.3:.2f}x over compile)" in shown["faster"]


def test_a_coder_sees_every_span_of_a_file_that_is_too_long_for_his_window() -> None:
    head, tail = SOURCE.split("class ModelNew")
    long = head + "# line\n" * 15_000 + "class ModelNew" + tail
    _, asked = written(replace(BASE, parent=KnownCandidate(3, long, "one pass", PASSED)))
    marked = "<<<<<<< body\n        y = x * 2\n        return y + 1\n>>>>>>> body"
    assert (
        marked in asked[1].prompt
        and "lines left out]" in asked[1].prompt
        and "characters left out" not in asked[1].prompt
    )
    assert "import torch" in asked[1].prompt and len(asked[1].prompt) < 4 * sections.WINDOW_TOKENS


def test_a_plan_that_combines_shows_both_kernels_and_the_coder_sees_one() -> None:
    draft, (plan, code) = written(replace(BASE, action="combine", donor=SECOND))
    assert "y = x * 2" in plan.prompt and "y = x + x" in plan.prompt and "a combination" in plan.prompt
    assert "y = x + x" not in code.prompt and "return x * 2 + 1" in draft.source
    long = replace(SECOND, source=SECOND.source + "# line\n" * 20_000)
    _, (plan, _) = written(replace(BASE, action="combine", donor=long))
    assert (
        len(plan.prompt) < 4 * sections.WINDOW_TOKENS
        and "y = x * 2" in plan.prompt
        and "What this run has learned" in plan.prompt
    )


def test_a_rewrite_shows_the_beginning_of_a_long_file_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "plan", ANSWERS["plan"].replace("kind: edit", "kind: rewrite"))
    monkeypatch.setitem(ANSWERS, "code", f"```python\n{SOURCE}```")
    long = SOURCE + "# line\n" * 5000
    _, asked = written(replace(BASE, parent=KnownCandidate(3, long, "one pass", PASSED)))
    assert "# The file before the rewrite\n" in asked[1].prompt and "characters left out" in asked[1].prompt
    assert len(asked[1].prompt) < 20_000 < len(asked[0].prompt)
    assert "marked spans" not in asked[1].system and "send the complete file" in asked[1].system


def test_a_rewrite_in_another_language_does_not_show_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        ANSWERS, "plan", ANSWERS["plan"].replace("kind: edit", "kind: rewrite\nlanguage: triton")
    )
    monkeypatch.setitem(ANSWERS, "code", f"```python\n{SOURCE}```")
    assert "BLOCK = 128" not in written(BASE)[1][1].prompt


def test_a_planner_reads_the_guide_that_the_coder_will_read() -> None:
    plan, code = written(BASE)[1]
    assert "## CUDA in this project" in plan.system and "## CUDA in this project" in code.system
    assert (
        "Working building blocks for sm_90a" not in plan.system
        and "Working building blocks for sm_90a" in code.system
    )


def test_designs_take_turns() -> None:
    prompts = {
        written(replace(BASE, action="seed", parent=None, turn=turn))[1][0].prompt for turn in range(5)
    }
    assert len(prompts) == 5


@pytest.mark.parametrize("language", ["cute", "triton", "cuda"])
def test_designs_are_asked_for_in_the_languages_that_are_allowed(language: str) -> None:
    for turn in range(6):
        _, (asked,) = written(replace(BASE, action="seed", parent=None, turn=turn, languages=(language,)))
        (direction,) = re.findall(r"^Write it (?:in|with) .*", asked.prompt, re.M)
        assert direction.split()[3].lower().rstrip(".,") == language, direction
        assert "independently: \n" not in asked.prompt


def test_who_is_asked_for_the_same_as_others_is_told_so() -> None:
    first, second = (
        written(replace(BASE, action="seed", parent=None, turn=n, languages=("cute",)))[1][0].prompt
        for n in (0, 1)
    )
    assert "got the same direction" not in first and "got the same direction" in second


def test_a_plan_may_not_leave_the_allowed_languages() -> None:
    _, asked = written(replace(BASE, languages=("cute",)))
    assert "language: <cute>" in asked[0].answer_format.description


@pytest.fixture
def own_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No tree is known here, and there is a folder to make one of."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("KERNELPRO_CUTLASS", str(tmp_path / "nowhere"))
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def tools() -> tuple[Tool, ...]:
    return tuple(Tool(t.name, t.description, t.parameters, t.function) for t in TOOLS)


@pytest.mark.parametrize("language", ["triton", "cuda", "cpp"])
def test_code_search_is_offered_for_every_language_where_there_is_a_tree(
    own_trees: Path, language: str
) -> None:
    parent = KnownCandidate(3, SOURCE, "one pass", replace(PASSED, language=language))
    assignment = replace(BASE, parent=parent, languages=(language,))
    for known in (False, True):
        if known:
            register("mine", str(own_trees))
        model = Scripted()
        asyncio.run(Team(RoleModels(model, model, model), tools()).write(replace(assignment, action="debug")))
        (asked,) = model.asked
        assert [tool.name for tool in asked.tools] == [tool.name for tool in TOOLS if known]
        assert all("Trees: mine. Always name one" in tool.description for tool in asked.tools)


def test_what_was_looked_for_in_vain_is_no_fact(own_trees: Path) -> None:
    (own_trees / "tile.cuh").write_text("__device__ void load_tile(int x);\n")
    register("mine", str(own_trees))
    answers = [
        search("load_tile", "mine"),
        search("zzz", "mine"),
        grep("zzz", "mine"),
        read("none.cuh", tree="mine"),
        definition("zzz", "mine"),
        read("tile.cuh", tree="cutlass"),
    ]
    messages = [{"role": "tool", "name": "search", "text": text} for text in answers]
    messages.append(
        {"role": "tool", "name": "search", "text": "the arguments are not JSON: x", "failed": True}
    )  # type: ignore[dict-item]
    model = Scripted(messages=messages)
    draft = asyncio.run(Team(RoleModels(model, model, model)).write(replace(BASE, action="debug")))
    assert [fact.partition(":")[0] for fact in draft.facts] == ["search"] and "tile.cuh:1" in draft.facts[0]


def test_no_answer_yet_and_an_empty_purse_reach_the_engine() -> None:
    with pytest.raises(AnswerPending):
        written(BASE, AnswerOutstanding("not yet", "step-5/plan"))
    with pytest.raises(BudgetExhausted, match="cap"):
        written(BASE, CapReached("the cap is reached"))


def test_a_prompt_with_a_hole_is_an_error() -> None:
    with pytest.raises(KeyError):
        templates.prompt("design", task="only this")


def test_a_window_is_cut_from_its_least_valuable_end() -> None:
    parts = {"source": "s" * 4000, "task": "t" * 400, "cousins": "line\n" * 4000, "memory": "m" * 400}
    kept = sections.fit_window(parts, tokens=2000)
    assert kept["source"] == parts["source"] and kept["memory"] == parts["memory"]
    assert len(kept["cousins"]) < 4000 and "characters left out" in kept["cousins"]
    assert kept == sections.fit_window(parts, tokens=2000)


if __name__ == "__main__":
    for name, question in cases().items():
        (GOLDEN / f"{name}.md").write_text(page(question), encoding="utf-8")
