"""Loads the kernels of a case in this process, as the judge's sandbox does."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from kernelpro.lab.tasks import parameters
from kernelpro.lab.tasks.reference import Reference


def load(source: str, side: str, folder: Path, reference: Reference) -> Any:
    """The model of a candidate, built in `folder`, with the parameters of the reference."""
    model = import_source(source, side, folder).ModelNew(*reference.init_inputs)
    parameters.load_reference_state(model, reference.model().state_dict())
    return model.to(reference.device)


def import_source(source: str, side: str, folder: Path) -> Any:
    """The module of a candidate; its build artifacts go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "candidate.py"
    path.write_text(source, encoding="utf-8")
    os.environ["KERNELPRO_BUILD_DIR"] = str(folder)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    spec = importlib.util.spec_from_file_location(f"candidate_{side}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
