"""A real Ray cluster of two nodes, both on this machine, one of which is stopped half-way; workers are killed all the time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spooling import building, judging

from kernelpro.pools import ray_connect, ray_pool
from kernelpro.pools.factory import create_pool
from kernelpro.records import BadInput, BuildData, Candidate, Job, Progress, Status

LOOK_EVERY = 0.05
"""Seconds. A worker is killed whenever a fifth was answered since the last time, however fast workers are."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


def job(number: int) -> Job:
    """It does not compile, and what the compiler says names the number: so every answer differs."""
    asked = building(number)
    assert asked.candidate
    source = asked.candidate.source.replace("extern", f'static_assert(false, "number {number};"); extern')
    return replace(asked, candidate=Candidate(source, asked.candidate.name))


def actors() -> list[int]:
    """Processes of our actors, however Ray has named them since."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::RayWorker"):
            found.append(int(folder.name))
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


class Killer(threading.Thread):
    """SIGKILL to one of those at work, every few seconds."""

    def __init__(self, called: list[str], kills: int, pause: int) -> None:
        """`pause`: how many are answered between two kills."""
        super().__init__(daemon=True)
        self._called, self._kills, self._pause = called, kills, pause
        self.killed: list[int] = []
        self.enough = threading.Event()

    def run(self) -> None:
        before = 0
        while len(self.killed) < self._kills and not self.enough.wait(LOOK_EVERY):
            victims = [pid for pid in actors() if pid not in self.killed]
            if victims and len(self._called) >= before + self._pause:
                before = len(self._called)
                self.killed.append(random.choice(victims))
                os.kill(self.killed[-1], signal.SIGKILL)


def test_all_are_answered_once_and_rightly_whatever_dies(cluster: Any) -> None:
    count, kills = 20, 2
    second = cluster.add_node(num_cpus=1)
    jobs = [job(number) for number in range(count)]
    called: list[str] = []
    killer = Killer(called, kills, count // 5)
    with create_pool(f"ray:{cluster.address}") as there:
        answers = [there.submit(one) for one in jobs]
        for answer in answers:
            answer.add_done_callback(lambda future: called.append(future.result().job))
        assert there.pending_jobs == count
        until(lambda: bool(called))
        killer.start()
        until(lambda: len(called) >= count // 2)
        cluster.remove_node(second)
        results = [answer.result(timeout=300) for answer in answers]
        killer.enough.set()
        killer.join()
        assert there.pending_jobs == 0
    assert sorted(called) == sorted(one.id for one in jobs), "each is answered once"
    answers_of = [result.data.reason if isinstance(result.data, BuildData) else "" for result in results]
    assert all(f"number {number};" in said for number, said in enumerate(answers_of)), "each is its own"
    assert len(killer.killed) == kills


def test_judging_is_the_same_there(cluster: Any) -> None:
    stages: list[str] = []
    with create_pool(f"ray:{cluster.address}") as there:
        answers = [
            there.submit(judging(factor, factor), lambda step: stages.append(step.stage)) for factor in "23"
        ]
        right, wrong = (answer.result(timeout=200).verdict for answer in answers)
    assert right and right.status is Status.PASSED and right.candidate == "2"
    assert wrong and wrong.status is Status.WRONG
    assert any(stage.startswith("queued with") for stage in stages), "the queue can be seen"


@pytest.mark.long  # the scheduler's part of it: test_ray_scheduling.py
def test_a_worker_that_is_stopped_is_replaced(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_pool, "_DEAD_SECONDS", 5.0)
    with create_pool(f"ray:{cluster.address}") as there:
        assert there.run(job(1)).job == "build 1"
        (stopped,) = actors()
        os.kill(stopped, signal.SIGSTOP)
        built = there.submit(job(2)).result(timeout=120).data
        assert isinstance(built, BuildData) and "number 2;" in built.reason
        assert stopped not in actors()


@pytest.mark.long
def test_a_cluster_can_be_spoken_to_from_outside(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_ray import job
from kernelpro.pools.factory import create_pool
if __name__ == "__main__":
    with create_pool(sys.argv[1]) as there:
        print(there.run(job(7)).data.reason)
"""
    (tmp_path / "outside.py").write_text(code)
    ray = str(Path(sys.executable).with_name("ray"))
    started = [
        ray,
        "start",
        "--head",
        "--num-cpus=1",
        "--include-dashboard=false",
        "--block",
        "--temp-dir",
        "/tmp/kernelpro-ray",
    ]
    with free_port() as port, free_port() as client:
        pass
    plain = os.environ | {
        "RAY_AUTH_MODE": "disabled"
    }  # whoever runs this may have a token at home, and Ray then asks for it
    head = subprocess.Popen(
        [*started, f"--port={port}", f"--ray-client-server-port={client}"], start_new_session=True, env=plain
    )
    try:
        until(lambda: listens(client))
        command = [sys.executable, tmp_path / "outside.py", f"ray://127.0.0.1:{client}"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=200, env=plain)
        assert "number 7;" in told.stdout, told.stderr
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.wait(60)


@pytest.mark.parametrize("name", ["ray:127.0.0.1:", "ray://127.0.0.1:"])
def test_an_address_where_nobody_is(name: str) -> None:
    with free_port() as port:
        pass
    with pytest.raises(BadInput, match=f"^--pool {name}{port}: nothing answers there"):
        create_pool(f"{name}{port}")


@contextlib.contextmanager
def stranger(answer: bytes) -> Iterator[int]:
    """Somebody who is not Ray; the port."""

    def serve() -> None:
        guest, _ = server.accept()
        with guest, contextlib.suppress(ConnectionError):
            while guest.recv(1024):
                guest.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["a web server", "silence"]
)
@pytest.mark.parametrize("name", ["ray:127.0.0.1:", "ray://127.0.0.1:"])
def test_an_address_where_somebody_else_is(name: str, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connect, "_CONNECT_SECONDS", 1.0)
    with (
        stranger(answer) as port,
        pytest.raises(BadInput, match=f"^--pool {name}{port}: something listens there, but it is not"),
    ):
        create_pool(f"{name}{port}")


def test_what_is_no_address() -> None:
    with pytest.raises(BadInput, match=r"^--pool ray:nowhere: not an address"):
        create_pool("ray:nowhere")


def test_nobody_waits_for_a_pool_that_has_failed(cluster: Any) -> None:
    def fails(step: Progress) -> None:
        raise OSError("no space left")

    with create_pool(f"ray:{cluster.address}") as there:
        answers = [there.submit(job(1), fails), there.submit(job(2))]
        for answer in answers:
            with pytest.raises(BadInput, match=r"the pool stopped \(OSError: no space left"):
                answer.result(timeout=100)
        with pytest.raises(BadInput, match="the pool stopped"):
            there.submit(job(3))
