"""Extensions that torch builds (`load_inline`, `load`): built once and ahead, whenever a candidate asks for them; what is
missing or wrong comes first, without pages of commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from quick_judge import QuickJudge

from kernelpro.lab.languages import registry
from kernelpro.lab.languages.torch import extension_build_error
from kernelpro.records import Candidate, Status, Task

LANGUAGE = registry()["torch"]
TASK = Task(
    "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return torch.tanh(x)\n"
    "def get_inputs(): return [torch.randn(64, 64)]\ndef get_init_inputs(): return []\n"
)
BUILD = """
def build():
    from torch.utils.cpp_extension import load_inline
    return load_inline("own", cpp_sources={text!r}, no_implicit_headers=True, functions={functions})
"""
AT_IMPORT = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return torch.tanh(x)\nbuild()\n"
IN_CONSTRUCTOR = AT_IMPORT.replace(
    "build()\n", "    def __init__(self):\n        super().__init__()\n        build()\n"
)


def candidate(text: str, rest: str = AT_IMPORT) -> Candidate:
    return Candidate(BUILD.format(text=text, functions=None) + rest)


@pytest.fixture
def few_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it so far."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def test_what_is_missing_is_named(few_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    failed = "Error building extension 'own': [1/2] c++ -MMD\nFAILED: main.o\n/bin/sh: 1: c++: not found\n"
    assert (
        str(LANGUAGE.missing()).startswith("no C++ compiler")
        and extension_build_error(failed) == LANGUAGE.missing()
    )
    (few_programs / "c++").symlink_to("/bin/true")
    lacking = "Ninja is required to load C++ extensions (pip install ninja to get it)"
    assert (
        str(LANGUAGE.missing()).startswith("ninja is not installed")
        and extension_build_error(lacking) == LANGUAGE.missing()
    )
    (few_programs / "ninja").symlink_to("/bin/true")
    assert LANGUAGE.missing() is None
    assert extension_build_error("an error: of another kind") is None


def test_a_missing_compiler_is_the_reason(quick_judge: QuickJudge, few_programs: Path) -> None:
    ninja = few_programs / "ninja"
    ninja.symlink_to(shutil.which("ninja", path="/usr/bin:/usr/local/bin") or "/bin/false")
    for rest in (AT_IMPORT, IN_CONSTRUCTOR):
        verdict = quick_judge.judge(TASK, candidate("int one() { return 1; }", rest))
        assert verdict.status is Status.BUILD_FAILED and verdict.reason.startswith("no C++ compiler"), (
            verdict.reason
        )
        assert len(verdict.reason.splitlines()) == 1


@pytest.mark.skipif(LANGUAGE.missing() is not None, reason=str(LANGUAGE.missing()))
def test_the_reason_begins_with_the_compilers_first_error(quick_judge: QuickJudge) -> None:
    for rest in (AT_IMPORT, IN_CONSTRUCTOR):
        verdict = quick_judge.judge(TASK, candidate("int one() { return two; }", rest))
        assert verdict.status is Status.BUILD_FAILED, verdict.reason
        assert verdict.reason.startswith("own/main.cpp:") and "error:" in verdict.reason.splitlines()[0]
        assert "two" in verdict.reason.splitlines()[0]


CAUGHT = """
import os, torch
FAILED_AHEAD = [name for name in os.listdir(os.environ["KERNELPRO_BUILD_DIR"]) if name.endswith(".failed")]
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        if FAILED_AHEAD:
            os.environ["PATH"] = "/nonexistent"  # another build would fail for want of ninja
        try:
            build()
        except Exception as error:
            assert not FAILED_AHEAD or "two" in str(error), error
    def forward(self, x):
        assert FAILED_AHEAD, "the error of the build was not kept"
        return torch.tanh(x)
"""


@pytest.mark.skipif(LANGUAGE.missing() is not None, reason=str(LANGUAGE.missing()))
def test_a_failed_build_that_the_candidate_catches_is_reported_and_not_repeated(
    quick_judge: QuickJudge,
) -> None:
    source = candidate("int one() { return two; }", CAUGHT)
    verdict = quick_judge.judge(TASK, source, disabled_tripwires=("python",))
    assert verdict.status is Status.PASSED, verdict.reason
    assert any("an extension failed to build" in note and "two" in note for note in verdict.notes), (
        verdict.notes
    )


TANH = r"""
#include <Python.h>
#include <math.h>
static PyObject* apply(PyObject*, PyObject* arguments) {
    long long x, y, n;
    if (!PyArg_ParseTuple(arguments, "LLL", &x, &y, &n)) return nullptr;
    for (long long i = 0; i < n; ++i) ((float*)y)[i] = tanhf(((float*)x)[i]) * FACTOR;
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"apply", apply, METH_VARARGS, ""}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "own", "", -1, methods};
PyMODINIT_FUNC PyInit_own() { return PyModule_Create(&definition); }
"""
"""An extension without torch's headers, which take most of a minute to compile."""
INLINE = """
def build():
    from torch.utils.cpp_extension import load_inline
    return load_inline("own", cpp_sources="#define FACTOR 1" + SOURCE, no_implicit_headers=True, use_pch=True)
"""
FROM_FILES = """
def build():
    import tempfile
    from pathlib import Path
    from torch.utils import cpp_extension
    folder = Path(tempfile.mkdtemp())
    (folder / "factor.h").write_text("#define FACTOR 1")
    (folder / "own.cpp").write_text('#include "factor.h"' + SOURCE)
    return cpp_extension.load("own", str(folder / "own.cpp"), build_directory=str(folder))
"""
PLACES = {
    "at import": ("shared = build()", "pass", "shared"),
    "in the constructor": ("", "self.extension = build()", "self.extension"),
    "in forward": ("", "pass", "build()"),
}
MODEL = """
import os, torch
BUILT_AHEAD = [name for name in os.listdir(os.environ["KERNELPRO_BUILD_DIR"]) if name.endswith(".so")]
{at_import}
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {in_constructor}
    def forward(self, x):
        extension = {extension}
        assert len(BUILT_AHEAD) == 1, "it was built again"
        y = torch.empty_like(x)
        extension.apply(x.data_ptr(), y.data_ptr(), x.numel())
        return y
"""


@pytest.mark.skipif(LANGUAGE.missing() is not None, reason=str(LANGUAGE.missing()))
@pytest.mark.parametrize(
    ("build", "place"), [*((INLINE, place) for place in PLACES), (FROM_FILES, "in the constructor")]
)
def test_an_extension_is_built_once_and_ahead(build: str, place: str, quick_judge: QuickJudge) -> None:
    at_import, in_constructor, extension = PLACES[place]
    model = MODEL.format(at_import=at_import, in_constructor=in_constructor, extension=extension)
    candidate = Candidate(f"SOURCE = {TANH!r}\n{build}{model}")
    verdict = quick_judge.judge(TASK, candidate, disabled_tripwires=("python",))
    assert verdict.status is Status.PASSED, verdict.reason


REUSED = """
import os
from kernelpro.lab.sandbox.extensions import reuse_by_content
reuse_by_content()
SOURCE = {source!r}
{build}
build()
"""


@pytest.mark.skipif(LANGUAGE.missing() is not None, reason=str(LANGUAGE.missing()))
@pytest.mark.long  # builds three extensions
def test_libraries_are_found_by_content_alone(tmp_path: Path) -> None:
    """In another folder, without a compiler; other sources and other headers are not taken for the same."""

    def build(text: str, home: str, **environment: str) -> bool:
        (tmp_path / home).mkdir(exist_ok=True)
        folders = {name: str(tmp_path / home) for name in ("HOME", "TMPDIR", "TORCH_EXTENSIONS_DIR")}
        paths = {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "KERNELPRO_BUILD_DIR": str(store)}
        command = [sys.executable, "-c", REUSED.format(source=TANH, build=text)]
        done = subprocess.run(
            command,
            env=os.environ | folders | paths | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode == 0

    store = tmp_path / "store"
    store.mkdir()
    assert build(INLINE, "one") and build(FROM_FILES, "one") and len(list(store.glob("*.so"))) == 2
    assert build(INLINE, "two", PATH="/nonexistent") and build(FROM_FILES, "two", PATH="/nonexistent")
    for text in (INLINE, FROM_FILES):
        assert not build(text.replace("FACTOR 1", "FACTOR 2"), "two", PATH="/nonexistent")
    assert not build(INLINE, "two", PATH="/nonexistent", TORCH_CUDA_ARCH_LIST="8.0")


@pytest.mark.skipif(
    not shutil.which("ninja") or LANGUAGE.missing() is not None, reason="no ninja here to be hidden"
)
@pytest.mark.long  # builds another extension; those above say what is missing
def test_ninja_beside_python_is_found(few_programs: Path) -> None:
    """As pip installs it: on the PATH only while the virtual environment is activated."""
    for name in ("c++", "as", "ld"):
        (few_programs / name).symlink_to(shutil.which(name, path="/usr/bin:/usr/local/bin") or "/bin/false")
    home = few_programs / "venv"
    venv.create(home)
    packages = next(home.glob("lib/python*/site-packages"))
    paths = [str(Path(__file__).parents[2] / "src"), str(Path(torch.__file__).parents[1])]
    (packages / "all.pth").write_text("\n".join(paths))
    job = {
        "id": "b",
        "kind": "build",
        "target": "cpu",
        "candidate": candidate("int one() { return two; }").to_json(),
    }
    command = [str(home / "bin" / "python"), "-m", "kernelpro.lab.worker"]

    def reason() -> str:
        environment = os.environ | {"PYTHONPATH": paths[0], "KERNELPRO_SANDBOX": "process"}
        done = subprocess.run(
            command, input=json.dumps(job), env=environment, capture_output=True, text=True, timeout=120
        )
        return str(json.loads(done.stdout.splitlines()[-1])["data"]["reason"])

    assert reason().startswith("ninja is not installed")
    (home / "bin" / "ninja").symlink_to(shutil.which("ninja", path="/usr/bin:/usr/local/bin") or "/bin/false")
    assert reason().startswith("own/main.cpp:")
