"""What the tests of models share: a question, quick settings, and asking from synchronous code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from answer_formats import Code

from kernelpro.llm import AnswerFormat, Model, ModelSettings, Question, Reply, Tool

SECRET = "sk-test-0123456789abcdef"
"""The key of all providers in these tests."""
KERNEL = "Here it is.\n\n```python\nclass ModelNew: ...\n```\n"
SOURCE = "class ModelNew: ...\n"

QUICK = ModelSettings(backoff=0.001, retries=3, timeout=20.0)


def question(
    key: str = "step-1/code",
    prompt: str = "Make it fast.",
    form: AnswerFormat[Any] | None = None,
    **more: Any,
) -> Question[Any]:
    return Question(
        key,
        more.pop("role", "code"),
        more.pop("system", "You write kernels."),
        prompt,
        form or Code("python"),
        **more,
    )


def ask(model: Model, asked: Question[Any] | None = None) -> Reply[Any]:
    return asyncio.run(model.ask(asked or question()))


def unanswered(folder: Path) -> list[Path]:
    """The questions in an inbox that have no answer."""
    questions = (path for path in folder.glob("*.md") if ".answer." not in path.name)
    return sorted(path for path in questions if not path.with_suffix(".answer.md").exists())


def search_tool(function: Callable[..., str]) -> Tool:
    parameters = {
        "type": "object",
        "properties": {
            "words": {"type": "string", "maxLength": 50},
            "limit": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["words"],
    }
    return Tool(
        "search",
        "Searches the headers of CUTLASS.",
        parameters,
        function,
        shell_command="kernelpro search WORDS",
    )
