# defect: needless_copies | task: channel_affine | language: triton | static: no | expect: 3x | summary: channels are moved to the end and back again for a kernel that could have taken them where they are
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def channel_affine_kernel(
    x_ptr, scale_ptr, shift_ptr, y_ptr, height, width, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
):
    # Pixels of one line, channels last.
    line = tl.program_id(0)
    pixel = line.to(tl.int64) * width + tl.arange(0, PIXELS)
    channel = tl.arange(0, CHANNELS)
    inside = (tl.arange(0, PIXELS) < width)[:, None] & (channel < channels)[None, :]
    offset = pixel[:, None] * channels + channel[None, :]
    scale = tl.load(scale_ptr + channel, mask=channel < channels, other=0.0)
    shift = tl.load(shift_ptr + line % height)
    tl.store(y_ptr + offset, tl.load(x_ptr + offset, mask=inside, other=0.0) * scale[None, :] + shift, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, channels, height):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))
        self.shift = nn.Parameter(torch.randn(height, 1))

    def forward(self, x):
        batch, channels, height, width = x.shape
        last = x.permute(0, 2, 3, 1).contiguous()
        y = torch.empty_like(last)
        channel_affine_kernel[(batch * height,)](
            last, self.scale, self.shift, y, height, width, channels, PIXELS=128, CHANNELS=128, num_warps=8
        )
        return y.permute(0, 3, 1, 2).contiguous()
