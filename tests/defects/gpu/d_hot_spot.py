# defect: hot_spot/unfused_chain | task: cross_entropy | language: triton | static: no | expect: 3x | summary: log_softmax of the library takes nearly all the time and writes a matrix of which one value a row is used
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def picked_mean_kernel(logp_ptr, labels_ptr, mean_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    inside = row < rows
    label = tl.load(labels_ptr + row, mask=inside, other=-100)
    counts = label != -100
    logp = tl.load(logp_ptr + row.to(tl.int64) * cols + tl.where(counts, label, 0), mask=inside & counts, other=0.0)
    tl.store(mean_ptr, -tl.sum(logp, axis=0) / tl.sum(counts.to(tl.float32), axis=0))


class ModelNew(nn.Module):
    def forward(self, logits, labels):
        rows, cols = logits.shape
        logp = torch.log_softmax(logits, dim=-1)
        mean = torch.empty((), device=logits.device)
        picked_mean_kernel[(1,)](logp, labels, mean, rows, cols, BLOCK=triton.next_power_of_2(rows), num_warps=16)
        return mean
