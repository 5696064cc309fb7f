"""The tiles of transposed convolutions with phases (halo_phases.py), and the layout of their weights in
shared memory: for each channel a row with the weights of all columns."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from kernelpro.authors.playbook.cuda.halo_tiles import DEPTH, PLANE_PADDING, SIDE, Convolution
from kernelpro.authors.playbook.ir.indices import iterations
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two

BANKS = 32
"""Banks of shared memory."""
_MIN_COLUMNS = 16
_MAX_RESULTS_PER_THREAD = 128


def fit_phase_tiles(conv: Convolution, design: StageDesign, max_shared_bytes: int) -> StageDesign:
    """The design with tiles that are no larger than the result, threads that suit them, and as many pipeline
    stages as shared memory holds. Several tiles for a block only if all weights fit too."""
    tile_m = max(min(design.tile_m, power_of_two(conv.x.positions), 256), SIDE)
    lines = max(min(design.coarsening, power_of_two(conv.y.positions), 16), 1)
    tile_n = max(min(design.tile_n, power_of_two(conv.column.extent), 128), _MIN_COLUMNS)
    while tile_m * lines < 64:
        tile_m *= 2
    while True:
        results = tile_m * lines * tile_n * conv.outputs
        most = min(power_of_two(results // 32 + 1) // 2, 2 * tile_m * lines, 512)
        least = power_of_two(results / _MAX_RESULTS_PER_THREAD)
        threads = min(max(design.threads, least, 64), most)
        stages = max(min(design.pipeline_stages, 3), 2)
        fitted = replace(
            design, tile_m=tile_m, coarsening=lines, tile_n=tile_n, threads=threads, pipeline_stages=stages
        )
        fits = shared_bytes(conv, replace(fitted, tiles=1)) <= max_shared_bytes and least <= most
        if fits or (tile_n == _MIN_COLUMNS and tile_m * lines <= 64):
            break
        if tile_n > _MIN_COLUMNS:
            tile_n //= 2
        elif lines > 1:
            lines //= 2
        else:
            tile_m //= 2
    if shared_bytes(conv, fitted) > max_shared_bytes:
        fitted = replace(fitted, tiles=1)
    return replace(fitted, tile_k=DEPTH, split=1)


def shared_bytes(conv: Convolution, design: StageDesign) -> int:
    """Shared memory of a block, at most."""
    lines, width = conv.halo
    plane = (design.coarsening * conv.y.stride + lines) * (design.tile_m * conv.x.stride + width)
    slots = design.pipeline_stages if design.tiles == 1 else chunks(conv)
    row = -(-design.tile_n * column_stride(conv) // BANKS) * BANKS + row_padding(conv)
    return 4 * DEPTH * (design.pipeline_stages * (plane + PLANE_PADDING) + slots * row)


def chunks(conv: Convolution) -> int:
    """How often DEPTH channels are copied for a tile."""
    return -(-iterations(conv.channels) // DEPTH)


def column_stride(conv: Convolution) -> int:
    """Elements from one column's weights to the next in shared memory. An odd number, or an odd number of
    packs, spreads them over the banks."""
    return conv.weights_per_channel + (4 if conv.weights_per_channel % 8 == 0 else 0)


def weight_vector(conv: Convolution) -> int:
    """Weights of a line of the kernel that a thread reads from shared memory at a time."""
    return 4 if conv.x.weights % 4 == 0 else 2 if conv.x.weights == 2 else 1


def row_padding(conv: Convolution) -> int:
    """The bank in which the weights of the second channel begin, with the fewest conflicts."""
    vector, stride = weight_vector(conv), column_stride(conv)

    def conflicts(padding: int) -> int:
        reads = product(range(8 // vector), range(4), range(vector))  # columns, channels, elements
        banks = [(n * stride + k * padding + element) % BANKS for n, k, element in reads]
        return max(banks.count(bank) for bank in banks)

    return min(range(0, BANKS, 4), key=conflicts)
