"""The application: pages, the data behind them, the stream of a run, and requests of the user."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput
from kernelpro.ui import pages, questions, suites
from kernelpro.ui.feed import Cursor, read_all
from kernelpro.ui.locations import Locations
from kernelpro.ui.overview import Overview
from kernelpro.ui.requests import ResumedRuns, store_request
from kernelpro.ui.security import Access
from kernelpro.ui.stream import stream

_MAX_BODY = 4 * 2**20
_MAX_COMPARED = 8

Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    locations: Locations, token: str, loopback: bool = True, is_closed: Callable[[], bool] = lambda: False
) -> Starlette:
    """The application. `is_closed`: returns True once the server shuts down; streams then end."""
    handlers = _Handlers(locations, is_closed)
    run = "/runs/{root}/{run}"
    routes = [
        Route("/", _page(handlers.runs_page)),
        Route("/compare", _page(handlers.compare_page)),
        Route("/suites", _page(handlers.suites_page)),
        Route("/suites/{name}", _page(handlers.suite_page)),
        Route(run, _page(handlers.run_page)),
        Route("/assets/{name}", handlers.asset),
        Route("/api/runs", _data(handlers.runs)),
        Route("/api/compare", _data(handlers.compare)),
        Route("/api/suites", _data(handlers.benches)),
        Route("/api/suites/{name}", _data(handlers.bench)),
        Route(f"/api{run}/stream", handlers.stream),
        Route(f"/api{run}/steps/{{number:int}}", _data(handlers.step)),
        Route(f"/api{run}/question", _data(handlers.question)),
        Route(f"/api{run}/question", _data(handlers.answer), methods=["POST"]),
        Route(f"/api{run}/requests", _data(handlers.request), methods=["POST"]),
    ]
    access = Middleware(Access, token=token, loopback=loopback)  # type: ignore[arg-type]
    return Starlette(routes=routes, middleware=[access])


def _data(handler: Handler) -> Handler:
    """Report BadInput as JSON."""

    @functools.wraps(handler)
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except BadInput as error:
            return JSONResponse({"error": str(error)}, 400)

    return handle


def _page(handler: Handler) -> Handler:
    """Report BadInput as an HTML page."""

    @functools.wraps(handler)
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except BadInput as error:
            return HTMLResponse(pages.page("error", error=str(error)), 404)

    return handle


class _Handlers:
    def __init__(self, locations: Locations, is_closed: Callable[[], bool]):
        self._locations, self._is_closed = locations, is_closed
        self._overview, self._bench_overview = Overview(), Overview()
        self._resumed = ResumedRuns()

    # --- pages -----------------------------------------------------------------------------------------

    async def runs_page(self, request: Request) -> Response:
        return _html(request, "runs", folder=str(self._locations.runs_dir))

    async def compare_page(self, request: Request) -> Response:
        return _html(request, "compare")

    async def suites_page(self, request: Request) -> Response:
        return _html(request, "suites", folder=str(self._locations.benches_dir))

    async def suite_page(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._locations.benches():
            raise BadInput(f"there is no bench {name}")
        return _html(request, "suite", name=name)

    async def run_page(self, request: Request) -> Response:
        facts = await self._with_store(request, pages.run_facts)
        return _html(request, "run", run=facts, root=request.path_params["root"])

    async def asset(self, request: Request) -> Response:
        path = pages.FILES.get(request.path_params["name"])
        if path is None:
            return Response(status_code=404)
        return FileResponse(path, headers={"cache-control": "no-cache"})

    # --- data ------------------------------------------------------------------------------------------

    async def runs(self, request: Request) -> Response:
        rows = await run_in_threadpool(self._overview.rows, self._locations.run_folders())
        return JSONResponse({"runs": rows})

    async def compare(self, request: Request) -> Response:
        names = request.query_params.getlist("run")
        if not 1 <= len(names) <= _MAX_COMPARED:
            raise BadInput(f"compare one to {_MAX_COMPARED} runs")
        found = []
        for name in names:
            root, _, run = name.partition("/")
            folder = self._locations.run_folder(root, run)
            batch = await run_in_threadpool(_read_run, folder)
            found.append({"root": root, **batch})
        return JSONResponse({"runs": found})

    async def benches(self, request: Request) -> Response:
        benches = self._locations.benches()
        rows = await run_in_threadpool(suites.summarize_benches, benches, self._bench_overview)
        return JSONResponse({"benches": rows})

    async def bench(self, request: Request) -> Response:
        name = request.path_params["name"]
        folder = self._locations.benches().get(name)
        if folder is None:
            raise BadInput(f"there is no bench {name}")
        return JSONResponse(await run_in_threadpool(suites.read_bench, name, folder, self._bench_overview))

    async def stream(self, request: Request) -> Response:
        try:
            folder = self._folder(request)
        except BadInput as error:
            return JSONResponse({"error": str(error)}, 404)
        last = request.headers.get("last-event-id") or request.query_params.get("after", "")
        messages = stream(folder, Cursor.parse(last), lambda: self._resumed.status(folder), self._is_closed)
        return StreamingResponse(messages, media_type="text/event-stream")

    async def step(self, request: Request) -> Response:
        number = request.path_params["number"]
        text = await self._with_store(request, lambda store: pages.step_fragment(store, number))
        return HTMLResponse(text)

    async def question(self, request: Request) -> Response:
        key = request.query_params.get("key", "")
        return JSONResponse(await self._with_store(request, lambda store: questions.question(store, key)))

    # --- requests --------------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Response:
        data = await _body(request)
        key, text = str(data.get("key", "")), str(data.get("text", ""))
        act = questions.check if data.get("check") else questions.answer
        await self._with_store(request, lambda store: act(store, key, text))
        return JSONResponse({"ok": True})

    async def request(self, request: Request) -> Response:
        data = await _body(request)

        def act(store: RunStore) -> int:
            if data.get("kind") == "resume":
                return self._resumed.resume(store)
            return store_request(store, data)

        return JSONResponse({"event": await self._with_store(request, act)})

    # --- stores ----------------------------------------------------------------------------------------

    def _folder(self, request: Request) -> Path:
        return self._locations.run_folder(request.path_params["root"], request.path_params["run"])

    async def _with_store(self, request: Request, work: Callable[[RunStore], Any]) -> Any:
        """Open the run's store in a thread, call `work` with it there, and close it."""
        folder = self._folder(request)

        def act() -> Any:
            store = RunStore(folder)
            try:
                return work(store)
            finally:
                store.close()

        return await run_in_threadpool(act)


def _read_run(folder: Path) -> dict[str, Any]:
    store = RunStore(folder)
    try:
        return read_all(store) | {"facts": pages.run_facts(store)}
    finally:
        store.close()


def _html(request: Request, template: str, **values: Any) -> Response:
    return HTMLResponse(pages.page(template, steers=request.scope["authorized"], **values))


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request, of bounded size."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY:
            raise BadInput("the request is too large")
    try:
        data = json.loads(body)
    except ValueError:
        raise BadInput("the request is not JSON") from None
    if not isinstance(data, dict):
        raise BadInput("the request is not a JSON object")
    return data
