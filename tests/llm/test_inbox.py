"""A person is the model: questions and answers as files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from answer_formats import Code
from llm.asking import KERNEL, SECRET, SOURCE, ask, question, search_tool, unanswered

from kernelpro.llm import AnswerOutstanding, Model, ModelSettings, Transcripts, create_model
from kernelpro.records import Cost

RUN = ModelSettings(scope="run-1", poll=0.01)


def inbox(folder: Path, settings: ModelSettings = RUN) -> Model:
    return create_model(f"inbox:{folder}", settings)


def put(folder: Path, text: str | bytes, name: str = "run-1__step-1__code") -> None:
    hidden = folder / "writing"
    hidden.write_bytes(text if isinstance(text, bytes) else text.encode())
    hidden.rename(folder / f"{name}.answer.md")


def test_round_trip(tmp_path: Path) -> None:
    tool = search_tool(lambda words: "found")
    with pytest.raises(
        AnswerOutstanding, match=r"step-1/code waits for .*run-1__step-1__code\.answer\.md"
    ) as waiting:
        ask(inbox(tmp_path), question(tools=(tool,)))
    assert waiting.value.key == "step-1/code" and waiting.value.cost == Cost()
    page = (tmp_path / "run-1__step-1__code.md").read_text()
    for part in (
        "Role: **code**",
        "You write kernels.",
        "Make it fast.",
        "kernelpro search WORDS",
        "opens with ```python",
    ):
        assert part in page
    assert unanswered(tmp_path) == [tmp_path / "run-1__step-1__code.md"]

    put(tmp_path, KERNEL)
    assert unanswered(tmp_path) == []
    reply = ask(inbox(tmp_path), question(tools=(tool,)))
    assert reply.value == SOURCE and reply.cost == Cost() and reply.notes == ()
    assert [message["role"] for message in reply.messages] == ["system", "user", "assistant"]
    assert [path.name for path in tmp_path.glob("*.md")] == []
    assert len(list((tmp_path / "answered").glob("run-1__step-1__code.*"))) == 2

    assert ask(inbox(tmp_path), question(tools=(tool,))).value == SOURCE, "asked again after a restart"


def test_a_prompt_with_titles_of_its_own_gets_none(tmp_path: Path) -> None:
    with pytest.raises(AnswerOutstanding):
        ask(inbox(tmp_path), replace(question(), prompt="# The task\n\nMake it fast."))
    page = (tmp_path / "run-1__step-1__code.md").read_text()
    assert "\n# The task\n" in page and "\n# Task\n" not in page


def test_a_malformed_answer_is_set_aside_and_the_question_says_what_was_wrong(tmp_path: Path) -> None:
    for number, (bad, fault) in enumerate(
        [
            ("just prose", "no fenced block at all"),
            (b"\xff\xfe\x00", "not UTF-8"),
            ("```python\nx", "never closed"),
        ],
        1,
    ):
        with pytest.raises(AnswerOutstanding):
            ask(inbox(tmp_path))
        put(tmp_path, bad)
        with pytest.raises(AnswerOutstanding, match="the last answer was malformed"):
            ask(inbox(tmp_path))
        page = (tmp_path / "run-1__step-1__code.md").read_text()
        assert page.index("# What was wrong with the last answer") < page.index("# Question")
        assert fault in page and page.count("# What was wrong") == 1 and page.count("# Task") == 1
        assert (tmp_path / f"run-1__step-1__code.answer.{number}.bad.md").exists()
    put(tmp_path, KERNEL)
    assert ask(inbox(tmp_path)).value == SOURCE


def test_waiting_goes_on_until_the_answer_is_there(tmp_path: Path) -> None:
    told: list[str] = []

    async def scene() -> str:
        asked = inbox(tmp_path, replace(RUN, wait=True, progress=told.append))
        task = asyncio.create_task(asked.ask(question()))
        while not told:
            await asyncio.sleep(0.01)
        (tmp_path / "run-1__step-1__code.answer.md").write_text(KERNEL[:30])  # somebody is writing
        await asyncio.sleep(0.1)
        assert not task.done() and not list(tmp_path.glob("*.bad.md"))
        put(tmp_path, KERNEL)
        return str((await task).value)

    assert asyncio.run(scene()) == SOURCE
    assert len(told) == 1 and told[0].startswith("step-1/code waits for")


def test_a_malformed_answer_from_a_clock_that_is_ahead_is_rejected_all_the_same(tmp_path: Path) -> None:
    async def scene() -> str:
        task = asyncio.create_task(inbox(tmp_path, replace(RUN, wait=True)).ask(question()))
        put(tmp_path, KERNEL[:30])
        tomorrow = time.time() + 86400
        os.utime(tmp_path / "run-1__step-1__code.answer.md", (tomorrow, tomorrow))
        while not list(tmp_path.glob("*.bad.md")):
            await asyncio.sleep(0.01)
        put(tmp_path, KERNEL)
        return str((await task).value)

    assert asyncio.run(asyncio.wait_for(scene(), 30)) == SOURCE


def test_an_answer_to_an_earlier_wording_is_taken_with_a_note(tmp_path: Path) -> None:
    with pytest.raises(AnswerOutstanding):
        ask(inbox(tmp_path))
    put(tmp_path, KERNEL)
    reply = ask(inbox(tmp_path), question(prompt="Make it fast. Its sibling was slow."))
    assert reply.value == SOURCE and "earlier wording" in reply.notes[0]


def test_runs_that_share_a_folder_do_not_touch_each_others_files(tmp_path: Path) -> None:
    runs = [replace(RUN, scope=f"run-{number}") for number in (1, 2)]
    for _ in range(2):
        for run in runs:
            with pytest.raises(AnswerOutstanding):
                ask(inbox(tmp_path, run), question(prompt=f"The task of {run.scope}."))
    assert [path.name for path in unanswered(tmp_path)] == [
        "run-1__step-1__code.md",
        "run-2__step-1__code.md",
    ]
    put(tmp_path, "```python\none\n```")
    with pytest.raises(AnswerOutstanding):
        ask(inbox(tmp_path, runs[1]))
    assert "The task of run-2." in (tmp_path / "run-2__step-1__code.md").read_text()
    put(tmp_path, "```python\ntwo\n```", "run-2__step-1__code")
    assert [ask(inbox(tmp_path, run)).value for run in runs] == ["one\n", "two\n"]
    assert not list(tmp_path.glob("*.md"))


def test_an_answer_of_another_form_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(AnswerOutstanding):
        ask(inbox(tmp_path))
    put(tmp_path, KERNEL)
    with pytest.raises(AnswerOutstanding):
        ask(inbox(tmp_path), question(prompt="In CUDA.", form=Code("cuda")))
    assert "In CUDA." in (tmp_path / "run-1__step-1__code.md").read_text()
    assert (tmp_path / "run-1__step-1__code.answer.1.stale.md").read_text() == KERNEL
    put(tmp_path, "```cuda\ntwo\n```")
    assert ask(inbox(tmp_path), question(prompt="In CUDA.", form=Code("cuda"))).value == "two\n"


def test_an_answer_that_is_no_file_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(AnswerOutstanding):
        ask(inbox(tmp_path))
    answer = tmp_path / "run-1__step-1__code.answer.md"
    for number, make in enumerate((os.mkdir, os.mkfifo), 1):
        make(answer)
        assert unanswered(tmp_path) == []
        with pytest.raises(AnswerOutstanding, match="not a regular file"):
            ask(inbox(tmp_path))
        assert (tmp_path / f"run-1__step-1__code.answer.{number}.bad.md").exists()
    put(tmp_path, KERNEL)
    assert ask(inbox(tmp_path)).value == SOURCE


ASKER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from llm.asking import ask, question
from kernelpro.llm import ModelSettings, create_model
asked = create_model("inbox:" + sys.argv[1], ModelSettings(scope="run-1", wait=True, poll=0.001))
for number in range(20):
    print(ask(asked, question(f"step-{number}/code")).value, end="", flush=True)
"""


def test_two_processes_get_the_same_answers(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", ASKER, str(tmp_path), tests]
    askers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answered = 0
    while any(asker.poll() is None for asker in askers):
        for path in unanswered(tmp_path):
            put(tmp_path, f"```python\n{path.stem}\n```\n", path.stem)
            answered += 1
    outputs = [asker.communicate()[0] for asker in askers]
    assert outputs[0] == outputs[1] == "".join(f"run-1__step-{n}__code\n" for n in range(20))
    assert [asker.returncode for asker in askers] == [0, 0] and answered >= 20
    assert not list(tmp_path.glob("*.bad.md"))


def test_keys_are_in_no_file(tmp_path: Path) -> None:
    asked = question(prompt=f"The log: {SECRET}", system=f"env: {SECRET}")
    transcripts = Transcripts(tmp_path / "t.jsonl")
    with pytest.raises(AnswerOutstanding):
        ask(create_model(f"inbox:{tmp_path}", RUN, None, transcripts), asked)
    assert not transcripts.path.exists(), "nothing has happened yet"
    put(tmp_path, KERNEL)
    ask(create_model(f"inbox:{tmp_path}", RUN, None, transcripts), asked)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3 and not any(SECRET in path.read_text() for path in files)
