"""`ray:` and `ray://HOST:PORT`: actors on a Ray cluster, one for each GPU or processor that the cluster gives us.

1. As many actors are asked for as the queue is worth: one for each task, and one more for every few jobs of it. Those that the
   cluster has no room for stay pending, which is what its autoscaler looks at. Whoever is not needed for a minute is let go.
2. An actor is a local pool on its node, with the hardware that Ray gave it; the code travels with the job. So whatever
   the judge guarantees, it guarantees here.
3. An actor with room gets a job of the task that it has warm, a few ahead; one with nothing to do, of the task that has the fewest
   under way and is worth being made warm. Tasks take turns (see waiting.py), and what has waited for long goes first, so that
   none starves. A task keeps to one kind of hardware.
4. An actor that dies, with its node or alone, gives no sign of life, or whose answer Ray lost, is replaced; what it was at is done
   by others. One whose GPU fails its health check is kept, without work, so that Ray gives that GPU to nobody.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import socket
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
from kernelpro.pools.waiting import Asked, Kind, Queues, Runs, Turns, Worker
from kernelpro.records import BadInput, Job, Progress, Result

_INSTALL = "pip install -e '.[ray]' in KernelPro's clone"
_MOST_ACTORS = 256
_WORTH = 7
"""Jobs that are worth another actor: making a task warm costs as much as judging so many (recorded on an H200: 15 s and 2 s)."""
_MOST_SENT = 4
_LONG_SECONDS = 300.0
_CHANCES = 10
"""Actors that may die over a job. They outlive what they run; so these were machines that failed."""
_MOST_IN_VAIN = 32
"""Actors that do not start or have not the hardware asked for, in a row, after which no other will: four nodes of eight."""
_TURN = 128
"""Jobs of a task in a row while another waits that nobody is at. A cluster has few workers for so many tasks for a while only."""
_IDLE_SECONDS = 60.0
"""After which an actor that is not needed is let go: starting one and making a task warm take half of that."""
_REACH_SECONDS = 5.0
_PREFACE, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\4\0\0\0\0\0"
"""How HTTP/2 begins: a client's first words, and a frame of settings (three bytes of length, then its type) with none in it."""
_PULSE_SECONDS = 1.0
_TELL_SECONDS = 5.0
"""Between two reports on the queue."""
_DEAD_SECONDS = 120.0
"""Without a sign of life; what runs has limits of its own, and an actor answers beside it."""


class Actor:
    """On a node: a local pool with one worker."""

    def __init__(self, sandbox: str):
        with contextlib.suppress(
            PermissionError
        ):  # Ray makes its workers yield to everybody, which spoils timings
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        (self._device,) = local.devices(workers=1)
        self._pool = local.Pool(sandbox, [self._device])
        self._stages: dict[str, str] = {}

    def hardware(self) -> dict[str, str | None]:
        """By target."""
        return {
            "cuda": self._device.name_for("cuda"),
            "cpu": self._device.name_for("cpu"),
            "": self._device.name_for(None),
        }

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


@dataclass(eq=False)
class _Hand(Worker):
    """An actor, as far as it has come."""

    actor: Any
    gpu: bool
    """Whether it has one."""
    arrival: Any
    """The call that tells its hardware."""
    hardware: dict[str, str | None] = field(default_factory=dict)
    sent: dict[Any, Asked] = field(default_factory=dict)
    """By call, in the order of sending."""
    wanted: float = 0.0
    """When it last was."""
    pulse: Any = None
    pulse_sent: float = 0.0
    failed: bool = False


class RayPool(Pool):
    """See the module."""

    def __init__(
        self,
        address: str = "",
        sandbox: str = "auto",
        match: str = "",
        say: Callable[[str], None] = lambda line: None,
    ):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            import ray
        except ImportError:
            raise BadInput(f"--pool ray: Ray is not installed: {_INSTALL}") from None
        self._ray: Any = ray
        self._sandbox, self._match, self._say = sandbox, match, say
        self._ours = not ray.is_initialized()
        if self._ours:
            self._join(address)
        self._lock = threading.RLock()
        self._count = itertools.count()
        self._waiting, self._turns, self._runs = Queues(), Turns(_TURN), Runs()
        self._hands: list[_Hand] = []
        self._kinds: dict[Kind, str] = {}
        """The hardware that it is timed on."""
        self._in_vain, self._why, self._last_failure = 0, "", 0.0
        """Actors that came to nothing since one was of use; and why and when the last did, or a GPU failed."""
        self._told, self._looked, self._has_gpus = 0.0, -math.inf, False
        self._closing, self._something = threading.Event(), threading.Event()
        self._lost = ""
        """Why nothing is answered any more."""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _join(self, address: str) -> None:
        name = f"--pool {address if address.startswith('ray://') else f'ray:{address}'}".rstrip(":")
        package = str(Path(__file__).resolve().parents[1])
        how = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": {"py_modules": [package]}}
        where = address or os.environ.get("RAY_ADDRESS", "")
        if where not in ("", "auto", "local"):
            reach(name, where)
        try:
            try:
                self._ray.init(address=where or "auto", **how)
            except ConnectionError:
                if where:
                    raise
                self._say(f"{name}: no cluster is running here; a new one is started, of this machine alone")
                self._ray.init(address="local", **how)
        except ImportError as error:
            what = "Ray" if not where.startswith("ray://") else "Ray's client"
            raise BadInput(f"{name}: {what} is not all there: {_INSTALL} ({_line(error)})") from None
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise BadInput(f"{name}: the cluster does not take us: {_line(error)}") from None

    def _now(self) -> float:
        return time.monotonic()

    def submit(self, job: Job, progress: Report = silent) -> Future[Result]:
        asked = Asked(str(next(self._count)), job, progress, self._now())
        with self._lock:
            if self._lost:
                raise BadInput(self._lost)
            self._runs.asked(asked)
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
            said = f"{type(error).__name__}: {_line(error)}"
            with self._lock:
                self._lost = f"--pool ray: it works no longer ({said}); the same command goes on from here"
                unanswered = [
                    *self._waiting,
                    *(asked for hand in self._hands for asked in hand.sent.values()),
                ]
            for asked in unanswered:
                if not asked.answer.done():
                    asked.refuse(BadInput(self._lost))

    def _loop(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                self._hire()
                self._assign()
                calls = {call: hand for hand in self._hands for call in self._calls(hand)}
            if not calls:
                self._rest()
                continue
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0.1)
            for call in ready:
                if calls[call] in self._hands:
                    self._hear(calls[call], call)
            self._feel_pulses()

    def _rest(self) -> None:
        self._something.wait(_PULSE_SECONDS)
        self._something.clear()

    def _calls(self, hand: _Hand) -> list[Any]:
        return [call for call in (hand.arrival, hand.pulse, *hand.sent) if call is not None]

    def _hire(self) -> None:
        """Ask for actors as the queue is worth, and let go those that it is not worth any more; the lock is held."""
        hopeless = {gpu: self._hopeless(gpu) for gpu in (False, True)}
        for kind in self._waiting.lengths() if any(hopeless.values()) else ():
            if why := hopeless[self._on_gpu(kind[1])]:
                for asked in self._waiting.drop(kind):
                    asked.refuse(BadInput(why))
        jobs = Counter(self._waiting.lengths())
        jobs.update(asked.kind for hand in self._hands for asked in hand.sent.values())
        needed: Counter[bool] = Counter()
        for (_, target), count in jobs.items():
            needed[self._on_gpu(target)] += math.ceil(count / _WORTH)
        for gpu in (False, True):
            self._staff(gpu, min(_MOST_ACTORS, needed[gpu]))

    def _staff(self, gpu: bool, needed: int) -> None:
        now = self._now()
        first = self._waiting.first()
        hands = [hand for hand in self._hands if hand.gpu == gpu and not hand.failed]
        useful = [
            hand
            for hand in hands
            if hand.arrival is not None or hand.sent or any(self._suits(a, hand) for a in first)
        ]
        for hand in useful:
            if hand.sent or len(useful) <= needed:
                hand.wanted = now
        for hand in sorted(
            hands, key=lambda h: h.arrival is None, reverse=True
        ):  # those that are pending first
            if now - hand.wanted > _IDLE_SECONDS and (hand not in useful or len(useful) > needed):
                if hand in useful:
                    useful.remove(hand)
                self._let_go(hand)
        if self._in_vain >= _MOST_IN_VAIN and now - self._last_failure > _IDLE_SECONDS:
            self._in_vain = 0  # perhaps by now
        if self._in_vain >= _MOST_IN_VAIN:
            return
        for _ in range(needed - len(useful)):
            wanted: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(gpu), "max_concurrency": _MOST_SENT + 2}
            if gpu and (kind := self._accelerator()):
                wanted["accelerator_type"] = kind
            actor = self._ray.remote(Actor).options(**wanted).remote(self._sandbox)
            self._hands.append(_Hand(actor, gpu, actor.hardware.remote(), wanted=now))

    def _let_go(self, hand: _Hand) -> None:
        with self._lock:
            self._hands.remove(hand)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(hand.actor)

    def _hopeless(self, gpu: bool) -> str:
        """Why no actor will come, where none is there."""
        hands = [hand for hand in self._hands if hand.gpu == gpu]
        if any(hand.hardware and not hand.failed for hand in hands):
            return ""
        if self._in_vain >= _MOST_IN_VAIN:
            return self._why
        failed = sum(hand.failed for hand in hands)
        if (
            failed
            and self._now() - self._last_failure > _LONG_SECONDS
            and failed >= self._ray.cluster_resources().get("GPU", 0)
        ):
            return f"--pool ray: all GPUs of the cluster ({failed}) failed their health checks; restart their machines"
        return ""

    def _on_gpu(self, target: str) -> bool:
        """Without a target: where the cluster has GPUs."""
        if not target and self._now() - self._looked > _PULSE_SECONDS:
            self._looked, self._has_gpus = self._now(), bool(self._ray.cluster_resources().get("GPU"))
        return target == "cuda" or (not target and self._has_gpus)

    def _accelerator(self) -> str | None:
        """The name by which Ray knows the hardware that is asked for, where it knows it."""
        known = [
            name.partition(":")[2]
            for name in self._ray.cluster_resources()
            if name.startswith("accelerator_type:")
        ]
        return next((kind for kind in known if self._match and self._match.lower() in kind.lower()), None)

    def _assign(self) -> None:
        """The lock is held. Whoever has least to do is served first."""
        under_way = Counter(asked.task for hand in self._hands for asked in hand.sent.values())
        free = [
            hand for hand in self._hands if hand.hardware and not hand.failed and len(hand.sent) < _MOST_SENT
        ]
        old = any(asked.since <= self._now() - _LONG_SECONDS for asked in self._waiting.first())
        while free:
            again = []
            for hand in sorted(free, key=lambda h: len(h.sent)):
                if asked := self._best_for(hand, under_way, old):
                    self._waiting.take(asked)
                    if asked.begin():
                        self._send(hand, asked)
                        under_way[asked.task] += 1
                    again.append(hand)
            free = [hand for hand in again if len(hand.sent) < _MOST_SENT]
        if self._waiting and self._now() - self._told > _TELL_SECONDS:
            self._told = self._now()
            self._tell_those_who_wait()

    def _tell_those_who_wait(self) -> None:
        failed = sum(hand.failed for hand in self._hands)
        here = sum(bool(hand.hardware) for hand in self._hands) - failed
        sick = f"; GPUs that failed: {failed}" if failed else ""
        others = len(self._waiting) - 1
        for asked in self._waiting:
            asked.tell(f"waiting with {others} others; {here} workers are there{sick}")

    def _best_for(self, hand: _Hand, under_way: Counter[str], old: bool) -> Asked | None:
        """The oldest job of the task that is best for this hand; `old`: whether any has waited for long."""
        long_ago = self._now() - _LONG_SECONDS
        mine = Counter(asked.task for asked in hand.sent.values())
        over = self._turns.over(hand)

        def others(asked: Asked) -> int:
            return under_way[asked.task] - mine[asked.task]

        def worth_it(asked: Asked) -> bool:
            if asked.task in (hand.task, ""):
                return True
            stays = hand.sent or self._runs.hold(hand, False, self._now())
            if stays and not over and asked.since > long_ago:  # whoever has nothing to do may come for it
                return False
            return not others(asked) or self._waiting.length(asked.kind) >= 2 * _WORTH  # to be shared by two

        def rank(asked: Asked) -> tuple[bool, int, int]:
            at_hand = asked.task == hand.task
            turn = (1 if at_hand else 2 * bool(others(asked))) if over else int(not at_hand)
            return asked.since > long_ago, turn, others(asked)

        near = hand.sent and not over and not old
        among = self._waiting.at_hand(hand.task) if near else self._waiting.first()
        return min((a for a in among if worth_it(a) and self._suits(a, hand)), key=rank, default=None)

    def _send(self, hand: _Hand, asked: Asked) -> None:
        hand.sent[hand.actor.do.remote(replace(asked.job, id=asked.key).dumps())] = asked
        self._turns.sent(hand, asked, self._waiting)
        if asked.task and (name := hand.hardware.get(asked.kind[1])):
            self._kinds.setdefault(asked.kind, name)

    def _suits(self, asked: Asked, hand: _Hand) -> bool:
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
        except self._ray.exceptions.RayError as error:
            if call in hand.sent and isinstance(error, self._ray.exceptions.RayTaskError):
                self._hear_of_failure(hand, call, error)
                return
            if call == hand.arrival:
                self._in_vain, self._last_failure = self._in_vain + 1, self._now()
                self._why = f"--pool ray: {_MOST_IN_VAIN} workers in a row did not start: {_line(error)}"
            self._replace(hand, call)  # it is dead, or what it said is lost with its node
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
                asked, hand.rests_since = hand.sent.pop(call), self._now()
            asked.answer.set_result(replace(Result.from_json(json.loads(value)), job=asked.job.id))

    def _welcome(self, hand: _Hand, hardware: dict[str, str | None]) -> None:
        name = hardware["cuda" if hand.gpu else "cpu"] or ""
        if self._match.lower() in name.lower():
            hand.hardware, hand.wanted, self._in_vain = hardware, self._now(), 0
            return
        self._say(f"a worker on {name} is sent away: {self._match} is asked for")
        self._in_vain, self._last_failure = self._in_vain + 1, self._now()
        self._why = f"--match {self._match}: the cluster gives no such hardware"
        self._let_go(hand)

    def _hear_of_failure(self, hand: _Hand, call: Any, error: Exception) -> None:
        """A job that could not even be answered: the device is sick, or the code is."""
        with self._lock:
            asked = hand.sent.pop(call)
            if isinstance(getattr(error, "cause", None), local.DeviceFailed):
                if not hand.failed:
                    self._say(
                        f"a GPU ({hand.hardware.get('cuda')}) failed its health check and is not used any more"
                    )
                hand.failed, self._last_failure = True, self._now()
                self._waiting.put_back([asked])
                return
        asked.answer.set_result(lost(asked.job, f"the worker failed: {str(error).splitlines()[-1]}"))

    def _replace(self, hand: _Hand, lost_call: Any = None) -> None:
        """The job that the actor was at, or whose answer is lost, has had an attempt; the others are simply sent again."""
        with self._lock:
            unanswered = []
            for call, asked in sorted(hand.sent.items(), key=lambda sent: sent[0] != lost_call):
                if (value := self._last_words(call)) is not None:
                    asked.answer.set_result(replace(Result.from_json(json.loads(value)), job=asked.job.id))
                else:
                    unanswered.append(asked)
            if unanswered:
                unanswered[0].deaths += 1
                if unanswered[0].deaths >= _CHANCES:
                    victim = unanswered.pop(0)
                    victim.answer.set_result(
                        lost(victim.job, f"{_CHANCES} workers died or vanished while they were at this job")
                    )
            self._waiting.put_back(unanswered)
            self._let_go(hand)

    def _last_words(self, call: Any) -> str | None:
        """A result that the actor gave before it died."""
        try:
            return str(self._ray.get(call, timeout=0))
        except (self._ray.exceptions.RayError, TimeoutError):
            return None

    def _feel_pulses(self) -> None:
        now = self._now()
        for hand in list(self._hands):
            if hand.arrival is not None:
                continue
            if hand.pulse is None and hand.sent and now - hand.pulse_sent > _PULSE_SECONDS:
                hand.pulse, hand.pulse_sent = hand.actor.stages.remote(), now
            elif hand.pulse is not None and now - hand.pulse_sent > _DEAD_SECONDS:
                self._say(f"a worker has given no sign of life for {_DEAD_SECONDS:.0f} s and is replaced")
                self._replace(hand)


def reach(name: str, address: str) -> None:
    """Whether Ray is there. Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"{name}: not an address: there are ray:, ray:HOST:PORT and ray://HOST:PORT")
    hint = "is it the address that `ray start --head` gave?"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS) as there:
            known = _speaks_as_ray(there)
    except (OSError, OverflowError) as error:
        raise BadInput(f"{name}: nobody answers there ({error}); {hint}") from None
    if not known:
        raise BadInput(f"{name}: something listens there, but it is not Ray; {hint}")


def _speaks_as_ray(there: socket.socket) -> bool:
    """Ray speaks gRPC, that is HTTP/2, in which a server begins with its settings. Under TLS that is not seen from here."""
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return True
    try:
        there.sendall(_PREFACE + _SETTINGS)
        return there.recv(4)[3:] == _SETTINGS[3:4]
    except OSError:
        return False


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
