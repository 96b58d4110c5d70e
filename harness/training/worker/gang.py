"""The processes that train together: who is first, waiting for each other, sums over all.

speculators 0.9.0 forms a gang on accelerators only; on a CPU its own topology is filled in here.
Signals are noted, and obeyed between two steps: an exception of speculators' handler that came up
while a line was logged would be swallowed there, and one in the middle of an exchange of gradients
would leave the others waiting in it.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

import torch
import torch.distributed as dist
from speculators.train import distributed


class Gang:
    """This process among those that train together; one that trains alone is its own gang."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group) if group else 0
        """Number of this process, from 0."""
        self.size = dist.get_world_size(group) if group else 1
        """Number of processes."""
        self.is_asked = False
        """Whether a signal asked this process to stop."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def wait(self) -> None:
        """Returns when all have come here."""
        if self._group:
            dist.barrier(self._group)

    def total(self, *values: float) -> list[float]:
        """Each value summed over all processes, in all of them; on the CPU, whatever trains."""
        if not self._group:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums, group=self._group)
        return [float(value) for value in sums]

    def note_signals(self) -> None:
        """Notes a wish to stop instead of raising it; torchrun's own SIGTERM ends at once."""
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._group else self._note)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that a signal ends at once, where a process trains alone: nothing is lost by it.

        Raises:
            KeyboardInterrupt: It came, or had come before.
        """
        if self._group:
            yield
            return
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            if self.is_asked:
                raise KeyboardInterrupt
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def leave(self) -> None:
        """Ends the gang; all must come here."""
        if self._group:
            self.wait()
            distributed.maybe_destroy_distributed()

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's
        self.is_asked = True


def join_gang() -> Gang:
    """Joins the gang that torchrun started this process for; without torchrun it is alone."""
    if not dist.is_torchelastic_launched():
        return Gang()
    if torch.accelerator.current_accelerator(check_available=True) is None:
        _join_on_cpu()
    else:
        distributed.maybe_setup_distributed()
    return Gang(dist.new_group(backend="gloo"))


def _join_on_cpu() -> None:
    """What `maybe_setup_distributed` does, which raises where there is no accelerator."""
    dist.init_process_group("gloo")
    distributed._local_rank = dist.get_node_local_rank()  # noqa: SLF001
    distributed._is_distributed = True  # noqa: SLF001
    distributed._rank, distributed._world_size = dist.get_rank(), dist.get_world_size()  # noqa: SLF001
    distributed._init_sp_process_groups(dist.get_rank(), dist.get_world_size(), 1)  # noqa: SLF001
