"""How much is written to empty a CPU's cache."""

from __future__ import annotations

import pytest

from kernelpro.lab.measure.participant import Flusher
from kernelpro.records import BadInput
from kernelpro.records.profiling import MAX_CPU_FLUSH

pytestmark = pytest.mark.together
VARIABLE = "KERNELPRO_CPU_FLUSH"


def test_the_user_sets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Flusher("cpu", 1 << 20).nbytes == 2 << 20
    assert Flusher("cpu", 1 << 30).nbytes == MAX_CPU_FLUSH
    monkeypatch.setenv(VARIABLE, "3")
    assert Flusher("cpu", 1 << 30).nbytes == 3 << 20
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(BadInput, match="KERNELPRO_CPU_FLUSH=much: give a number of MiB"):
        Flusher("cpu", 1 << 30)
