"""What models write, and what is made of it; faults are said so that the next answer can be right."""

from __future__ import annotations

from typing import Any

import pytest
from answer_formats import Code, Text

from kernelpro.llm import AnswerFormat, Malformed, Question, Tool


def fault(form: AnswerFormat[Any], text: str) -> str:
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


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a//b", "a/", "a.b", "a__b", "a b", "a/b/c/d", "x" * 61]
)
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
