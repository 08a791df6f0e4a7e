"""Options of a profile and of a quality report; every field is a command line option of the same name."""

from __future__ import annotations

from dataclasses import dataclass

from fastspec.errors import InvalidArgumentError

OBJECTIVES = ("arr", "agreement", "kl")
POOLINGS = ("mean", "max")
RECOVERY = "recovery"
RANKINGS = ("needle", RECOVERY)
SELECTORS = (
    "dense",
    "dustin",
    "hybrid",
    "history",
    "history-all",
    "lookahead",
    "quest",
    "streaming",
    "oracle",
    "quest-published",
    "snapkv-published",
)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} is {value:g}, expected {low:g} to {high:g}")


def _positive(name: str, values: tuple[int, ...]) -> None:
    if not values or min(values) < 1:
        raise InvalidArgumentError(f"{name} is {values}, expected numbers of 1 or more")


@dataclass(frozen=True)
class ProfileOptions:
    """How heads are ranked and searched.

    Attributes:
        objective: "kl" or "agreement" with dense passes when the rows are verified again over the selection, or "arr",
            recovered attention (the paper's).
        budget: context tokens that a pass reads.
        sinks: leading ones that it always reads.
        recent: last ones that it always reads.
        heads: query heads of a layer that score, the best by `ranking`.
        target_layers: of the target, at most.
        draft_layers: of the drafter, at most.
        head_cost: what a K/V head that is read costs, in units of the objective.
        prefilter: candidates of a round that are verified, the best by recovered attention.
        pooling: of drafted rows: "mean" or "max".
        ranking: "needle", attention to a hidden sentence while the target repeats it; or "recovery", what the choice of
            a head alone recovers.
        probe_lengths: tokens of needle probes.
        probe_depths: places of the needle, 0 = beginning.
        probes: of each length and depth.
        contexts: tokens of the prompts of trajectories.
        each: prompts of each kind of text and length, for the search.
        held_out: as many more, cut from the last quarter of each kind's text, which the search does not see.
        max_tokens: of a continuation.
        rows: of a step; 0 = as the engine accepts with the drafter, 5 without one.
        seed: of everything drawn.
    """

    objective: str = "kl"
    budget: int = 512
    sinks: int = 4
    recent: int = 16
    heads: int = 4
    target_layers: int = 4
    draft_layers: int = 3
    head_cost: float = 0.0002
    prefilter: int = 6
    pooling: str = "mean"
    ranking: str = "needle"
    probe_lengths: tuple[int, ...] = (512, 1024, 2048)
    probe_depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    probes: int = 3
    contexts: tuple[int, ...] = (2048,)
    each: int = 6
    held_out: int = 2
    max_tokens: int = 64
    rows: int = 0
    seed: int = 0

    def validate(self) -> None:
        """Raises InvalidArgumentError naming the option, its value and what is possible."""
        choices = {"objective": OBJECTIVES, "pooling": POOLINGS, "ranking": RANKINGS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)!r}, expected {', '.join(known)}")
        for name in ("heads", "target_layers", "draft_layers", "prefilter", "probes", "each", "held_out", "max_tokens"):
            _in_range(name, getattr(self, name), 1, 1 << 20)
        _in_range("rows", self.rows, 0, 64)
        _in_range("head_cost", self.head_cost, 0, 1e6)
        for depth in self.probe_depths:
            _in_range("probe_depths", depth, 0, 1)
        if not self.probe_depths:
            raise InvalidArgumentError("probe_depths is empty")
        _positive("probe_lengths", self.probe_lengths)
        _positive("contexts", self.contexts)
        if min(self.contexts) <= self.budget:
            raise InvalidArgumentError(
                f"contexts has {min(self.contexts)}, which fits the budget of {self.budget}: nothing is sparse there"
            )


@dataclass(frozen=True)
class QualityOptions:
    """What a quality report measures.

    Attributes:
        budgets: context tokens that a pass reads.
        sinks: leading ones that it always reads.
        recent: last ones that it always reads.
        contexts: tokens of the prompts that are continued.
        each: prompts of each kind of text and length; 0 = nothing is continued.
        max_tokens: of a continuation.
        rows: of a step; 0 = as the engine accepts with the drafter, 5 without one.
        page: tokens of a page, for Quest.
        retrieval_lengths: tokens of retrieval prompts; "" = no retrieval.
        retrieval_each: questions of each length and kind.
        retrieval_keys: needles of a multi-key prompt.
        samples: resamples of the bootstrap, over documents.
        seed: of everything drawn.
    """

    budgets: tuple[int, ...] = (128, 256, 512, 1024)
    sinks: int = 4
    recent: int = 16
    contexts: tuple[int, ...] = (2048,)
    each: int = 8
    max_tokens: int = 64
    rows: int = 0
    page: int = 16
    retrieval_lengths: tuple[int, ...] = (1024, 2048)
    retrieval_each: int = 20
    retrieval_keys: int = 4
    samples: int = 1000
    seed: int = 0

    def validate(self) -> None:
        """Raises InvalidArgumentError naming the option, its value and what is possible."""
        _positive("budgets", self.budgets)
        _positive("contexts", self.contexts)
        for name in ("max_tokens", "page", "samples", "retrieval_each"):
            _in_range(name, getattr(self, name), 1, 1 << 20)
        _in_range("each", self.each, 0, 1 << 20)
        _in_range("rows", self.rows, 0, 64)
        _in_range("retrieval_keys", self.retrieval_keys, 1, 12)
