"""The waiting questions of a run whose model is an inbox, and answers that are checked before they are
accepted.

The page derives the answer format of a question as the team's agents do: from the role, the parent of the
step, and the earlier answer with the plan. If the question on disk asks for another format, the page accepts
the answer unchecked, and the run checks it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from kernelpro.authors.author import LANGUAGES
from kernelpro.authors.team.answers import CodeFormat, DebugFormat, DesignFormat, PlanFormat
from kernelpro.engine.store import RunStore
from kernelpro.llm.transcripts import FILE, Transcripts
from kernelpro.records import BadInput, Step
from kernelpro.records.events import AnswerGiven

_HEAD = re.compile(r"<!-- kernelpro question key=(\S+) role=(\S+) stamp=(\S+) content=(\S+) -->\n*")
_NOT_QUESTIONS = re.compile(r"\.answer(\.\d+\.(bad|stale))?\.md$")
_KEY = re.compile(r"step-(\d+)/(\w+)")
_MAX_CHARACTERS = 2**20


def waiting(store: RunStore) -> list[dict[str, str]]:
    """The key and role of each question that has no answer yet, oldest first."""
    return [
        {"key": head[1], "role": head[2]} for path in _files(store) if (head := _read_head(path)) is not None
    ]


def question(store: RunStore, key: str) -> dict[str, Any]:
    """A waiting question with its text. Raises BadInput if no such question is waiting."""
    path, head = _find(store, key)
    text = _HEAD.sub("", path.read_text(errors="replace"), count=1)
    return {
        "key": key,
        "role": head[2],
        "text": text,
        "checked": _answer_format(store, key, text) is not None,
    }


def answer(store: RunStore, key: str, text: str) -> None:
    """Check an answer and pass it to the run. Raises BadInput if something is wrong with it."""
    check(store, key, text)
    path, _ = _find(store, key)
    target = path.with_name(path.name.removesuffix(".md") + ".answer.md")
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    stored = store.save_source(text)
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, target)  # fails if another answer was given meanwhile
    except FileExistsError:
        raise BadInput(f"question {key} already has an answer") from None
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    store.add_event(AnswerGiven(key, stored))


def check(store: RunStore, key: str, text: str) -> None:
    """Raise BadInput if an answer does not have the format that its question asks for."""
    path, _ = _find(store, key)
    if not text.strip():
        raise BadInput("the answer is empty")
    if len(text) > _MAX_CHARACTERS:
        raise BadInput("the answer is larger than 1 MiB")
    form = _answer_format(store, key, path.read_text(errors="replace"))
    if form is not None:
        form.parse(text)


def _files(store: RunStore) -> list[Path]:
    """The files of waiting questions."""
    specs = set(store.config().models.values())
    folders = [Path(spec.removeprefix("inbox:")) for spec in specs if spec.startswith("inbox:")]
    paths = [path for folder in folders for path in folder.glob(f"{store.id}__*.md")]
    questions = [path for path in paths if not _NOT_QUESTIONS.search(path.name)]
    unanswered = [
        path
        for path in questions
        if not path.with_name(path.name.removesuffix(".md") + ".answer.md").exists()
    ]
    return sorted(unanswered, key=lambda path: (_modified(path), path.name))


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # the run has read the answer and removed the file
        return 0.0


def _read_head(path: Path) -> re.Match[str] | None:
    try:
        with path.open(errors="replace") as file:
            return _HEAD.match(file.read(1000))
    except OSError:  # the run has read the answer and removed the file
        return None


def _find(store: RunStore, key: str) -> tuple[Path, re.Match[str]]:
    for path in _files(store):
        head = _read_head(path)
        if head and head[1] == key:
            return path, head
    raise BadInput(f"question {key} is not waiting for an answer")


def _answer_format(store: RunStore, key: str, page: str) -> Any:
    """The format of the answer to a question; None if it is unknown."""
    match = _KEY.fullmatch(key)
    step = store.step(int(match[1])) if match else None
    if match is None or step is None:
        return None
    try:
        form = _format_of_role(store, match[2], step)
    except BadInput:
        return None
    return form if form and page.rstrip().endswith(form.description.strip()) else None


def _format_of_role(store: RunStore, role: str, step: Step) -> Any:
    if role == "design":
        return DesignFormat()
    parent = store.step(step.parent)
    if parent is None or not parent.final_source:
        return None
    source = store.source(parent.final_source)
    if role == "debug":
        return DebugFormat(source)
    config = store.config()
    language = parent.verdict.language if parent.verdict else ""
    plan = PlanFormat(source, language, config.languages or LANGUAGES[config.target])
    if role == "plan":
        return plan
    answered = Transcripts(store.folder / FILE).find_key(f"step-{step.number}/plan")
    return CodeFormat(plan.parse(answered.text).source) if role == "code" and answered else None
