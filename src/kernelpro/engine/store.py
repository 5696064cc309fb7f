"""The store of a run: one SQLite file, and content-addressed sources beside it.

    RUNS/<id>/run.db             WAL; every change is one durable transaction
    RUNS/<id>/sources/<hash>.py  written once, under a temporary name first
    RUNS/<id>/lock               locked while a process works on the run; released when the process dies

A step is written at each stage (chosen, drafted, judged, settled), so that a killed run loses at most the
work since the last stage. Migrations bring older files up to date; a file with a newer schema is rejected.
The store reports what it cannot read (`RunStore.damage`) and returns everything else.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from kernelpro.engine.database import open_database, readable_errors, rollback, try_lock
from kernelpro.records import BadInput, Outcome, RunConfig, Step, TaskFacts, digest, folders
from kernelpro.records.events import (
    STEERING_KINDS,
    RunEvent,
    RunFailed,
    RunPaused,
    RunStarted,
    RunStopped,
    SteeringApplied,
    SteeringEvent,
    read_event,
)

RunState = Literal["running", "finished", "waiting", "failed", "stopped"]

_UNFINISHED = "run.db.new"
_STATE_AFTER: dict[type[RunEvent], RunState] = {
    RunStarted: "stopped",
    RunPaused: "waiting",
    RunFailed: "failed",
    RunStopped: "stopped",
}
"""The state of a run without an outcome on which no process works, by the last event of these types."""


def runs_dir(given: str | Path | None = None) -> Path:
    """The folder of runs: the given one, else $KERNELPRO_RUNS_DIR, else the user's data directory. Raises
    BadInput if that is a file."""
    configured = given or os.environ.get("KERNELPRO_RUNS_DIR")
    path = Path(configured) if configured else folders.data("runs")
    if path.is_file():
        raise BadInput(f"--runs-dir {path}: this is a file, not a folder")
    return path


class RunStore:
    """The stored data of a run. One process works on the run (`lock`); any number of processes may read it
    and add requests of the user."""

    def __init__(self, folder: Path, file: str = "run.db"):
        self.folder = folder
        self.damage: list[str] = []
        """One line for each record that could not be read."""
        self._lock: int | None = None
        self.locked_after = 0
        """Id of the last event when this process locked the run. Later requests are for this process."""
        with readable_errors(folder):
            self._db = open_database(folder / file, create=file == _UNFINISHED)

    # --- opening ---------------------------------------------------------------------------------------

    @classmethod
    def create(cls, runs_dir: Path, config: RunConfig, name: str) -> RunStore:
        """Create a run. Its id is its name and a number."""
        with readable_errors(runs_dir):
            runs_dir.mkdir(parents=True, exist_ok=True)
            for number in range(1, 1_000_000):
                folder = runs_dir / f"{name}-{number}"
                try:
                    folder.mkdir()
                    break
                except FileExistsError:
                    continue
            (folder / "sources").mkdir()
        try:
            store = cls(folder, _UNFINISHED)  # other processes see the run only after it is complete
            store.save_config(config)
            store._set("created", time.time())
            store.close()
            with readable_errors(folder):
                (folder / _UNFINISHED).rename(folder / "run.db")
        except BadInput:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(folder)

    @classmethod
    def open(cls, runs_dir: Path, run: str) -> RunStore:
        """Open an existing run by its id."""
        folder = runs_dir / run
        if not (folder / "run.db").is_file():
            names = ", ".join(sorted(path.parent.name for path in runs_dir.glob("*/run.db"))[-5:]) or "none"
            raise BadInput(f"there is no run {run} in {runs_dir}; existing runs: {names}")
        return cls(folder)

    def lock(self) -> None:
        """Lock the run for this process. Raises BadInput if another process holds the lock."""
        if self._lock is not None:
            return
        with readable_errors(self.folder):
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        if not try_lock(handle):
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise BadInput(
                f"run {self.id} is in use by another process (PID {holder}): wait for it, or stop it"
            )
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._lock = handle
        self.locked_after = self.last_event

    def state(self) -> RunState:
        """`running` while a process works on the run; else `finished`, `waiting` (for answers or results from
        outside), `failed` or `stopped` (interrupted or killed)."""
        if self._is_locked():
            return "running"
        if self.outcome():
            return "finished"
        last = self.last_change_of_state()
        return _STATE_AFTER[type(last)] if last else "stopped"

    def last_change_of_state(self) -> RunEvent | None:
        """The last start, pause, failure or stop; None if no process has worked on the run."""
        kinds = ", ".join(f"'{event.kind}'" for event in _STATE_AFTER)
        events = self._read_events(f"kind IN ({kinds}) ORDER BY id DESC LIMIT 1")
        return next((event for _, _, event in events), None)

    def _is_locked(self) -> bool:
        try:
            handle = os.open(self.folder / "lock", os.O_RDONLY)
        except OSError:  # no process has worked on the run yet
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def delete(self) -> None:
        """Delete the run with all its files. Raises BadInput if another process is working on it."""
        self.lock()
        self.close()
        with readable_errors(self.folder):
            (self.folder / "run.db").unlink()  # from now on no process can open it
            shutil.rmtree(self.folder, ignore_errors=True)
            if self.folder.exists():  # a process that had it open added a file
                shutil.rmtree(self.folder)

    def close(self) -> None:
        """Close the database and release the lock."""
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    @property
    def id(self) -> str:
        """The name of the run's folder."""
        return self.folder.name

    # --- the run itself --------------------------------------------------------------------------------

    def _set(self, key: str, value: Any) -> None:
        with readable_errors(self.folder):
            self._db.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (key, json.dumps(value)))

    def _get(self, key: str) -> Any:
        with readable_errors(self.folder):
            row = self._db.execute("SELECT value FROM run WHERE key = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else None

    def config(self) -> RunConfig:
        """The configuration of the run. Raises BadInput if it cannot be read."""
        if (stored := self._get("config")) is None:
            raise BadInput(
                f"{self.folder / 'run.db'} holds no run: it was never started, or its file was emptied"
            )
        try:
            return RunConfig.from_json(stored)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadInput(
                f"run {self.id}: its configuration cannot be read ({type(error).__name__}: {error})"
            ) from None

    def save_config(self, config: RunConfig) -> None:
        """Replace the configuration of the run."""
        self._set("config", config.to_json())

    @property
    def created(self) -> float:
        """Time of creation in seconds since the epoch."""
        return float(self._get("created") or 0.0)

    @property
    def wall_seconds(self) -> float:
        """Wall seconds spent on the run, summed over all processes that worked on it."""
        return float(self._get("wall_seconds") or 0.0)

    def save_wall_seconds(self, seconds: float) -> None:
        """Replace the wall seconds spent on the run."""
        self._set("wall_seconds", seconds)

    @property
    def device_seconds(self) -> dict[str, float]:
        """Device seconds by use, summed over all processes that worked on the run."""
        return dict(self._get("device_seconds") or {})

    def add_device_seconds(self, use: str, seconds: float) -> None:
        """Add device seconds to a use: candidates, final judging, or another kind of job."""
        totals = self.device_seconds
        self._set("device_seconds", totals | {use: totals.get(use, 0.0) + seconds})

    def save_task_facts(self, facts: TaskFacts) -> None:
        """Save the measurements of the task."""
        self._set("task_facts", facts.to_json())

    def task_facts(self) -> TaskFacts | None:
        """The measurements of the task; None before it is measured."""
        data = self._get("task_facts")
        return TaskFacts.from_json(data) if data else None

    def save_outcome(self, outcome: Outcome) -> None:
        """Save the outcome of the run, and the limits within which it was reached."""
        self._set("outcome", outcome.to_json())
        self._set("outcome_limits", self.config().limits.to_json())

    def outcome(self) -> Outcome | None:
        """The outcome of the run; None if it has not ended."""
        data = self._get("outcome")
        return Outcome.from_json(data) if data else None

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended and a resumed run would do nothing: its limits have not changed since,
        and it did not end for lack of answers."""
        outcome = self.outcome()
        if outcome is None or outcome.unanswered:
            return False
        return bool(self._get("outcome_limits") == self.config().limits.to_json())

    @property
    def is_winner_profiled(self) -> bool:
        """Whether the winner has a diagnosis, or a reason why it has none; True if there is no winner."""
        outcome = self.outcome()
        winner = self.step(outcome.best) if outcome and outcome.best is not None else None
        return winner is None or winner.diagnosis is not None or bool(winner.details.profile_error)

    # --- steps -----------------------------------------------------------------------------------------

    def save_step(self, step: Step) -> None:
        """Save a step in its current stage. It is on disk when this method returns."""
        with readable_errors(self.folder):
            data = json.dumps(step.to_json(), separators=(",", ":"))
            self._db.execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?)", (step.number, step.stage, data))

    def steps(self) -> list[Step]:
        """All steps in order. A step that cannot be read is returned in stage `chosen`, so that it is done
        again."""
        return self._read_steps("")

    def _read_steps(self, condition: str, *values: int) -> list[Step]:
        with readable_errors(self.folder):
            query = f"SELECT number, data FROM step {condition} ORDER BY number"
            rows = self._db.execute(query, values).fetchall()
        steps = []
        for number, data in rows:
            try:
                steps.append(Step.from_json(json.loads(data)))
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                self.damage.append(f"step {number} cannot be read ({type(error).__name__}: {error})")
                if recovered := _recover_choice(number, data):
                    steps.append(recovered)
        return steps

    def step(self, number: int) -> Step | None:
        """The step with this number; None if there is none."""
        return next(iter(self._read_steps("WHERE number = ?", number)), None)

    def steps_changed_after(self, last: int, limit: int = -1) -> tuple[int, list[dict[str, Any]]]:
        """The number of the latest change in the list, and the steps that were saved after the change `last`,
        as stored JSON; at most `limit` steps (-1: all). A display polls with the number that it got last."""
        with readable_errors(self.folder):
            rows = self._db.execute(
                "SELECT id, number, data FROM step_change JOIN step USING (number) "
                "WHERE id > ? ORDER BY id LIMIT ?",
                (last, limit),
            ).fetchall()
        return (rows[-1][0] if rows else last), [_decode_step(number, data) for _, number, data in rows]

    @property
    def version(self) -> int:
        """A number that changes whenever another connection changes the run."""
        with readable_errors(self.folder):
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    # --- sources ---------------------------------------------------------------------------------------

    def save_source(self, text: str) -> str:
        """Save a source under its content hash and return the hash."""
        key = digest("source", text)
        path = self.folder / "sources" / f"{key}.py"
        if not path.exists():
            with readable_errors(self.folder):
                partial = path.with_suffix(f".{os.getpid()}")
                with partial.open("w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
        return key

    def source(self, key: str) -> str:
        """The source with this content hash. Raises BadInput if it is missing or was changed on disk."""
        path = self.folder / "sources" / f"{key}.py"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BadInput(f"run {self.id}: source {key} is missing ({error.strerror})") from None
        if digest("source", text) != key:
            raise BadInput(f"run {self.id}: source {key} was changed on disk ({path})")
        return text

    # --- events ----------------------------------------------------------------------------------------

    def add_event(self, event: RunEvent) -> int:
        """Append an event to the run; returns its id."""
        with readable_errors(self.folder):
            text = json.dumps(event.to_json(), separators=(",", ":"))
            cursor = self._db.execute(
                "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)", (time.time(), event.kind, text)
            )
        return int(cursor.lastrowid or 0)

    def events(self) -> Iterator[tuple[float, RunEvent]]:
        """All events in order, each after its time in seconds since the epoch."""
        return ((timestamp, event) for _, timestamp, event in self.events_after(0))

    def events_after(self, last: int, limit: int = -1) -> Iterator[tuple[int, float, RunEvent]]:
        """The events with an id above `last` in order, with ids and times; at most `limit` (-1: all)."""
        return self._read_events("id > ? ORDER BY id LIMIT ?", last, limit)

    def event_rows_after(self, last: int, limit: int) -> list[tuple[int, float, str, str]]:
        """Like `events_after`, but each event as its kind and its JSON, not decoded."""
        return self._event_rows("id > ? ORDER BY id LIMIT ?", last, limit)

    def _event_rows(self, condition: str, *values: int) -> list[tuple[int, float, str, str]]:
        with readable_errors(self.folder):
            query = f"SELECT id, time, kind, data FROM event WHERE {condition}"
            return self._db.execute(query, values).fetchall()

    def _read_events(self, condition: str, *values: int) -> Iterator[tuple[int, float, RunEvent]]:
        for id, timestamp, kind, data in self._event_rows(condition, *values):
            try:
                yield id, timestamp, read_event(kind, json.loads(data))
            except (TypeError, ValueError, KeyError):
                self.damage.append(f"an event of kind {kind} cannot be read")

    @property
    def last_event(self) -> int:
        """The id of the last event; 0 without any."""
        with readable_errors(self.folder):
            (last,) = self._db.execute("SELECT max(id) FROM event").fetchone()
        return int(last or 0)

    def steering_after(self, last: int) -> list[tuple[int, SteeringEvent | SteeringApplied]]:
        """The user's requests and the events that applied them, with an id above `last`, in order."""
        kinds = ", ".join(f"'{kind}'" for kind in (*STEERING_KINDS, SteeringApplied.kind))
        events = self._read_events(f"id > ? AND kind IN ({kinds}) ORDER BY id", last)
        return [(id, event) for id, _, event in events if isinstance(event, (SteeringEvent, SteeringApplied))]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: everything that the block writes gets on disk, or nothing."""
        with readable_errors(self.folder):
            self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            with readable_errors(self.folder):
                self._db.execute("COMMIT")
        except BaseException:  # Ctrl-C too: nothing of the block may be written
            rollback(self._db)
            raise

    # --- activity --------------------------------------------------------------------------------------

    def set_activity(self, job: str, stage: str) -> None:
        """Store the current stage of a job, for displays. An empty stage: the job has ended.

        Unlike all other data this is not flushed to disk: it has no meaning after the process has died.
        """
        with readable_errors(self.folder):
            self._db.execute("PRAGMA synchronous=OFF")
            try:
                if stage:
                    row = (job, stage, time.time())
                    self._db.execute("INSERT OR REPLACE INTO activity VALUES (?, ?, ?)", row)
                else:
                    self._db.execute("DELETE FROM activity WHERE job = ?", (job,))
            finally:
                self._db.execute("PRAGMA synchronous=FULL")

    def clear_activity(self) -> None:
        """Delete the stages of all jobs, at the start and at the end of a process."""
        with readable_errors(self.folder):
            self._db.execute("DELETE FROM activity")

    def activity(self) -> list[tuple[str, str, float]]:
        """The running jobs: job, stage, and the start of the stage in seconds since the epoch."""
        with readable_errors(self.folder):
            rows = self._db.execute("SELECT job, stage, since FROM activity ORDER BY since, job").fetchall()
        return [(job, stage, since) for job, stage, since in rows]


def _decode_step(number: int, data: str) -> dict[str, Any]:
    """The JSON of a step; if it is damaged, only its number."""
    try:
        return {**json.loads(data), "number": number}
    except (TypeError, ValueError):
        return {"number": number}


def _recover_choice(number: int, data: str) -> Step | None:
    """The step in stage `chosen` if its parent and action can be read, else None."""
    try:
        raw = json.loads(data)
        return Step(number, int(raw["parent"]), raw["action"], donor=int(raw.get("donor", 0)))
    except (TypeError, ValueError, KeyError):
        return None
