"""The training loop, whatever kind of drafter a recipe brings."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from fastspec.train import attention
from fastspec.train.candidates import Candidates
from fastspec.train.checkpoint import Progress, load_checkpoint, save_checkpoint
from fastspec.train.curves import draw
from fastspec.train.documents import Documents
from fastspec.train.files import write_json
from fastspec.train.options import RunOptions
from fastspec.train.ranks import Ranks
from fastspec.train.recipe import Recipe
from fastspec.train.rows import Batches, RowGroup, cut_rows

Log = Callable[[str], None]
_NO_PART_OF_A_RUN = ("steps", "minutes", "evaluations", "eval_documents", "save_seconds", "log_seconds")


def learning_rate(options: RunOptions, step: int, progress: float) -> float:
    """Linear warm-up times a cosine from 1 to final_lr; `progress` is the share of the run that is done."""
    warm = min(1.0, (step + 1) / max(1, options.warmup_steps))
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return options.lr * warm * (options.final_lr + (1.0 - options.final_lr) * cosine)


class Trainer:
    """One run: data, drafter, optimiser, and where the run is."""

    def __init__(
        self,
        recipe: Recipe,
        data: Sequence[Documents],
        validation: Documents | None,
        options: RunOptions,
        out: Path,
        ranks: Ranks,
        log: Log = print,
    ) -> None:
        """Prepares a run.

        Args:
            recipe: the drafter, where training starts from.
            data: what is trained on.
            validation: the target's greedy continuations, for the acceptance curve and the choice of the drafter, or
                None: the last weights are the drafter.
            options: validated.
            out: directory of the drafter, its checkpoint and its curves.
            ranks: this process among all.
            log: takes lines.
        """
        self._recipe, self._options, self._out, self._ranks = recipe, options, out, ranks
        self._log: Log = log if ranks.first else (lambda _: None)
        self._validation = None if validation is None else validation.by_kind(options.eval_documents)
        groups = cut_rows(data, options.length)
        self._batches = Batches(groups, options.batch_tokens, ranks.world * recipe.rows_multiple, options.seed)
        self._fingerprints = {
            "data": _fingerprint(groups),
            "validation": _fingerprint([self._validation] if self._validation else []),
        }
        recipe.bind([RowGroup(*(part.to(ranks.device) for part in vars(group).values())) for group in groups])
        self._candidates = Candidates(recipe.module, options.average)
        self._model = ranks.wrap(recipe.module)
        self._optimizer = _optimizer(recipe.module, options)
        self.progress = Progress()
        self._stop = False
        rows = sum(len(group.tokens) for group in groups)
        self._log(
            f"{rows} rows of {', '.join(str(g.length) for g in groups)} tokens, "
            f"{self._batches.per_epoch} steps an epoch; "
            f"{sum(p.numel() for p in recipe.module.parameters()) / 1e6:.2f}M parameters; "
            f"attention by {attention.backend(ranks.device)}; {ranks.world} x {ranks.device.type}"
        )

    # --- resuming -----------------------------------------------------------------------------------------------------

    @property
    def _checkpoint(self) -> Path:
        return self._out / "checkpoint"

    def _run_identity(self) -> dict[str, Any]:
        options = {name: value for name, value in asdict(self._options).items() if name not in _NO_PART_OF_A_RUN}
        written: dict[str, Any] = json.loads(json.dumps(options | self._fingerprints))  # as it comes back from a file
        return written

    def resume(self) -> None:
        """Goes on from the checkpoint in the output directory; see load_checkpoint() for errors."""
        self.progress = load_checkpoint(self._checkpoint, self._candidates, self._optimizer, self._run_identity())
        self._log(f"resumed at step {self.progress.step}")

    def save(self) -> None:
        """Writes checkpoint, drafter, history and curves (rank 0)."""
        if self._ranks.first:
            save_checkpoint(self._checkpoint, self._candidates, self._optimizer, self.progress, self._run_identity())
            self._write_drafter()

    def _write_drafter(self) -> None:
        self._recipe.save(self._candidates.drafter, self._out)
        write_json(self._out / "history.json", self.progress.history)
        draw(self._out / "curves.png", {"drafter": self.progress.history})

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self, until: int | None = None) -> bool:
        """Trains to the end, or to step `until`. Returns False when it was stopped by SIGINT or SIGTERM.

        Either way checkpoint and drafter are on the disk afterwards.
        """
        self._recipe.prepare(self._log)
        previous = {number: _handle(number, self._request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._loop(until)
        finally:
            for number, handler in previous.items():
                _handle(number, handler)
        self._ranks.wait()
        return not self._stop

    def _loop(self, until: int | None) -> None:
        options, progress = self._options, self.progress
        begun = time.monotonic() - progress.seconds
        clock = _Clock(options, time.monotonic())
        sums = torch.zeros(3, dtype=torch.float64, device=self._ranks.device)  # loss, hits, rows counted
        logged_tokens, finished = progress.tokens, False
        bar = tqdm(
            total=1.0, disable=None if self._ranks.first else True, bar_format="{percentage:5.1f} % {bar} {postfix}"
        )
        while not finished:
            share = self._ranks.of_first(self._share(time.monotonic() - begun))
            finished = share >= 1.0 or progress.step == until or self._ranks.of_first(float(self._stop)) > 0
            now = time.monotonic()
            progress.seconds = now - begun
            if self._ranks.first and (clock.log_due(now) or finished) and sums[2] > 0:
                entry = self._entry(sums, share)
                speed = (progress.tokens - logged_tokens) / max(1e-9, clock.since_log(now))
                self._log(_line(entry, share, speed))
                bar.n = min(1.0, share)
                bar.set_postfix_str(f"step {entry['step']}, loss {entry['loss']:.3f}, {speed / 1e3:.0f}K tokens/s")
                logged_tokens = progress.tokens
                sums.zero_()
                clock.logged(time.monotonic())
            if self._ranks.first:
                self._report(clock, share, finished)
            if not finished:
                sums += self._step(share)
        bar.close()

    def _report(self, clock: _Clock, share: float, finished: bool) -> None:
        """Evaluates and saves where it is time to."""
        due = int(min(1.0, share) * self._options.evaluations + 1e-6)
        is_due = due > self.progress.evaluated
        self.progress.evaluated = due  # less than before, where a resumed run was made longer
        if is_due:
            self._evaluate()
            self._write_drafter()
        if finished or clock.save_due(time.monotonic()):
            self.save()
            clock.saved(time.monotonic())

    def _share(self, seconds: float) -> float:
        options = self._options
        return self.progress.step / options.steps if options.steps else seconds / (60 * options.minutes)

    def _step(self, share: float) -> torch.Tensor:
        """One optimiser step; returns its sums of loss, hits and counted rows."""
        options, ranks, step = self._options, self._ranks, self.progress.step
        group_index, rows = self._batches.at(step)
        mine = rows[ranks.rank :: ranks.world].to(ranks.device)
        loss = self._recipe.loss(self._model, group_index, mine, step)
        where = ranks.device if ranks.world > 1 else None
        counts = ranks.total(torch.tensor([loss.count, loss.tokens], dtype=torch.float64, device=where))
        # DDP averages over ranks; this makes it the mean over all counted rows of the batch.
        (loss.total * (ranks.world / max(1.0, float(counts[0])))).backward()
        torch.nn.utils.clip_grad_norm_(self._recipe.module.parameters(), options.clip)
        rate = learning_rate(options, step, share)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._candidates.follow(step)
        self.progress.step += 1
        self.progress.tokens += int(counts[1])
        count = torch.tensor(float(loss.count), dtype=torch.float64, device=loss.hits.device)
        return torch.stack([loss.total.detach().double(), loss.hits.double(), count])

    # --- reporting ----------------------------------------------------------------------------------------------------

    def _request_stop(self, *_: Any) -> None:
        self._stop = True

    def _entry(self, sums: torch.Tensor, share: float) -> dict[str, Any]:
        loss, hits, count = sums.tolist()
        entry = {
            "step": self.progress.step,
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 1),
            "loss": loss / count,
            "hit": hits / count,
            "lr": learning_rate(self._options, self.progress.step, share),
        }
        self.progress.history.append(entry)
        return entry

    def _evaluate(self) -> None:
        """Offline acceptance on the validation documents: lines, a history entry, and the choice of the drafter."""
        if self._validation is None:
            return
        begun = time.monotonic()
        found = self._recipe.acceptance(self._candidates.average, self._validation)
        tau = {kind: {name: round(tally.tau, 4) for name, tally in shapes.items()} for kind, shapes in found.items()}
        means = {name: sum(shapes[name] for shapes in tau.values()) / len(tau) for name in self._recipe.shapes}
        best = self._candidates.consider(sum(means.values()))
        progress = self.progress
        progress.history.append({"step": progress.step, "tokens": progress.tokens, "tau": tau, "best": best})
        for name in self._recipe.shapes:
            each = "  ".join(
                f"{kind} {shapes[name].tau:.3f} ({shapes[name].at_every_root:.3f})" for kind, shapes in found.items()
            )
            self._log(f"  tau at T = 0, {name}: mean {means[name]:.3f}; {each}; in brackets: every place a root")
        self._log(f"  ({time.monotonic() - begun:.1f} s{'; the best so far' if best else ''})")


class _Clock:
    """When to log and save."""

    def __init__(self, options: RunOptions, now: float) -> None:
        self._options = options
        self._log_at = self._save_at = now

    def log_due(self, now: float) -> bool:
        return now - self._log_at >= self._options.log_seconds

    def since_log(self, now: float) -> float:
        return now - self._log_at

    def logged(self, now: float) -> None:
        self._log_at = now

    def save_due(self, now: float) -> bool:
        return 0 < self._options.save_seconds <= now - self._save_at

    def saved(self, now: float) -> None:
        self._save_at = now


def _optimizer(module: torch.nn.Module, options: RunOptions) -> torch.optim.AdamW:
    parameters = list(module.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": options.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=options.lr,
        betas=(0.9, options.beta2),
        fused=parameters[0].device.type == "cuda",
    )


def _line(entry: dict[str, Any], share: float, speed: float) -> str:
    return (
        f"step {entry['step']:6d}  {100 * share:5.1f} %  loss {entry['loss']:.4f}  hit {entry['hit']:.4f}  "
        f"lr {entry['lr']:.2e}  {entry['tokens'] / 1e6:.1f}M tokens  {speed / 1e3:.0f}K tokens/s"
    )


def _fingerprint(parts: Iterable[Any]) -> str:
    """Of the tensors of some dataclasses."""
    digest = hashlib.sha256()
    for part in parts:
        for value in vars(part).values():
            digest.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return digest.hexdigest()[:16]


def _handle(number: int, handler: Any) -> Any:
    """signal.signal, where this is the main thread."""
    try:
        return signal.signal(number, handler)
    except ValueError:
        return None
