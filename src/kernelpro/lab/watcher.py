"""A mode that sees every operator that torch executes."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Torch wraps modes so that its compiler leaves them alone, and imports the compiler for that: two seconds in every worker.
    This one does not mind the compiler, and starts without it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
