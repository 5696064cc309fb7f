"""Guards around blocks of malloc never blame honest code: whatever threads allocate meanwhile, and however
they release it."""

from __future__ import annotations

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


@pytest.mark.skipif(cpp.compiler() is None, reason="needs a C++ compiler")
def test_threads_that_allocate_while_margins_are_filled_are_not_blamed(tmp_path: Path) -> None:
    (tmp_path / "busy.cpp").write_text(BUSY)
    flags = ["-O1", "-std=c++17", "-fno-builtin", "-shared", "-fPIC", "-pthread"]
    subprocess.run([str(cpp.compiler()), *flags, "-o", "busy.so", "busy.cpp"], cwd=tmp_path, check=True)
    (tmp_path / "library").write_bytes(build_library())
    for _ in range(3):  # whether two threads get in each other's way is a matter of luck
        command = [sys.executable, "-c", SCRIPT]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert (ended.stdout.strip(), ended.returncode) == ("[]", 0), ended.stdout + ended.stderr
