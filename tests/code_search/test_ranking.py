"""Real questions to the real CUTLASS: the file that answers is among the first five."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelpro.code_search import definition, outline, search, uses

QUESTIONS = [
    ("tma load sm90", "include/cute/arch/copy_sm90_tma.hpp"),
    ("SM90_TMA_LOAD_MULTICAST", "include/cute/arch/copy_sm90_tma.hpp"),
    ("wgmma shared memory descriptor", "include/cute/atom/mma_traits_sm90_gmma.hpp"),
    ("make_tiled_copy", "include/cute/atom/copy_atom.hpp"),
    ("epilogue visitor tree", "include/cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"),
    ("pipeline tma async consumer release", "include/cutlass/pipeline/sm90_pipeline.hpp"),
    (
        "swizzle layout shared memory bank conflict",
        "examples/59_ampere_gather_scatter_conv/ampere_conv_kernel.h",
    ),
    ("mma atom tf32 sm90", "include/cute/atom/mma_traits_sm90_gmma.hpp"),
    (
        "warp specialized persistent gemm kernel",
        "include/cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_pingpong.hpp",
    ),
    ("stream k tile scheduler", "include/cutlass/gemm/kernel/sm100_tile_scheduler_stream_k.hpp"),
    ("cp.async wait group", "include/cute/arch/copy_sm80.hpp"),
    ("ldmatrix copy atom", "include/cute/arch/copy_sm75.hpp"),
    ("how to convert bfloat16 to float", "include/cutlass/numeric_conversion.h"),
    ("FastDivmod", "include/cutlass/fast_math.h"),
    ("flash attention hopper", "examples/88_hopper_fmha/README.md"),
    ("named barrier sync", "include/cutlass/arch/barrier.h"),
    ("partition_fragment_A", "include/cute/atom/mma_atom.hpp"),
    ("split k reduction", "include/cutlass/reduction/device/reduce_split_k.h"),
    ("fp8 accumulation promotion", "include/cutlass/gemm/collective/fp8_accumulation.hpp"),
    ("cluster launch", "include/cutlass/cluster_launch.hpp"),
]


@pytest.fixture(autouse=True)
def indexed(real_cutlass: Path, own_folders: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(real_cutlass))


@pytest.mark.parametrize(("question", "answer"), QUESTIONS)
def test_the_answer_is_among_the_first_five(question: str, answer: str) -> None:
    paths = re.findall(r"^(\S+?):\d+-\d+: ", search(question, limit=5), re.MULTILINE)
    assert len(paths) == 5 and answer in paths


def test_a_name_that_is_spelt_out_comes_first() -> None:
    assert search("make_tiled_copy", limit=1).startswith("include/cute/atom/copy_atom.hpp")


def test_definitions_of_all_kinds() -> None:
    assert definition("TiledCopy").startswith("include/cute/atom/copy_atom.hpp:188-")
    assert "function cute::TiledCopy::get_slice" in definition("TiledCopy::get_slice")
    assert "cutlass::PipelineTmaAsync" in definition("PipelineTmaAsync").split("\n")[0]
    assert "macro CUTE_HOST_DEVICE" in definition("CUTE_HOST_DEVICE")
    assert "make_tiled_copy" in definition("make_tild_copy")


def test_uses_show_examples_first() -> None:
    assert uses("make_tiled_copy").startswith("examples/")


def test_an_outline_by_the_end_of_the_path() -> None:
    assert "union cute::GmmaDescriptor" in outline("cute/arch/mma_sm90_desc.hpp")
