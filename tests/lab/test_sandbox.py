"""The sandbox: what a child can and cannot do, and that it leaves no process and no file."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelpro.lab.sandbox import process as process_module
from kernelpro.lab.sandbox import procfs
from kernelpro.lab.sandbox.launcher import LEVELS, SandboxLauncher
from kernelpro.lab.sandbox.memory import Region
from kernelpro.lab.sandbox.process import CannotStart, ResourceLimits, SandboxedProcess, place_threads
from kernelpro.lab.sandbox.wire import ChannelClosed

LIMITS = ResourceLimits(8 << 30, address_space=True)


@pytest.fixture(params=LEVELS)
def process(launcher: SandboxLauncher, request: pytest.FixtureRequest) -> SandboxedProcess:
    try:
        process = launcher.start("build", LIMITS, level=request.param)
    except CannotStart as error:
        pytest.skip(f"level {request.param} does not work here: {error}")
    request.addfinalizer(process.kill)
    return process


def attempt(process: SandboxedProcess, body: str) -> str:
    """Run Python in the sandbox; returns what it assigns to `result`."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    caught = "except BaseException as e:\n    result = type(e).__name__ + ': ' + str(e)"
    source = f"result = 'done'\ntry:\n{lines}\n{caught}\nprint('RESULT', result, flush=True)"
    before = process.log_tail().count("RESULT")
    process.channel.send({"op": "build", "source": source})
    process.channel.receive(30)
    deadline = time.monotonic() + 5
    while process.log_tail().count("RESULT") == before and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.log_tail().rpartition("RESULT ")[2].strip()


def require_confinement(process: SandboxedProcess) -> None:
    if process.level == "process":
        pytest.skip("a plain process is not confined, and the verdict says so")


def test_no_file_outside_is_readable(process: SandboxedProcess, tmp_path: Path) -> None:
    require_confinement(process)
    secret = tmp_path / "answer.txt"
    secret.write_text("42")
    assert "PermissionError" in attempt(process, f"result = open({str(secret)!r}).read()")


def test_nothing_outside_is_writable(process: SandboxedProcess, tmp_path: Path) -> None:
    require_confinement(process)
    assert "Error" in attempt(process, f"open({str(tmp_path / 'x')!r}, 'w').write('x')")
    assert "Error" in attempt(process, "open('/usr/x', 'w').write('x')")


def test_scratch_is_writable_and_limited(process: SandboxedProcess) -> None:
    assert attempt(process, "open('x', 'w').write('x'); result = open('x').read()") == "x"


def test_a_profiler_has_a_tmp_of_its_own(launcher: SandboxLauncher, tmp_path: Path) -> None:
    """Python and KernelPro still run where they lie below /tmp; what else is there is not seen, and nothing is left."""
    try:
        process = launcher.start("build", LIMITS, level="namespaces", private_tmp=True)
    except CannotStart as error:
        pytest.skip(str(error))
    try:
        assert (
            attempt(
                process,
                "import json.tool; open('/tmp/of-nsys', 'w').write('x'); result = open('/tmp/of-nsys').read()",
            )
            == "x"
        )
        assert "Error" in attempt(process, f"import os; result = os.listdir({str(tmp_path)!r})")
        assert attempt(process, "open('x', 'w').write('x'); result = open('x').read()") == "x"
    finally:
        process.kill()
    assert not Path("/tmp/of-nsys").exists()


def test_what_many_children_need_is_imported_before_the_fork(launcher: SandboxLauncher) -> None:
    module = "torch._inductor.runtime.cache_dir_utils"  # asks for the folder of temporary files
    launcher.preload((module, "no_such_module"))
    first = launcher.start("build", LIMITS, preloaded=True)
    later = launcher.start("build", LIMITS)
    try:
        for process in (first, later):
            body = f"import sys, os, tempfile; result = {module!r} in sys.modules, tempfile.gettempdir() == os.environ['TMPDIR']"
            assert attempt(process, body) == "(True, True)"
    finally:
        first.kill()
        later.kill()


def test_children_that_need_no_module_do_not_wait_for_its_import(fresh: SandboxLauncher) -> None:
    fresh.preload(("torch._dynamo",))
    process = fresh.start("build", LIMITS)
    try:
        assert attempt(process, "import sys; result = 'torch._dynamo' in sys.modules") == "False"
    finally:
        process.kill()


def test_where_the_second_zygote_has_died_the_first_one_starts_children(fresh: SandboxLauncher) -> None:
    fresh.preload(("json",))
    fresh.start("build", LIMITS, preloaded=True).kill()
    assert isinstance(fresh._zygote, subprocess.Popen)
    for child in procfs.child_pids(fresh._zygote.pid):
        os.kill(child, signal.SIGKILL)
    while fresh._second and not fresh._second.has_died():
        time.sleep(0.01)
    process = fresh.start("build", LIMITS, preloaded=True)
    assert attempt(process, "result = 'alive'") == "alive"
    process.kill()


def test_no_network(process: SandboxedProcess) -> None:
    require_confinement(process)
    assert "Error" in attempt(process, "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)")


def test_no_tracing_of_others(process: SandboxedProcess) -> None:
    require_confinement(process)
    load = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)"
    body = f"{load}\nr = c.ptrace(16, {os.getpid()}, 0, 0)\nresult = str(r) + ' ' + str(ctypes.get_errno())"
    assert attempt(process, body) == "-1 1"


def test_no_signals_to_others(process: SandboxedProcess) -> None:
    require_confinement(process)
    assert "Error" in attempt(process, f"import os\nos.kill({os.getpid()}, 0)")


@pytest.fixture(scope="module")
def fresh() -> Iterator[SandboxLauncher]:
    """One that was started by a process with a secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_API_KEY", "secret")
        process = SandboxLauncher()
        yield process
        process.close()


def test_the_environment_is_scrubbed(fresh: SandboxLauncher) -> None:
    process = fresh.start("build", LIMITS)
    result = attempt(
        process,
        "import os\nresult = str('SOME_API_KEY' in os.environ or b'SOME_API_KEY' in open('/proc/self/environ', 'rb').read())",
    )
    process.kill()
    assert result == "False"


def test_frozen_means_frozen(process: SandboxedProcess) -> None:
    tick = "def tick():\n    while True: open('t', 'a').write('x')\n"
    attempt(process, f"import threading\n{tick}threading.Thread(target=tick, daemon=True).start()")
    process.freeze()
    before = Path(f"/proc/{process.pid}/stat").read_text().split()[13]
    time.sleep(0.3)
    assert Path(f"/proc/{process.pid}/stat").read_text().split()[13] == before
    process.thaw()
    time.sleep(0.3)
    assert int(Path(f"/proc/{process.pid}/stat").read_text().split()[13]) > int(before)


def test_no_memory_that_nobody_is_seen_to_hold(process: SandboxedProcess) -> None:
    require_confinement(process)
    assert attempt(process, "import ctypes\nresult = str(ctypes.CDLL(None).shmget(0, 4096, 0o1600))") == "-1"


TAKES = """
import ctypes, os, threading
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
many = 1 << 29
def take():
    there = libc.mmap(None, many, 3, 0x22, -1, 0)
    libc.madvise(there, many, 15)  # no huge pages
    libc.madvise(there, many, 23)  # all of it, now
"""


@pytest.mark.parametrize(
    "how", ["threading.Thread(target=take, daemon=True).start()", "if os.fork() == 0: take(); os._exit(0)"]
)
def test_what_is_inside_the_kernel_or_dying_is_waited_for(launcher: SandboxLauncher, how: str) -> None:
    """Stopping takes effect when a thread leaves the kernel, and never on one that ends."""
    process = launcher.start("build", LIMITS)
    attempt(process, f"{TAKES}\n{how}")
    time.sleep(0.02)
    assert process.freeze()
    before = process.cpu_time_ms()
    time.sleep(0.1)
    assert process.cpu_time_ms() == before
    process.kill()


def test_killing_leaves_nothing(process: SandboxedProcess) -> None:
    attempt(
        process,
        "import subprocess\nfor _ in range(5): subprocess.Popen(['sleep', '1000'])\nopen('left', 'w').write('x')",
    )
    pids = process.process_tree()
    assert len(pids) >= 6
    scratch = process._scratch
    process.kill()
    time.sleep(0.2)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not scratch.exists()


@pytest.mark.parametrize(  # of the strongest level test_bad_input.py has a fork bomb, with the usual limit
    "process",
    [pytest.param(level, marks=[pytest.mark.long] * (level != LEVELS[-1])) for level in LEVELS],
    indirect=True,
)
def test_too_many_processes_end_the_cell(process: SandboxedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "MAX_PROCESSES", 32)  # more leave no room for other tests
    process.channel.send(
        {"op": "build", "source": "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(1000)"}
    )
    with pytest.raises(ChannelClosed):
        process.channel.receive(60)
    assert "started more than 32 processes" in process.describe_exit()


def test_a_dead_zygote_is_replaced(fresh: SandboxLauncher) -> None:
    fresh.start("build", LIMITS).kill()
    fresh._zygote.kill()
    fresh._zygote.wait()
    process = fresh.start("build", LIMITS)
    assert attempt(process, "result = 'alive'") == "alive"
    process.kill()


def test_where_scratch_is_on_the_disk_it_is_limited_all_the_same(
    launcher: SandboxLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "SCRATCH_BYTES", 8 << 20)
    process = launcher.start("build", LIMITS, level="process")
    try:
        source = "import time\nfor n in range(16): open(f'{n}', 'wb').write(bytes(1 << 20))\ntime.sleep(60)"
        process.channel.send({"op": "build", "source": source})
        with pytest.raises(ChannelClosed):
            process.channel.receive(30)
        assert "wrote more than" in process.describe_exit()
    finally:
        process.kill()


def test_scratch_in_memory_is_a_part_of_what_is_allowed(launcher: SandboxLauncher) -> None:
    try:
        process = launcher.start("build", ResourceLimits(1 << 30, address_space=True), level="namespaces")
    except CannotStart as error:
        pytest.skip(f"namespaces do not work here: {error}")
    try:
        assert "No space left" in attempt(
            process, "with open('x', 'wb') as file:\n    for _ in range(300): file.write(bytes(1 << 20))"
        )
    finally:
        process.kill()


def test_files_in_memory_count_as_memory(launcher: SandboxLauncher) -> None:
    process = launcher.start("build", ResourceLimits(1 << 30, address_space=False))
    try:
        lines = "held = [os.memfd_create(str(n)) for n in range(3)]\nfor fd in 400 * held: os.write(fd, bytes(1 << 20))"
        process.channel.send({"op": "build", "source": f"import os, time\n{lines}\ntime.sleep(60)"})
        with pytest.raises(ChannelClosed):
            process.channel.receive(60)
        assert "GiB of memory" in process.describe_exit()
    finally:
        process.kill()


def test_the_kernels_settings_are_closed(process: SandboxedProcess) -> None:
    require_confinement(process)
    assert "Error" in attempt(process, "import os; os.open('/proc/sys/vm/drop_caches', os.O_WRONLY)")


def test_nothing_wakes_a_child_that_was_stopped(process: SandboxedProcess) -> None:
    require_confinement(process)
    signals = "import fcntl, os, signal; fcntl.fcntl(os.pipe()[0], 10, signal.SIGCONT)"  # F_SETSIG
    assert "PermissionError" in attempt(process, signals)
    process.channel.send({"op": "build", "source": "while True: pass"})
    process.freeze()
    before = process.cpu_time_ms()
    time.sleep(0.05)
    assert process.cpu_time_ms() - before < 1 < before
    process.thaw()
    time.sleep(0.5)
    assert process.cpu_time_ms() > before + 1


def test_what_parent_and_child_share_has_one_size_and_no_memory() -> None:
    region = Region("cpu", 5000)
    assert region.fd is not None and len(region.raw) % mmap.PAGESIZE == 0, "nothing lies behind its end"
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(region.fd, size)
    region.raw[:] = 7
    region.clear()
    assert not region.raw.any()
    region.close()


def test_memory_of_a_call_is_still_there_for_the_next_one(launcher: SandboxLauncher) -> None:
    """Calls are judged with pauses between them; a program makes one after the other. Free memory at the end
    of the heap is not returned either."""
    process = launcher.start("build", LIMITS)
    result = attempt(
        process,
        """
import resource, time, torch
x, faults = torch.ones(6_000_000), []
for _ in range(12):  # glibc's heap grows in the first ones
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    (x * 2).sum()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    time.sleep(0.03)
result = faults[-1]
        """,
    )
    process.kill()
    assert int(result) < 5, "24 MB are 12 large pages, or 6,000 small ones"


@pytest.mark.parametrize(
    ("used", "places"),
    [
        ({1: 9, 2: 9}, {1: 0, 2: 1}),
        ({1: 1, 2: 9, 3: 9}, {1: 0, 2: 1, 3: 0}),
        ({1: 9, 2: 0, 3: 9}, {1: 0, 2: 1, 3: 1}),
        ({1: 0, 2: 0, 3: 0}, {1: 0, 2: 1, 3: 1}),
        ({1: 5}, {1: 0}),
    ],
)
def test_threads_that_work_get_a_core_each(used: dict[int, int], places: dict[int, int]) -> None:
    assert place_threads(1, used, {}, [0, 1]) == places
    assert place_threads(1, used, {}, [0]) == dict.fromkeys(used, 0)


def test_compilations_import_nothing_more_of_torch_after_a_preload() -> None:
    program = """
import os, sys, torch
from kernelpro.lab.measure.bench import COMPILER_MODULES
from kernelpro.lab.sandbox.zygote import _preload
_preload(COMPILER_MODULES)
assert not torch.cuda.is_initialized()
before = set(sys.modules)
with torch.no_grad():
    torch.compile(torch.nn.Linear(2, 2).requires_grad_(False), backend="aot_eager")(torch.zeros(2, 2))
late = sorted(name for name in set(sys.modules) - before if name.startswith("torch."))
assert not late, late
"""
    subprocess.run([sys.executable, "-c", program], check=True)
