"""The result of a profile: which heads score the context for a pair of models, and how the budget is divided. JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastspec._fastspec import model_fingerprint
from fastspec.errors import InvalidArgumentError, InvalidFileError, NotFoundError
from fastspec.sparse.options import OBJECTIVES, POOLINGS
from fastspec.sparse.signals import Budget
from fastspec.train.files import write_json

FORMAT, VERSION = "fastspec-srh", 1
DRAFTERS = ("longspec", "standalone")


@dataclass(frozen=True)
class Heads:
    """Named query heads of a model.

    Attributes:
        fingerprint: of the model's files.
        layers: ascending layer -> ascending query heads.
    """

    fingerprint: str
    layers: Mapping[int, tuple[int, ...]]

    def kv_heads(self, group: int) -> int:
        """K/V heads whose keys are read, `group` query heads sharing one."""
        return sum(len({head // group for head in heads}) for heads in self.layers.values())


@dataclass(frozen=True)
class Manifest:
    """What `profile srh` writes and the engine reads.

    Attributes:
        target: heads of the history signal.
        drafter: heads of the lookahead signal, or None.
        drafter_kind: "longspec" or "standalone"; "" without one.
        budget: that lookahead_slots was chosen for.
        lookahead_slots: of the budget, taken by lookahead; the paper's m.
        pooling: of the drafted rows, "mean" or "max".
        arr: recovered share of attention on held-out text.
        objective: that the search maximised.
        notes: for people; the engine reads nothing of it.
    """

    target: Heads
    drafter: Heads | None
    drafter_kind: str
    budget: Budget
    lookahead_slots: int
    pooling: str
    arr: float
    objective: str
    notes: Mapping[str, Any] = field(default_factory=dict)

    def slots_at(self, budget: Budget) -> int:
        """lookahead_slots for another budget: the same share of it."""
        return min(self.lookahead_slots * budget.slots // self.budget.slots, budget.free)

    def to_dict(self) -> dict[str, Any]:
        """As in the file."""
        drafter = None if self.drafter is None else _heads_to_dict(self.drafter) | {"kind": self.drafter_kind}
        return {
            "format": FORMAT,
            "version": VERSION,
            "target": _heads_to_dict(self.target),
            "drafter": drafter,
            "budget": self.budget.slots,
            "sinks": self.budget.sinks,
            "recent": self.budget.recent,
            "lookahead_slots": self.lookahead_slots,
            "pooling": self.pooling,
            "arr": round(self.arr, 6),
            "objective": self.objective,
            "notes": dict(self.notes),
        }

    def save(self, path: Path) -> None:
        """Writes the file; it appears whole or not at all."""
        write_json(path, self.to_dict())

    @staticmethod
    def load(path: Path) -> Manifest:
        """Reads what save() wrote.

        Raises:
            NotFoundError, InvalidFileError: no such file, or another format; the message names the field.
        """
        if not path.is_file():
            raise NotFoundError(f"{path}: no such file")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != FORMAT or found["version"] != VERSION:
                raise ValueError(f"format {found['format']!r} version {found['version']}, expected {FORMAT} {VERSION}")
            return _from_dict(found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidFileError(f"{path}: no manifest of `profile srh`: {type(error).__name__}: {error}") from None

    def check(self, path: Path, target: Path, drafter: Path | None) -> None:
        """Raises InvalidArgumentError where it was made for other models; `path` is its own, for the message."""
        pairs = [("target", self.target, target)]
        if self.drafter is not None and drafter is not None:
            pairs.append(("drafter", self.drafter, drafter))
        for name, heads, directory in pairs:
            if (own := model_fingerprint(str(directory))) != heads.fingerprint:
                raise InvalidArgumentError(
                    f"{path} was made for a {name} with the fingerprint {heads.fingerprint}; {directory} has {own}"
                )


def _heads_to_dict(heads: Heads) -> dict[str, Any]:
    layers = [{"layer": layer, "heads": list(heads.layers[layer])} for layer in sorted(heads.layers)]
    return {"fingerprint": heads.fingerprint, "layers": layers}


def _heads_from_dict(found: Mapping[str, Any]) -> Heads:
    layers: dict[int, tuple[int, ...]] = {}
    for entry in found["layers"]:
        heads = _integers(entry["heads"])
        if not heads or list(heads) != sorted(set(heads)) or entry["layer"] in layers:
            raise ValueError(f"layer {entry['layer']}: heads are to be ascending, and named once")
        layers[_integers([entry["layer"]])[0]] = heads
    if not layers:
        raise ValueError("no layer is named")
    return Heads(str(found["fingerprint"]), dict(sorted(layers.items())))


def _integers(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(value, int) and value >= 0 for value in values):
        raise ValueError(f"{values}: expected integers of 0 or more")
    return tuple(values)


def _from_dict(found: Mapping[str, Any]) -> Manifest:
    drafter = found["drafter"]
    budget = Budget(*_integers([found[name] for name in ("budget", "sinks", "recent")]))
    budget.validate()
    slots = _integers([found["lookahead_slots"]])[0]
    if slots > budget.free or (slots > 0 and drafter is None):
        raise ValueError(f"lookahead_slots is {slots}, with {budget.free} slots to divide and drafter {drafter}")
    for name, known in (("pooling", POOLINGS), ("objective", OBJECTIVES)):
        if found[name] not in known:
            raise ValueError(f"{name} {found[name]!r}, expected {', '.join(known)}")
    if drafter is not None and drafter["kind"] not in DRAFTERS:
        raise ValueError(f"drafter kind {drafter['kind']!r}, expected {', '.join(DRAFTERS)}")
    return Manifest(
        target=_heads_from_dict(found["target"]),
        drafter=None if drafter is None else _heads_from_dict(drafter),
        drafter_kind="" if drafter is None else drafter["kind"],
        budget=budget,
        lookahead_slots=slots,
        pooling=found["pooling"],
        arr=float(found["arr"]),
        objective=found["objective"],
        notes=found.get("notes", {}),
    )
