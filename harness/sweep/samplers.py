"""Optuna's samplers and pruners as the sweep's YAML names them, with nothing left to its defaults.

Optuna prunes by the median unless told otherwise, and seeds by the clock.
"""

import warnings

import optuna

from harness.config.sweep import Halving, Hyperband, SweepConfig, Wilcoxon

_SEED_STEP = 1_000_003
_SEED_RANGE = 1 << 32


def build_sampler(config: SweepConfig, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of one trial, seeded by the sweep's seed and the trial's number.

    A grid is put in point by point (`study`); whatever is asked beyond it is drawn at random.
    """
    chosen = config.sampler
    seed = (chosen.seed * _SEED_STEP + number) % _SEED_RANGE
    has_conditions = any(axis.when for axis in config.space.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if chosen.type == "tpe":
            return optuna.samplers.TPESampler(
                n_startup_trials=chosen.num_startup,
                multivariate=True,
                group=has_conditions,
                constant_liar=True,
                seed=seed,
            )
        if chosen.type == "qmc":
            return optuna.samplers.QMCSampler(
                scramble=True,
                seed=chosen.seed,
                independent_sampler=optuna.samplers.RandomSampler(seed=seed),
                warn_independent_sampling=False,
            )
    return optuna.samplers.RandomSampler(seed=seed)


def build_pruner(config: SweepConfig) -> optuna.pruners.BasePruner:
    """The pruner, its resources said out loud."""
    chosen = config.pruner
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if isinstance(chosen, Halving):
            return optuna.pruners.SuccessiveHalvingPruner(
                min_resource=chosen.min_resource, reduction_factor=chosen.reduction_factor
            )
        if isinstance(chosen, Wilcoxon):
            return optuna.pruners.WilcoxonPruner(
                p_threshold=chosen.p_threshold, n_startup_steps=chosen.min_prompts
            )
        if isinstance(chosen, Hyperband):
            return optuna.pruners.HyperbandPruner(
                min_resource=chosen.min_resource,
                max_resource=chosen.max_resource,
                reduction_factor=chosen.reduction_factor,
            )
    return optuna.pruners.NopPruner()
