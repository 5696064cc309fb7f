"""Exchanges survive the process, and answer the same question again at no cost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from answer_formats import Code, Text
from llm.asking import KERNEL, QUICK, SECRET, SOURCE, ask, question, search_tool
from llm.server import Call, Fail, Say, Silence, serving

from kernelpro.llm import ModelError, SpendingCap, Transcripts, create_model
from kernelpro.llm.question import Exchange
from kernelpro.records import BadInput, Cost


def test_replay_equals_the_original(tmp_path: Path) -> None:
    tool = search_tool(lambda words: f"{words}: mma.h")
    with serving(Fail(429), Call((("search", {"words": "tma"}),)), Say("no"), Say(KERNEL)) as server:
        asked = create_model(
            f"{server.url}/v1#m", QUICK, SpendingCap(), Transcripts(tmp_path / "transcripts.jsonl")
        )
        original = ask(asked, question(tools=(tool,)))
    for spec in (f"replay:{tmp_path}", f"replay:{tmp_path / 'transcripts.jsonl'}"):
        again = ask(create_model(spec), question(tools=(tool,)))
        assert (again.value, again.text, again.messages) == (original.value, original.text, original.messages)
        assert again.cost == Cost() and again.notes == ()
    named = create_model(f"replay:{tmp_path.name}", runs=tmp_path.parent)
    assert ask(named, question(tools=(tool,))).value == original.value


def test_a_changed_prompt_is_answered_by_its_key_with_a_note(tmp_path: Path) -> None:
    with serving(Say(KERNEL)) as server:
        ask(create_model(f"{server.url}/v1#m", QUICK, None, Transcripts(tmp_path / "t.jsonl")))
    replay = create_model(f"replay:{tmp_path / 't.jsonl'}")
    reply = ask(replay, question(prompt="Make it faster."))
    assert reply.value == SOURCE and "has changed" in reply.notes[0]
    with pytest.raises(ModelError, match="no recorded answer to step-9/code"):
        ask(replay, question("step-9/code"))
    with pytest.raises(ModelError, match="does not fit"):
        ask(replay, question(form=Code("cuda")))
    with pytest.raises(BadInput, match="no transcripts"):
        create_model(f"replay:{tmp_path}")


def test_the_same_question_after_a_restart_is_not_paid_for_twice(tmp_path: Path) -> None:
    with serving(Say(KERNEL), Say(KERNEL)) as server:
        first = ask(create_model(f"{server.url}/v1#m", QUICK, None, Transcripts(tmp_path / "t.jsonl")))
        purse = SpendingCap()
        again = ask(create_model(f"{server.url}/v1#m", QUICK, purse, Transcripts(tmp_path / "t.jsonl")))
        assert (again.value, again.messages, again.cost) == (first.value, first.messages, first.cost)
        assert (
            len(server.requests) == 1
            and purse.spent == Cost()
            and "the recorded answer is used" in again.notes[-1]
        )
        ask(
            create_model(f"{server.url}/v1#m", QUICK, purse, Transcripts(tmp_path / "t.jsonl")),
            question(prompt="Another."),
        )
        assert len(server.requests) == 2


def test_a_failed_exchange_is_kept_and_asked_again(tmp_path: Path) -> None:
    transcripts = Transcripts(tmp_path / "t.jsonl")
    with serving(Say("no"), Fail(400, message=f"bad key {SECRET}"), Say(KERNEL)) as server:
        asked = create_model(f"{server.url}/v1#m", QUICK, None, transcripts)
        with pytest.raises(ModelError):
            ask(asked)
        assert ask(asked).value == SOURCE
    failed, answered = transcripts.entries()
    assert failed.status == "failed" and failed.cost.calls == 1 and failed.messages[2]["text"] == "no"
    assert answered.status == "answered"


def test_a_cancelled_exchange_is_kept_with_what_it_spent(tmp_path: Path) -> None:
    transcripts = Transcripts(tmp_path / "t.jsonl")
    with serving(Say("no"), Silence()) as server:
        asked = create_model(f"{server.url}/v1#m", QUICK, None, transcripts)

        async def cancel() -> None:
            task = asyncio.create_task(asked.ask(question()))
            while len(server.requests) < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            await task

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancel())
    (line,) = transcripts.entries()
    assert line.status == "stopped" and line.cost.calls == 1


def test_keys_are_in_no_transcript(tmp_path: Path) -> None:
    tool = search_tool(lambda words: f"env: OPENAI_API_KEY={SECRET}")
    with serving(Call((("search", {"words": SECRET}),)), Say(f"{SECRET}\n{KERNEL}")) as server:
        asked = create_model(f"{server.url}/v1#m", QUICK, None, Transcripts(tmp_path / "t.jsonl"))
        ask(asked, question(prompt=f"key {SECRET}", system=f"key {SECRET}", tools=(tool,)))
    text = (tmp_path / "t.jsonl").read_text()
    assert SECRET not in text and "_API_KEY]" in text
    said = "".join(
        message["content"]
        for message in server.requests[1].body["messages"]
        if message["role"] != "assistant"
    )
    assert SECRET not in said and "_API_KEY]" in said


WRITER = """
import sys
from pathlib import Path
from kernelpro.llm.question import Exchange, Question
from kernelpro.llm.transcripts import Transcripts

class Text:
    description = "Plain text."

transcripts = Transcripts(Path(sys.argv[1]))
for number in range(100_000):
    exchange = Exchange(text=f"answer {number} " + "x" * 20_000, calls=1)
    exchange.add("user", "y" * 20_000)
    transcripts.append("test", Question(f"{sys.argv[2]}-{number}", "code", "s", "p", Text()), exchange)
    print(number, flush=True)
"""


def test_what_was_kept_is_complete_after_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    reported: dict[str, int] = {}
    writers = {
        name: subprocess.Popen([sys.executable, "-c", WRITER, path, name], stdout=subprocess.PIPE, text=True)
        for name in ("a", "b")
    }
    for name, writer in writers.items():
        assert writer.stdout is not None
        while reported.get(name, -1) < 20:
            reported[name] = int(writer.stdout.readline())
    for name, writer in writers.items():
        os.kill(writer.pid, signal.SIGKILL)
        rest, _ = writer.communicate()
        reported[name] = int((rest.splitlines() or [str(reported[name])])[-1])
    lines = {line.key: line for line in Transcripts(path).entries()}
    for name, last in reported.items():
        for number in range(last + 1):
            assert lines[f"{name}-{number}"].text.startswith(f"answer {number} ")


def test_a_torn_line_is_left_out_and_nothing_sticks_to_it(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    transcripts = Transcripts(path)
    transcripts.append("m", question("first", form=Text()), Exchange(text="one \u2028 \udcff"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    Transcripts(path).append("m", question("second", form=Text()), Exchange(text="two"))
    assert [line.key for line in Transcripts(path).entries()] == ["first", "second"]
    assert all(
        json.loads(part) for part in (path.read_bytes().splitlines()[0], path.read_bytes().splitlines()[-1])
    )
    assert oct(path.stat().st_mode & 0o777) == "0o600"


def test_a_file_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written: No such file"):
        Transcripts(tmp_path / "nowhere" / "t.jsonl").append("m", question(form=Text()), Exchange(text="x"))
