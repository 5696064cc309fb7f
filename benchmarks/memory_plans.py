"""The judge's memory plan for the problems of a KernelBench checkout on cards of several sizes.

    python benchmarks/memory_plans.py ../KernelBench [--level 1]

No GPU is needed: each problem runs once on meta tensors, which have shapes but no memory. Its peak is that of
the tensors that operators create; workspaces inside operators are not counted.
"""

from __future__ import annotations

import argparse
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kernelpro.lab.measure.memory_plan import GB, TaskSizes, plan_memory
from kernelpro.lab.operator_mode import OperatorMode
from kernelpro.records import BadInput

CARDS_GB = (140, 80, 48, 24)
FLUSH_BYTES = 120 << 20
FLOAT64_BYTES = 8


class _LiveBytes(OperatorMode):
    """Bytes of the live tensors that operators have created, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        known = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)
        }
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in known:
                self.live += tensor.nbytes
                weakref.finalize(tensor, self._free, tensor.nbytes)
        self.peak = max(self.peak, self.live)
        return result

    def _free(self, count: int) -> None:
        self.live -= count


def measure(path: Path) -> TaskSizes:
    """The sizes of a problem."""
    module: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), module)
    with torch.device("meta"), torch.no_grad():
        model = module["Model"](*module["get_init_inputs"]())
        inputs = module["get_inputs"]()
        counter = _LiveBytes()
        with counter:
            outputs = model(*inputs)
    read, written = ([t for t in tree_leaves(v) if isinstance(t, torch.Tensor)] for v in (inputs, outputs))
    weights = [*model.parameters(), *model.buffers()]
    sizes = [sum(t.nbytes for t in tensors) for tensors in (read, written, weights)]
    peak = max(sizes[0] + sizes[2] + counter.peak, sum(sizes))
    itemsize = min((t.dtype.itemsize for t in (*read, *weights) if t.is_floating_point()), default=4)
    widening = FLOAT64_BYTES / itemsize
    return TaskSizes(*sizes, peak, int((peak - sizes[2]) * widening), widening)


def describe(sizes: TaskSizes, card_gb: int) -> str:
    """A plan in short: buffer sets, slices, turns."""
    try:
        layout = plan_memory("", sizes, card_gb * GB, "cuda", FLUSH_BYTES, sliceable=True).layout
    except BadInput:
        return "too large"
    text = f"{layout.candidate_sets} sets" if not layout.takes_turns else "turns"
    return text + (f"/{layout.slices}" if layout.slices > 1 else "") + ("" if layout.exact else " own type")


def main() -> None:
    """Print one line per problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--level", type=int, default=1)
    arguments = parser.parse_args()
    files = sorted(
        (arguments.checkout / "KernelBench" / f"level{arguments.level}").glob("*.py"),
        key=lambda path: int(path.stem.split("_")[0]),
    )
    print(f"{'problem':<44}{'in':>7}{'out':>7}{'peak':>7}" + "".join(f"{f'{c} GB':>16}" for c in CARDS_GB))
    broken = 0
    for path in files:
        try:
            sizes = measure(path)
        except Exception as error:  # a problem that does not run on meta tensors
            print(f"{path.stem[:42]:<44}{type(error).__name__}: {str(error)[:60]}")
            continue
        cells = []
        for card in CARDS_GB:
            cell = describe(sizes, card)
            fits_twice = 2 * sizes.peak <= card * GB
            broken += fits_twice and cell == "too large"
            cells.append(f"{cell + ('!' if fits_twice and cell == 'too large' else ''):>16}")
        figures = "".join(f"{v / GB:7.2f}" for v in (sizes.inputs, sizes.outputs, sizes.peak))
        print(f"{path.stem[:42]:<44}{figures}{''.join(cells)}")
    print(f"{broken} plans do not fit although the reference fits twice (marked with !)")


if __name__ == "__main__":
    main()
