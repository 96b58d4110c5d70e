import pytest

from harness.config.train import TrainConfig
from harness.errors import CheckError
from harness.training.smoke import require_falling, smoke_config


def test_the_smoke_training_is_small_and_shaped_like_the_real_one() -> None:
    config = TrainConfig(
        verifier="v", corpus="c", head_dim=128, lr=3e-4, epochs=20, total_seq_len=8192
    )
    small = smoke_config(config)
    assert (small.head_dim, small.lr, small.verifier) == (128, 3e-4, "v")
    assert (small.max_steps, small.total_seq_len) == (24, 512)
    assert TrainConfig.model_validate(small.model_dump()) == small


def test_a_falling_loss_passes() -> None:
    require_falling([9, 9, 8, 8, 5, 4, 4, 3])


@pytest.mark.parametrize("losses", [[1.0] * 8, [1, 1, 1, 1, 2, 2, 2, 2], [3, 2, 1]])
def test_a_loss_that_does_not_fall_or_too_few_steps_are_refused(losses: list[float]) -> None:
    with pytest.raises(CheckError):
        require_falling(losses)
