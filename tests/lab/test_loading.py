"""Parameters on their way to a process."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelpro.lab.measure.loading import pieces_of
from kernelpro.lab.tasks import parameters


@pytest.mark.parametrize("size", [64, 1000, 1 << 20])
def test_a_state_in_pieces_arrives_whole(size: int) -> None:
    """Through a window of `size` bytes: tensors larger than it, of other types, strided and with one element."""
    source, target = model(1), model(2)
    state = {name: tensor.detach() for name, tensor in source.state_dict().items()}
    window, requests = torch.empty(size, dtype=torch.uint8), 0
    for pieces in pieces_of(state, size):
        requests += 1
        for piece in pieces:
            window[piece.slot.offset :][: piece.values.nbytes] = piece.values.view(torch.uint8)
        for piece in pieces:
            parameters.copy_elements(target, piece.name, piece.first, piece.slot.view(window))
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert requests >= sum(tensor.nbytes for tensor in state.values()) // size


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.BatchNorm1d(37)
    made.wide = nn.Parameter(torch.randn(33, 17, dtype=torch.float64).t())
    made.rounded = nn.Parameter(torch.randn(101).half())
    made.scale = nn.Parameter(torch.randn(()))
    made.num_batches_tracked += seed
    return made
