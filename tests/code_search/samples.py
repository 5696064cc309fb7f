"""Source of the small tree: one file a language."""

KERNEL = """\
/* Copyright someone. Redistribution under this license is permitted. */
#pragma once
#define TILE_SIZE 128
#define GUARD

namespace demo {

// Copies a tile with the tensor memory accelerator.
template <class T, int N = (4 > 2) ? 1 : 2>
__device__ void load_tile(T const* source, Layout const& layout = {}, int stages = 2)
{
  if (stages) { copy(source); }
}

struct TileLoader {
  using Element = float;
  TileLoader() : value{0} {}
  bool operator()(int a) const { return a < value; }
#if defined(FAST)
  void run() {
#else
  void run() { slow();
#endif
    load_tile(nullptr);
  }
  void declared(int x) const;
  int value;
};

template <>
struct Traits<TileLoader> { enum class Mode { kFast, kSlow }; };

__global__ void __launch_bounds__(TILE_SIZE) tile_kernel(float* out) {
  asm volatile("{ mov.u32 %0, %1; }" : "=r"(x) : "r"(y));
  TileLoader()(3);
}

}  // namespace demo
"""
SCRIPT = '''\
"""A script."""


class Runner:
    """Runs."""

    @property
    def größe(self) -> int:
        return 3


async def schedule_tiles(count):
    return count  # 排队 naïve
'''
GUIDE = """\
# Guide

Words.

## Bank conflicts

Pad the rows.

```
# not a heading
```
"""
