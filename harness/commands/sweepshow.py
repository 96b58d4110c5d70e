"""How `harness sweep` shows a search: its table, its front, its best trial."""

from eval.errors import EvalError
from harness.config.bench import BenchConfig
from harness.errors import CheckError, ConfigError
from harness.render import log, show_table, show_text, warn
from harness.settings import load_settings
from harness.sweep.leases import read_coordinator
from harness.sweep.records import Trial
from harness.sweep.serving import Measure, Measured
from harness.sweep.session import reopen
from harness.sweep.space import spell
from harness.sweep.study import SweepStudy
from harness.sweep.verdicts import front
from harness.sweep.view import COLUMNS, LEGEND, best_trial, conclusion, explain, overview


def show_sweep(name: str) -> None:
    """All of a sweep that was begun here, by its name."""
    study, place = reopen(name, load_settings())
    trials = study.trials()
    show_table(title_of(study, trials), COLUMNS, overview(study, trials).rows)
    show_text(LEGEND)
    for line in explain(trials):
        show_text(line)
    owner = read_coordinator(place.folder)
    log(f"coordinated by process {owner.pid}" if owner else "nobody works on it")
    show_text(conclusion(study))
    if (chosen := best_trial(study)) is not None:
        show_text(f"best: trial {chosen.number}, {spell(chosen.params)}")
        show_text(f"its configuration: harness sweep export {name}")


def title_of(study: SweepStudy, trials: tuple[Trial, ...]) -> str:
    """How far it is, in a line."""
    seen = overview(study, trials)
    eta = "" if not seen.eta_s else f", about {seen.eta_s / 60:.0f} min of training left"
    return (
        f"{study.config.name}: {seen.num_finished} of {study.config.n_trials} trials, "
        f"{seen.num_pruned} pruned, {seen.num_failed} failed{eta}"
    )


def telling(measure: Measure) -> Measure:
    """The same, with a warning at once when a measurement fails: the sweep goes on without it."""

    def told(bench: BenchConfig) -> Measured:
        try:
            return measure(bench)
        except (EvalError, CheckError) as error:
            why = error.cause if isinstance(error, EvalError) else error.message
            hint = f" -> {error.hint}" if error.hint else ""
            warn(f"{bench.name} of {', '.join(bench.drafters)} failed: {why}{hint}")
            raise

    return told


def front_of(study: SweepStudy) -> list[Trial]:
    """The trials that no other beats in every objective."""
    return front(study.config, study.trials())


def require_best(study: SweepStudy) -> Trial:
    """Its best trial.

    Raises:
        ConfigError: None is finished yet.
    """
    found = best_trial(study)
    if found is None:
        raise ConfigError(f"expected a finished trial in {study.config.name!r}, found none yet")
    return found


def require_trial(study: SweepStudy, number: int) -> Trial:
    """One trial by its number.

    Raises:
        ConfigError: There is none of that number.
    """
    trials = study.trials()
    if not 0 <= number < len(trials):
        raise ConfigError(f"--trial: expected 0 to {len(trials) - 1}, found {number}")
    return trials[number]
