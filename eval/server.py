"""vLLM servers that we own: started, watched, stopped, and gone when we are.

The only place of this package that starts processes. The command goes through `eval/supervise.py`,
which ends it when this process ends in whatever way.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from eval import supervise
from eval.answers import Batch
from eval.compat import SOURCE_DIR, Counting, RequestCounts, build_counting, read_facts
from eval.device import resolve_server
from eval.errors import RequestError, ServerStartError, SpecError
from eval.loopback import find_free_port, is_healthy, request, require_free
from eval.serverlog import explain_failure, read_tail
from eval.spec import DrafterSpec, ServerSpec

_POLL_S = 0.2
_NUM_PORT_TRIES = 3
DYING_S = 2.5
"""A vLLM whose worker was killed is gone after 1.7 s (measured, 0.32)."""
_DEATH_S = 10.0
"""A killed worker takes some seconds to give back gigabytes on a busy machine."""
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


class VllmServer:
    """A vLLM OpenAI server as a context manager: ready inside the block, gone after it.

    Args:
        spec: How to start it; what is None is decided by the device.
        log_path: Where stdout and stderr of the server go; appended to.
        drafter: The drafter to speculate with; None for the verifier alone.
        num_speculative_tokens: Tokens proposed per draft; needed with a drafter.
        method: vLLM's name of the speculation method.
        speculative_config: Any vLLM speculative config, instead of drafter, k and method.
        k_path: A file that says to propose fewer tokens, while the server runs.
        on_wait: Told the seconds waited so far, while the server starts.
    """

    def __init__(
        self,
        spec: ServerSpec,
        log_path: Path,
        drafter: DrafterSpec | None = None,
        num_speculative_tokens: int | None = None,
        *,
        method: str = "eagle3",
        speculative_config: Mapping[str, Any] | None = None,
        k_path: Path | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> None:
        self.spec = resolve_server(spec)
        self.log_path = log_path
        self.speculative_config = _speculation(
            drafter, num_speculative_tokens, method, speculative_config
        )
        self.port: int | None = None
        self.start_s: float | None = None
        """Seconds from the start of the process to the first healthy answer."""
        self._counting = Counting()
        self._counts: RequestCounts | None = None
        if self.speculative_config is not None:
            facts = read_facts(self.spec.command, self.spec.env)
            path = log_path.with_suffix(".counts.jsonl")
            self._counting = build_counting(facts, path, k_path)
            self._counts = None if facts.is_counting_requests else RequestCounts(path)
        self._on_wait = on_wait
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset, self._launched_s = 0, 0.0

    @property
    def base_url(self) -> str:
        """Address of the running server, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self) -> str:
        """The name under which the server answers for its model."""
        return self.spec.served_name

    @property
    def pid(self) -> int | None:
        """Process id of the supervisor; the server is its child."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def launch(self) -> None:
        """Starts the process, if there is none, and returns at once; `start` waits for it."""
        if self._process is None:
            self.port = self.spec.port or find_free_port()
            require_free(self.port)
            self._log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._launched_s = time.monotonic()
            self._launch()

    def start(self) -> Self:
        """Starts the server and waits until it is healthy.

        Raises:
            ServerStartError: It exited, or was not healthy within `start_timeout_s`.
        """
        for attempt in range(1, _NUM_PORT_TRIES + 1):
            try:
                self.launch()
                self._wait_until_healthy()
            except BaseException as error:
                self.stop()
                log = read_tail(self.log_path, offset=self._log_offset)
                was_stolen = "Address already in use" in log
                is_ours = isinstance(error, ServerStartError) and self.spec.port is None
                if is_ours and was_stolen and attempt < _NUM_PORT_TRIES:
                    continue
                raise
            return self
        raise AssertionError("the last attempt returns or raises")

    def stop(self) -> None:
        """Ends the server: SIGTERM, then SIGKILL after `stop_timeout_s`. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(self.spec.stop_timeout_s + 10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _sweep_session(process.pid)

    def require_alive(self, patience_s: float = 0.0) -> None:
        """Raises ServerStartError, with the log's end, if the server is not running any more.

        Args:
            patience_s: Seconds to watch it: a dying server refuses requests before it is gone.
        """
        deadline = time.monotonic() + patience_s
        while self._process is not None and self._process.poll() is None:
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_S)
        raise self._failure("the vLLM server went away while it was in use")

    def fetch(self, path: str, body: object = None, timeout_s: float = 60.0) -> str:
        """The text of a GET, or of a POST with a JSON body, from a path of the server.

        Raises:
            ServerStartError: The server is gone.
            RequestError: It did not answer in time, or with a status other than 200.
        """
        if self.port is None:
            raise ServerStartError("the server was not started")
        try:
            status, text = request(self.port, path, body, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            self.require_alive(patience_s=DYING_S)
            raise RequestError(f"{path}: {type(error).__name__}: {error}") from error
        if status != http.client.OK:
            raise RequestError(f"{path} answered {status}: {text[:400]}")
        return text

    def add_counts(self, batch: Batch) -> Batch:
        """The batch with what the server counted for each answer, where answers do not say so."""
        return self._counts.add_to(batch) if self._counts else batch

    def build_command(self) -> list[str]:
        """The command line of the server, as it is recorded with a result."""
        spec = self.spec
        prefix = spec.command or (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
        # vLLM's own sampling defaults, not those of a generation_config.json.
        fixed: dict[str, object] = {
            "--model": spec.verifier,
            "--served-model-name": spec.served_name,
            "--host": "127.0.0.1",
            "--port": self.port,
            "--dtype": spec.dtype,
            "--max-num-seqs": spec.max_num_seqs,
            "--tensor-parallel-size": spec.tensor_parallel_size,
            "--generation-config": "vllm",
            "--max-model-len": spec.max_model_len,
            "--kv-cache-memory-bytes": spec.kv_cache_bytes,
        }
        command = [*self._counting.prefix, *prefix]
        for flag, value in fixed.items():
            command += [] if value is None else [flag, str(value)]
        prefix_cache = "enable" if spec.has_prefix_cache else "no-enable"
        command.append(f"--{prefix_cache}-prefix-caching")
        if spec.data_parallel_size > 1:
            command += ["--data-parallel-size", str(spec.data_parallel_size)]
        command += ["--enable-expert-parallel"] if spec.enable_expert_parallel else []
        command += ["--enforce-eager"] if spec.enforce_eager else []
        command += ["--trust-remote-code"] if spec.trust_remote_code else []
        if self.speculative_config is not None:
            command += ["--speculative-config", json.dumps(self.speculative_config)]
            command += self._counting.args
        return [*command, *spec.extra_args]

    def _launch(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = self.build_command()
        # The environment is passed on, not read: credentials of a hub may be needed there.
        environment = {**os.environ, **_QUIET, **self.spec.env}
        environment.pop("VLLM_API_KEY", None)  # of another's server: ours is on 127.0.0.1
        paths = [env["PYTHONPATH"] for env in (self.spec.env, os.environ) if env.get("PYTHONPATH")]
        if any(part.startswith("eval.") for part in command):  # a class of ours runs inside vLLM
            paths = [*([] if "site-packages" in SOURCE_DIR.parts else [str(SOURCE_DIR)]), *paths]
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        with self.log_path.open("ab") as log:
            log.write(f"$ {json.dumps(command)}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                supervise.guard(command, self.spec.stop_timeout_s),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def _wait_until_healthy(self) -> None:
        while True:
            waited_s = time.monotonic() - self._launched_s
            if self._process is None or self._process.poll() is not None:
                raise self._failure(f"the vLLM server exited after {waited_s:.0f} s, before ready")
            if is_healthy(self.port):
                self.start_s = time.monotonic() - self._launched_s
                return
            if waited_s > self.spec.start_timeout_s:
                raise self._failure(f"the vLLM server was not ready after {waited_s:.0f} s")
            if self._on_wait:
                self._on_wait(waited_s)
            time.sleep(_POLL_S)

    def _failure(self, what: str) -> ServerStartError:
        told, remedy = explain_failure(read_tail(self.log_path))
        hints = [*([remedy] if remedy else ()), f"the whole log: {self.log_path}"]
        return ServerStartError("\n".join([what, *told]), "; ".join(hints), self.log_path)


def _speculation(
    drafter: DrafterSpec | None,
    k: int | None,
    method: str,
    config: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    if config is not None:
        if drafter or k:
            raise SpecError("expected a speculative_config or a drafter with k, found both")
        return dict(config)
    if drafter is None:
        return None
    if k is None:
        raise SpecError(f"drafter {drafter.name}: num_speculative_tokens is not given")
    return {"method": method, "model": str(drafter.path), "num_speculative_tokens": k}


def _sweep_session(session: int) -> None:
    """Kills what is left of a session that we started: its supervisor may have been killed."""
    left = [process for process in psutil.process_iter() if _is_of(process, session)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + _DEATH_S
    while any(_is_of(process, session) for process in left) and time.monotonic() < deadline:
        time.sleep(_POLL_S / 4)


def _is_of(process: psutil.Process, session: int) -> bool:
    try:
        is_of = os.getsid(process.pid) == session
        return is_of and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False
