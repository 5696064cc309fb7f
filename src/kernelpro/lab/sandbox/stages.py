"""Errors of a child's stages, and the import of a candidate's source."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from kernelpro.lab.languages.native import BuildError
from kernelpro.lab.languages.torch import extension_build_error

_MAX_CHARACTERS = 3000
_CPU_ALLOCATOR = re.compile(r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+) bytes")


class StageFailed(Exception):
    """A stage of loading or calling failed. Carries the stage's name and a message."""

    def __init__(self, stage: str, message: str):
        super().__init__(message)
        self.stage = stage


def describe_exception(error: BaseException) -> str:
    """The exception's type and text, with the candidate's innermost line on its traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("candidate.py")]
    location = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    text = str(error).strip()
    if isinstance(error, SystemExit):
        return f"called sys.exit({text[:300]}){location}"
    if asked := _CPU_ALLOCATOR.search(text):  # in the words of torch.OutOfMemoryError
        return f"out of memory: tried to allocate {int(asked[1]) / 2**30:.2f} GiB{location}"
    if isinstance(error, MemoryError):
        return f"out of memory{location}"
    if "0 active drivers" in text:
        text = "Triton needs a GPU: use --target cuda"
    return f"{type(error).__name__}: {(extension_build_error(text) or text)[:_MAX_CHARACTERS]}{location}"


def as_stage_failure(stage: str, error: BaseException) -> StageFailed:
    """The failure to report for `error`. An extension that does not build is a build failure in any stage."""
    if isinstance(error, BuildError):
        return StageFailed("build", str(error))
    if reason := extension_build_error(str(error)):
        return StageFailed("build", reason[:_MAX_CHARACTERS])
    return StageFailed(stage, describe_exception(error))


def import_candidate(source: str, name: str = "candidate") -> ModuleType:
    """Write the candidate to a file and import it: Triton and tracebacks need the file."""
    path = Path(f"{name}.py").absolute()
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise StageFailed("build", f"syntax error in line {error.lineno}: {error.msg}") from None
    except BaseException as error:  # anything that a candidate raises, including `sys.exit`
        raise as_stage_failure("import", error) from None
    return module
