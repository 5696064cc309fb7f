"""A real Ray cluster of two nodes, both on this machine: a worker is killed, and one of the nodes is stopped half-way."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spooling import building, judging

from kernelpro.pools import ray_connect, ray_pool
from kernelpro.pools.factory import create_pool
from kernelpro.pools.ray_pool import RayPool
from kernelpro.records import BadInput, BuildData, Candidate, Job, Progress, Result, Status


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
    """Processes of the actors of this test's own cluster, however Ray has named them since."""
    titles, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            titles[int(folder.name)] = (folder / "cmdline").read_bytes()
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])

    def is_ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_ours(parents[pid]))

    return [pid for pid, title in titles.items() if title.startswith(b"ray::RayWorker") and is_ours(pid)]


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


class TestPool:
    """One pool for all; while it is open, other addresses are not looked at."""

    @pytest.fixture(scope="class")
    @classmethod
    def there(cls, cluster: Any) -> Iterator[RayPool]:
        with create_pool(f"ray:{cluster.address}") as pool:
            assert isinstance(pool, RayPool)
            yield pool

    def test_judging_is_the_same_there(self, there: RayPool) -> None:
        stages: list[str] = []
        answers = [
            there.submit(judging(factor, factor), lambda step: stages.append(step.stage)) for factor in "23"
        ]
        right, wrong = (answer.result(timeout=200).verdict for answer in answers)
        assert right and right.status is Status.PASSED and right.candidate == "2"
        assert wrong and wrong.status is Status.WRONG
        assert any(stage.startswith("queued with") for stage in stages), "the queue can be seen"

    def test_all_are_answered_once_and_rightly_whatever_dies(self, cluster: Any, there: RayPool) -> None:
        """Two are at work: the worker of the first node is killed, and later the second node is stopped."""
        two_workers = 2 * ray_pool._WARM_COST
        jobs = [job(number) for number in range(2 * two_workers + 1)]
        called: list[str] = []

        def submit(some: list[Job]) -> list[Future[Result]]:
            answers = [there.submit(one) for one in some]
            for answer in answers:
                answer.add_done_callback(lambda future: called.append(future.result().job))
            return answers

        answers = submit(jobs[:1])
        until(lambda: bool(called))
        (first,) = actors()
        second = cluster.add_node(num_cpus=1)
        answers += submit(jobs[1 : two_workers + 1])
        until(lambda: sum(actor.started for actor in there._actors) == 2 and not there.pending_jobs)
        answers += submit(jobs[two_workers + 1 :])
        assert there.pending_jobs == two_workers
        until(lambda: there.pending_jobs < two_workers)
        os.kill(first, signal.SIGKILL)
        until(lambda: there.pending_jobs <= two_workers // 2)
        cluster.remove_node(second)
        results = [answer.result(timeout=300) for answer in answers]
        assert there.pending_jobs == 0
        assert sorted(called) == sorted(one.id for one in jobs), "each is answered once"
        answers_of = [result.data.reason if isinstance(result.data, BuildData) else "" for result in results]
        assert all(f"number {number};" in said for number, said in enumerate(answers_of)), "each is its own"
        until(lambda: len(actors()) == 1)  # both were replaced by one

    @pytest.mark.long  # the scheduler's part of it: test_ray_scheduling.py
    def test_a_worker_that_is_stopped_is_replaced(
        self, there: RayPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_pool, "_DEAD_SECONDS", 5.0)
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
