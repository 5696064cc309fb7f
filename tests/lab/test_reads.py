"""The fewest bytes of a task: what a call really reads of its inputs and parameters, and what it writes. Never more than that."""

from __future__ import annotations

import pytest
from lab.written import source

from kernelpro.lab.measure import physics
from kernelpro.lab.tasks import work
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task


def moved(forward: str, inputs: str, init: str = "pass") -> tuple[int, int]:
    """Elements of four bytes that are read and written."""
    made, _ = work.count(Reference(Task(source(forward, inputs, init)), "cpu", 1), 2)
    return made.read_bytes // 4, made.written_bytes // 4


IDS = "torch.tensor([3, 5, 3, 9])"
"""Of 8 bytes each: eight elements."""
X = "torch.rand(100, 16) + 1"
IMAGE = "[torch.randn(1, 4, 9, 9)]"

READ = {
    "a whole input": ("return x[0] * 2", f"[{X}]", "pass", 1600),
    "rows of a table, each once": (
        "return self.table(x[0])",
        f"[{IDS}]",
        "self.table = nn.Embedding(100, 16)",
        3 * 16 + 8,
    ),
    "rows of bags": (
        "return self.bag(x[0])",
        f"[{IDS}.reshape(2, 2)]",
        "self.bag = nn.EmbeddingBag(100, 16)",
        3 * 16 + 8,
    ),
    "a table that is read whole as well": (
        "return self.table(x[0]).sum() + self.table.weight.sum()",
        f"[{IDS}]",
        "self.table = nn.Embedding(100, 16)",
        1600 + 8,
    ),
    "index": ("return x[0][x[1]] * 2", f"[{X}, {IDS}]", "pass", 3 * 16 + 8),
    "index in the second dimension": ("return x[0][:, x[1]] * 2", f"[{X}, {IDS}]", "pass", 300 + 8),
    "index_select": ("return x[0].index_select(1, x[1])", f"[{X}, {IDS}]", "pass", 300 + 8),
    "gather": ("return x[0].gather(1, x[1][:, None])", f"[{X}, {IDS}]", "pass", 4 + 8),
    "take_along_dim": ("return x[0].take_along_dim(x[1][None], 0)", f"[({X})[:, :4], {IDS}]", "pass", 4 + 8),
    "take": ("return x[0].take(x[1])", f"[{X}, {IDS}]", "pass", 3 + 8),
    "a gather from an expanded view": (
        "return x[0].expand(5, 100, 16)[:, x[1]]",
        f"[{X}, {IDS}]",
        "pass",
        3 * 16 + 8,
    ),
    "a slice": ("return x[0][:10] * 2", f"[{X}]", "pass", 160),
    "two slices that overlap": ("return x[0][:10] * 2 + x[0][5:15]", f"[{X}]", "pass", 240),
    "an expanded view": ("return x[0].expand(7, 100, 16).sum(0)", f"[{X}]", "pass", 1600),
    "what no operator reads": ("return x[0] * 2", f"[{X}, {X}]", "self.other = nn.Linear(50, 50)", 1600),
    "a shape alone": ("return torch.zeros_like(x[0]) + x[1].new_ones(4).sum()", f"[{X}, {X}]", "pass", 0),
    "tied parameters": (
        "return F.linear(x[0], self.a.weight) + F.linear(x[0], self.b.weight)",
        "[torch.randn(1, 16)]",
        "self.a, self.b = nn.Linear(16, 16, False), nn.Linear(16, 16, False); self.b.weight = self.a.weight",
        16 + 256,
    ),
    "one of two": ("return torch.where(x[0] < 10, x[0], x[1])", f"[{X}, {X}]", "pass", 1600),
    "behind a mask": (
        "return x[0].masked_fill(x[0] < 10, 0.0) + x[1].masked_fill(x[1] > 10, 0.0)",
        f"[{X}, {X}]",
        "pass",
        3200,
    ),
    "one row under several masks": (
        "return x[0].masked_fill(x[1] > 0, 0.0)",
        f"[torch.rand(1, 16), {X}]",
        "pass",
        1600,
    ),
    "times zero": (
        "return x[0] * x[1][:, None]",
        f"[{X}, (torch.arange(100) < 25).float()]",
        "pass",
        25 * 16 + 25,
    ),
    "a triangle": ("return x[0].tril()", "[torch.rand(8, 8) + 1]", "pass", 36),
    "windows that leap": ("return self.conv(x[0])", IMAGE, "self.conv = nn.Conv2d(4, 4, 1, 2)", 100 + 16 + 4),
    "windows that do not": (
        "return self.conv(x[0])",
        IMAGE,
        "self.conv = nn.Conv2d(4, 4, 2, 2)",
        324 + 64 + 4,
    ),
    "pools that leap": ("return F.max_pool2d(x[0], 1, 3)", IMAGE, "pass", 36),
    "rows of a table that is kept to a norm": (
        "return self.table(x[0])",
        f"[{IDS}]",
        "self.table = nn.Embedding(100, 16, max_norm=1.0)",
        3 * 16 + 8,
    ),
    "more than is scattered": (
        "return x[0].scatter(0, x[1][:, None], x[2])",
        f"[{X}, {IDS}, {X}]",
        "pass",
        1600 - 3 + 8,
    ),
    "rows replaced": (
        "return x[0].index_copy(0, x[1], x[2])",
        f"[{X}, {IDS}, torch.randn(4, 16)]",
        "pass",
        97 * 16 + 8 + 64,
    ),
    "rows added to": (
        "return x[0].index_add(0, x[1], x[2])",
        f"[{X}, {IDS}, torch.randn(4, 16)]",
        "pass",
        1600 + 8 + 64,
    ),
    "a point between others": (
        "return F.grid_sample(x[0], x[1], align_corners=True)",
        "[torch.randn(1, 4, 9, 9), torch.rand(1, 2, 2, 2)]",
        "pass",
        8,
    ),
}


@pytest.mark.parametrize("case", READ)
def test_only_what_is_read_counts(case: str) -> None:
    forward, inputs, init, elements = READ[case]
    assert moved(forward, inputs, init)[0] == elements


KEEP = "self.register_buffer('cache', torch.randn(64, 16))"


def test_a_cache_that_is_written_in_place_costs_what_changes_and_what_is_old() -> None:
    read, written = moved(
        "self.cache[10] = x[0]; return self.cache[:11].sum(0), self.cache", "[torch.randn(16)]", KEEP
    )
    assert read == 16 + 10 * 16, "the new row comes from the input"
    assert written == 16 + 16, "the sum, and one row of the cache"
    read, written = moved("self.cache.copy_(x[0]); return self.cache * 2", "[torch.randn(64, 16)]", KEEP)
    assert (read, written) == (1024, 1024), "scratch memory need not be read"


@pytest.mark.parametrize(
    "update", ["index_add_(0, x[1], x[2])", "index_copy_(0, x[1], x[2])", "index_put_((x[1],), x[2])"]
)
def test_rows_that_are_updated_in_place(update: str) -> None:
    read, written = moved(f"return x[0].{update}", f"[{X}, {IDS}, torch.randn(4, 16)]")
    assert read == 8 + 64 + (3 * 16 if "add" in update else 0) and written == 3 * 16


def test_outputs_count_once_and_views_of_inputs_not_at_all() -> None:
    assert moved("return x[0].t()", f"[{X}]") == (0, 0)
    assert moved("y = x[0] * 2; return y, y, y[:5]", f"[{X}]") == (1600, 1600)
    assert moved("return (x[0].sum(0) * 2).expand(100, 16)", f"[{X}]") == (1600, 16)


def test_an_honest_lookup_is_not_called_impossible() -> None:
    """4096 rows of a large table: a kernel that fetches them is faster than one that would read the table, and may be."""
    inputs, init = "[torch.randint(0, 200_000, (4096,))]", "self.table = nn.Embedding(200_000, 64)"
    made, _ = work.count(Reference(Task(source("return self.table(x[0])", inputs, init)), "cpu", 1), 2)
    ceilings = physics.Ceilings(1e10, 1e11, 1 << 20, {"fp32": 1e11})
    honest = 1e3 * (2 * 4096 * 64 * 4 + 4096 * 8) / ceilings.bandwidth
    assert physics.impossible_ms(made, ceilings, "cuda") < physics.floor_ms(made, ceilings, "fp32") <= honest
