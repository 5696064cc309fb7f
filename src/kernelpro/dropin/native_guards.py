"""The check of a module's parameters in C++: all addresses, versions and layouts in one call.

Optional, because building it needs a C++ compiler and about 20 seconds. `build_guards` compiles it once for a
version of torch and Python into the user's cache; guards use it where they find it there, else Python.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch

_NAME = "kernelpro_state_guards"
_SOURCE = r"""
#include <torch/csrc/autograd/python_variable.h>
#include <vector>

namespace {
struct State {
    PyObject* tensor;
    const void* data;
    int64_t version;
    c10::DispatchKeySet keys;
    caffe2::TypeMeta dtype;
    std::vector<int64_t> sizes, strides;
};
using States = std::vector<State>;

int64_t version_of(const at::Tensor& t) { return t.is_inference() ? 0 : int64_t(t._version()); }

void destroy(PyObject* capsule) {
    auto* states = static_cast<States*>(PyCapsule_GetPointer(capsule, nullptr));
    for (State& state : *states) Py_DECREF(state.tensor);
    delete states;
}

PyObject* remember(PyObject*, PyObject* tensors) {
    auto* states = new States;
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); ++i) {
        PyObject* object = PyList_GetItem(tensors, i);
        const at::Tensor& t = THPVariable_Unpack(object);
        Py_INCREF(object);
        states->push_back({object, t.const_data_ptr(), version_of(t), t.key_set(), t.dtype(),
                           t.sizes().vec(), t.strides().vec()});
    }
    return PyCapsule_New(states, nullptr, destroy);
}

PyObject* unchanged(PyObject*, PyObject* capsule) {
    auto* states = static_cast<States*>(PyCapsule_GetPointer(capsule, nullptr));
    if (!states) return nullptr;
    for (const State& state : *states) {
        const at::Tensor& t = THPVariable_Unpack(state.tensor);
        if (t.const_data_ptr() != state.data || version_of(t) != state.version || t.key_set() != state.keys ||
            t.dtype() != state.dtype || t.sizes() != at::IntArrayRef(state.sizes) ||
            t.strides() != at::IntArrayRef(state.strides))
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

PyMethodDef methods[] = {{"remember", remember, METH_O, ""}, {"unchanged", unchanged, METH_O, ""}, {}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernelpro_state_guards", "", -1, methods};
}  // namespace

PyMODINIT_FUNC PyInit_kernelpro_state_guards() { return PyModule_Create(&module); }
"""


def library_path() -> Path:
    """Where the library for this torch and Python is, once it is built."""
    digest = hashlib.sha256(f"{_SOURCE} {torch.__version__} {sys.version}".encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "kernelpro" / "guards" / f"{platform.machine()}-{digest}.so"


def build_guards() -> Path:
    """Compile the guards of drop-in modules to C++, once for each machine and version of torch; about 20
    seconds.

    All drop-in modules and exports of this user find the library in `~/.cache/kernelpro/guards` and check
    their parameters in one call. Without it, Python does the same check, more slowly if there are many
    parameters.
    Returns the path of the library. Raises RuntimeError if it cannot be compiled.
    """
    path = library_path()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            output = Path(folder) / "guards.so"
            _compile(Path(folder) / "guards.cpp", output)
            output.replace(path)
    load.cache_clear()
    if load() is None:
        raise RuntimeError(f"the guards in {path} do not work with torch {torch.__version__}")
    return path


def _compile(source: Path, output: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    source.write_text(_SOURCE)
    compiler = os.environ.get("CXX", "c++")
    includes = [f"-I{folder}" for folder in (*include_paths(), sysconfig.get_paths()["include"])]
    libraries = [*(f"-L{folder}" for folder in library_paths()), "-lc10", "-ltorch_cpu", "-ltorch_python"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    options = ["-O1", "-std=c++20", "-shared", "-fPIC", abi, *includes, "-o", str(output)]
    try:
        done = subprocess.run(
            [compiler, *options, str(source), *libraries], capture_output=True, text=True, timeout=600
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"the guards cannot be compiled: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr[-300:]]
        raise RuntimeError(f"the guards cannot be compiled by {compiler}: {lines[0]}")


@functools.cache
def load() -> Any:
    """The library with `remember(tensors)` and `unchanged(state)`; None if it is not built, or misses a
    change that it must detect."""
    path = library_path()
    if not path.exists():
        return None
    try:
        spec = importlib.util.spec_from_file_location(_NAME, path)
        assert spec and spec.loader
        library: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
        return library if _sees_changes(library) else None
    except Exception:  # a library of another version of torch or Python: check in Python
        return None


@torch.no_grad()
def _sees_changes(library: Any) -> bool:
    weight, other = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(3))

    def replace_data(data: torch.Tensor) -> None:
        weight.data = data

    kept = weight.data
    changes = (
        lambda: other.add_(1),
        lambda: replace_data(weight.data.t()),
        lambda: replace_data(weight.data[:1]),
        lambda: replace_data(kept.clone()),
        lambda: replace_data(weight.data.double()),
        lambda: torch.utils.swap_tensors(other, torch.nn.Parameter(torch.ones(3))),  # type: ignore[no-untyped-call]
    )
    for change in changes:
        state = library.remember([weight, other])
        if not library.unchanged(state):
            return False
        change()
        if library.unchanged(state):
            return False
    return True
