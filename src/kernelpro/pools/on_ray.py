"""`ray:` and `ray://HOST:PORT`: actors on a Ray cluster, one for each GPU or processor that the cluster gives us.

1. As many actors are asked for as the queue is worth. Those that the cluster has no room for stay pending, which is what its
   autoscaler looks at.
2. An actor is a local pool on its node, with the hardware that Ray gave it; the code travels with the job. So whatever
   the judge guarantees, it guarantees here.
3. An actor with room gets a job of the task that has the fewest under way, its own warm task a little before others; only if
   that task is timed on hardware of its kind.
4. An actor that dies, with its node or alone, or gives no sign of life, is replaced; what it was at is done by others. One whose
   GPU fails its health check is kept, without work, so that Ray gives that GPU to nobody.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelpro.pools import local
from kernelpro.pools.pool import Pool, Report, lost, silent
from kernelpro.records import BadInput, Job, Progress, Result

_MOST_ACTORS = 256
_WORTH = 2
"""Jobs that are worth another actor: making a task warm costs about as much as judging so many candidates."""
_MOST_SENT = 4
_CHANCES = 10
"""Actors that may die over a job. They outlive what they run; so these were machines that failed."""
_MOST_UNSUITABLE = 8
"""Actors without the hardware asked for, in a row, after which there is none."""
_PULSE_SECONDS = 1.0
_TELL_SECONDS = 5.0
"""Between two reports on the queue."""
_DEAD_SECONDS = 120.0
"""Without a sign of life; what runs has limits of its own, and an actor answers beside it."""


class Actor:
    """On a node: a local pool with one worker."""

    def __init__(self, sandbox: str):
        with contextlib.suppress(PermissionError):  # Ray makes its workers yield to everybody, which spoils timings
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        (self._device,) = local.devices(workers=1)
        self._pool = local.Pool(sandbox, [self._device])
        self._stages: dict[str, str] = {}

    def hardware(self) -> dict[str, str | None]:
        """By target."""
        return {"cuda": self._device.name_for("cuda"), "cpu": self._device.name_for("cpu"), "": self._device.name_for(None)}

    def do(self, line: str) -> str:
        job = Job.from_json(json.loads(line))
        try:
            return self._pool.ask(job, self._follow).dumps()
        finally:
            self._stages.pop(job.id, None)

    def _follow(self, step: Progress) -> None:
        self._stages[step.job] = step.stage

    def stages(self) -> dict[str, str]:
        """By job: what is being done. Also the sign of life."""
        return dict(self._stages)


@dataclass
class _Asked:
    key: str
    job: Job
    progress: Report
    answer: Future[Result]
    deaths: int = 0
    stage: str = ""

    @property
    def task(self) -> str:
        return self.job.task.id if self.job.task else ""

    def tell(self, stage: str) -> None:
        if stage != self.stage:
            self.stage = stage
            self.progress(Progress(self.job.id, stage))


@dataclass
class _Hand:
    """An actor, as far as it has come."""

    actor: Any
    gpu: bool
    """Whether it has one."""
    arrival: Any
    """The call that tells its hardware."""
    hardware: dict[str, str | None] = field(default_factory=dict)
    sent: dict[Any, _Asked] = field(default_factory=dict)
    """By call, in the order of sending."""
    task: str = ""
    pulse: Any = None
    pulse_sent: float = 0.0
    failed: bool = False


class RayPool(Pool):
    """See the module."""

    def __init__(self, address: str = "", sandbox: str = "auto", match: str = "", say: Callable[[str], None] = lambda line: None):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            import ray
        except ImportError:
            raise BadInput("--pool ray: Ray is not installed: pip install 'kernelpro[ray]'") from None
        self._ray: Any = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            self._join(address)
        self._sandbox, self._match, self._say = sandbox, match, say
        self._lock = threading.RLock()
        self._count = itertools.count()
        self._waiting: list[_Asked] = []
        self._hands: list[_Hand] = []
        self._kinds: dict[tuple[str, str], str] = {}
        """By task and target: the hardware that it is timed on."""
        self._unsuitable, self._told = 0, 0.0
        self._closing, self._something = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _join(self, address: str) -> None:
        package = str(Path(__file__).resolve().parents[1])
        try:
            self._ray.init(
                address=address or None, log_to_driver=False, logging_level="ERROR", runtime_env={"py_modules": [package]}
            )
        except (ConnectionError, ValueError, RuntimeError, ImportError) as error:
            raise BadInput(f"--pool ray:{address}: no such cluster: {str(error).splitlines()[0]}") from None

    def submit(self, job: Job, progress: Report = silent) -> Future[Result]:
        asked = _Asked(str(next(self._count)), job, progress, Future())
        with self._lock:
            self._waiting.append(asked)
        self._something.set()
        return asked.answer

    @property
    def outstanding(self) -> int:
        with self._lock:
            return len(self._unanswered())

    def close(self) -> None:
        self._closing.set()
        self._something.set()
        self._thread.join()
        for hand in self._hands:
            self._ray.kill(hand.actor)
        if self._ours:
            self._ray.shutdown()

    # --- the loop ----------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                self._hire()
                self._assign()
                calls = {call: hand for hand in self._hands for call in self._calls(hand)}
            if not calls:
                self._something.wait(_PULSE_SECONDS)
                self._something.clear()
                continue
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0.1)
            for call in ready:
                if calls[call] in self._hands:
                    self._hear(calls[call], call)
            self._feel_pulses()

    def _calls(self, hand: _Hand) -> list[Any]:
        return [call for call in (hand.arrival, hand.pulse, *hand.sent) if call is not None]

    def _hire(self) -> None:
        """Ask for actors as the queue is worth; the lock is held."""
        if self._unsuitable >= _MOST_UNSUITABLE:
            for asked in self._waiting:
                asked.answer.set_exception(BadInput(f"--match {self._match}: the cluster gives no such hardware"))
            self._waiting.clear()
        asked_for = Counter(self._on_gpu(asked.job) for asked in self._unanswered())
        for gpu, jobs in asked_for.items():
            there = sum(hand.gpu == gpu and not hand.failed for hand in self._hands)
            for _ in range(min(_MOST_ACTORS, math.ceil(jobs / _WORTH)) - there):
                wanted: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(gpu), "max_concurrency": _MOST_SENT + 2}
                if gpu and (kind := self._accelerator()):
                    wanted["accelerator_type"] = kind
                actor = self._ray.remote(Actor).options(**wanted).remote(self._sandbox)
                self._hands.append(_Hand(actor, gpu, actor.hardware.remote()))

    def _unanswered(self) -> list[_Asked]:
        return self._waiting + [asked for hand in self._hands for asked in hand.sent.values()]

    def _on_gpu(self, job: Job) -> bool:
        """Without a target: where the cluster has GPUs."""
        return job.target == "cuda" or (job.target is None and bool(self._ray.cluster_resources().get("GPU")))

    def _accelerator(self) -> str | None:
        """The name by which Ray knows the hardware that is asked for, where it knows it."""
        known = [name.partition(":")[2] for name in self._ray.cluster_resources() if name.startswith("accelerator_type:")]
        return next((kind for kind in known if self._match and self._match.lower() in kind.lower()), None)

    def _assign(self) -> None:
        """The lock is held. Whoever has least to do is served first."""
        under_way = Counter(asked.task for hand in self._hands for asked in hand.sent.values())
        free = [hand for hand in self._hands if hand.hardware and not hand.failed and len(hand.sent) < _MOST_SENT]
        while free:
            hand = min(free, key=lambda h: len(h.sent))
            suiting = [asked for asked in self._waiting if self._suits(asked.job, hand)]
            if not suiting:
                free.remove(hand)
                continue
            warm = hand.task
            asked = min(suiting, key=lambda a: under_way[a.task] - _WORTH * (a.task == warm))
            self._waiting.remove(asked)
            if not asked.answer.running() and not asked.answer.set_running_or_notify_cancel():
                continue
            hand.sent[hand.actor.do.remote(replace(asked.job, id=asked.key).dumps())] = asked
            hand.task = asked.task or hand.task
            under_way[asked.task] += 1
            if asked.job.task and (name := hand.hardware.get(asked.job.target or "")):
                self._kinds.setdefault((asked.task, asked.job.target or ""), name)
            if len(hand.sent) >= _MOST_SENT:
                free.remove(hand)
        if time.monotonic() - self._told > _TELL_SECONDS:
            self._told = time.monotonic()
            here = sum(bool(hand.hardware) for hand in self._hands)
            for asked in self._waiting:
                asked.tell(f"waiting with {len(self._waiting) - 1} others; {here} workers are there")

    def _suits(self, job: Job, hand: _Hand) -> bool:
        if self._on_gpu(job) != hand.gpu:
            return False
        name = hand.hardware.get(job.target or "")
        if not job.task or name is None:
            return True
        return self._kinds.get((job.task.id, job.target or ""), name) == name

    # --- what comes back ---------------------------------------------------------------------------------

    def _hear(self, hand: _Hand, call: Any) -> None:
        try:
            value = self._ray.get(call)
        except self._ray.exceptions.RayActorError:
            self._replace(hand)
            return
        except self._ray.exceptions.RayTaskError as error:
            self._hear_of_failure(hand, call, error)
            return
        if call == hand.arrival:
            hand.arrival = None
            self._welcome(hand, value)
        elif call == hand.pulse:
            hand.pulse = None
            stages = {asked.key: asked for asked in hand.sent.values()}
            for key, stage in value.items():
                if key in stages:
                    stages[key].tell(stage)
        else:
            with self._lock:
                asked = hand.sent.pop(call)
            asked.answer.set_result(replace(Result.from_json(json.loads(value)), job=asked.job.id))

    def _welcome(self, hand: _Hand, hardware: dict[str, str | None]) -> None:
        name = hardware["cuda" if hand.gpu else "cpu"] or ""
        if self._match.lower() in name.lower():
            hand.hardware, self._unsuitable = hardware, 0
            return
        self._say(f"a worker on {name} is sent away: {self._match} is asked for")
        self._unsuitable += 1
        with self._lock:
            self._hands.remove(hand)
        self._ray.kill(hand.actor)

    def _hear_of_failure(self, hand: _Hand, call: Any, error: Exception) -> None:
        """A job that could not even be answered: the device is sick, or the code is."""
        with self._lock:
            asked = hand.sent.pop(call, None)
            if isinstance(getattr(error, "cause", None), local.DeviceFailed):
                if not hand.failed:
                    self._say(f"a GPU ({hand.hardware.get('cuda')}) failed its health check and is not used any more")
                hand.failed = True
                self._waiting[:0] = [asked] if asked else []
                return
        if asked:
            asked.answer.set_result(lost(asked.job, f"the worker failed: {str(error).splitlines()[-1]}"))

    def _replace(self, hand: _Hand) -> None:
        """An actor is dead: the one job that it was at has had an attempt, the others are simply sent again."""
        with self._lock:
            self._hands.remove(hand)
            unanswered = []
            for call, asked in hand.sent.items():
                if (value := self._last_words(call)) is not None:
                    asked.answer.set_result(replace(Result.from_json(json.loads(value)), job=asked.job.id))
                else:
                    unanswered.append(asked)
            if unanswered:
                unanswered[0].deaths += 1
                if unanswered[0].deaths >= _CHANCES:
                    victim = unanswered.pop(0)
                    victim.answer.set_result(lost(victim.job, f"{_CHANCES} workers died or vanished while they were at this job"))
            self._waiting[:0] = unanswered

    def _last_words(self, call: Any) -> str | None:
        """A result that the actor gave before it died."""
        try:
            return str(self._ray.get(call, timeout=0))
        except (self._ray.exceptions.RayError, TimeoutError):
            return None

    def _feel_pulses(self) -> None:
        now = time.monotonic()
        for hand in list(self._hands):
            if hand.arrival is not None:
                continue
            if hand.pulse is None and hand.sent and now - hand.pulse_sent > _PULSE_SECONDS:
                hand.pulse, hand.pulse_sent = hand.actor.stages.remote(), now
            elif hand.pulse is not None and now - hand.pulse_sent > _DEAD_SECONDS:
                self._say(f"a worker has given no sign of life for {_DEAD_SECONDS:.0f} s and is replaced")
                self._ray.kill(hand.actor)
                self._replace(hand)
