"""A server on loopback that speaks three protocols and does what a test tells it to.

OpenAI chat completions, OpenAI responses and Anthropic messages (plain, and as a stream of events): each request takes
the next act of the script, and is kept with its headers, so that tests can look at what was really sent.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Say:
    """An answer in words; `tokens` is what it used: all input, output, of the input from the cache, put into the cache."""

    text: str
    tokens: tuple[int, int, int, int] | None = (100, 10, 0, 0)
    finish: str = "stop"


@dataclass(frozen=True)
class Call:
    """Calls of tools: (name, arguments); arguments as text are sent as they are."""

    calls: tuple[tuple[str, dict[str, Any] | str], ...]
    tokens: tuple[int, int, int, int] = (100, 10, 0, 0)


@dataclass(frozen=True)
class Fail:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "something is wrong"


@dataclass(frozen=True)
class Raw:
    """Status 200 and this body."""

    body: bytes


class Cut:
    """The connection is reset in the middle of the answer."""


class Silence:
    """No answer, until the server ends."""


Act = Say | Call | Fail | Raw | Cut | Silence


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class LoopbackServer:
    def __init__(self, script: list[Act]) -> None:
        self.script = list(script)
        self.requests: list[Request] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer._serve(self, Request(self.path, {k.lower(): v for k, v in self.headers.items()}, body))

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._http.shutdown()
        self._http.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            act = self.script.pop(0) if self.script else Fail(400, message="the script is over")
        if isinstance(act, Silence):
            self._over.wait()
            return
        if isinstance(act, Cut):
            handler.wfile.write(
                b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
            )
            handler.wfile.flush()
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            return
        status, headers, body = 200, dict[str, str](), b""
        if isinstance(act, Fail):
            status, headers = act.status, act.headers
            body = json.dumps({"type": "error", "error": {"type": "x", "message": act.message}}).encode()
        elif isinstance(act, Raw):
            body = act.body
        else:
            answer = _PROTOCOLS[request.path.split("?")[0]](act, request.body["model"])
            body = json.dumps(answer).encode()
            if request.body.get("stream"):
                headers, body = {"Content-Type": "text/event-stream"}, _stream(answer)
        handler.send_response(status)
        for name, value in (
            {"Content-Type": "application/json", "Content-Length": str(len(body))} | headers
        ).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)


def _chat(act: Say | Call, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": act.text if isinstance(act, Say) else None}
    finish = act.finish if isinstance(act, Say) else "tool_calls"
    if isinstance(act, Call):
        message["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
            for i, (name, arguments) in enumerate(act.calls)
        ]
    answer = {"id": "c1", "object": "chat.completion", "created": 1, "model": model}
    answer["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
    if act.tokens:
        given, written, read, _ = act.tokens
        usage = {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}
        answer["usage"] = usage | {"prompt_tokens_details": {"cached_tokens": read}}
    return answer


def _responses(act: Say | Call, model: str) -> dict[str, Any]:
    if isinstance(act, Say):
        content = [{"type": "output_text", "text": act.text, "annotations": []}]
        output: list[dict[str, Any]] = [
            {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content}
        ]
    else:
        output = [
            {
                "type": "function_call",
                "id": f"f{i}",
                "call_id": f"call_{i}",
                "name": name,
                "arguments": _text(arguments),
            }
            for i, (name, arguments) in enumerate(act.calls)
        ]
    answer = {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "model": model,
        "status": "completed",
        "output": output,
    }
    answer |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    if act.tokens:
        given, written, read, _ = act.tokens
        answer["usage"] = {
            "input_tokens": given,
            "output_tokens": written,
            "total_tokens": given + written,
            "input_tokens_details": {"cached_tokens": read},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
    return answer


def _messages(act: Say | Call, model: str) -> dict[str, Any]:
    if isinstance(act, Say):
        content: list[dict[str, Any]] = [{"type": "text", "text": act.text}]
        finish = {"stop": "end_turn", "length": "max_tokens"}[act.finish]
    else:
        content = [
            {"type": "tool_use", "id": f"toolu_{i}", "name": name, "input": arguments}
            for i, (name, arguments) in enumerate(act.calls)
        ]
        finish = "tool_use"
    given, written, read, put = act.tokens or (0, 0, 0, 0)
    usage = {"input_tokens": given - read - put, "output_tokens": written}
    usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": put}
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": content}
    return answer | {"stop_reason": finish, "stop_sequence": None, "usage": usage}


def _stream(message: dict[str, Any]) -> bytes:
    """An answer of the messages protocol as the events it is streamed in."""
    usage = message["usage"]
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": message | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}},
        }
    ]
    for i, block in enumerate(message["content"]):
        if block["type"] == "text":
            start, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start, delta = (
                block | {"input": {}},
                {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
            )
        events.append({"type": "content_block_start", "index": i, "content_block": start})
        events.append({"type": "content_block_delta", "index": i, "delta": delta})
        events.append({"type": "content_block_stop", "index": i})
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append(
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": usage["output_tokens"]}}
    )
    events.append({"type": "message_stop"})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def _text(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


_PROTOCOLS = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}


@contextmanager
def serving(*script: Act) -> Iterator[LoopbackServer]:
    server = LoopbackServer(list(script))
    try:
        yield server
    finally:
        server.close()
