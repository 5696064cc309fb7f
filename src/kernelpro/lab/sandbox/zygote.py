"""The zygote: a process that has imported torch once and forks every child.

Importing torch takes seconds, forking milliseconds. The zygote starts with a clean environment, never sees a
task, a seed or an input, and never starts CUDA, so that its forks contain nothing secret. A worker that was
itself started with a clean environment forks its zygote before it reads anything (`fork`), so that both share
one import of torch.

A request is one datagram. For a PreloadRequest, the zygote forks a second zygote that imports more modules:
that takes five seconds for torch.compile, while the first zygote can start other children. A LaunchRequest
starts a child, and comes with file descriptors (control socket, log, status pipe, shared memory ...). The
status pipe first carries the host PIDs of the child and of its guard (`pid N M`), and finally the child's
wait status (`exit N`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback

from kernelpro.lab import garbage
from kernelpro.lab.sandbox import jail
from kernelpro.lab.sandbox.launch_request import LaunchRequest, PreloadRequest, parse_request

_MAX_REQUEST = 1 << 16
_FOLDER_VARIABLES = (
    "HOME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "TRITON_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "KERNELPRO_BUILD_DIR",
)
"""Environment variables whose folders are created before the child runs."""
_LATE_MODULES = (
    "torch._dynamo.dce_extra_outputs",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.compiler_bisector",
    "torch._inductor.hooks",
    "torch._subclasses.schema_check_mode",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.export._unlift",
    "torch.fx.experimental.validator",
)
"""Modules that torch imports during a compilation."""


def main(descriptor: int) -> None:
    """Serve launch requests on a socket until it closes."""
    gc.disable()
    import torch  # shared by all forks

    from kernelpro import runtime  # noqa: F401
    from kernelpro.lab import vector_math
    from kernelpro.lab.sandbox import child

    child.preload()
    vector_math.initialize()
    jail.prctl(jail.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if torch.version.cuda or torch.version.hip:
        _warm_triton()
    _serve(descriptor)


def _serve(descriptor: int) -> None:
    _freeze()
    requests = socket.socket(fileno=descriptor)
    try:
        requests.send(b"ready")
    except BrokenPipeError:
        return  # the launcher has ended
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 16)
        if not data:
            return
        request = parse_request(data)
        if os.fork() == 0:
            requests.close()
            if isinstance(request, PreloadRequest):
                _run_second_zygote(request.modules, fds[0])
            else:
                _run_guard(request, fds)
        for fd in fds:
            os.close(fd)


def _freeze() -> None:
    """Exclude imported modules from garbage collection.

    Every timed child collects its garbage once. Without this, the collection would visit all of torch and
    copy its memory pages: a fifth of the CPU time of a quick judgement.
    """
    gc.collect()
    garbage.exclude_imported()


def fork(descriptor: int, environment: dict[str, str], folder: str) -> int:
    """Fork the zygote from this process, which must not know a task or a secret yet; return its PID."""
    import torch  # noqa: F401  shared by both

    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # jobs arrive on the worker's input
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.dont_write_bytecode = True
        main(descriptor)
        os._exit(0)
    except BaseException:  # the fork must never continue as a worker
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _run_second_zygote(modules: tuple[str, ...], descriptor: int) -> None:
    """Import modules, then serve launch requests on another socket. Ends when the first zygote ends."""
    try:
        jail.prctl(jail.PR_SET_PDEATHSIG, signal.SIGKILL)
        _preload(modules)
        _serve(descriptor)
    except BaseException:  # a forked process must never continue into the zygote's loop
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _preload(modules: tuple[str, ...]) -> None:
    """Import modules for all later children."""
    # modules ask at import whether there is a GPU: torch's default check would start CUDA, which breaks forks
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    with garbage.paused():
        for name in modules:
            with contextlib.suppress(Exception):  # the child gets the same error and reports it
                importlib.import_module(name)
        if "torch._inductor.compile_fx" in sys.modules:
            _warm_compilers()


def _warm_compilers() -> None:
    """Do once what every process would repeat in its first compilation, also from a cache: half a second of
    1.0 s of CPU time (torch 2.13, x86).

    This hashes torch's installation, imports modules that it imports late, and fills tables. None of it
    starts CUDA. It cannot compile something here, which would.
    """

    def fill_tables() -> None:
        from torch._dynamo import trace_rules
        from torch._dynamo.backends import registry

        registry.list_backends()
        trace_rules.get_torch_obj_rule_map()
        trace_rules.get_tensor_method()

    def hash_installation() -> None:
        from torch._inductor import codecache

        codecache.torch_key()

    def register_backends() -> None:
        from torch._inductor.codegen import common

        common.init_backend_registration()

    for name in _LATE_MODULES:
        with contextlib.suppress(Exception):  # another version of torch
            importlib.import_module(name)
    for step in (fill_tables, hash_installation, register_backends):
        with contextlib.suppress(Exception):
            step()


def _warm_triton() -> None:
    """Do once what every Triton process would repeat: 1.2 s of a first launch's 1.7 s on an H200 host.

    This hashes the installation (the key is cached), imports the rest of the package, and compiles the driver
    module into the zygote's own cache directory, of which each child gets a copy.
    """
    with contextlib.suppress(
        Exception
    ):  # Triton is missing or has another interface: children do this themselves
        from triton.runtime.build import platform_key
        from triton.runtime.cache import triton_key

        platform_key()
        triton_key()
        import triton.experimental.gluon  # noqa: F401
    if os.fork() == 0:
        with contextlib.suppress(BaseException):  # as above; and the fork must not continue
            from triton.backends.nvidia.driver import CudaUtils

            CudaUtils()
        os._exit(0)


def _run_guard(request: LaunchRequest, fds: list[int]) -> None:
    """Run the guard, a process between zygote and child: enter namespaces, fork the child, and report how it
    ended."""
    control, log, status, *shared_fds = fds
    code = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        jail.prctl(jail.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        if request.level == "namespaces":
            jail.unshare()
        else:
            jail.prctl(jail.PR_SET_CHILD_SUBREAPER, 1)
        pid = os.fork()
        if pid == 0:
            os.close(status)
            _run_child(request, control, shared_fds)
        os.close(control)
        for fd in shared_fds:
            os.close(fd)
        os.write(status, f"pid {pid} {os.getpid()}\n".encode())
        while True:
            ended, how = os.wait()
            if ended == pid:
                break
        os.write(status, f"exit {how}\n".encode())
        with contextlib.suppress(ChildProcessError):
            while True:  # reap processes that the child left behind
                os.wait()
        code = 0
    except OSError as error:
        os.write(status, f"failed {error.strerror or error}\n".encode())
    finally:
        os._exit(code)


def _run_child(request: LaunchRequest, control: int, shared_fds: list[int]) -> None:
    """Confine this process, then serve the role."""
    try:
        jail.prctl(jail.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setpgid(0, 0)  # one signal then reaches it and all its descendants
        os.environ.clear()
        os.environ.update(request.environment)
        tempfile.tempdir = None  # a module may have cached it before the fork
        in_namespaces = request.level == "namespaces"
        if in_namespaces:
            kept_tmp_paths = [*request.readable, request.triton_cache] if request.private_tmp else None
            jail.private_mounts(request.scratch, request.scratch_bytes, request.writable, kept_tmp_paths)
        for name in _FOLDER_VARIABLES:
            if path := os.environ.get(name):
                os.makedirs(path, exist_ok=True)
        if request.triton_cache and os.path.isdir(request.triton_cache):
            with contextlib.suppress(OSError):  # an incomplete cache is only slower
                shutil.copytree(request.triton_cache, os.environ["TRITON_CACHE_DIR"], dirs_exist_ok=True)
        jail.set_resource_limits(request.memory_bytes, request.file_bytes, request.processes)
        if request.level != "process":
            # CUDA names its threads through /proc, and does not start if it cannot
            proc = "/proc" if in_namespaces else f"/proc/{os.getpid()}"
            # sockets are harmless only in a network namespace
            allowed = tuple(name for name in request.allowed_syscalls if in_namespaces or name != "socket")
            if "socket" in allowed:
                jail.enable_loopback()
            tmp = ["/tmp"] if in_namespaces and request.private_tmp else []
            writable = [*request.writable, *tmp, request.scratch, proc]
            jail.landlock(request.readable, writable, tcp="socket" in allowed)
            if in_namespaces:
                jail.drop_capabilities()
            jail.seccomp(allowed)
        os.chdir(request.scratch)
        from kernelpro.lab.sandbox import child

        child.run(request.role, socket.socket(fileno=control), shared_fds)
        os._exit(0)
    except BaseException:  # a forked process must never continue into the zygote's loop
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(71)


if __name__ == "__main__":
    main(int(sys.argv[1]))
