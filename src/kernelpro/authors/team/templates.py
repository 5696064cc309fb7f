"""Prompt templates: Markdown files with $placeholders. A placeholder without a value is an error.

Every rule in a template ends with its id in an HTML comment, which is removed before a model sees the
prompt. A test compares the ids with a list kept by hand, so that no rule is lost when a prompt is reworded.

The templates have a version, which is stored with every exchange: it tells answers to different prompts
apart.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from string import Template

from kernelpro.records import digest

NUMBER = 2
"""Version of the rules. Increment it when a rule changes, not when a rule is only reworded."""
_RULE_ID = re.compile(r" *<!--.*?-->")


@lru_cache
def _template(folder: str, name: str) -> Template:
    text = resources.files(__package__).joinpath(folder, f"{name}.md").read_text(encoding="utf-8")
    return Template(_RULE_ID.sub("", text))


def prompt(name: str, **values: object) -> str:
    """Render the prompt of this name. Raises KeyError if a value is missing."""
    return _template("prompts", name).substitute(values).strip() + "\n"


def guide(language: str, **values: object) -> str:
    """Render the guide to a language: how to build and call its kernels, and what makes them fast."""
    return _template("guides", language).substitute(values).strip()


@lru_cache
def version() -> str:
    """Return the version number and a hash of all templates: `2-0a1b2c3d`."""
    parts = []
    for folder in ("guides", "prompts"):
        for path in sorted(
            resources.files(__package__).joinpath(folder).iterdir(), key=lambda path: path.name
        ):
            parts += [folder, path.name, path.read_text(encoding="utf-8")]
    return f"{NUMBER}-{digest(*parts)[:8]}"


def languages() -> list[str]:
    """Return the languages that have a guide."""
    return sorted(
        path.name.removesuffix(".md") for path in resources.files(__package__).joinpath("guides").iterdir()
    )
