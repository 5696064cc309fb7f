"""Models as the command line names them."""

from __future__ import annotations

from pathlib import Path

from kernelpro.llm.cap import Purse
from kernelpro.llm.inbox import Inbox
from kernelpro.llm.question import Model, Source
from kernelpro.llm.recorded import Recorded
from kernelpro.llm.replay import Replay
from kernelpro.llm.settings import Settings
from kernelpro.llm.transcripts import Transcripts
from kernelpro.records import BadInput


def model(
    spec: str,
    settings: Settings | None = None,
    purse: Purse | None = None,
    transcripts: Transcripts | None = None,
    runs: Path | None = None,
) -> Model:
    """The model that a spec names; raises BadInput: what is wrong with it, what to do.

    `provider:model`; `http://host:port/v1#model` or `openai-compatible:URL#model`; `inbox:DIR`; `replay:PATH`, where PATH
    may be the name of a run in `runs`. All roles of a run share a purse and transcripts.
    """
    settings = settings or Settings()
    return Recorded(_source(spec.strip(), settings, purse or Purse(), runs), transcripts, settings.progress)


def absolute(spec: str, runs: Path) -> str:
    """The same model under a name that means the same in every working directory: files and folders by their whole path."""
    kind, _, rest = spec.strip().partition(":")
    if kind not in ("inbox", "replay") or not rest:
        return spec.strip()
    return f"{kind}:{(_recorded(rest, runs) if kind == 'replay' else Path(rest).expanduser()).absolute()}"


def _recorded(name: str, runs: Path | None) -> Path:
    """The file or folder of this name; else the run."""
    path = Path(name).expanduser()
    return runs / name if runs and not path.exists() and (runs / name).exists() else path


def _source(spec: str, settings: Settings, purse: Purse, runs: Path | None) -> Source:
    from kernelpro.llm.providers import PROVIDERS

    kind, _, rest = spec.partition(":")
    if kind == "inbox" and rest:
        return Inbox(Path(rest).expanduser(), settings)
    if kind == "replay" and rest:
        return Replay(_recorded(rest, runs))
    if kind in ("http", "https", "openai-compatible") or (kind in PROVIDERS and rest):
        from kernelpro.llm.conversation import Provider

        return Provider(spec, settings, purse)
    if kind in PROVIDERS or kind in ("inbox", "replay"):
        what = {"inbox": "inbox:DIR", "replay": "replay:RUN"}.get(kind, f"{kind}:MODEL")
        raise BadInput(f"model {spec}: write {what}")
    known = ", ".join(f"{name}:MODEL" for name in PROVIDERS)
    raise BadInput(
        f"model {spec}: not known; there are {known}, http://HOST:PORT/v1#MODEL, inbox:DIR and replay:RUN"
    )
