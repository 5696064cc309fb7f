"""`kernelpro init`: a commented task file to start from."""

from __future__ import annotations

from pathlib import Path

from kernelpro.records import BadInput

TEMPLATE = '''"""A task: the PyTorch code to optimize, in KernelBench's format.

Optimize it:     kernelpro optimize {name}
Judge a kernel:  kernelpro judge {name} kernel.py    (it defines a class ModelNew with the same interface)
"""

import torch

ROWS, COLUMNS = 4096, 4096


class Model(torch.nn.Module):
    """The reference. A kernel must compute the same outputs; its speed is compared with this code."""

    def __init__(self, columns):
        super().__init__()
        self.norm = torch.nn.LayerNorm(columns)

    def forward(self, x, residual):
        return self.norm(x + residual)


def get_inputs():
    """Example arguments of forward(). Every judged call gets new random values of the same shapes."""
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    """Arguments of Model() and ModelNew()."""
    return [COLUMNS]
'''


def write_task_file(file: str) -> int:
    """Write the template to a file that does not exist yet."""
    path = Path(file)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(TEMPLATE.replace("{name}", file))
    except FileExistsError:
        raise BadInput(f"{file} exists: give another name with `kernelpro init FILE`") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be written ({error.strerror})") from None
    print(f"{file}: edit it, then run `kernelpro optimize {file}`")
    return 0
