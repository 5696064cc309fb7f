"""Create a model from its name on the command line."""

from __future__ import annotations

from pathlib import Path

from kernelpro.llm.cap import SpendingCap
from kernelpro.llm.inbox import InboxSource
from kernelpro.llm.question import AnswerSource, Model
from kernelpro.llm.recording import RecordingModel
from kernelpro.llm.replay import ReplaySource
from kernelpro.llm.settings import ModelSettings
from kernelpro.llm.transcripts import Transcripts
from kernelpro.records import BadInput
from kernelpro.records.base import did_you_mean


def create_model(
    spec: str,
    settings: ModelSettings | None = None,
    cap: SpendingCap | None = None,
    transcripts: Transcripts | None = None,
    runs: Path | None = None,
) -> Model:
    """Create the model that `spec` names. Raises BadInput, which says what is wrong and what to do.

    `spec` is `provider:model`, `http://host:port/v1#model`, `openai-compatible:URL#model`, `inbox:DIR` or
    `replay:PATH`, where PATH may be the name of a run in `runs`. All roles of a run share one cap and one
    transcript file.
    """
    settings = settings or ModelSettings()
    return RecordingModel(
        _create_source(spec.strip(), settings, cap or SpendingCap(), runs), transcripts, settings.progress
    )


def with_absolute_path(spec: str, runs: Path) -> str:
    """Return the spec with absolute paths, so that it means the same in every working directory."""
    kind, _, rest = spec.strip().partition(":")
    if kind not in ("inbox", "replay") or not rest:
        return spec.strip()
    return f"{kind}:{(_replay_path(rest, runs) if kind == 'replay' else Path(rest).expanduser()).absolute()}"


def _replay_path(name: str, runs: Path | None) -> Path:
    """Return the file or folder with this name, or else the run with this name."""
    path = Path(name).expanduser()
    return runs / name if runs and not path.exists() and (runs / name).exists() else path


def _create_source(spec: str, settings: ModelSettings, cap: SpendingCap, runs: Path | None) -> AnswerSource:
    from kernelpro.llm.providers import PROVIDERS

    kind, _, rest = spec.partition(":")
    if kind == "inbox" and rest:
        return InboxSource(Path(rest).expanduser(), settings)
    if kind == "replay" and rest:
        return ReplaySource(_replay_path(rest, runs))
    if kind in ("http", "https", "openai-compatible") or (kind in PROVIDERS and rest):
        from kernelpro.llm.conversation import ProviderSource

        return ProviderSource(spec, settings, cap)
    if kind in PROVIDERS or kind in ("inbox", "replay"):
        what = {"inbox": "inbox:DIR", "replay": "replay:RUN"}.get(kind, f"{kind}:MODEL")
        raise BadInput(f"model {spec}: write {what}")
    known = ", ".join(f"{name}:MODEL" for name in PROVIDERS)
    hint = did_you_mean(kind, (*PROVIDERS, "inbox", "replay"))
    raise BadInput(
        f"model {spec}: unknown{hint}; use {known}, http://HOST:PORT/v1#MODEL, inbox:DIR or replay:RUN"
    )
