"""Pieces of CUDA and Triton candidates that several families share."""

from __future__ import annotations


def candidate(source: str, forward: str, parameters: str = "", language: str = "cuda") -> str:
    """A candidate with one CUDA library; `forward` begins with its arguments: `x:\\n    ...`."""
    return write(
        f'lib = runtime.{language}(r"""{source}""")', "from kernelpro import runtime", forward, parameters
    )


def write(code: str, imports: str, forward: str, parameters: str) -> str:
    """A candidate with this code before its class."""
    names, body = forward.split(":", 1)
    lines = "\n".join(f"        {line}" for line in body.strip("\n").splitlines())
    made = "\n".join(f"        {line}" for line in parameters.splitlines())
    return (
        f"import torch\nimport torch.nn as nn\n{imports}\n\n{code}\n\n\nclass ModelNew(nn.Module):\n"
        f"    def __init__(self, *sizes):\n        super().__init__()\n{made}\n\n"
        f"    def forward(self, {names}):\n{lines}\n"
    )


def launch(kernel: str, grid: str, threads: str, arguments: str, shared: str = "0") -> str:
    """The statement that launches a kernel, with its dynamic shared memory allowed."""
    allow = (
        f"    if (auto e = cudaFuncSetAttribute({kernel}, cudaFuncAttributeMaxDynamicSharedMemorySize, {shared})) return e;\n"
        if shared != "0"
        else ""
    )
    return f"{allow}    {kernel}<<<{grid}, {threads}, {shared}, stream>>>({arguments});\n"
