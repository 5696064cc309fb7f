"""A worker process, which reads jobs and writes results as lines of JSON."""

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

from kernelpro.lab import worker
from kernelpro.lab.machine import Device, gpus
from kernelpro.lab.tasks import paths
from kernelpro.records import BadInput, Job, Progress, Result

COMMAND = [sys.executable, "-m", "kernelpro.lab.worker", worker.SHARED_IMPORT]
_STOP_SECONDS = 10.0
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


class WorkerProcess:
    """A worker process and its temporary folder, which is removed with it."""

    def __init__(self, device: Device, sandbox: str):
        if "KERNELPRO_PARENT" in os.environ:  # this is a worker, which has imported the file of a task
            raise BadInput(
                "a task's file must not judge or optimize when it is imported: put that under "
                "if __name__ == '__main__'"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="kernelpro-", ignore_cleanup_errors=True)
        environment = os.environ | {
            "KERNELPRO_SANDBOX": sandbox,
            "PYTHONPATH": _python_path(),
            "TMPDIR": self._folder.name,
        }
        environment |= {"KERNELPRO_PARENT": str(os.getpid())} | paths.worker_environment()
        if device.gpu and len(gpus()) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = device.gpu.uuid
        self._process = subprocess.Popen(
            COMMAND,
            env=worker.start_environment(environment, _PACKAGE_ROOT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._write(json.dumps(environment))

    def send(self, job: Job) -> None:
        """Send a job. A dead worker is detected when its output ends."""
        self._write(job.dumps())

    def _write(self, line: str) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def records(self) -> Iterator[Progress | Result]:
        """Yield the worker's output until it exits."""
        assert self._process.stdout
        for line in self._process.stdout:
            data = json.loads(line)
            yield Progress.from_json(data) if data.pop("type") == "progress" else Result.from_json(data)

    def exit_reason(self) -> str:
        """Wait for the worker to exit, and describe how it exited."""
        code = self._process.wait()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}; see its error output above"

    @property
    def device_failed(self) -> bool:
        """Whether the worker exited because the device failed its health check."""
        return self._process.wait() == worker.DEVICE_FAILED

    def kill(self) -> None:
        """Kill the worker and its children, which ends its output."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self, immediately: bool) -> None:
        """Close the worker's input, so that it cleans up and exits. Terminate it if it has not exited after
        some seconds; with `immediately`, at once."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not immediately:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_SECONDS)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Remove its temporary folder."""
        self._folder.cleanup()


def _python_path() -> str:
    """The worker's PYTHONPATH, with which it imports this package whether it is installed or not."""
    return os.pathsep.join(filter(None, [_PACKAGE_ROOT, os.environ.get("PYTHONPATH", "")]))
