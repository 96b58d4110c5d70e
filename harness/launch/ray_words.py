"""What a launcher and the process that holds its Ray cluster say to each other, as JSON lines.

Before the first order comes a line with what hosts must be like (`hosts.Wanted`).
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from harness.config.load import Frozen
from harness.launch.ports import Task

ADMISSION_HINT = (
    "the cluster and every command need the same token: ray get-auth-token --generate writes "
    "~/.ray/auth_token, start Ray with RAY_AUTH_MODE=token; RAY_AUTH_MODE=disabled does without"
)


class Count(Frozen):
    """How many tasks of so many GPUs run at once."""

    do: Literal["count"] = "count"
    num_gpus: int


class Launch(Frozen):
    """Run this."""

    do: Literal["launch"] = "launch"
    task: Task


class Stop(Frozen):
    """Ask a task to stop, or end it."""

    do: Literal["stop"] = "stop"
    id: str
    is_now: bool


Order = Annotated[Count | Launch | Stop, Field(discriminator="do")]
ORDER: TypeAdapter[Order] = TypeAdapter(Order)


class Connected(Frozen):
    """The cluster answers."""

    word: Literal["connected"] = "connected"


class Places(Frozen):
    """The answer to `Count`."""

    word: Literal["places"] = "places"
    count: int


class Ended(Frozen):
    """A task ended by itself, or as it was told."""

    word: Literal["ended"] = "ended"
    id: str
    code: int


class Lost(Frozen):
    """The host of a task went away."""

    word: Literal["lost"] = "lost"
    id: str
    why: str


class Refused(Frozen):
    """The cluster or a host of it is not what it must be; nothing is run on it."""

    word: Literal["refused"] = "refused"
    message: str
    hint: str | None = None


Word = Annotated[Connected | Places | Ended | Lost | Refused, Field(discriminator="word")]
WORD: TypeAdapter[Word] = TypeAdapter(Word)
