"""The team's answers are read as they were asked for, and what is wrong with one is said in a line."""

from __future__ import annotations

import pytest

from kernelpro.authors.author import LANGUAGES
from kernelpro.authors.team.answers import CodeFormat, DebugFormat, DesignFormat, PlanFormat
from kernelpro.records import BadInput

SOURCE = """import torch

BLOCK = 128


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        return y + 1
"""


def test_a_design_is_a_plan_a_hypothesis_and_a_file() -> None:
    made = DesignFormat().parse(
        f"**Plan:** one fused pass\nhypothesis: DRAM, 0.13 ms\n\n```python\n{SOURCE}```\nThat is all."
    )
    assert (made.plan, made.hypothesis, made.source) == ("one fused pass", "DRAM, 0.13 ms", SOURCE)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (f"hypothesis: h\n```python\n{SOURCE}```", "the line `plan: ...` is missing"),
        ("plan: p\nhypothesis: h\nno code", "no fenced block"),
        ("plan: p\nhypothesis: h\n```python\ndef broken(:\n```", "not Python: line 1"),
        ("plan: p\nhypothesis: h\n```python\nx = 1\n```", "no top-level class ModelNew"),
    ],
)
def test_a_design_that_does_not_fit_is_explained(answer: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        DesignFormat().parse(answer)


PLAN = """transformation: fuse the two statements
hypothesis: instructions fall by a third
expected: 1.4x
finding: unfused_chain
kind: edit
language: torch

Write one expression.

```anchor body
        y = x * 2
...
        return y + 1
```
"""


def test_a_plan_names_spans_that_are_found() -> None:
    plan = PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]).parse(PLAN)
    assert plan.expected_speedup == 1.4 and plan.finding == "unfused_chain" and plan.source
    assert plan.source.text(plan.source.spans[0]) == "        y = x * 2\n        return y + 1\n"
    made = CodeFormat(plan.source).parse("```python body\n        return x * 2 + 1\n```")
    assert made == SOURCE.replace("        y = x * 2\n        return y + 1\n", "        return x * 2 + 1\n")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("y = x * 2", "y = x * 3", "no line equals 'y = x \\* 3'"),
        ("kind: edit", "kind: perhaps", "choose edit or rewrite"),
        ("1.4x", "much", "`expected: much`: give the speed-up"),
        ("1.4x", "40%", "`expected: 40%`: give the speed-up"),
        ("language: torch", "language: cpp", "choose triton or cuda or cute"),
        ("```anchor body", "```anchor", "needs a name"),
    ],
)
def test_a_plan_that_does_not_fit_is_explained(old: str, new: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]).parse(PLAN.replace(old, new))


@pytest.mark.parametrize(
    ("said", "times"),
    [
        ("1.4x", 1.4),
        ("about 1.4 times as fast", 1.4),
        ("1,4x", 1.4),
        ("~2", 2.0),
        ("**1.25\u00d7**", 1.25),
        ("1.3x to 1.5x", 1.3),
        ("1.3-1.5x", 1.3),
        ("2-fold", 2.0),
        ("1.2x (0.60 ms -> 0.50 ms)", 1.2),
        ("40% faster", 1.4),
        ("a speed-up of 12.5 %", 1.125),
        ("50% less time", 2.0),
        ("20 percent shorter", 1.25),
        ("from 0.5 ms to 0.25 ms", 2.0),
        ("0.9 -> 0.6 ms", 1.5),
        ("500 us to 0.25 ms", 2.0),
        ("0.5 ms down to 400 µs", 1.25),
    ],
)
def test_a_promise_is_understood_in_the_forms_people_write(said: str, times: float) -> None:
    assert PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]).parse(
        PLAN.replace("1.4x", said)
    ).expected_speedup == pytest.approx(times)


@pytest.mark.parametrize(
    "said",
    ["40%", "0x", "1,400", "16x16 tiles", "100% less", "from 1 ms to 0 ms", "some", "3 kernels", "0.3 ms"],
)
def test_a_promise_that_is_not_clear_is_sent_back(said: str) -> None:
    with pytest.raises(BadInput, match="the speed-up over the kernel above"):
        PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]).parse(PLAN.replace("1.4x", said))


def test_a_plan_is_offered_the_languages_of_its_target_only() -> None:
    gpu, cpu = PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]), PlanFormat(SOURCE, "torch", LANGUAGES["cpu"])
    assert (
        "language: <triton or cuda or cute; the present one" in gpu.description
        and "language: <cpp>" in cpu.description
    )
    assert cpu.parse(PLAN.replace("language: torch", "language: cpp")).language == "cpp"
    with pytest.raises(BadInput, match="choose cpp"):
        cpu.parse(PLAN.replace("language: torch", "language: triton"))


def test_the_coder_is_not_told_the_quotations_again() -> None:
    plan = PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]).parse(PLAN + "\n```cpp\nint kept;\n```\n")
    assert "anchor" not in plan.instructions and "y = x * 2" not in plan.instructions
    assert "Write one expression." in plan.instructions and "int kept;" in plan.instructions


def test_a_span_ends_at_the_next_line_that_reads_like_its_last() -> None:
    twice = SOURCE + "\n\ndef other(x):\n    y = x\n    return y + 1\n"
    anchored = PlanFormat(twice, "torch", LANGUAGES["cuda"]).parse(PLAN).source
    assert anchored and anchored.text(anchored.spans[0]) == "        y = x * 2\n        return y + 1\n"


def test_a_coder_who_sends_the_whole_file_may_change_the_spans_only() -> None:
    plan = PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]).parse(PLAN)
    changed = SOURCE.replace("        y = x * 2\n        return y + 1\n", "        return 2 * x + 1\n")
    assert CodeFormat(plan.source).parse(f"```python\n{changed}```") == changed
    with pytest.raises(BadInput, match="line 3 is outside the anchors and became 'BLOCK = 64'"):
        CodeFormat(plan.source).parse(f"```python\n{changed.replace('BLOCK = 128', 'BLOCK = 64')}```")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (
            "```python body\n        return x\n```\n```python helper\npass\n```",
            "unknown anchor helper; the anchors are body",
        ),
        ("```python bdy\n        return x\n```", "unknown anchor bdy; the anchors are body"),
        (
            "```python body\n        return x\n```\n```python body\n        return 2 * x\n```",
            "two blocks are named ```python body",
        ),
    ],
)
def test_a_block_that_belongs_nowhere_or_comes_twice_is_sent_back(answer: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        CodeFormat(PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]).parse(PLAN).source).parse(answer)


def test_spans_that_a_coder_cannot_be_shown_are_refused() -> None:
    long = SOURCE.replace("        y = x * 2\n", "        y = x * 2\n" + "        y = y + 0\n" * 2000)
    with pytest.raises(
        BadInput, match=r"the spans hold 36\d+ characters.*choose smaller spans, or plan a rewrite"
    ):
        PlanFormat(long, "torch", LANGUAGES["cuda"]).parse(PLAN)


def test_a_span_that_breaks_the_file_is_refused() -> None:
    plan = PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]).parse(PLAN)
    with pytest.raises(BadInput, match="with these spans the file is not Python"):
        CodeFormat(plan.source).parse("```python body\n  return (x\n```")


@pytest.mark.parametrize(
    "text",
    [f"x = {'-' * 100_000}1", f"x = 1{' + 1' * 20_000}", "x = '\ud800'"],
    ids=["depth", "length", "half a character"],
)
def test_code_that_the_parser_gives_up_on_is_explained_like_any_other(text: str) -> None:
    plan = PlanFormat(SOURCE, "torch", LANGUAGES["cuda"]).parse(PLAN)
    with pytest.raises(BadInput, match="the file is not Python: "):
        DesignFormat().parse(f"plan: p\nhypothesis: h\n```python\n{text}\n```")
    with pytest.raises(BadInput, match="with these spans the file is not Python: "):
        CodeFormat(plan.source).parse(f"```python body\n        {text}\n```")


def test_a_fix_is_a_diagnosis_and_places_or_a_file() -> None:
    fix = "diagnosis: the factor was wrong\n```find a\n        y = x * 2\n```\n```python a\n        y = x * 3\n```"
    assert DebugFormat(SOURCE).parse(fix).source == SOURCE.replace("x * 2", "x * 3")
    whole = DebugFormat(SOURCE).parse(f"diagnosis: all of it\n```python\n{SOURCE.replace('128', '64')}```")
    assert whole.diagnosis == "all of it" and "BLOCK = 64" in whole.source
