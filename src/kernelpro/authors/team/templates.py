"""Templates: text files with $names; a name that is not given is an error, so that no prompt has a hole."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from string import Template


@lru_cache
def _template(folder: str, name: str) -> Template:
    return Template(resources.files(__package__).joinpath(folder, f"{name}.md").read_text(encoding="utf-8"))


def prompt(name: str, **values: object) -> str:
    """A prompt of this name; KeyError where a value is missing."""
    return _template("prompts", name).substitute(values).strip() + "\n"


def guide(language: str, **values: object) -> str:
    """What an author must know of a language here."""
    return _template("guides", language).substitute(values).strip()


def languages() -> list[str]:
    return sorted(path.name.removesuffix(".md") for path in resources.files(__package__).joinpath("guides").iterdir())
