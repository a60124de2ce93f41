"""A real local HTTP server that answers as a language model would, from a function instead of a model.

For plumbing: everything between a policy and its model (sockets, JSON, retries, usage, faults) is real.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from policies.render import tokens_of

#: Requests larger than this are refused.
LARGEST_REQUEST = 4_000_000


@dataclass(frozen=True)
class Reply:
    """A scripted answer; ``status`` other than 200 is an HTTP error."""

    text: str
    finish: str = "stop"
    status: int = 200


def completion(request: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """The body of a chat completion as servers give it; token counts are estimates."""
    prompt = sum(tokens_of(str(message.get("content", ""))) for message in request.get("messages", ()))
    words = tokens_of(reply.text)
    message = {"role": "assistant", "content": reply.text}
    return {
        "id": "scripted",
        "object": "chat.completion",
        "created": 0,
        "model": str(request.get("model", "")),
        "choices": [{"index": 0, "finish_reason": reply.finish, "message": message}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words},
    }


class ScriptedServer:
    """Serves ``answer(request)`` as chat completions on a free local port while the context is open."""

    def __init__(self, answer: Callable[[Mapping[str, Any]], Reply | str]) -> None:
        self.answer = answer
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", "0"))
                if not 0 < size <= LARGEST_REQUEST:
                    self.send_error(413)
                    return
                request = json.loads(self.rfile.read(size))
                found = server.answer(request)
                reply = Reply(found) if isinstance(found, str) else found
                failed = {"error": {"message": reply.text}}
                body = json.dumps(completion(request, reply) if reply.status == 200 else failed).encode()
                self.send_response(reply.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        return Handler

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
