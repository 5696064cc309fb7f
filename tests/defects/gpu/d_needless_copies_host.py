# defect: needless_copies | task: gather_rows | language: triton | static: no | expect: 10x | summary: the index makes a trip to the host and back only to be narrowed to 32 bits
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gather_kernel(table_ptr, index_ptr, y_ptr, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLS)
    place = tl.load(index_ptr + row).to(tl.int64)
    values = tl.load(table_ptr + place[:, None] * cols + column[None, :])
    tl.store(y_ptr + row.to(tl.int64)[:, None] * cols + column[None, :], values)


class ModelNew(nn.Module):
    def forward(self, table, index):
        table = table.contiguous()
        rows, cols = index.numel(), table.shape[1]
        index = index.cpu().to(torch.int32).to(table.device)
        y = torch.empty(rows, cols, device=table.device)
        gather_kernel[(rows // 64,)](table, index, y, cols, ROWS=64, COLS=cols, num_warps=4)
        return y
