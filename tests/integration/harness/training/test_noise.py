"""Noise on hidden states: on what the drafter sees, of the width asked for, and on nothing else."""

import torch

from harness.training.worker.assembly import Noisy


def test_noise_is_added_to_the_aux_states_alone() -> None:
    batch = {
        "hidden_states": torch.zeros(1, 4000, 6),
        "verifier_last_hidden_states": torch.zeros(1, 4000, 2),
        "input_ids": torch.arange(4000),
    }
    torch.manual_seed(1)
    noisy = Noisy(dict, 0.05)(batch)
    states = noisy["hidden_states"]
    assert states.abs().max() <= 0.025
    assert abs(float(states.mean())) < 1e-3
    assert abs(float(states.std()) - 0.05 / 12**0.5) < 1e-3
    for name in ("verifier_last_hidden_states", "input_ids"):
        assert torch.equal(noisy[name], batch[name])
    assert not batch["hidden_states"].any()
