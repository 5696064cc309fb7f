"""Templates: text files with $names; a name that is not given is an error, so that no prompt has a hole.

They have a version, which is kept with every exchange: answers to other prompts are not compared unawares.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from string import Template

from kernelpro.records import digest

NUMBER = 2
"""Of the prompts; raised when they ask for something else, not when they say the same in better words."""


@lru_cache
def _template(folder: str, name: str) -> Template:
    return Template(resources.files(__package__).joinpath(folder, f"{name}.md").read_text(encoding="utf-8"))


def prompt(name: str, **values: object) -> str:
    """A prompt of this name; KeyError where a value is missing."""
    return _template("prompts", name).substitute(values).strip() + "\n"


def guide(language: str, **values: object) -> str:
    """What an author must know of a language here."""
    return _template("guides", language).substitute(values).strip()


@lru_cache
def version() -> str:
    """Their number, and a hash of all templates to the letter: `1-0a1b2c3d`."""
    parts = []
    for folder in ("guides", "prompts"):
        for path in sorted(
            resources.files(__package__).joinpath(folder).iterdir(), key=lambda path: path.name
        ):
            parts += [folder, path.name, path.read_text(encoding="utf-8")]
    return f"{NUMBER}-{digest(*parts)[:8]}"


def languages() -> list[str]:
    return sorted(
        path.name.removesuffix(".md") for path in resources.files(__package__).joinpath("guides").iterdir()
    )
