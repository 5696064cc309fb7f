"""The team as a run's configuration describes it: who is asked in which way, over a real connection."""

from __future__ import annotations

import asyncio
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("pydantic_ai") is None:  # to import it takes a second, in every process that collects tests
    pytest.skip("pydantic-ai is not installed", allow_module_level=True)

from llm.server import Fail, Say, serving

from kernelpro.authors.author import Assignment, KnownCandidate
from kernelpro.authors.by_name import create_author, with_absolute_paths
from kernelpro.authors.team import templates
from kernelpro.llm.transcripts import FILE, Transcripts
from kernelpro.records import BadInput, Limits, Role, RunConfig, Status, Task, Verdict

TASK = Task("class Model: ...", "t")
SOURCE = "class ModelNew:\n    a = 1\n"
DESIGN = Say(f"plan: p\nhypothesis: h\n\n```python\n{SOURCE}```\n")
FIX = Say(f"diagnosis: d\n\n```python\n{SOURCE}```\n")
WRONG = KnownCandidate(1, SOURCE, "p", Verdict("1", Status.WRONG, "wrong"))


def assignment(step: int, action: Any = "seed", parent: KnownCandidate | None = None) -> Assignment:
    return Assignment(step, action, TASK, "cpu", "fp32", 0.1, {"eager_fp32": 1.0}, parent=parent)


def config(url: str = "http://localhost:1", **more: Any) -> RunConfig:
    return RunConfig(TASK, "cpu", "team", {"code": f"{url}/v1#m"}, **more)


def test_each_role_is_asked_in_its_own_way(tmp_path: Path) -> None:
    roles = {
        "code": Role(max_output_tokens=900),
        "design": Role(temperature=0.9),
        "debug": Role(effort="high", temperature=0.0),
    }
    with serving(DESIGN, FIX) as server:
        team = create_author(config(server.url, roles=roles), tmp_path)
        asyncio.run(team.write(assignment(1)))
        asyncio.run(team.write(assignment(2, "debug", WRONG)))
    design, debug = (request.body for request in server.requests)
    assert (design["temperature"], design["max_completion_tokens"]) == (0.9, 900), (
        "designs are asked for as code is, but for what was said"
    )
    assert (debug["temperature"], debug["reasoning_effort"]) == (
        0.0,
        "high",
    ) and "max_completion_tokens" not in debug


def test_without_a_word_roles_have_their_usual_temperatures_or_none(tmp_path: Path) -> None:
    with serving(DESIGN, DESIGN) as server:
        for name, temperature in (("a", True), ("b", False)):
            (tmp_path / name).mkdir()
            asyncio.run(
                create_author(config(server.url, temperature=temperature), tmp_path / name).write(
                    assignment(1)
                )
            )
    assert [request.body.get("temperature") for request in server.requests] == [0.1, None]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"roles": {"planner": Role(0.1)}},
            "--role planner: unknown role; the roles are design, plan, code, debug",
        ),
        ({"roles": {"plan": Role(effort="huge")}}, "--role plan: effort huge: not one of minimal"),
        ({"roles": {"plan": Role(7.0)}}, "--role plan: temperature 7.0: must be from 0 to 2"),
        (
            {"roles": {"plan": Role(timeout=0.0)}},
            "--role plan: timeout 0.0: must be a number of seconds above 0",
        ),
        ({"models": {"plan": "inbox:x"}}, "no model given"),
        (
            {"models": {"code": "inbox:x", "design": "inbox:y"}},
            "--role design:model: the model that writes code",
        ),
        ({"limits": Limits(dollars=1.0)}, "--price m=INPUT/OUTPUT"),
        ({"limits": Limits(dollars=1.0), "prices": {"other": "1/1"}}, "--price m=INPUT/OUTPUT"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_asked(
    more: dict[str, Any], told: str, tmp_path: Path
) -> None:
    given = {"models": {"code": "http://localhost:1/v1#m"}} | more
    with pytest.raises(BadInput) as caught:
        create_author(RunConfig(TASK, "cpu", "team", **given), tmp_path)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_notes_on_answers_are_told_once_for_all_roles(tmp_path: Path) -> None:
    told: list[str] = []
    with serving(DESIGN, DESIGN, FIX) as server:
        team = create_author(config(server.url), tmp_path, told.append)
        for made in (assignment(1), assignment(2), assignment(3, "debug", WRONG)):
            asyncio.run(team.write(made))
    assert len(told) == 1 and "unknown price" in told[0] and "--price" in told[0]


def test_the_notes_of_an_exchange_that_failed_are_told_too(tmp_path: Path) -> None:
    told: list[str] = []
    with serving(Say("no"), Fail(401)) as server, pytest.raises(BadInput, match="was rejected"):
        asyncio.run(create_author(config(server.url), tmp_path, told.append).write(assignment(1)))
    assert len(told) == 1 and "unknown price" in told[0]
    assert [line.status for line in Transcripts(tmp_path / FILE).entries()] == ["failed"]


def test_exchanges_are_kept_with_the_version_of_their_prompts(tmp_path: Path) -> None:
    with serving(DESIGN) as server:
        asyncio.run(create_author(config(server.url), tmp_path).write(assignment(1)))
    (line,) = Transcripts(tmp_path / FILE).entries()
    assert line.prompt_version == templates.version() and re.fullmatch(
        rf"{templates.NUMBER}-[0-9a-f]{{8}}", line.prompt_version
    )
    data = json.loads((tmp_path / FILE).read_text())
    del data["prompt_version"]
    (tmp_path / FILE).write_text(json.dumps(data))
    assert [line.prompt_version for line in Transcripts(tmp_path / FILE).entries()] == [""], (
        "transcripts from before have none"
    )


def test_a_configuration_means_the_same_wherever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = with_absolute_paths(
        RunConfig(TASK, "cpu", "files:mine", {"code": "inbox:in", "plan": "openai:gpt-5"}), tmp_path
    )
    assert asked.author == f"files:{tmp_path}/mine" and asked.models == {
        "code": f"inbox:{tmp_path}/in",
        "plan": "openai:gpt-5",
    }
    assert (
        with_absolute_paths(asked, tmp_path) == asked and with_absolute_paths(config(), tmp_path) == config()
    )


def test_a_configuration_from_before_roles_is_read() -> None:
    old = {name: value for name, value in config().to_json().items() if name not in ("roles", "prices")}
    assert RunConfig.from_json(old) == config()
    new = config(roles={"plan": Role(0.7, "high")}, prices={"m": "1/2"})
    assert RunConfig.from_json(new.to_json()) == new
