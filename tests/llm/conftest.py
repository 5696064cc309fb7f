"""Keys of all providers, and nothing else of theirs, in the environment."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
from llm.asking import SECRET

if find_spec("pydantic_ai") is None:  # to import it takes a second, in every process that collects tests
    pytest.skip("pydantic-ai is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL", "_PROXY", "_proxy"))]:
        monkeypatch.delenv(name)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "KERNELPRO_API_KEY"):
        monkeypatch.setenv(name, SECRET)
