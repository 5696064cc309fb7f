"""The Python API: judge, profile or optimize a task, put the winner into a model, export it.

A task is a KernelBench file, a class by name, a module with example inputs, or a function.

    judging.py       judge, profile
    optimization.py  optimize
    result.py        OptimizationResult, patch, export
    messages.py      errors that name Python parameters
"""

from kernelpro.api.judging import ProfileResult, judge, profile
from kernelpro.api.messages import in_python
from kernelpro.api.optimization import BUDGET_PRESETS, OnEvent, optimize
from kernelpro.api.result import OptimizationResult, export, patch
from kernelpro.tasks import load_task

__all__ = [
    "BUDGET_PRESETS",
    "OnEvent",
    "OptimizationResult",
    "ProfileResult",
    "export",
    "in_python",
    "judge",
    "load_task",
    "optimize",
    "patch",
    "profile",
]
