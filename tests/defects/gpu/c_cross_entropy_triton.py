# control | task: cross_entropy | language: triton | summary: Cross entropy that reads the logits once: online log-sum-exp per row, then the mean in a fixed order
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_loss_kernel(logits_ptr, labels_ptr, losses_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = row.to(tl.int64) * cols
    largest = -float("inf")
    total = 0.0
    for base in range(0, cols, BLOCK):
        column = base + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + start + column, mask=column < cols, other=-float("inf"))
        new = tl.maximum(largest, tl.max(x, axis=0))
        safe = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(largest - safe) + tl.sum(tl.exp(x - safe), axis=0)
        largest = new
    label = tl.load(labels_ptr + row)
    ignored = label == -100
    picked = tl.load(logits_ptr + start + tl.where(ignored, 0, label))
    tl.store(losses_ptr + row, tl.where(ignored, 0.0, tl.log(total) + (largest - picked)))


@triton.jit
def mean_kernel(losses_ptr, labels_ptr, mean_ptr, rows, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    loss = tl.load(losses_ptr + index, mask=index < rows, other=0.0)
    label = tl.load(labels_ptr + index, mask=index < rows, other=-100)
    tl.store(mean_ptr, tl.sum(loss, axis=0) / tl.sum((label != -100).to(tl.float32), axis=0))


class ModelNew(nn.Module):
    def forward(self, logits, labels):
        logits, labels = logits.contiguous(), labels.contiguous()
        rows, cols = logits.shape
        losses = torch.empty(rows, device=logits.device)
        mean = torch.empty((), device=logits.device)
        row_loss_kernel[(rows,)](logits, labels, losses, cols, BLOCK=8192, num_warps=16)
        mean_kernel[(1,)](losses, labels, mean, rows, BLOCK=triton.next_power_of_2(rows), num_warps=16)
        return mean
