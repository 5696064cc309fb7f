"""`ray:` and `ray://HOST:PORT`: actors on a Ray cluster, one for each GPU or processor that the cluster gives us.

1. As many actors are asked for as the queue is worth. Those that the cluster has no room for stay pending, which is what its
   autoscaler looks at.
2. An actor is a local pool on its node, with the hardware that Ray gave it; the code travels with the job. So whatever
   the judge guarantees, it guarantees here.
3. An actor with room gets a job of the task that it has warm; else of the task that has the fewest under way and is worth
   being made warm. What has waited for long goes first, so that no task starves.
   A task keeps to one kind of hardware.
4. An actor that dies, with its node or alone, or gives no sign of life, is replaced; what it was at is done by others. One whose
   GPU fails its health check is kept, without work, so that Ray gives that GPU to nobody.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelpro.pools import local
from kernelpro.pools.pool import Pool, Report, lost, silent
from kernelpro.records import BadInput, Job, Progress, Result

_MOST_ACTORS = 256
_WORTH = 7
"""Jobs that are worth another actor: making a task warm costs as much as judging so many (recorded on an H200: 15 s and 2 s)."""
_MOST_SENT = 4
_LONG_SECONDS = 300.0
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
    since: float = field(default_factory=time.monotonic)
    deaths: int = 0
    stage: str = ""

    @functools.cached_property
    def task(self) -> str:
        return self.job.task.id if self.job.task else ""

    @property
    def kind(self) -> tuple[str, str]:
        return self.task, self.job.target or ""

    def tell(self, stage: str) -> None:
        if stage != self.stage:
            self.stage = stage
            self.progress(Progress(self.job.id, stage))


class _Queues:
    """Jobs that wait, by task and target, so that choosing costs what there are tasks, not what there are jobs."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, str], deque[_Asked]] = {}

    def put(self, asked: _Asked) -> None:
        self._queues.setdefault(asked.kind, deque()).append(asked)

    def put_back(self, unanswered: list[_Asked]) -> None:
        for asked in reversed(unanswered):
            self._queues.setdefault(asked.kind, deque()).appendleft(asked)

    def first(self) -> list[_Asked]:
        """The oldest of each kind."""
        return [queue[0] for queue in self._queues.values()]

    def take(self, asked: _Asked) -> None:
        """One of the first."""
        queue = self._queues[asked.kind]
        queue.popleft()
        if not queue:
            del self._queues[asked.kind]

    def length(self, kind: tuple[str, str]) -> int:
        return len(self._queues.get(kind, ()))

    def targets(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (_, target), queue in self._queues.items():
            found[target] += len(queue)
        return found

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[_Asked]:
        return itertools.chain.from_iterable(list(self._queues.values()))


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
        self._waiting = _Queues()
        self._hands: list[_Hand] = []
        self._kinds: dict[tuple[str, str], str] = {}
        """By task and target: the hardware that it is timed on."""
        self._unsuitable, self._told = 0, 0.0
        self._closing, self._something = threading.Event(), threading.Event()
        self._lost = ""
        """Why nothing is answered any more."""
        self._thread = threading.Thread(target=self._work, daemon=True)
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
            if self._lost:
                raise BadInput(self._lost)
            self._waiting.put(asked)
        self._something.set()
        return asked.answer

    @property
    def outstanding(self) -> int:
        with self._lock:
            return len(self._waiting) + sum(len(hand.sent) for hand in self._hands)

    def close(self) -> None:
        self._closing.set()
        self._something.set()
        self._thread.join()
        if not self._lost:
            for hand in self._hands:
                self._ray.kill(hand.actor)
        if self._ours:
            self._ray.shutdown()

    # --- the loop ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Whatever ends the loop ends the waiting: a cluster that is gone, or what nobody thought of."""
        try:
            self._loop()
        except Exception as error:
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            with self._lock:
                self._lost = f"--pool ray: it works no longer ({said}); the same command goes on from here"
                unanswered = [*self._waiting, *(asked for hand in self._hands for asked in hand.sent.values())]
            for asked in unanswered:
                if not asked.answer.done():
                    asked.answer.set_exception(BadInput(self._lost))

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
            self._waiting = _Queues()
        asked_for: Counter[bool] = Counter()
        for target, count in self._waiting.targets().items():
            asked_for[self._on_gpu(target)] += count
        for hand in self._hands:
            asked_for[hand.gpu] += len(hand.sent)
        for gpu, jobs in asked_for.items():
            there = sum(hand.gpu == gpu and not hand.failed for hand in self._hands)
            for _ in range(min(_MOST_ACTORS, math.ceil(jobs / _WORTH)) - there):
                wanted: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(gpu), "max_concurrency": _MOST_SENT + 2}
                if gpu and (kind := self._accelerator()):
                    wanted["accelerator_type"] = kind
                actor = self._ray.remote(Actor).options(**wanted).remote(self._sandbox)
                self._hands.append(_Hand(actor, gpu, actor.hardware.remote()))

    def _on_gpu(self, target: str) -> bool:
        """Without a target: where the cluster has GPUs."""
        return target == "cuda" or (not target and bool(self._ray.cluster_resources().get("GPU")))

    def _accelerator(self) -> str | None:
        """The name by which Ray knows the hardware that is asked for, where it knows it."""
        known = [name.partition(":")[2] for name in self._ray.cluster_resources() if name.startswith("accelerator_type:")]
        return next((kind for kind in known if self._match and self._match.lower() in kind.lower()), None)

    def _assign(self) -> None:
        """The lock is held. Whoever has least to do is served first."""
        under_way = Counter(asked.task for hand in self._hands for asked in hand.sent.values())
        free = [hand for hand in self._hands if hand.hardware and not hand.failed and len(hand.sent) < _MOST_SENT]
        for hand in sorted(free, key=lambda h: len(h.sent)) * _MOST_SENT:
            if len(hand.sent) < _MOST_SENT and (asked := self._best_for(hand, under_way)):
                self._waiting.take(asked)
                if asked.answer.running() or asked.answer.set_running_or_notify_cancel():
                    self._send(hand, asked)
                    under_way[asked.task] += 1
        if self._waiting and time.monotonic() - self._told > _TELL_SECONDS:
            self._told = time.monotonic()
            here = sum(bool(hand.hardware) for hand in self._hands)
            others = len(self._waiting) - 1
            for asked in self._waiting:
                asked.tell(f"waiting with {others} others; {here} workers are there")

    def _best_for(self, hand: _Hand, under_way: Counter[str]) -> _Asked | None:
        """The oldest job of the task that is best for this hand."""
        long_ago = time.monotonic() - _LONG_SECONDS
        mine = Counter(asked.task for asked in hand.sent.values())

        def others(asked: _Asked) -> int:
            return under_way[asked.task] - mine[asked.task]

        def worth_it(asked: _Asked) -> bool:
            at_hand = asked.task in (hand.task, "")
            return at_hand or not others(asked) or self._waiting.length(asked.kind) >= 2 * _WORTH  # to be shared by two

        def rank(asked: _Asked) -> tuple[bool, bool, int]:
            return asked.since > long_ago, asked.task != hand.task, others(asked)

        return min((a for a in self._waiting.first() if self._suits(a, hand) and worth_it(a)), key=rank, default=None)

    def _send(self, hand: _Hand, asked: _Asked) -> None:
        hand.sent[hand.actor.do.remote(replace(asked.job, id=asked.key).dumps())] = asked
        hand.task = asked.task or hand.task
        if asked.task and (name := hand.hardware.get(asked.kind[1])):
            self._kinds.setdefault(asked.kind, name)

    def _suits(self, asked: _Asked, hand: _Hand) -> bool:
        target = asked.kind[1]
        if self._on_gpu(target) != hand.gpu:
            return False
        name = hand.hardware.get(target)
        if not asked.task or name is None:
            return True
        return self._kinds.get(asked.kind, name) == name

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
                self._waiting.put_back([asked] if asked else [])
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
            self._waiting.put_back(unanswered)

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
