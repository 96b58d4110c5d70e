"""A project with a training that takes seconds, and a host over ssh, which is this machine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.loopback_ssh import NAME, Sshd, loopback_sshd, missing_tools
from fakes.tiny_corpus import write_running_verifier, write_tiny_corpus

from harness.config.load import dump_yaml
from harness.config.train import TrainConfig


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if reason := missing_tools():
        pytest.skip(reason)
    with loopback_sshd(tmp_path_factory.mktemp("ssh")) as found:
        yield found


@pytest.fixture(scope="module")
def box(sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The words that name the host after `harness remote run`."""
    root = tmp_path_factory.mktemp("box") / "drafter-harness"
    return (
        NAME, "--ssh-config", str(sshd.config), "--python", sys.executable, "--root", str(root),
    )  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    verifier = write_running_verifier(root / "verifier")
    write_tiny_corpus(root / "corpus", verifier, named=verifier)
    for name, epochs in (("train.yaml", 6), ("long.yaml", 2000)):
        config = TrainConfig(
            verifier="./verifier", corpus="corpus", head_dim=16, draft_vocab_size=48,
            total_seq_len=128, epochs=epochs, lr=3e-3, device="cpu", smoke="never", keep_best=1,
            upload_below_mb=0, replay_tokens=0,
        )  # fmt: skip
        (root / name).write_text(dump_yaml(config))
    return root
