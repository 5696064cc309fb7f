"""Reductions over the columns of a product, in tiles that have all of them: where the playbook offers them.

test_playbook_triton.py runs and compiles the kernels ("rows of products", and the convolutions of CHANNEL_ROWS).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from playbook_harness import make_task, operator_graph_of, program_of

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.forms import programs_of
from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.authors.playbook.schedule.design import Design
from kernelpro.authors.playbook.triton.backend import BACKEND

CONV = "self.c = nn.Conv2d(16, 20, 3)"
PHASED = "self.c = nn.ConvTranspose2d(16, 20, 3, stride=2)"
IMAGE = "torch.randn(2, 16, 30, 40)"


def forms(forward: str, init: str = CONV, inputs: str = IMAGE) -> dict[str, Program]:
    return programs_of(operator_graph_of(make_task(forward, inputs, init)), "cuda")


def has_rows(design: Design) -> bool:
    return any(stage.whole_rows for stage in design.stages)


@pytest.mark.parametrize("init", [CONV, PHASED])
@pytest.mark.parametrize("forward", ["F.softmax(self.c(a), 1)", "self.c(a).amin(1).tanh()"])
def test_a_convolution_whose_channels_are_reduced_is_one_stage(init: str, forward: str) -> None:
    programs = forms(forward, init)
    assert next(iter(programs)) == "channel_rows"
    *layouts, stage = programs["channel_rows"].stages
    assert len(layouts) == 2, "the input and the weights, with channels innermost"
    assert stage.product and stage.product.column.extent == 20
    assert [store.tensor for store in stage.stores] == ["out0"]
    for seed in BACKEND.seeds(programs["channel_rows"]):
        source = BACKEND.write(programs["channel_rows"], seed.design)
        assert has_rows(seed.design) and source.count("def product2(") == 1 and "def stage2(" not in source


@pytest.mark.parametrize(
    ("forward", "init"),
    [
        ("F.relu(self.c(a))", CONV),
        ("F.softmax(self.c(a), 1)", "self.c = nn.Conv2d(16, 300, 3)"),
        ("F.softmax(self.c(a), 1)", "self.c = nn.Conv2d(16, 8, 3)"),
        ("F.softmax(self.c(a), 1)", "self.c = nn.Conv2d(16, 32, 3, groups=2)"),
        ("F.softmax(self.c(a), 2)", CONV),
        ("F.softmax(F.max_pool2d(self.c(a), 2), 1)", CONV),
    ],
    ids=["no reduction", "too many channels", "too few", "groups", "of pixels", "after a pooling"],
)
def test_no_channel_rows_without_channels_in_one_tile(forward: str, init: str) -> None:
    programs = forms(forward, init)
    assert "channel_rows" not in programs
    assert not any(has_rows(seed.design) for p in programs.values() for seed in BACKEND.seeds(p))


def test_a_network_with_other_convolutions_starts_with_another_form() -> None:
    layers = "self.c, self.v = nn.Conv2d(16, 20, 3), nn.Conv2d(20, 24, 3)"
    assert list(forms("F.softmax(self.v(F.relu(self.c(a))), 1)", layers))[1] == "channel_rows"


def test_rows_of_a_linear_layer_are_one_more_design() -> None:
    def seeds(features: int, forward: str = "F.softmax(self.l(a), 1)", rows: int = 16384) -> list[bool]:
        init = f"self.l = nn.Linear(64, {features})"
        program = program_of(make_task(forward, f"torch.randn({rows}, 64)", init))
        return [has_rows(seed.design) for seed in BACKEND.seeds(program)]

    assert seeds(100) == [True, True, False, False]
    assert seeds(300) == [False, False]
    assert not any(seeds(100, "self.l(a).logsumexp(1).mean()", 90)), "the mean of all rows"


@pytest.mark.parametrize("forward", ["F.softmax(self.c(a), 1)", "self.c(a).amin(1)"])
def test_moves_resize_only_the_side_across_rows(forward: str) -> None:
    """Channels are the first axis of a tile if all of them are stored, and else the second one."""
    program = forms(forward, inputs="torch.randn(64, 16, 30, 40)")["channel_rows"]
    channels, others = ("TILE_M2", "TILE_N2") if "softmax" in forward else ("TILE_N2", "TILE_M2")
    moves = {move.name: move for move in BACKEND.moves}
    design = BACKEND.seeds(program)[0].design
    for name, size in (("", 128), ("larger tiles", 256), ("smaller tiles", 128)):
        changed = moves[name].apply(program, design) if name else design
        assert changed
        design, source = changed, BACKEND.write(program, changed)
        assert (
            f"\n{channels} = 32  # tune: 32\n" in source and f"\n{others} = {size}  # tune: 32, 64" in source
        )


def test_results_that_need_whole_rows_are_not_written_without_them() -> None:
    """Phases of a convolution that reach beyond its result."""
    program = forms("F.softmax(self.c(a), 1)", PHASED)["channel_rows"]
    design = BACKEND.seeds(program)[0].design
    apart = replace(design, stages=tuple(replace(stage, whole_rows=False) for stage in design.stages))
    with pytest.raises(NoProposal, match="store a part"):
        BACKEND.write(program, apart)
