"""What models write, and what is made of it; faults are said so that the next answer can be right."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from kernelpro.llm import Form, Malformed, Question, Tool
from kernelpro.llm.forms import Code, Codes, Data, Header, Sections, Text
from kernelpro.llm.markdown import sections


class Risk(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True)
class Plan:
    title: str
    action: Literal["tile", "fuse"]
    gain: float
    steps: int = 1
    risk: Risk = Risk.LOW
    sure: bool = True
    files: list[str] = field(default_factory=list)
    tool: str | None = None


@dataclass(frozen=True)
class Point:
    name: str
    values: list[int]


@dataclass(frozen=True)
class Space:
    points: list[Point]
    weights: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("at least one point is needed")


def fault(form: Form[Any], text: str) -> str:
    with pytest.raises(Malformed) as caught:
        form.parse(text)
    return str(caught.value)


def test_code_is_the_one_block_in_its_language() -> None:
    assert Code("python").parse("Look:\n```\nlog\n```\n```py\nx = 1\r\n\n```\nDone.") == "x = 1\n\n"
    assert Code("cuda").parse("~~~CUDA\n```\nkeep\n```\n~~~") == "```\nkeep\n```\n"
    assert Code("python").parse("````python\ns = '''\n```\n'''\n````") == "s = '''\n```\n'''\n"
    assert Code("python").parse("```python\na\x0cb\n```") == "a\x0cb\n", "only line ends end lines"


def test_faults_of_code() -> None:
    assert "no fenced block at all" in fault(Code("python"), "def f(): ...")
    assert "has ```python, ```python" in fault(Code("python"), "```python\na\n```\n```python\nb\n```")
    assert "opens in line 2 with ```python is never closed" in fault(Code("python"), "Here:\n```python\nx")
    assert "is empty" in fault(Code("python"), "```python\n\n```")
    assert "empty" in fault(Text(), " \n")


def test_named_blocks() -> None:
    form = Codes("python", ("kernel.py", "test.py"))
    text = "```python kernel.py\nk\n```\n```python test.py\nt\n```"
    assert form.parse(text) == {"kernel.py": "k\n", "test.py": "t\n"}
    assert "no block ```python test.py" in fault(form, "```python kernel.py\nk\n```")
    assert "setup.py was not asked for" in fault(form, text + "\n```python setup.py\ns\n```")


def test_a_header_is_read_by_the_types_of_its_fields() -> None:
    text = "title: Tile it: twice\n- **Action**: Tile\ngain: 1.5\nsteps: 1_0\nrisk: HIGH\nsure: no\nfiles: a, b\ntool: none"
    text += "\n\nWhy: because."
    assert Header(Plan).parse(text) == Plan("Tile it: twice", "tile", 1.5, 10, Risk.HIGH, False, ["a", "b"], None)
    assert Header(Plan).parse("title: x\naction: fuse\ngain: 2\n# Next") == Plan("x", "fuse", 2.0)


def test_all_faults_of_a_header_are_said_at_once() -> None:
    said = fault(Header(Plan), "title: x\naction: pray\nsteps: many\ncolour: red")
    for part in (
        "gain is missing",
        "action must be one of tile, fuse, not 'pray'",
        "steps must be a whole number",
        "colour is not known",
    ):
        assert part in said
    assert "this is none: 'Sure, here'" in fault(Header(Plan), "Sure, here\ntitle: x")
    assert "given twice" in fault(Header(Plan), "title: x\ntitle: y")
    assert "there are none" in fault(Header(Plan), "# Plan")


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("toml", '```toml\n[[points]]\nname = "BLOCK"\nvalues = [32, 64]\n[weights]\na = 1\n```'),
        ("json", '```json\n{"points": [{"name": "BLOCK", "values": [32, 64]}], "weights": {"a": 1}}\n```'),
    ],
)
def test_data_is_checked_against_a_dataclass(language: Literal["toml", "json"], text: str) -> None:
    assert Data(Space, language).parse(text) == Space([Point("BLOCK", [32, 64])], {"a": 1.0})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            '{"points": [{"name": 1, "values": ["x"]}]}',
            "points is wrong inside: name must be text, not '1'; values must be a whole",
        ),
        ('{"points": []}', "at least one point is needed"),
        ('{"points": [', "cannot be read"),
        ("[1]", "must hold an object"),
        ('{"points": "x"}', "points must be a list"),
        ('{"points": [{"name": "a", "values": [true]}]}', "values must be a whole number, not 'True'"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_faults_of_data(body: str, said: str) -> None:
    assert said in fault(Data(Space, "json"), f"```json\n{body}\n```")


def test_sections_have_forms_of_their_own() -> None:
    form = Sections({"Plan": Header(Plan), "Kernel": Code("python"), "Notes": Text()}, optional=("Notes",))
    text = "Hello.\n## 1. Plan:\ntitle: x\naction: fuse\ngain: 2\n## **Kernel**\n```python\n## Plan\nx\n```\n### Detail\nmore"
    assert form.parse(text) == {"Plan": Plan("x", "fuse", 2.0), "Kernel": "## Plan\nx\n"}
    said = fault(form, "## Plan\ntitle: x\n## Notes\nfine")
    assert "in the section Plan: action is missing" in said and "`## Kernel` is missing" in said
    assert "there twice" in fault(form, "## Plan\na: 1\n## Plan\nb: 2")
    assert sections("a\n# B\nc\n# D") == {"": "a", "b": "c", "d": ""}


def test_descriptions_say_everything_an_answer_needs() -> None:
    said = Sections({"Plan": Header(Plan), "Space": Data(Space), "Kernel": Code("cuda")}).description
    for part in (
        "## Plan",
        "action: <one of tile, fuse>",
        "gain: <a number>",
        "risk: <one of low, high; may be left out>",
        "```toml",
    ):
        assert part in said
    assert "points = <a list, each item a table with name, values>" in said and "```cuda" in said


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a//b", "a/", "a.b", "a__b", "a b", "a/b/c/d", "x" * 61])
def test_a_key_is_a_safe_name_of_a_file(key: str) -> None:
    with pytest.raises(ValueError, match="a key is"):
        Question(key, "plan", "", "", Text())


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "string"},
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "a+"}}},
        {"type": "object", "properties": {"x": {"anyOf": []}}},
        {"type": "object", "additionalProperties": True},
        {"type": "object", "required": ["x"]},
        {"type": "object", "properties": {"x": {"type": "array"}}},
    ],
)
def test_a_schema_that_could_not_be_checked_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="tool search"):
        Tool("search", "", parameters, str)
