"""A measurement as a run of the store: references resolved and checked, result logged.

The one function of `harness bench` that others call: the demo, sweeps, promotions.
"""

import importlib.util
from pathlib import Path

from pydantic import ValidationError

from eval.cells import fingerprint_of
from eval.compat import read_facts, require_run_time_k
from eval.device import detect_device, near_tie_gap, resolve_server, served_dtype
from eval.environment import read_synthetic
from eval.progress import ProgressFn
from eval.prompts import digest_prompts
from eval.proposers import NEEDS, ceiling_proposers, known_proposer, write_untrained_drafter
from eval.report import render_html
from eval.result import BenchResult
from eval.runner import RESULT_NAME, run_bench
from eval.spec import BenchSpec, DrafterSpec, Prompt, Proposer, Sampling, ServerSpec
from harness.commands.benchparity import add_parity, require_replayable
from harness.commands.work import (
    DEFAULT_PROMPTS,
    LOGGED,
    LoggedResult,
    load_prompts,
    log_views,
    model_ids,
    verifier_reference,
    work_folder,
)
from harness.config.bench import BenchConfig
from harness.config.load import dump_yaml, flatten
from harness.config.problems import explain
from harness.digests import write_atomic
from harness.drafter.checks import require_sound
from harness.drafter.drafter import Drafter
from harness.drafter.pad import require_named_layers
from harness.drafter.provenance import code_state
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import ConfigError, PrerequisiteError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.figures import bench_figures
from harness.tracking.measurements import log_bench_document, log_bench_result
from harness.tracking.reaping import reap
from harness.tracking.resolve import ResolvedDrafter, require_unchanged, resolve_drafter
from harness.tracking.run import Run
from harness.tracking.store import Store
from harness.tracking.waterfall import add_served

BenchRun = LoggedResult[BenchResult]
_PAGE_NAME = "report.html"
_TAG_FINGERPRINT = "bench.fingerprint"


def bench_drafters(
    config: BenchConfig,
    settings: Settings,
    store: Store,
    progress: ProgressFn,
    *,
    is_reusing: bool = False,
) -> BenchRun:
    """Measures the drafters of a config and logs the result as one bench run.

    An interrupted measurement of the same drafters, prompts and settings is taken up again.

    Args:
        config: What to measure; at least one drafter or proposer.
        settings: Where verifiers, work folders and the store are.
        store: The open store.
        progress: Told how far it is.
        is_reusing: Return the logged result of an equal measurement, if there is one.

    Raises:
        ConfigError: A reference, prompt file or setting makes no sense.
        CheckError: A drafter is not sound, or its files were changed after they were recorded.
        EvalError: The measurement failed; the run says why.
    """
    resolved, verifier, spec = _prepare(config, settings, store)
    out_dir = work_folder(settings.bench_dir, fingerprint_of(spec), is_reusing=is_reusing)
    digest = verifier_digest(verifier, settings.cache_dir)
    result_path, page_path = out_dir / RESULT_NAME, out_dir / _PAGE_NAME
    if (out_dir / LOGGED).exists():
        run_id = (out_dir / LOGGED).read_text()
        result = BenchResult.load(result_path)
        if config.is_checking_parity and result.parity is None:
            result = add_parity(result, out_dir, verifier, digest, progress)
            run = store.attach_run(run_id)
            log_bench_document(run, result)
            _log_views(run, result, page_path)
        return BenchRun(run_id, result, result_path, page_path)
    reap(store)
    with store.start_run(
        names.KIND_BENCH,
        config.name or _run_name(config, verifier),
        experiment=names.EXPERIMENT_BENCH,
        tags={
            **_tags(spec, verifier.reference, digest),
            **names.input_tags(model_ids(resolved).values()),
        },
    ) as run:
        run.log_params(flatten(config.model_dump(mode="json")))
        run.log_text("bench.yaml", dump_yaml(config))
        try:
            result = run_bench(spec, out_dir, progress)
            if config.is_checking_parity:
                result = add_parity(result, out_dir, verifier, digest, progress)
        finally:
            _log_server_logs(run, out_dir)
        log_bench_result(run, store, result, model_ids(resolved))
        _log_views(run, result, page_path)
    write_atomic(out_dir / LOGGED, run.run_id)
    add_served(store, result, model_ids(resolved), run.run_id)
    return BenchRun(run.run_id, result, result_path, page_path)


def _prepare(
    config: BenchConfig, settings: Settings, store: Store
) -> tuple[list[ResolvedDrafter], Verifier, BenchSpec]:
    """Everything that can be refused before anything is started."""
    if not (config.drafters or config.proposers or config.also or config.ceiling):
        raise ConfigError(
            "expected something to measure, found none",
            "say --drafter with a folder or run:<id>; or --also ngram, or --ceiling",
        )
    resolved = [resolve_drafter(reference, settings, store) for reference in config.drafters]
    verifier = Verifier.load(verifier_reference(config.verifier, resolved, store), settings)
    for drafter in resolved:
        require_sound(drafter.path, verifier, deep=True)
        require_named_layers(Drafter.load(drafter.path), verifier)
    drafters = tuple(
        DrafterSpec(name=d.reference, path=d.path, digest=require_unchanged(d, store))
        for d in resolved
    )
    spec = _build_spec(
        config,
        drafters,
        _proposers(config, verifier, settings.bench_dir),
        verifier,
        load_prompts(config, settings),
    )
    if config.is_checking_parity:
        require_replayable(spec, verifier)
    if spec.acceptance_k:
        require_run_time_k(read_facts(spec.server.command, spec.server.env))
    return resolved, verifier, spec


def _build_spec(
    config: BenchConfig,
    drafters: tuple[DrafterSpec, ...],
    proposers: tuple[Proposer, ...],
    verifier: Verifier,
    prompts: tuple[Prompt, ...],
) -> BenchSpec:
    options = config.server.model_dump()
    if "max_num_seqs" not in config.server.model_fields_set:
        options["max_num_seqs"] = max(config.concurrency)
    if config.server.max_model_len is None and verifier.max_position_embeddings:
        options["max_model_len"] = min(verifier.max_position_embeddings, _DEFAULT_MODEL_LEN)
    try:
        server = resolve_server(ServerSpec(verifier=verifier.path, **options))
        return BenchSpec(
            server=server,
            drafters=drafters,
            proposers=proposers,
            prompts=prompts,
            prompts_name=config.prompts or str(DEFAULT_PROMPTS),
            sampling=Sampling(
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=config.seed,
                ignore_eos=config.ignore_eos,
            ),
            tie_gap=tie_gap_of(server, verifier) if config.tie_gap is None else config.tie_gap,
            **{name: getattr(config, name) for name in _COPIED},
        )
    except ValidationError as error:
        problems = "; ".join(line for _, line in explain(error, BenchSpec))
        raise ConfigError(f"this cannot be measured: {problems}") from error


def tie_gap_of(server: ServerSpec, verifier: Verifier) -> float:
    """Nats of a near tie in what the server computes in."""
    key = None if verifier.dtype else verifier.embed_key
    stored = verifier.header(key).dtype if key else None
    return near_tie_gap(served_dtype(server.dtype, named=verifier.dtype, stored=stored))


_DEFAULT_MODEL_LEN = 2048
_COPIED = (
    "k", "acceptance_k", "ceiling", "concurrency", "num_warmup", "request_timeout_s", "pairing",
    "max_engines", "queue_path", "max_idle_cost", "block_size", "precision", "num_swap_checks",
    "is_swapping", "confidence", "num_resamples", "max_drift", "max_foreign_cpu",
)  # fmt: skip


def _proposers(config: BenchConfig, verifier: Verifier, work_dir: Path) -> tuple[Proposer, ...]:
    """Competitors by name, those of the YAML, and the ceilings."""
    for name in config.also:
        module = NEEDS.get(name)
        if module and importlib.util.find_spec(module) is None:
            raise PrerequisiteError(
                f"--also {name} needs the module {module}, which is not installed",
                f"pip install {module.replace('_', '-')}, in the environment that vLLM runs in",
            )
    named = tuple(known_proposer(name) for name in config.also)
    if not config.ceiling:
        return (*named, *config.proposers)
    is_cpu = (config.server.device or detect_device()) == "cpu"
    folder = work_dir / f"untrained-{names.short_reference(verifier.reference)}"
    if not (folder / "model.safetensors").exists():
        write_untrained_drafter(verifier.path, folder)
    return (*named, *config.proposers, *ceiling_proposers(folder, config.ceiling, is_cpu=is_cpu))


def _run_name(config: BenchConfig, verifier: Verifier) -> str:
    k = "k" + "-".join(map(str, config.k))
    concurrency = "c" + "-".join(map(str, config.concurrency))
    return names.base_run_name(
        names.KIND_BENCH, [names.short_reference(verifier.reference), k, concurrency]
    )


def _tags(spec: BenchSpec, verifier: str, verifier_sha256: str) -> dict[str, str]:
    return {
        names.TAG_VERIFIER: verifier,
        names.TAG_VERIFIER_DIGEST: verifier_sha256,
        names.TAG_PROMPTS_DIGEST: digest_prompts(spec.prompts),
        names.TAG_CODE_COMMIT: code_state().commit or "unknown",
        _TAG_FINGERPRINT: fingerprint_of(spec),
        **({names.TAG_SYNTHETIC: made} if (made := read_synthetic(spec.server.verifier)) else {}),
    }


def _log_views(run: Run, result: BenchResult, page_path: Path) -> None:
    log_views(run, names.KIND_BENCH, page_path, render_html(result), result.to_frame())
    run.log_figures(bench_figures(result))


def _log_server_logs(run: Run, out_dir: Path) -> None:
    for path in sorted((out_dir / "logs").glob("*.log")):
        run.log_file(path, "logs")
