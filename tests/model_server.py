"""A real local HTTP server in the place of a model: scripted answers and scripted faults."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from policies.chat import Settings

ASK = [{"role": "user", "content": "hello"}]


@dataclass(frozen=True)
class Reply:
    """``status`` 0 cuts the connection: before the head, or after half of the body with ``half``."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    half: bool = False
    seconds: float = 0.0


Script = Callable[[dict[str, Any]], Reply]


def answer(text: str | None, finish: str = "stop", prompt: int = 10, words: int = 5, **message: Any) -> Reply:
    """A chat completion as servers give it."""
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": text, **message},
    }
    usage = {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}
    return body({"choices": [choice], "usage": usage})


def body(facts: Mapping[str, Any]) -> Reply:
    whole = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", **facts}
    return Reply(200, json.dumps(whole).encode(), {"Content-Type": "application/json"})


def failure(status: int, message: str = "no", **headers: str) -> Reply:
    facts = json.dumps({"error": {"message": message}}).encode()
    return Reply(
        status,
        facts,
        {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}},
    )


class Server:
    """Gives the scripted replies in turn, the last one for ever; keeps the requests and their headers."""

    def __init__(self) -> None:
        self.replies: list[Script] = [lambda _: answer("hi")]
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.busy = self.busiest = 0
        self._lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def say(self, *replies: Reply | Script) -> None:
        self.replies = [item if callable(item) else (lambda _, item=item: item) for item in replies]
        self.requests.clear()

    def prompt(self, index: int = -1) -> str:
        return str(self.requests[index]["messages"][-1]["content"])

    def settings(self, **changes: Any) -> Settings:
        return Settings("m", self.url, **{"pause": 0.01, "timeout": 5.0, **changes})

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def _take(self, request: dict[str, Any], headers: Mapping[str, str]) -> Script:
        with self._lock:
            self.requests.append(request)
            self.headers.append({name.lower(): value for name, value in headers.items()})
            self.times.append(time.monotonic())
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = server._take(request, self.headers)(request)
                time.sleep(reply.seconds)
                with server._lock:
                    server.busy -= 1
                if reply.status == 0 and not reply.half:
                    self.connection.close()
                    return
                self.send_response(reply.status or 200)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                try:
                    self.wfile.write(reply.body[: len(reply.body) // 2] if reply.half else reply.body)
                except BrokenPipeError:  # the client gave up
                    return
                if reply.half:
                    self.wfile.flush()
                    self.connection.close()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        return Handler
