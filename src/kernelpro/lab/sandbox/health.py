"""Checks that the device still works after a candidate."""

from __future__ import annotations

import time

from kernelpro.records import Target

_TIMEOUT_SECONDS = 30.0


class DeviceUnhealthy(RuntimeError):
    """The device can no longer be trusted: the worker must report this and exit."""


def check_device(target: Target) -> None:
    """Raise DeviceUnhealthy if a GPU hangs or computes wrongly; called after each candidate."""
    if target != "cuda":
        return
    import torch  # a worker must be able to report that torch is missing

    total, done = torch.arange(64, device="cuda").sum(), torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not done.query():  # type: ignore[no-untyped-call]
        if time.monotonic() > deadline:
            raise DeviceUnhealthy(
                f"the GPU has not responded for {_TIMEOUT_SECONDS:.0f} s after the last candidate: "
                "this worker stops"
            )
        time.sleep(0.001)
    if int(total) != 2016:
        raise DeviceUnhealthy("the GPU computes wrong results after the last candidate: this worker stops")
