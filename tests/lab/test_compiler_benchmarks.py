"""Compilers of baselines measure only when the judge does not use the device."""

from __future__ import annotations

import pytest
import torch

from kernelpro.lab.sandbox.baseline_server import BaselineServer
from kernelpro.lab.seeds import call_before_benchmarks


def test_a_compiler_asks_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime import benchmarking

    events: list[str] = []
    monkeypatch.setattr(benchmarking, "benchmarker", type(benchmarking.benchmarker)())
    call_before_benchmarks(lambda: events.append("asked"))
    milliseconds = benchmarking.benchmarker.benchmark(lambda x: events.append("ran"), (torch.ones(2),), {})
    assert milliseconds >= 0
    assert events[0] == "asked" and "ran" in events


def test_it_announces_that_it_waits_once_and_until_the_next_request() -> None:
    server = BaselineServer([])
    sent: list[dict[str, object]] = []
    looks = iter([False, False, True])
    server.send_early = sent.append
    server.has_next_request = lambda: next(looks)
    server._await_quiet_device()
    assert sent == [{"ok": True, "tuning": True}]
    assert next(looks, None) is None, "it waited for the next request"
    server._await_quiet_device()
    assert len(sent) == 1
