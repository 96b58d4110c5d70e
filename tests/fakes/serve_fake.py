"""FakeVllm as a process of its own, started as the harness starts vLLM.

Takes vLLM's flags. What it does wrong is said by variables: FAKE_FAULT (see FakeVllm; also
"late_worker_error", "port_stolen_once", "needs_N" (waits for N engines), "never_ready", and
"other_text" under speculation), FAKE_STEP_S, FAKE_FOLDER (for what must outlive a start).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.fake_vllm import FakeVllm

WORKER_LOG = """\
(Worker pid=7) INFO 11-29 21:39:02 [loader.py:9] Loading weights took 0.1 seconds
(Worker pid=7) ERROR 11-29 21:39:02 [x.py:8] Traceback (most recent call last):
(Worker pid=7) ERROR 11-29 21:39:02 [x.py:8] AssertionError: fc.weight has 3 columns
(EngineCore pid=6) ERROR 11-29 21:39:04 [core.py:1] RuntimeError: worker died
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speculative-config", type=json.loads)
    flags, _ = parser.parse_known_args()
    fault, folder = os.environ.get("FAKE_FAULT"), os.environ.get("FAKE_FOLDER")
    if fault == "port_stolen_once" and folder and not (Path(folder) / "stolen").exists():
        (Path(folder) / "stolen").touch()
        sys.exit("OSError: [Errno 98] Address already in use")
    if fault == "late_worker_error" and flags.speculative_config:
        sys.stderr.write(WORKER_LOG)
        sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
    # A child in the same process group, as vLLM has its engine and workers.
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if folder:
        (Path(folder) / f"worker-{flags.port}").write_text(str(worker.pid))
    begun = Path(folder or ".").glob
    num_needed = int(fault.removeprefix("needs_")) if fault and fault.startswith("needs_") else 0
    while fault == "never_ready" or len(list(begun("worker-*"))) < num_needed:
        time.sleep(0.05)
    if num_needed and folder:
        time.sleep(1.5 if flags.speculative_config else 0)
        (Path(folder) / f"up-{flags.port}").touch()
    accepted = (0, 1, 3, 0) if flags.speculative_config else ()
    k = flags.speculative_config["num_speculative_tokens"] if flags.speculative_config else 3
    with FakeVllm(
        tuple(min(a, k) for a in accepted),
        k=k,
        step_s=float(os.environ.get("FAKE_STEP_S", "0.002")),
        fault=fault,
        first_token_id=500 if fault == "other_text" and flags.speculative_config else 100,
        port=flags.port,
    ):
        worker.wait(600)  # vLLM follows its worker into the grave within 2 s, with exit code 0
        time.sleep(0.5)


if __name__ == "__main__":
    main()
