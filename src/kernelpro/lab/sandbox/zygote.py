"""The launcher: a process that has imported torch once and forks every child from there.

Importing torch costs seconds, forking milliseconds. The zygote is started with a scrubbed environment,
never sees a task, a seed or an input, and never starts CUDA, so that its forks are blank.

Request (one datagram of JSON with file descriptors: control socket, log, status pipe, shared memory ...):
    {"role": "candidate" | "baseline" | "build" | "profile" | "probe", "level": ..., "scratch": ..., "env": {...}, ...}
On the status pipe the host PIDs of the child and of its guard are written first (`pid N M`), and the child's
wait status last (`exit N`).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any

from kernelpro.lab.sandbox import jail

MAX_REQUEST = 1 << 16


def main(descriptor: int) -> None:
    import torch  # what the forks share

    from kernelpro import runtime  # noqa: F401
    from kernelpro.lab.sandbox import child

    child.preload()
    jail.prctl(jail.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if torch.version.cuda or torch.version.hip:
        _warm_triton()
    requests = socket.socket(fileno=descriptor)
    try:
        requests.send(b"ready")
    except BrokenPipeError:
        return  # whoever started us has gone
    while True:
        data, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST, 16)
        if not data:
            return
        request = json.loads(data)
        for name in request["modules"]:
            with contextlib.suppress(Exception):  # the child will meet it too, and say so
                importlib.import_module(name)
        if os.fork() == 0:
            requests.close()
            _guard(request, fds)
        for fd in fds:
            os.close(fd)


def _warm_triton() -> None:
    """What every Triton process does anew, done once: 1.2 s of a first launch's 1.7 s on an H200 host.

    Hashing the installation (its key is kept), importing the rest of the package, and compiling its driver
    module, which goes into the zygote's own cache directory; each cell gets a copy of that.
    """
    with contextlib.suppress(
        Exception
    ):  # no Triton, or one that is built otherwise: the children will do it themselves
        from triton.runtime.build import platform_key
        from triton.runtime.cache import triton_key

        platform_key()
        triton_key()
        import triton.experimental.gluon  # noqa: F401
    if os.fork() == 0:
        with contextlib.suppress(BaseException):  # as above; and nothing may run on past the fork
            from triton.backends.nvidia.driver import CudaUtils

            CudaUtils()
        os._exit(0)


def _guard(request: dict[str, Any], fds: list[int]) -> None:
    """The process between zygote and child: enters namespaces, forks the child, reports how it ended."""
    control, log, status, *shared = fds
    code = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        jail.prctl(jail.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        if request["level"] == "namespaces":
            jail.unshare()
        else:
            jail.prctl(jail.PR_SET_CHILD_SUBREAPER, 1)
        pid = os.fork()
        if pid == 0:
            os.close(status)
            _child(request, control, shared)
        os.close(control)
        for fd in shared:
            os.close(fd)
        os.write(status, f"pid {pid} {os.getpid()}\n".encode())
        while True:
            ended, how = os.wait()
            if ended == pid:
                break
        os.write(status, f"exit {how}\n".encode())
        with contextlib.suppress(ChildProcessError):
            while True:  # what the child left behind is ours to reap
                os.wait()
        code = 0
    except OSError as error:
        os.write(status, f"failed {error.strerror or error}\n".encode())
    finally:
        os._exit(code)


def _child(request: dict[str, Any], control: int, shared: list[int]) -> None:
    """Lock the door behind us, then run the role."""
    try:
        jail.prctl(jail.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.environ.clear()
        os.environ.update(request["env"])
        tempfile.tempdir = None  # a module may have asked for it before the fork
        scratch = request["scratch"]
        if request["level"] == "namespaces":
            kept = [*request["readable"], request["seed"]] if request["own_tmp"] else None
            jail.private_mounts(scratch, request["scratch_bytes"], request["writable"], kept)
        for name in (
            "HOME",
            "TMPDIR",
            "XDG_CACHE_HOME",
            "TRITON_CACHE_DIR",
            "TORCH_EXTENSIONS_DIR",
            "KERNELPRO_BUILD_DIR",
        ):
            if path := os.environ.get(name):
                os.makedirs(path, exist_ok=True)
        if request["seed"] and os.path.isdir(request["seed"]):
            with contextlib.suppress(OSError):  # one that is still being written is left out
                shutil.copytree(request["seed"], os.environ["TRITON_CACHE_DIR"], dirs_exist_ok=True)
        jail.set_resource_limits(request["memory_bytes"], request["file_bytes"], request["processes"])
        if request["level"] != "process":
            # CUDA names its threads through /proc and refuses to start where it cannot
            proc = "/proc" if request["level"] == "namespaces" else f"/proc/{os.getpid()}"
            inside = request["level"] == "namespaces"  # where sockets lead nowhere
            allow = tuple(name for name in request["allow"] if inside or name != "socket")
            if "socket" in allow:
                jail.enable_loopback()
            tmp = ["/tmp"] if inside and request["own_tmp"] else []
            jail.landlock(
                request["readable"], [*request["writable"], *tmp, scratch, proc], tcp="socket" in allow
            )
            if inside:
                jail.drop_capabilities()
            jail.seccomp(allow)
        os.chdir(scratch)
        from kernelpro.lab.sandbox import child

        child.run(request["role"], socket.socket(fileno=control), shared)
        os._exit(0)
    except (
        BaseException
    ):  # the last stop of a forked process: whatever it is must not run on into the zygote's loop
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(71)


if __name__ == "__main__":
    main(int(sys.argv[1]))
