"""Who may read and write: no write without the token, nothing for other origins and hosts."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from report.browser import PROGRAM, Browser
from ui.generated_runs import record
from ui.page_server import PageServer, serving

from kernelpro.cli.commands.ui import UiOptions
from kernelpro.cli.ui import serve_page
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput
from kernelpro.records.events import HintGiven

pytest.importorskip("starlette")

RUN = "/api/runs/runs/recorded-1"
HINT = {"kind": "hint", "text": "x"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    home = tmp_path_factory.mktemp("secure")
    record(home / "runs", 5).close()
    with serving(home) as found:
        yield found


def hints(server: PageServer) -> int:
    store = RunStore.open(server.runs, "recorded-1")
    return sum(isinstance(event, HintGiven) for _, event in store.events())


def test_a_write_needs_the_token(server: PageServer) -> None:
    before = hints(server)
    port = server.base.rpartition(":")[2]
    assert server.ask(f"{RUN}/requests", HINT)[0] == 401
    assert server.ask(f"{RUN}/requests", HINT, authorization="Bearer wrong")[0] == 401
    assert server.ask(f"{RUN}/requests", HINT, cookie=f"kernelpro_{port}=wrong")[0] == 401
    assert server.ask(f"{RUN}/question", {"key": "step-1/plan", "text": "x"})[0] == 401
    assert server.ask("/?token=wrong")[0] == 401
    assert hints(server) == before
    status, headers, _ = server.ask(f"/?token={server.token}")
    cookie = headers["set-cookie"]
    assert status == 303 and headers["location"] == "/", "the token leaves the address"
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert server.ask(f"{RUN}/requests", HINT, cookie=cookie.partition(";")[0])[0] == 200
    assert server.ask(f"{RUN}/requests", HINT, authorization=f"Bearer {server.token}")[0] == 200
    assert hints(server) == before + 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8640"}, 421),
    ],
)
def test_other_origins_and_hosts_are_not_answered(
    server: PageServer, headers: dict[str, str], status: int
) -> None:
    """A name of another site that resolves to loopback is another host."""
    token = f"Bearer {server.token}"
    assert server.ask("/api/runs", **headers)[0] == status
    assert server.ask(f"{RUN}/stream", **headers)[0] == status
    assert server.ask(f"{RUN}/requests", HINT, authorization=token, **headers)[0] == status
    if "host" in headers:
        assert server.ask(f"/?token={server.token}", **headers)[0] == status


def test_a_link_of_another_site_is_followed_to_a_page_only(server: PageServer) -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert server.ask("/", **link)[0] == 200
    assert server.ask("/api/runs", **link)[0] == 403
    assert server.ask("/", **(link | {"sec_fetch_dest": "iframe"}))[0] == 403


def test_a_form_of_another_site_cannot_post(server: PageServer) -> None:
    token = f"Bearer {server.token}"
    plain = server.ask(f"{RUN}/requests", HINT, authorization=token, content_type="text/plain")
    assert plain[0] == 415, "only JSON, which needs a preflight that is not answered"
    assert server.ask(f"{RUN}/requests", method="OPTIONS")[0] in (401, 405, 415)


def test_answers_carry_a_strict_policy(server: PageServer) -> None:
    for path in ("/", "/api/runs", "/runs/runs/recorded-1", "/assets/run.js", "/runs/runs/none"):
        _, headers, _ = server.ask(path)
        policy = headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy
            and "script-src 'self'" in policy
            and "frame-ancestors 'none'" in policy
        )
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path", ["/assets/..%2f..%2fapp.py", "/api/runs/runs/..%2f..%2fetc/steps/1", "/runs/..%2f/x"]
)
def test_names_do_not_leave_the_known_folders(server: PageServer, path: str) -> None:
    assert server.ask(path)[0] in (400, 404)


@pytest.mark.parametrize(
    "request_data",
    [
        {"kind": "no such"},
        {"kind": "hint", "text": "  "},
        {"kind": "hint", "text": "x" * 5000},
        {"kind": "pin", "step": 99},
        {"kind": "pin", "step": "1"},
        {"kind": "close", "step": 5},
        {"kind": "stop"},
        {"kind": "add_budget", "candidates": -5},
        {"kind": "add_budget", "tokens": 10},
        {"kind": "add_budget"},
        {"kind": "paste", "source": "x = ("},
        {"kind": "paste", "source": "x = 1"},
        {"kind": "profile", "step": 0},
        [1, 2],
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_a_reason(
    server: PageServer, request_data: object
) -> None:
    store = RunStore.open(server.runs, "recorded-1")
    before = store.last_event
    status, _, text = server.ask(f"{RUN}/requests", request_data, authorization=f"Bearer {server.token}")
    assert status == 400 and '"error"' in text and store.last_event == before


@pytest.mark.skipif(PROGRAM is None, reason="no chromium here")
def test_a_page_of_another_origin_can_neither_read_nor_post(server: PageServer, tmp_path: Path) -> None:
    """In a browser that holds the cookie."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>evil</title>")

    evil = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=evil.serve_forever, daemon=True).start()
    browser = Browser(tmp_path)
    before = hints(server)
    try:
        browser.open(server.address)
        for name in ("127.0.0.1", "localhost"):  # the same site with another port, and another site
            browser.open(f"http://{name}:{evil.server_port}/")
            read = f"fetch('{server.base}/api/runs', {{credentials: 'include'}}).then((r) => r.text()).catch(() => 'blocked')"
            assert browser.value(read) == "blocked"
            for kind in ("application/json", "text/plain"):
                post = (
                    f"fetch('{server.base}{RUN}/requests', {{method: 'POST', credentials: 'include', "
                    f"mode: '{'no-cors' if kind == 'text/plain' else 'cors'}', headers: {{'content-type': '{kind}'}}, "
                    'body: JSON.stringify({kind: "hint", text: "evil"})}).then((r) => r.type).catch(() => "blocked")'
                )
                assert browser.value(post) in ("blocked", "opaque")
            framed = f"new Promise((done) => {{ const f = document.createElement('iframe'); f.src = '{server.base}/'; f.onload = () => {{ let t = 'blocked'; try {{ t = f.contentDocument.title; }} catch {{}} done(t); }}; document.body.append(f); }})"
            assert browser.value(framed) == "blocked"
    finally:
        browser.close()
        evil.shutdown()
    assert hints(server) == before


def test_elsewhere_than_on_loopback_every_request_needs_the_token(tmp_path: Path) -> None:
    record(tmp_path / "runs", 3).close()
    with serving(tmp_path, "--host", "0.0.0.0") as found:
        port = found.base.rpartition(":")[2]
        local = PageServer(f"http://127.0.0.1:{port}/?token={found.token}", tmp_path)
        assert local.ask("/")[0] == local.ask("/api/runs")[0] == local.ask("/assets/run.js")[0] == 401
        assert local.ask("/api/runs", authorization=f"Bearer {found.token}")[0] == 200


def test_an_address_or_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, reason in (
            (UiOptions(runs_dir=str(tmp_path), port=port), "Address already in use; choose another --port"),
            (UiOptions(runs_dir=str(tmp_path), host="nosuch.invalid"), "--host nosuch.invalid"),
            (UiOptions(runs_dir=str(tmp_path / "file")), "file, not a folder"),
        ):
            with pytest.raises(BadInput, match=reason) as error:
                serve_page(options)
            assert "\n" not in str(error.value)
