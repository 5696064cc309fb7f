"""Questions of an inbox through the page: every role's form is checked before an answer is accepted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from engine.steered_run import Lab, config, kernel

from kernelpro.authors.by_name import create_author
from kernelpro.engine.loop import Engine, Paused
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput
from kernelpro.records.events import AnswerGiven
from kernelpro.ui import questions

DESIGN = "plan: one pass\nhypothesis: memory\n\n```python\n{}```\n"
PLAN = """transformation: faster
hypothesis: less time
expected: 1.4x
kind: edit
language: cpp

Write it.

```anchor time
{}
```
"""


def go_on(store: RunStore) -> str:
    """Work until the next question; returns its key."""
    settings = store.config()
    with pytest.raises(Paused):
        asyncio.run(Engine(store, Lab(), create_author(settings, store.folder)).run())  # type: ignore[arg-type]
    (waiting,) = questions.waiting(store)
    return waiting["key"]


def test_the_form_of_every_role_is_checked(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    settings = replace(config("greedy", 3), author="team", models={"code": f"inbox:{inbox}"})
    store = RunStore.create(tmp_path / "runs", settings, "asked")
    steps = (
        ("step-1/design", "no plan", DESIGN.format(kernel(0.5))),
        ("step-2/plan", PLAN.format("MS = 9.9"), PLAN.format("MS = 0.5")),
        ("step-2/code", "```python other\nMS = 0.0\n```", "```python time\nMS = 0.0\n```"),
        (
            "step-3/debug",
            "```python\nclass ModelNew: pass\n```",
            f"diagnosis: typo\n\n```python\n{kernel(0.3)}```",
        ),
    )
    for key, wrong, right in steps:
        assert go_on(store) == key
        question = questions.question(store, key)
        assert question["checked"] and "Format of your answer" in question["text"]
        with pytest.raises(BadInput):
            questions.answer(store, key, wrong)
        questions.check(store, key, right)
        questions.answer(store, key, right)
        with pytest.raises(BadInput, match="not waiting"):
            questions.answer(store, key, right)
    asyncio.run(Engine(store, Lab(), create_author(store.config(), store.folder)).run())  # type: ignore[arg-type]
    assert [step.ms for step in store.steps()][:1] == [0.5]
    given = [event for _, event in store.events() if isinstance(event, AnswerGiven)]
    assert [store.source(event.text) for event in given] == [right for _, _, right in steps]


def test_files_that_are_no_questions_are_left_alone(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    settings = replace(config("greedy", 3), author="team", models={"code": f"inbox:{inbox}"})
    store = RunStore.create(tmp_path / "runs", settings, "asked")
    go_on(store)
    (inbox / f"{store.id}__notes.md").write_text("my own notes")
    (inbox / "other-1__step-1__design.md").write_text("<!-- kernelpro question key=step-1/design -->")
    assert [item["key"] for item in questions.waiting(store)] == ["step-1/design"]
    with pytest.raises(BadInput, match="not waiting"):
        questions.question(store, "../../etc/passwd")
