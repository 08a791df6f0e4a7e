"""Acceptance without an engine: the target's own greedy continuations are known, so every place of them is a root.

A drafted node can only be accepted while all before it are the target's own tokens, so one target pass over a
continuation holds all that verification would ever see. What is drafted, off the true path too, is drafted here by the
very rules of the engine: beam on cumulative log-probability, cross attention up to the root, self-attention over the
window and a node's ancestors. tau counts the bonus token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from fastspec.train.block import LongSpecBlock
from fastspec.train.documents import Documents
from fastspec.train.target import Target, TargetStates, moved

CHAIN = (1, 1, 1, 1)
TREE = (4, 16, 16, 16, 16)
_LOGITS_BYTES = 1 << 30


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    own: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Attention of N rows over shared keys and over a few keys of each row's own, in one softmax.

    Args:
        query: [B, heads, N, head_dim].
        keys, values: [B, kv_heads, L, head_dim].
        visible: bool [B, N, L].
        own: keys and values [B, N, kv_heads, S, head_dim], all visible.

    Returns:
        [B, heads, N, head_dim]; zero where a row sees nothing.
    """
    batch, heads, rows, head_dim = query.shape
    grouped = query.view(batch, keys.shape[1], -1, rows, head_dim)
    scores = torch.einsum("bghnd,bgld->bghnl", grouped, keys.to(query.dtype)).float()
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    if own is not None:
        scores = torch.cat([scores, torch.einsum("bghnd,bngsd->bghns", grouped, own[0]).float()], dim=-1)
    weights = torch.softmax(scores * head_dim**-0.5, dim=-1).nan_to_num().to(query.dtype)
    length = keys.shape[2]
    out = torch.einsum("bghnl,bgld->bghnd", weights[..., :length], values.to(query.dtype))
    if own is not None:
        out = out + torch.einsum("bghns,bngsd->bghnd", weights[..., length:], own[1])
    return out.reshape(batch, heads, rows, head_dim)


def _pick(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """tensor[b, r, index[b, r, w], ...]."""
    shape = index.shape + (1,) * (tensor.dim() - index.dim())
    return tensor.gather(2, index.view(shape).expand(*index.shape, *tensor.shape[3:]))


@dataclass
class _Level:
    """What the rows of one level of all trees see, and the keys and values of their paths.

    Attributes:
        count, rows: trees of a sequence, and rows of a tree on this level.
        context: keys and values of the sequence itself.
        in_window, before_root: what rows see of it in self- and in cross attention, bool [B, count * rows, L].
        path: keys and values of the nodes above, below the root: [B, count, rows, kv_heads, S, head_dim]; after
            self_attention() with those of the rows themselves.
        is_root: the rows are the roots, which are in the context.
        queries: of the cross attention, once it has run: [B, heads, count * rows, head_dim].
    """

    count: int
    rows: int
    context: tuple[torch.Tensor, torch.Tensor]
    states: TargetStates
    in_window: torch.Tensor
    before_root: torch.Tensor
    path: tuple[torch.Tensor, torch.Tensor] | None
    is_root: bool
    queries: torch.Tensor | None = None

    def self_attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Over the context and the path."""
        if not self.is_root:
            keys, values = (x.transpose(1, 2).unflatten(1, (self.count, self.rows)).unsqueeze(4) for x in (key, value))
            if self.path is not None:
                keys, values = torch.cat([self.path[0], keys], dim=4), torch.cat([self.path[1], values], dim=4)
            self.path = keys, values
        own = None if self.path is None else (self.path[0].flatten(1, 2), self.path[1].flatten(1, 2))
        return _attend(query, *self.context, self.in_window, own)

    def cross_attention(self, query: torch.Tensor) -> torch.Tensor:
        """Over what of the target is in its cache: all before the root."""
        self.queries = query
        return _attend(query, *self.states.last_layer(), self.before_root)


@dataclass(frozen=True)
class DraftLevel:
    """Nodes of one level of R trees for each of B sequences: parent (its number), token, cumulative log-probability.

    `queries` are the cross attention's, of the rows that proposed the level (the roots, or the level above): [B, heads,
    R, rows, head_dim].
    """

    parents: torch.Tensor
    tokens: torch.Tensor
    scores: torch.Tensor
    queries: torch.Tensor | None = None


@torch.no_grad()
def draft_trees(
    block: LongSpecBlock,
    target: Target,
    tokens: torch.Tensor,
    states: TargetStates,
    roots: torch.Tensor,
    widths: Sequence[int],
    offset: int = 0,
) -> Iterator[DraftLevel]:
    """Drafts a tree at each root.

    Args:
        block: the drafter.
        target: its target.
        tokens: int64 [B, L].
        states: of `tokens`.
        roots: int64 [B, R], places of roots, each >= 1.
        widths: nodes of each level of the tree; (1, 1, 1, 1) is a chain.
        offset: of the positions, as offset_positions() moves them.

    Yields:
        The levels from the root down, tensors [B, R, width].
    """
    batch, count = roots.shape
    places = torch.arange(tokens.shape[1], device=tokens.device)
    context = block.self_keys(target.embed(tokens), target.rope(moved(places[None], offset)))
    head, vocabulary = block.head(target.head), block.draft_vocabulary
    nodes = tokens.gather(1, roots)[:, :, None]
    scores = torch.zeros(batch, count, 1, device=tokens.device)
    path: tuple[torch.Tensor, torch.Tensor] | None = None
    for depth, width in enumerate(widths):
        rows = nodes.shape[2]
        row_roots = roots.repeat_interleave(rows, dim=1)
        row_places = row_roots + depth
        in_window = (places <= row_roots[:, :, None]) & (places >= (row_places - block.shape.window)[:, :, None])
        before_root = places < row_roots[:, :, None]
        level = _Level(count, rows, context, states, in_window, before_root, path, is_root=depth == 0)
        embedded = target.embed(nodes.flatten(1))
        hidden = block(embedded, target.rope(moved(row_places, offset)), level.self_attention, level.cross_attention)

        logits = (hidden.to(head.dtype) @ head.T).float().unflatten(1, (count, rows))
        best, ids = logits.topk(min(width, logits.shape[-1]), dim=-1)
        each = (best - logits.logsumexp(dim=-1, keepdim=True) + scores[..., None]).flatten(2)
        scores, chosen = each.topk(min(width, each.shape[-1]), dim=-1)
        parents = chosen // best.shape[-1]
        nodes = ids.flatten(2).gather(2, chosen)
        nodes = nodes if vocabulary is None else vocabulary[nodes].long()
        path = None if level.path is None else (_pick(level.path[0], parents), _pick(level.path[1], parents))
        assert level.queries is not None
        yield DraftLevel(parents, nodes, scores, level.queries.unflatten(2, (count, rows)))


def accepted_lengths(
    levels: Iterable[DraftLevel], tokens: torch.Tensor, lengths: torch.Tensor, roots: torch.Tensor
) -> torch.Tensor:
    """How many drafted tokens the target accepts at each root.

    Args:
        levels: of draft_trees().
        tokens: int64 [B, L], the target's greedy tokens behind the roots.
        lengths: int64 [B], tokens that count.
        roots: int64 [B, R].

    Returns:
        int64 [B, R].
    """
    on_path = torch.zeros_like(roots)
    alive = torch.ones_like(roots, dtype=torch.bool)
    accepted = torch.zeros_like(roots)
    for depth, level in enumerate(levels):
        place = roots + depth + 1
        truth = tokens.gather(1, place.clamp(max=tokens.shape[1] - 1))
        truth = torch.where(place < lengths[:, None], truth, -1)
        hit = (level.parents == on_path[:, :, None]) & (level.tokens == truth[:, :, None]) & alive[:, :, None]
        alive = hit.any(dim=-1)
        on_path = hit.int().argmax(dim=-1)
        accepted += alive
    return accepted


@dataclass
class Tally:
    """Acceptance of one kind of text and one shape of tree."""

    roots: int = 0
    accepted: int = 0
    passes: int = 0
    committed: int = 0

    @property
    def at_every_root(self) -> float:
        """tau with every place as a root."""
        return 1.0 + self.accepted / max(1, self.roots)

    @property
    def tau(self) -> float:
        """tau of decoding from the prompt on: the next root is behind what was committed."""
        return self.committed / max(1, self.passes)

    def add(self, accepted: Sequence[int]) -> None:
        """Counts one continuation, given what is accepted at each of its places."""
        self.roots += len(accepted)
        self.accepted += sum(accepted)
        place = 0
        while place < len(accepted):
            self.passes += 1
            self.committed += min(accepted[place] + 1, len(accepted) - place)  # no token behind the last one
            place += accepted[place] + 1


AcceptedAt = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(tokens [B, L], lengths [B], roots [B, R]) -> how many drafted tokens are accepted at each root, [B, R]."""


def tally_acceptance(
    documents: Documents, device: torch.device, ways: Mapping[str, AcceptedAt], logits_of_a_root: int
) -> dict[str, dict[str, Tally]]:
    """Acceptance on continuations that the target made greedily.

    Args:
        documents: prompts with continuations of two tokens or more; shorter ones are left out.
        device: of the tensors that the ways are given.
        ways: of drafting, by name.
        logits_of_a_root: numbers in the logits that a way needs at once for a root.

    Returns:
        kind -> name of the way -> Tally.
    """
    result = {kind: {name: Tally() for name in ways} for kind in documents.kinds}
    prompts = documents.prompt_lengths.tolist()
    sizes = documents.starts.diff().tolist()
    usable = [i for i in range(len(documents)) if prompts[i] >= 1 and sizes[i] - prompts[i] >= 2]
    usable.sort(key=lambda i: sizes[i])
    while usable:
        most_roots = max(sizes[i] - prompts[i] for i in usable) - 1
        at_once = max(1, _LOGITS_BYTES // (4 * logits_of_a_root * most_roots))
        chosen, usable = usable[:at_once], usable[at_once:]
        for name, way in ways.items():
            found = _at_all_roots(way, documents, chosen, device)
            for index, accepted in zip(chosen, found, strict=True):
                result[documents.kind_name(index)][name].add(accepted)
    return result


def _at_all_roots(
    way: AcceptedAt, documents: Documents, chosen: Sequence[int], device: torch.device
) -> list[list[int]]:
    """Accepted lengths at the roots prompt..length - 2 of some documents."""
    sequences = [torch.tensor(documents[i], dtype=torch.int64) for i in chosen]
    lengths = torch.tensor([len(s) for s in sequences])
    prompts = documents.prompt_lengths[torch.tensor(chosen)].long()
    tokens = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True).to(device)
    counts = lengths - 1 - prompts
    roots = prompts[:, None] + torch.arange(int(counts.max()))
    roots = torch.minimum(roots, lengths[:, None] - 2).to(device)
    with torch.no_grad():
        accepted = way(tokens, lengths.to(device), roots).tolist()
    return [found[: int(count)] for found, count in zip(accepted, counts, strict=True)]


def places_of(tokens: torch.Tensor) -> torch.Tensor:
    """0, 1, ... for every row of [B, L] tokens."""
    return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)


def offline_acceptance(
    block: LongSpecBlock,
    target: Target,
    documents: Documents,
    shapes: Mapping[str, Sequence[int]],
    offset: int = 0,
) -> dict[str, dict[str, Tally]]:
    """tally_acceptance() of LongSpec's trees.

    Args:
        block: the drafter.
        target: its target.
        documents: as there.
        shapes: widths of trees by name.
        offset: positions are moved by this, as offset_positions() moves them.

    Returns:
        kind -> name of shape -> Tally.
    """

    def of(widths: Sequence[int]) -> AcceptedAt:
        def accepted(tokens: torch.Tensor, lengths: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
            with torch.autocast(target.device.type, torch.bfloat16, enabled=target.dtype == torch.bfloat16):
                states = target.states(tokens, moved(places_of(tokens), offset), with_hidden=False)
                levels = draft_trees(block, target, tokens, states, roots, widths, offset)
                return accepted_lengths(levels, tokens, lengths, roots)

        return accepted

    widest = max(max(widths) for widths in shapes.values())
    ways = {name: of(widths) for name, widths in shapes.items()}
    return tally_acceptance(documents, target.device, ways, target.vocab_size * widest)
