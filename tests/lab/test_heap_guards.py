"""Guards around blocks of malloc never blame honest code: whatever threads allocate meanwhile, and however
they release it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpro.lab.languages import cpp
from kernelpro.lab.sandbox.cpu_guards import build_library

BUSY = r"""
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <thread>
#include <vector>
static std::atomic<bool> ended{false};
static std::vector<std::thread> threads;
static void (*const volatile release)(void*) = free;  // the address is in the data, not in the table of functions

static void work() {
  while (!ended)
    for (size_t bytes : {32, 400, 5000}) {
      char* block = (char*)malloc(bytes);
      memset(block, 1, malloc_usable_size(block));
      block = (char*)reallocarray(block, 2, bytes);
      block = (char*)realloc(block, 3 * bytes);
      block[3 * bytes - 1] = 1;
      bytes == 400 ? free(block) : release(block);
    }
}
static size_t returned = 0;
static void keep(void*) { ++returned; }
static void (*volatile assigned)(void*) = free;
extern "C" void assign() { assigned = keep; }
extern "C" size_t call_assigned(void* block) { assigned(block); return returned; }
extern "C" void* make(size_t bytes) { return malloc(bytes); }
extern "C" void drop(void* block) { free(block); }
extern "C" void start() { for (int i = 0; i < 3; ++i) threads.emplace_back(work); }
extern "C" void stop() { ended = true; for (auto& thread : threads) thread.join(); }
"""
SCRIPT = """
import ctypes
from pathlib import Path
from kernelpro.lab.sandbox.cpu_guards import CpuGuards
from kernelpro.lab.sandbox.guards import FILLS
guards = CpuGuards(Path("library").read_bytes())
busy = ctypes.CDLL(str(Path("busy.so").absolute()))
busy.start()
damages = []
for _ in range(10):
    for byte in FILLS:
        guards.fill(byte)
        damages += guards.damages({})
busy.stop()
print(damages + guards.damages({}))
"""


RELEASES = """
import ctypes
from pathlib import Path
from kernelpro.lab.sandbox.cpu_guards import CpuGuards
from kernelpro.lab.sandbox.guards import FILLS
guards = CpuGuards(Path("library").read_bytes())
busy, libc = ctypes.CDLL(str(Path("busy.so").absolute())), ctypes.CDLL(None)
for make in (busy.make, libc.malloc):
    make.argtypes, make.restype = [ctypes.c_size_t], ctypes.c_void_p
for drop in (busy.drop, libc.free):
    drop.argtypes, drop.restype = [ctypes.c_void_p], None
guards.fill(FILLS[0])
kept = [busy.make(8) for _ in range(100)]  # from now on they are blocks of malloc
freed = busy.make(9000)
ctypes.memset(freed, 1, 9000)
busy.drop(freed)
overwritten = ctypes.c_ubyte.from_address(freed + 8000).value == FILLS[0]
large = busy.make(9 << 20)
libc.free(large)
small, neighbour = libc.malloc(5 << 20), libc.malloc(3 << 20)
ctypes.memset(neighbour, 1, 3 << 20)
busy.drop(small)
intact = ctypes.string_at(neighbour, 3 << 20) == bytes([1]) * (3 << 20)
print(overwritten, small == large < neighbour < large + (9 << 20), intact, guards.damages({}))
"""


ASSIGNED = """
import ctypes
from pathlib import Path
from kernelpro.lab.sandbox.cpu_guards import CpuGuards
from kernelpro.lab.sandbox.guards import FILLS
guards = CpuGuards(Path("library").read_bytes())
busy = ctypes.CDLL(str(Path("busy.so").absolute()))
busy.assign()
buffer = ctypes.create_string_buffer(64)
guards.fill(FILLS[0])
print(busy.call_assigned(ctypes.byref(buffer, 16)), guards.damages({}))
"""


KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""As in sandboxes."""


def run(script: str, place: Path) -> str:
    command, variables = [sys.executable, "-c", script], os.environ | KEPT_MEMORY
    ended = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.strip()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the guards and a candidate's library."""
    compiler = cpp.compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    (tmp_path / "busy.cpp").write_text(BUSY)
    flags = ["-O1", "-std=c++17", "-fno-builtin", "-shared", "-fPIC", "-pthread"]
    subprocess.run([str(compiler), *flags, "-o", "busy.so", "busy.cpp"], cwd=tmp_path, check=True)
    (tmp_path / "library").write_bytes(build_library())
    return tmp_path


def test_threads_that_allocate_while_margins_are_filled_are_not_blamed(place: Path) -> None:
    for _ in range(3):  # whether two threads get in each other's way is a matter of luck
        assert run(SCRIPT, place) == "[]"


def test_freed_blocks_are_overwritten_unless_they_were_released_elsewhere(place: Path) -> None:
    assert run(RELEASES, place) == "True True True []"


def test_a_pointer_to_free_that_a_library_assigned_again_is_left_alone(place: Path) -> None:
    """As Python's _decimal does, which torch.compile needs."""
    assert run(ASSIGNED, place) == "1 []"
