"""Reuses extensions that torch builds just in time (`load_inline`, `load`), identified by their content.

torch decides by paths and file times whether to build again, but both differ between sandboxes.
`reuse_by_content` replaces the step in which torch runs ninja:

1. A hash of the name, the sources, the headers beside them and the flags identifies the library.
2. If KERNELPRO_BUILD_DIR has a library of that hash, it is linked into torch's build folder.
3. Otherwise torch builds it, and the library is kept in KERNELPRO_BUILD_DIR with its source. If the build
   fails, its error is kept instead, and raised again by later processes: candidates that catch the error
   would run compilers in each of them.

The build sandbox fills the folder, and every later process of the same candidate gets it, but no process of
another candidate (builds.py).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernelpro.lab.archive import open_tar
from kernelpro.lab.languages import parse_python
from kernelpro.records import digest

_USES = re.compile(r"\bload_inline\b|\bcpp_extension\b")
_ENVIRONMENT = ("TORCH_CUDA_ARCH_LIST", "CC", "CXX", "CUDAHOSTCXX", "CPATH", "PYTORCH_NVCC")
"""Variables that change what the compilers produce."""
_UNHASHED = {"sources", "build_directory", "verbose", "extra_include_paths"}
_HEADERS = {".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc", ".inl", ".ipp"}
_MAX_HEADERS = 500

_FRONTEND = re.compile(r"\btorch::(nn|optim|data|jit|serialize|load|save|python)\b|\bTORCH_MODULE\b")
_LIGHT_HEADER = """\
#pragma once
#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/enum.h>
#include <torch/fft.h>
#include <torch/nested.h>
#include <torch/sparse.h>
#include <torch/special.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
"""
"""`torch/extension.h` without the C++ front end (modules, optimizers, data loaders, TorchScript), which
kernels do not use. With it, nvcc takes 62 instead of 112 CPU seconds, and g++ 25 instead of 41."""
_MISSING_NAME = re.compile(
    r"not (?:a member|declared|been declared)|has no member|undefined|incomplete|No such file|cannot open|"
    r"does not name|is ambiguous|no matching|no instance"
)
"""Compiler errors that a missing header can cause."""
_FAILED = ".failed"
"""Suffix of the file with the error of a build."""
_TEMPORARY = re.compile(r"\bKilled\b|No space left|[Cc]annot allocate|memory exhausted|[Oo]ut of memory")
"""Errors that another build may not have."""
_MAX_ERROR = 20_000


def uses_extensions(source: str) -> bool:
    """Whether a source builds extensions with torch."""
    return bool(_USES.search(source))


def builds_lazily(source: str) -> bool:
    """Whether a source builds extensions inside functions, which its import may not call."""
    try:
        nodes = list(ast.walk(parse_python(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.Lambda))
    calls = (node.func for function in functions for node in ast.walk(function) if isinstance(node, ast.Call))
    names = {getattr(called, "attr", getattr(called, "id", "")) for called in calls}
    return uses_extensions(source) and bool(names & {"load_inline", "load"})


def torch_architecture(major: int, minor: int, specific: bool) -> str:
    """A GPU as TORCH_CUDA_ARCH_LIST names it: `9.0a` with architecture-specific instructions, where torch
    supports that."""
    from torch.utils import cpp_extension

    plain = f"{major}.{minor}"
    supported = inspect.getsource(cpp_extension._get_cuda_arch_flags)
    return f"{plain}a" if specific and f"'{plain}a'" in supported else plain


def reuse_by_content() -> None:
    """Make torch in this process reuse libraries from KERNELPRO_BUILD_DIR and store new ones there."""
    from torch.utils import cpp_extension

    build: Any = cpp_extension._write_ninja_file_and_build_library
    if isinstance(build, functools.partial):
        return
    module: Any = cpp_extension
    module._write_ninja_file_and_build_library = functools.partial(_build_or_reuse, build)
    # torch keeps precompiled headers in its own folder, which is read-only here
    module._check_and_build_extension_h_precompiler_headers = _do_nothing
    module.remove_extension_h_precompiler_headers = _do_nothing


def _do_nothing(*arguments: Any, **named: Any) -> None:
    return


def _build_or_reuse(build: Callable[..., None], **named: Any) -> None:
    """Provide the library that torch is about to load; see the module's docstring."""
    store = os.environ.get("KERNELPRO_BUILD_DIR")
    if named.get("is_standalone") or not store:
        build(**named)
        return
    named["verbose"] = False  # torch then puts the compilers' output into the error
    kept = Path(store) / f"{_content_hash(named)}.so"
    failed = kept.with_suffix(_FAILED)
    library = Path(named["build_directory"]) / f"{named['name']}.so"
    if failed.exists():
        raise RuntimeError(failed.read_text(encoding="utf-8"))
    if not kept.exists():
        try:
            _build(build, named)
        except RuntimeError as error:
            text = str(error).replace(f"{library.parent.parent}/", "")  # the same in all sandboxes
            if not _TEMPORARY.search(text):
                failed.write_text(text[-_MAX_ERROR:], encoding="utf-8")
            raise RuntimeError(text) from None
        _keep(library, kept, named["sources"])
    library.unlink(missing_ok=True)
    library.parent.mkdir(parents=True, exist_ok=True)
    library.symlink_to(kept)


def build_errors(artifacts: bytes) -> list[str]:
    """The errors of extensions that failed to build, from the artifacts of a build, which are untrusted."""
    if not artifacts:
        return []
    try:
        with open_tar(artifacts) as archive:
            files = [archive.extractfile(member) for member in archive if member.name.endswith(_FAILED)]
            return [file.read(_MAX_ERROR).decode(errors="replace") for file in files if file]
    except (tarfile.TarError, ValueError, OSError, EOFError):
        return []


def _content_hash(named: dict[str, Any]) -> str:
    home = os.environ.get("HOME", "")
    flags = {name: value for name, value in named.items() if name not in _UNHASHED}
    text = repr(sorted(flags.items()))
    text = text.replace(home, "~") if home else text
    variables = [f"{name}={os.environ.get(name, '')}" for name in _ENVIRONMENT]
    sources = [Path(source) for source in named["sources"]]
    includes = [Path(path).absolute() for path in named.get("extra_include_paths") or ()]
    own = [path for path in includes if home and path.is_relative_to(home)]
    # folders outside the candidate's home are part of the system
    system = [str(path) for path in includes if path not in own]
    files = [*sources, *_headers([*(source.parent for source in sources), *own])]
    contents = [part for file in files for part in (file.name, file.read_bytes())]
    return digest("extension", text, *variables, *system, *contents)


def _headers(folders: list[Path]) -> Iterator[Path]:
    """The headers below the candidate's folders."""
    count = 0
    for folder in dict.fromkeys(folders):
        for path in sorted(folder.rglob("*")):
            if path.suffix in _HEADERS and path.is_file() and not path.is_relative_to(_light_folder()):
                count += 1
                if count > _MAX_HEADERS:
                    return
                yield path


def _light_folder() -> Path:
    return Path(os.environ["KERNELPRO_BUILD_DIR"]).absolute().with_name("light-headers")


def _build(build: Callable[..., None], named: dict[str, Any]) -> None:
    """Build with fewer headers; if a name is then missing, build as torch does."""
    texts = [Path(source).read_text(encoding="utf-8", errors="replace") for source in named["sources"]]
    if not any(map(_FRONTEND.search, texts)):
        folder = _light_folder()
        with contextlib.suppress(OSError):
            (folder / "torch").mkdir(parents=True, exist_ok=True)
            for name in ("extension.h", "torch.h"):
                (folder / "torch" / name).write_text(_LIGHT_HEADER)
        try:
            # torch appends to the lists that it gets
            light = {key: list(value) if isinstance(value, list) else value for key, value in named.items()}
            light["extra_include_paths"] = [str(folder), *(named.get("extra_include_paths") or ())]
            build(**light)
            return
        except RuntimeError as error:
            if not _MISSING_NAME.search(str(error)):
                raise
    build(**named)


def _keep(library: Path, kept: Path, sources: list[str]) -> None:
    """Move a library to its content-addressed path, with its main source, which profiles quote."""
    suffixes = (".cu", ".cpp")
    main = next((source for suffix in suffixes for source in sources if source.endswith(suffix)), None)
    if main:
        shutil.copyfile(main, kept.with_suffix(Path(main).suffix))
    partial = kept.with_suffix(f".{os.getpid()}")
    shutil.move(library, partial)
    partial.replace(kept)
