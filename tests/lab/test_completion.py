"""The proof that outputs are complete: which words are asked for, and which answers are accepted."""

from __future__ import annotations

import pytest
import torch

from kernelpro.lab.sandbox import completion
from kernelpro.lab.sandbox.completion import CompletionPage, is_proven, words_of
from kernelpro.lab.sandbox.memory import Slot

NONCE = 0xDEADBEEF12345678
ALL_BITS = (1 << 64) - 1


def chosen_word(nonce: int, sample: int, words: int) -> int:
    """As the kernel chooses it (sandbox/proof_kernel.py)."""
    z = (nonce + (sample + 1) * 0x9E3779B97F4A7C15) & ALL_BITS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & ALL_BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & ALL_BITS
    return (((z ^ (z >> 31)) >> 32) * words) >> 32


def answer_to(nonce: int, outputs: list[tuple[Slot, torch.Tensor]]) -> torch.Tensor:
    """What the kernel writes for outputs as they are now."""
    values = []
    for sample in range(completion._SAMPLES):
        slot, tensor = outputs[sample % len(outputs)]
        place = words_of(slot)
        assert place
        at = place[0] - slot.offset + 4 * chosen_word(nonce, sample, place[1])
        memory = tensor.untyped_storage()
        values.append(int.from_bytes(bytes(memory[at + i] for i in range(4)), "little", signed=True))
    return torch.tensor(values, dtype=torch.int32)


def outputs() -> list[tuple[Slot, torch.Tensor]]:
    return [
        (Slot(512, (64, 33), (33, 1), "float32"), torch.randn(64, 33)),
        (Slot(6, (333,), (1,), "bfloat16"), torch.randn(333).bfloat16()),
    ]


def test_complete_outputs_are_proven() -> None:
    made = outputs()
    assert is_proven(answer_to(NONCE, made), NONCE, made)


@pytest.mark.parametrize("which", [0, 1])
def test_a_part_that_comes_later_is_seen(which: int) -> None:
    made = outputs()
    answer = answer_to(NONCE, made)
    tensor = made[which][1]
    tensor[-len(tensor) // 20 :] += 1  # the last twentieth was not there yet
    assert not is_proven(answer, NONCE, made)


def test_an_answer_to_another_question_is_none() -> None:
    made = outputs()
    assert not is_proven(answer_to(NONCE + 1, made), NONCE, made)


def test_an_output_without_a_whole_word_is_left_out() -> None:
    assert (
        words_of(Slot(0, (1,), (1,), "bfloat16")) is None and words_of(Slot(8, (0,), (1,), "float32")) is None
    )
    assert words_of(Slot(6, (3,), (1,), "bfloat16")) == (8, 1)


def test_who_does_not_answer_is_not_waited_for_long() -> None:
    page = CompletionPage()
    try:
        page.reset()
        assert page.await_proof(1, NONCE, 0.01) is None
    finally:
        page.close()
    page.close()  # twice does no harm
