"""A dispatch mode that sees every operator that torch executes."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A TorchDispatchMode that does not import the compiler.

    By default torch wraps modes so that its compiler skips them. That imports the compiler, which takes two
    seconds in every worker.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
