"""Families of operators: real tasks are traced, written in C++, compiled and compared with the reference.

One generated file is a golden file. After a deliberate change, update it:

    python tests/authors/test_playbook_families.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playbook_harness import KernelChecker, make_task, program_of

from kernelpro.authors.playbook.cpp.backend import BACKEND
from kernelpro.records import Task

MAX_ERROR = 20.0
"""Relative to the reference's own error against float64. Wrong kernels exceed it by thousands."""

FAMILIES: dict[str, Task] = {
    "activations": make_task(
        "F.relu(a), F.gelu(a), F.gelu(a, approximate='tanh'), F.silu(a), a.sigmoid(), a.tanh(), F.elu(a), F.selu(a), F.mish(a),"
        "F.softplus(a), F.hardswish(a), F.leaky_relu(a, 0.2), F.logsigmoid(a), F.hardtanh(a), F.softsign(a), F.hardshrink(a)"
    ),
    "arithmetic": make_task(
        "a * b + 1, (a - b).abs().sqrt(), a / (b * b + 1), torch.maximum(a, b), a ** 3, torch.where(a > b, a, 2.0),"
        "a.clamp(-1, 1), a.clamp(min=0), torch.addcmul(a, a, b, value=2), a.erf(), (a * a + 1).rsqrt(), b.exp().log1p(), a.sign()",
        "torch.randn(5, 33), torch.randn(5, 33)",
    ),
    "not a number": make_task(
        "a = torch.where(a > 1, math.nan, a); return (F.relu(a), a.amax(-1), a.amin(0), a.max(), a.clamp(-1, 1),"
        "F.max_pool1d(a, 3), a.cummax(-1)[0], torch.minimum(a, b), torch.maximum(b, a), F.hardtanh(a), F.relu6(a))",
        "torch.randn(9, 41), torch.randn(9, 41)",
    ),
    "one long vector": make_task("a * 2 + b, (a * b).sum()", "torch.randn(40000), torch.randn(40000)"),
    "broadcasts": make_task("a * b + c", "torch.randn(4, 1, 33), torch.randn(7, 1), torch.randn(33)"),
    "views": make_task(
        "a.t() + b, a.reshape(4, 3, 10)[:, 1:, ::2] * 2, a.chunk(2, -1)[1].contiguous(), a.flip(0) - a, a.view(-1)[5:17].exp(),"
        "torch.stack([a, a + 1], 1), a.unsqueeze(1).expand(4, 3, 30) * 1.5, a.permute(1, 0).reshape(3, 40), torch.tril(a),"
        "F.pad(a, (1, 2, 0, 3), value=2.0) * 3, a.repeat_interleave(3, 1) + 1, (a @ b).diagonal() * 2",
        "torch.randn(4, 30), torch.randn(30, 4)",
    ),
    "joined parts": make_task(
        "a * b + torch.cat([-a.chunk(2, -1)[1], a.chunk(2, -1)[0]], -1) * b, torch.cat([a, b], 0) * 2, torch.cat([a, b], 1).sum(1)",
        "torch.randn(5, 24), torch.randn(5, 24)",
    ),
    "sums of rows": make_task(
        "a.sum(-1), a.mean(-1, keepdim=True), a.amax(-1), a.min(), a.var(-1), a.std(-1, unbiased=False), a.prod(-1), a.argmax(-1),"
        "a.argmin(-1), a.max(-1)[1], a.logsumexp(-1), a.norm(dim=-1), (a * a).sum()",
        "torch.randn(9, 70)",
    ),
    "sums of other dimensions": make_task(
        "a.sum(0), a.mean(1), a.amax((0, 2)), a.var(1), a.argmax(1), a.sum((1, 2))", "torch.randn(5, 12, 70)"
    ),
    "softmaxes": make_task(
        "a.softmax(-1), a.log_softmax(-1), a.softmax(1), F.layer_norm(a, (33,)).softmax(-1) * 2",
        "torch.randn(4, 6, 33)",
    ),
    "masks": make_task(
        "p = torch.arange(40); below = p[None] < p[:, None] - 5; after = torch.ones(40, 40, dtype=torch.bool).triu(1); return ("
        "a.masked_fill(after, -math.inf).softmax(-1), a.masked_fill(after | below, -math.inf).softmax(-1), a.triu(2) * 3,"
        "torch.where(p >= 13, a, 0.5).sum(-1), torch.where(p < 20, a.cumsum(-1), 1.0), torch.where(~(p < 9), a * b, a).amax(-1))",
        "torch.randn(3, 40, 40), torch.randn(40)",
    ),
    "masked products": make_task(
        "return torch.where(torch.arange(36) < 20, c, 0.5).sum(-1), a @ b + c, a.tril() @ b, (a @ b).triu(3) * 2",
        "torch.randn(40, 40), torch.randn(40, 36), torch.randn(40, 36)",
    ),
    "norms": make_task(
        "self.l(a), self.r(a), self.g(a), self.i(a), self.b(a)",
        "torch.randn(3, 8, 5, 6)",
        "self.l, self.r, self.g = nn.LayerNorm((5, 6)), nn.RMSNorm(6), nn.GroupNorm(4, 8)\n"
        "        self.i, self.b = nn.InstanceNorm2d(8, affine=True), nn.BatchNorm2d(8)",
    ),
    "batch norm in eval mode": make_task(
        "F.relu(self.b(a)) + a", "torch.randn(3, 8, 5, 6)", "self.b = nn.BatchNorm2d(8)", "eval"
    ),
    "a chain over rows": make_task(
        "F.layer_norm(a + self.g * b, (48,), self.w).softmax(-1) * F.silu(b), a + self.g * b",
        "torch.randn(7, 48), torch.randn(7, 48)",
        "self.g, self.w = nn.Parameter(torch.randn(48)), nn.Parameter(torch.randn(48))",
    ),
    "losses": make_task(
        "F.mse_loss(a, b), F.l1_loss(a, b), F.smooth_l1_loss(a, b), F.huber_loss(a, b, delta=0.5), F.cross_entropy(a, c),"
        "F.kl_div(a, b.softmax(-1), reduction='sum'), F.nll_loss(a.log_softmax(-1), c), F.cosine_similarity(a, b).mean(),"
        "F.binary_cross_entropy_with_logits(a, b.sigmoid()), F.cross_entropy(a, b.softmax(-1))",
        "torch.randn(9, 21), torch.randn(9, 21), torch.randint(0, 21, (9,))",
    ),
    "scans": make_task(
        "a.cumsum(-1), a.cumsum(0) * 2, (a * 0.1 + 1).cumprod(1), a.cummax(1)[0], a.cummin(-1)[0], a[:, :1].cummax(1)[0] * 2",
        "torch.randn(6, 7, 40)",
    ),
    "lookups": make_task(
        "F.embedding(c, a) * 2, a.gather(1, b), a.index_select(0, c)",
        "torch.randn(11, 20), torch.randint(0, 20, (11, 20)), torch.randint(0, 11, (4,))",
    ),
    "linear layers": make_task(
        "F.gelu(self.l(a)), self.l(a).softmax(-1), self.m(F.relu(self.l(a)))",
        "torch.randn(2, 21, 50)",
        "self.l, self.m = nn.Linear(50, 37), nn.Sequential(nn.Linear(37, 18))",
    ),
    "matrix products": make_task(
        "a @ b + 1, torch.bmm(c, c.transpose(1, 2)), a @ b[:, 0], a.t() @ a",
        "torch.randn(20, 30), torch.randn(30, 17), torch.randn(3, 19, 8)",
    ),
    "attention": make_task(
        "F.scaled_dot_product_attention(a, b, c, is_causal=True)", ", ".join(["torch.randn(1, 2, 20, 8)"] * 3)
    ),
    "pooling": make_task(
        "F.max_pool2d(a, 2), F.max_pool2d(a, 3, 2, 1), F.avg_pool2d(a, 3, 1, 1), F.adaptive_avg_pool2d(a, 1)",
        "torch.randn(2, 3, 12, 14)",
    ),
    "convolutions": make_task(
        "F.relu(self.c(a)), self.d(a), self.s(a), self.p(F.relu(self.c(a))), self.o(a.flatten(2))",
        "torch.randn(2, 4, 9, 11)",
        "self.c, self.d = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=4)\n"
        "        self.s, self.p, self.o = nn.Conv2d(4, 3, 3, 2), nn.Conv2d(6, 5, 1), nn.Conv1d(4, 5, 5, padding=4, dilation=2)",
    ),
    "padded convolutions": make_task(
        "self.c(F.pad(a, (4, 0))), self.d(F.pad(b, (1, 2, 0, 3))), self.c(F.pad(a, (4, 0), value=1.0)), F.pad(b, (2, 1)) * 2",
        "torch.randn(2, 6, 20), torch.randn(2, 4, 7, 9)",
        "self.c, self.d = nn.Conv1d(6, 6, 5, groups=6), nn.Conv2d(4, 3, 3, padding=1, stride=2)",
    ),
    "float16": make_task(
        "F.layer_norm(a + b, (32,)), (a * b).sum(0)", "torch.randn(4, 32).half(), torch.randn(4, 32).half()"
    ),
    "bfloat16": make_task(
        "F.layer_norm(a + b, (32,))", "torch.randn(4, 32).bfloat16(), torch.randn(4, 32).bfloat16()"
    ),
    "float64": make_task(
        "(a.softmax(-1) @ b).tanh()", "torch.randn(20, 32).double(), torch.randn(32, 19).double()"
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_last_seed_matches_the_reference(name: str, tmp_path: Path) -> None:
    checker = KernelChecker(FAMILIES[name], tmp_path)
    assert max(checker.errors(checker.designs()[-1])) < MAX_ERROR


@pytest.mark.parametrize(
    "name", ["a chain over rows", "losses", "scans", "linear layers", "sums of other dimensions"]
)
def test_first_seed_matches_the_reference(name: str, tmp_path: Path) -> None:
    checker = KernelChecker(FAMILIES[name], tmp_path)
    assert max(checker.errors(checker.designs()[0])) < MAX_ERROR


GOLDEN = Path(__file__).parent / "golden" / "layer_norm_softmax_cpp.txt"


def _golden_source() -> str:
    program = program_of(
        make_task("F.layer_norm(a + b, (72,)).softmax(-1)", "torch.randn(8, 72), torch.randn(8, 72)")
    )
    return BACKEND.write(program, BACKEND.seeds(program)[-1].design)


def test_generated_source_matches_the_golden_file() -> None:
    assert _golden_source() == GOLDEN.read_text()


if __name__ == "__main__":
    GOLDEN.write_text(_golden_source())
