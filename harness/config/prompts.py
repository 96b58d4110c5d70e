"""The mixture of prompts that a corpus is made of: where they come from, what is kept, how much."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.config.load import Frozen

Count = Annotated[int, Field(ge=1)]


class Columns(Frozen):
    """Which column of a set holds what. None: the first of the usual names that is there."""

    id: str | None = Field(default=None, description="Else `id`, else the number of the row.")
    category: str | None = Field(default=None, description="Else `category`, else the set's name.")
    turns: str | None = Field(
        default=None,
        description="Text, a list of texts, or messages with role and content (or from and value); "
        "else turns, messages, conversations, prompt, question, instruction or text.",
    )
    system: str | None = Field(
        default=None,
        description="What is said before the first turn; else the messages' own, else `system`.",
    )
    answer: str | None = Field(
        default=None,
        description="An answer whose length stands for the verifier's; else the messages' own.",
    )


class SourceConfig(Frozen):
    """One set of prompts."""

    source: str = Field(
        description="JSONL file (or .gz), package:<name>, a benchmark's folder, or "
        "hf:<org>/<set>[/<config>][:<split>] (split train unless named)."
    )
    name: str | None = Field(
        default=None,
        pattern=r"^[\w.\-]+$",
        description="Begins the ids of its prompts; else the last part of `source`.",
    )
    columns: Columns = Columns()
    category: str | None = Field(default=None, description="Of all its prompts; wins over columns.")
    limit: Count | None = Field(default=None, description="Rows read at most, the first ones.")
    weight: float | None = Field(
        default=None, gt=0, description="Share of the generated tokens, relative to the others'."
    )
    answer_tokens: float | None = Field(
        default=None,
        gt=0,
        description="Tokens that the verifier will generate for a prompt, on average.",
    )

    @property
    def label(self) -> str:
        """The name that begins the ids of its prompts."""
        place = self.source.rstrip("/").partition(":")[2] or self.source.rstrip("/")
        last = place.partition(":")[0].rpartition("/")[2]
        return self.name or last.removesuffix(".gz").removesuffix(".jsonl")


class FilterConfig(Frozen):
    """What is left out. Everything that is left out is listed with its reason."""

    languages: tuple[str, ...] = Field(
        default=(), description="ISO 639-1 codes to keep, as in en; none: all languages."
    )
    language_confidence: float = Field(
        default=0.8,
        gt=0,
        lt=1,
        description="Probability of another language from which a prompt is left out.",
    )
    min_tokens: Count = Field(
        default=1, description="Tokens of all questions and the system message at least."
    )
    max_tokens: Count | None = Field(
        default=None, description="Tokens of them at most; the context limits them anyway."
    )
    near_duplicates: float | None = Field(
        default=0.8,
        gt=0,
        lt=1,
        description="Share of common 5-character pieces (Jaccard) that makes two prompts one; "
        "null: only equal ones are.",
    )
    shared_words: Count | None = Field(
        default=13, description="Words in a row that make an overlap with an evaluation prompt."
    )


class PromptsConfig(Frozen):
    """One mixture of prompts."""

    verifier: str = Field(description="Reference of the verifier that will answer.")
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    exclude: tuple[str, ...] = Field(
        description="Every evaluation set, by file or reference; [] where there is none."
    )
    overlap: Literal["refuse", "drop"] = Field(
        default="refuse", description="What becomes of prompts that an evaluation asks."
    )
    filters: FilterConfig = FilterConfig()
    max_answer_tokens: Annotated[int, Field(ge=2)] = Field(
        default=512,
        description="New tokens per answer that regeneration will allow: bounds what an answer "
        "counts for, and is kept free in the context.",
    )
    num_tokens: Count | None = Field(
        default=None, description="Generated tokens wanted in all; else as many as the sets give."
    )
    pilot: str | None = Field(
        default=None,
        description="Folder of `harness data regenerate` that tells how long answers are.",
    )
    seed: int = Field(default=0, description="Of the choice and the order of prompts.")
    trust_remote_code: bool = Field(
        default=False, description="Run code of the verifier's folder, as some tokenizers need."
    )

    @model_validator(mode="after")
    def _weights_are_for_all_or_none(self) -> "PromptsConfig":
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            raise ValueError("expected a weight for every source or for none")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> "PromptsConfig":
        labels = [source.label for source in self.sources]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"expected each source name once, found twice: {', '.join(twice)}")
        return self

    def below(self, root_dir: Path) -> "PromptsConfig":
        """The same with paths that are relative to the project made whole."""

        def place(reference: str) -> str:
            is_here = Path(reference).expanduser().exists()
            path = root_dir / reference
            return str(path) if not is_here and path.exists() else reference

        sources = tuple(
            source.model_copy(update={"source": place(source.source), "name": source.label})
            for source in self.sources
        )
        changes = {
            "sources": sources,
            "exclude": tuple(map(place, self.exclude)),
            "pilot": place(self.pilot) if self.pilot else None,
        }
        return self.model_copy(update=changes)

    @property
    def is_mixed(self) -> bool:
        """Whether the lengths of answers matter to the choice."""
        return self.num_tokens is not None or self.sources[0].weight is not None
