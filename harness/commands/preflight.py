"""Before what takes minutes or hours: checks of this machine against what it will need."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from eval.device import detect_device, engine_bytes, resolve_server
from eval.spec import ServerSpec
from harness.config.bench import BenchConfig
from harness.config.load import load_config, read_yaml
from harness.config.regenerate import RegenerateConfig
from harness.config.train import TrainConfig
from harness.corpus.backends import arithmetic_dtype, estimate_memory
from harness.corpus.extractplan import ExtractConfig, num_stored_rows
from harness.corpus.manifest import load_manifest
from harness.corpus.rowfiles import read_longest
from harness.corpus.storage import estimate_bytes, space_for
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError, HarnessError
from harness.render import log, show_table, warn
from harness.settings import Settings, visible_gpus
from harness.tracking import preflight
from harness.tracking.audit import Check
from harness.training.preflight import check_training

_INPUTS = {"verifier", "corpus", "drafter", "rows"}


def begin(what: str, checks: Sequence[Check]) -> None:
    """Says what is not green, and stops at what is red.

    Inputs that are not there are left to the step itself, which says more of them.

    Raises:
        PrerequisiteError: Names each red check with its cure.
    """
    if any(check.state == "failed" and check.name in _INPUTS for check in checks):
        return
    wrong = [check for check in checks if check.state != "ok"]
    if any(check.state == "failed" for check in wrong):
        show(checks)
    for check in wrong:
        if check.state == "warning":
            warn(f"{check.name}: {check.found}" + (f"; {check.fix}" if check.fix else ""))
    preflight.require_green(checks, what)
    log(f"{what}: {len(checks) - len(wrong)} of {len(checks)} checks of this machine are green")


def show(checks: Sequence[Check]) -> None:
    """The table of all of them."""
    rows = [(check.state, check.name, check.found, check.fix) for check in checks]
    show_table("this machine", ("state", "what", "found", "to mend it"), rows)


def check_step(path: Path, settings: Settings) -> list[Check]:
    """The checks of the step that a YAML describes, a training or a bench.

    Raises:
        ConfigError: It is neither.
    """
    if "corpus" in read_yaml(path):
        return check_training(load_config(TrainConfig, path), settings)
    return check_bench(load_config(BenchConfig, path), settings)


def check_bench(config: BenchConfig, settings: Settings) -> list[Check]:
    """Verifier, GPUs and the memory of one engine; where two do not fit, they run in turn.

    Raises:
        ConfigError: The bench names no verifier.
    """
    if config.verifier is None:
        raise ConfigError("expected a verifier in the bench, found none", "put it into the YAML")
    verifier, found = preflight.check_verifier(config.verifier, settings)
    checks = [found, *preflight.check_gpus()]
    if verifier is not None:
        spec = ServerSpec(verifier=verifier.path, **config.server.model_dump())
        checks.append(_check_engine(resolve_server(spec)))
    return [*checks, preflight.check_disk(settings.bench_dir, 1 << 28, "measurements")]


def check_regenerate(verifier: Verifier, out_dir: Path, config: RegenerateConfig) -> list[Check]:
    """The clock, and where a server is started GPUs, the engine's memory and the packages."""
    checks = [preflight.check_clock(out_dir)]
    if config.endpoint is None:
        checks += preflight.check_gpus()
        checks.append(_check_engine(config.build_server_spec(verifier.path)))
        checks.append(preflight.check_versions())
    return checks


def check_extract(
    tokens_dir: Path, verifier: Verifier, out_dir: Path, config: ExtractConfig
) -> list[Check]:
    """Memory, states on disk, the dtype, the GPUs, the packages, the clock."""
    try:
        source = load_manifest(tokens_dir, "prepare")
    except HarnessError as error:
        text = error.message.splitlines()[0]
        return [Check(name="rows", state="failed", found=text, fix=error.hint)]
    device: Literal["cpu", "cuda"] = "cuda" if visible_gpus() else "cpu"
    dtype = arithmetic_dtype(config.dtype, device)
    checks = [*preflight.check_gpus()]
    if config.backend == "vllm":
        # vLLM's connector takes seconds, which the other backend need not wait for.
        from harness.corpus.servedstates import build_server_spec  # noqa: PLC0415

        fitting = config.model_copy(update={"max_model_len": read_longest(tokens_dir) + 1})
        checks.append(_check_engine(build_server_spec(verifier, fitting, out_dir)))
    elif not config.device_map:
        checks.append(preflight.check_memory(estimate_memory(verifier, config, device), device))
    num_states = len(config.aux_layer_ids or verifier.default_aux_layer_ids) + 1
    mean_length = source.counts["tokens"] // source.counts["rows"]
    lengths = [mean_length] * num_stored_rows(source, config)
    disk = estimate_bytes(lengths, num_states, verifier.hidden_size, config.dtype)
    disk -= sum(p.stat().st_size for p in out_dir.glob("hidden_states/*.safetensors"))
    return [
        *checks,
        preflight.check_disk(out_dir, space_for(max(0, disk)), "hidden states"),
        preflight.check_states_dtype(config.dtype, dtype, verifier),
        preflight.check_versions(),
        preflight.check_clock(out_dir),
    ]


def _check_engine(spec: ServerSpec) -> Check:
    """Room for one engine: memory on a CPU, as many GPUs as it is spread over."""
    if detect_device() == "cpu":
        return preflight.check_memory(engine_bytes(spec), "cpu")
    wanted = spec.num_gpus
    found = len(visible_gpus())
    is_enough = found >= wanted
    fix = "lower tensor_parallel_size or data_parallel_size, or show more in CUDA_VISIBLE_DEVICES"
    text = f"{found} visible, {wanted} asked for"
    if is_enough:
        return Check(name="GPUs", state="ok", found=text)
    return Check(name="GPUs", state="failed", found=text, fix=fix)
