"""How drop-in modules are called in these tests. Files ask for it: notebook tests run processes of their own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from kernelpro import FallbackWarning


@pytest.fixture
def no_grad() -> Iterator[None]:
    """Without gradients; fallbacks to the original are expected."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Without what torch.compile keeps of earlier tests."""
    yield
    torch.compiler.reset()
