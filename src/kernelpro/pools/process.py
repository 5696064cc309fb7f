"""One worker process, spoken to in JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernelpro.lab.machine import Device, gpus
from kernelpro.lab.tasks import paths
from kernelpro.lab.worker import DEVICE_FAILED
from kernelpro.records import BadInput, Job, Progress, Result

COMMAND = [sys.executable, "-m", "kernelpro.lab.worker"]
_FAREWELL_SECONDS = 10.0


class Process:
    """A worker and the folder that whatever it leaves behind goes with."""

    def __init__(self, device: Device, sandbox: str):
        if (
            "KERNELPRO_PARENT" in os.environ
        ):  # a worker imports the file of a task, and that file wants a worker
            raise BadInput(
                "a task's file must not judge or optimise when it is imported: put that under if __name__ == '__main__'"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="kernelpro-", ignore_cleanup_errors=True)
        environment = os.environ | {
            "KERNELPRO_SANDBOX": sandbox,
            "PYTHONPATH": _python_path(),
            "TMPDIR": self._folder.name,
        }
        environment |= {"KERNELPRO_PARENT": str(os.getpid())} | paths.told()
        if device.gpu and len(gpus()) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = device.gpu.uuid
        self._process = subprocess.Popen(
            COMMAND,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def send(self, job: Job) -> None:
        """A worker that is dead is found out when its output ends."""
        assert self._process.stdin
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(job.dumps() + "\n")
            self._process.stdin.flush()

    def records(self) -> Iterator[Progress | Result]:
        """What it says, until it ends."""
        assert self._process.stdout
        for line in self._process.stdout:
            data = json.loads(line)
            yield Progress.from_json(data) if data.pop("type") == "progress" else Result.from_json(data)

    def how_it_died(self) -> str:
        code = self._process.wait()
        return (
            f"killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exit code {code}; its last words are above"
        )

    @property
    def blames_the_device(self) -> bool:
        """Whether it ended because the device failed its health check."""
        return self._process.wait() == DEVICE_FAILED

    def kill(self) -> None:
        """For one that hangs; its output then ends."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self, at_once: bool) -> None:
        """Close its input, so that it cleans up and goes; insist after a while."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not at_once:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_FAREWELL_SECONDS)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=_FAREWELL_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        self._folder.cleanup()


def _python_path() -> str:
    """The worker finds this very package, installed or not."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
