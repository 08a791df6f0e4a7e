"""The commands `train` and `evaluate`: arguments, and the order of what they do. Bad input is refused before long work.

Imports torch only inside the commands, so that `python -m fastspec chat` starts without it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastspec import Tokenizer, hub
from fastspec.errors import InvalidArgumentError, NotFoundError
from fastspec.train.arguments import (
    FILES_HELP,
    TARGET_HELP,
    add_fields,
    changes,
    check_files,
    need_torch,
    say,
    vocab_size,
)
from fastspec.train.options import (
    DFLASH_PRESETS,
    PRESETS,
    DFlashOptions,
    GenerateOptions,
    RunOptions,
    TrainOptions,
    from_preset,
)

if TYPE_CHECKING:
    from fastspec.train.documents import Documents
    from fastspec.train.recipe import Recipe
    from fastspec.train.target import Target
    from fastspec.train.texts import Text

GENERATE = "generate"  # the word for data that the target writes itself


def add_training(commands: Any) -> None:
    """Adds `train` to the program's commands."""
    train = commands.add_parser("train", help="train a drafter, or make data for it").add_subparsers(
        required=True, metavar="WHAT"
    )
    _add_prompts(train)
    _add_generate(train)
    _add_drafter(train, "longspec", "LongSpec", TrainOptions, list(PRESETS))
    _add_drafter(train, "dflash", "DFlash", DFlashOptions, list(DFLASH_PRESETS))


def _add_prompts(commands: Any) -> None:
    parser = commands.add_parser("prompts", help="cut prompts from texts and tokenize them")
    parser.add_argument("--target", required=True, help=TARGET_HELP)
    parser.add_argument("--texts", nargs="+", type=Path, required=True, help=FILES_HELP)
    parser.add_argument("--out", type=Path, required=True, help=".safetensors file to write")
    _add_cutting(parser)
    parser.set_defaults(run=_prompts)


def _add_generate(commands: Any) -> None:
    parser = commands.add_parser("generate", help="the target's own continuations of prompts")
    parser.add_argument("--target", required=True, help=TARGET_HELP)
    parser.add_argument("--prompts", nargs="+", type=Path, required=True, help=f"of `train prompts`, or {FILES_HELP}")
    parser.add_argument("--out", type=Path, required=True, help=".safetensors file to write")
    _add_cutting(parser)
    add_fields(parser, GenerateOptions)
    parser.set_defaults(run=_generate)


def _add_drafter(commands: Any, kind: str, name: str, options: type[RunOptions], presets: list[str]) -> None:
    parser = commands.add_parser(
        kind, help=f"train a {name} drafter", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.epilog = "presets: " + ", ".join(presets)
    parser.add_argument("--target", required=True, help=TARGET_HELP)
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        help=f"{FILES_HELP}, .safetensors files of `train generate`, and the word `{GENERATE}`: the target's own "
        "continuations of prompts cut from --texts",
    )
    parser.add_argument("--texts", nargs="+", type=Path, default=[], help=f"{FILES_HELP} for --data {GENERATE}")
    parser.add_argument(
        "--validation",
        nargs="+",
        type=Path,
        default=[],
        help="as --data; for the acceptance curve, and to choose the best of the weights passed through",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the drafter and its checkpoint")
    parser.add_argument("--preset", help=f"start from {', '.join(presets)}; other options change it")
    parser.add_argument("--init", type=Path, help="drafter to start from: the stage before")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; several GPUs by torchrun")
    _add_cutting(parser)
    add_fields(parser, options)
    add_fields(parser, GenerateOptions, prefix="generate_")
    parser.set_defaults(run=_drafter, kind=kind)


def add_acceptance(commands: Any) -> None:
    """Adds `acceptance` to what `evaluate` measures."""
    parser = commands.add_parser("acceptance", help="acceptance length by kind, context and position, by decoding")
    parser.add_argument("--target", required=True, help=TARGET_HELP)
    parser.add_argument(
        "--drafter",
        action="append",
        default=[],
        help="longspec:DIR or NAME (as tree, as chain of 4, and uncoupled), dflash:DIR, standalone:MODEL; n-gram comes "
        "too",
    )
    parser.add_argument("--data", nargs="+", type=Path, required=True, help=f"{FILES_HELP}, or of `train prompts`")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--contexts", type=int, nargs="+", default=[], help="cut prompts to their last N tokens")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--max-draft-tokens", type=int, help="tokens that a drafter may propose")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path, help="file for all figures")
    _add_cutting(parser)
    parser.set_defaults(run=_acceptance)


def _add_cutting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts cut from texts")
    group.add_argument("--each", type=int, default=64, help="prompts of each kind")
    group.add_argument("--prompt-tokens", type=int, nargs=2, default=[32, 256], metavar=("LEAST", "MOST"))
    group.add_argument("--prompt-seed", type=int, default=0)
    group.add_argument("--repeat", action="store_true", help="take whole prompts again where there are fewer")
    group.add_argument(
        "--join", action="store_true", help="cut across the texts of a kind, for prompts longer than one"
    )


# --- data -------------------------------------------------------------------------------------------------------------


def _generate_options(options: argparse.Namespace, prefix: str = "") -> GenerateOptions:
    chosen = GenerateOptions(**changes(options, GenerateOptions, prefix))
    chosen.validate()
    return chosen


def _check_cutting(options: argparse.Namespace) -> None:
    least, most = options.prompt_tokens
    if not 1 <= least <= most:
        raise InvalidArgumentError(f"prompt-tokens is {least} {most}, expected 1 <= LEAST <= MOST")
    if options.each < 1:
        raise InvalidArgumentError(f"each is {options.each}, expected 1 or more")


def _texts(paths: Sequence[Path], target: Path) -> tuple[list[Text], Tokenizer]:
    from fastspec.train.texts import read_texts

    return read_texts(paths, target), Tokenizer.load(target)


def _cut(paths: Sequence[Path], target: Path, options: argparse.Namespace) -> Documents:
    """Prompts: those of .safetensors files as they are, those of texts cut."""
    from fastspec.train.documents import Documents, concatenate
    from fastspec.train.texts import cut_prompts, joined

    made = [path for path in paths if path.suffix == ".safetensors"]
    parts = [Documents.load(path, vocab_size(target)) for path in made]
    if others := [path for path in paths if path.suffix != ".safetensors"]:
        texts, tokenizer = _texts(others, target)
        if options.join:
            texts = joined(texts)
        least, most = options.prompt_tokens
        parts.append(
            cut_prompts(texts, tokenizer.encode, options.each, least, most, options.prompt_seed, options.repeat)
        )
    return concatenate(parts)


def _prompts(options: argparse.Namespace) -> int:
    need_torch()
    from fastspec.train.files import check_output

    _check_cutting(options)
    check_files(options.texts)
    check_output(options.out)
    found = _cut(options.texts, hub.resolve_model(options.target), options)
    found.save(options.out)
    print(f"{options.out}: {_described(found)}")
    return 0


def _generate(options: argparse.Namespace) -> int:
    need_torch()
    from fastspec.train.files import check_output
    from fastspec.train.generate import continue_prompts

    _check_cutting(options)
    check_files(options.prompts)
    chosen = _generate_options(options)
    check_output(options.out)
    target = hub.resolve_model(options.target)
    made = continue_prompts(target, _cut(options.prompts, target, options), chosen, print)
    made.save(options.out)
    print(f"{options.out}: {_described(made)}")
    return 0


def _described(documents: Documents) -> str:
    counts = documents.kind.bincount(minlength=len(documents.kinds)).tolist()
    each = ", ".join(f"{count} {kind}" for kind, count in zip(documents.kinds, counts, strict=True))
    different = {tuple(documents[i]) for i in range(len(documents))}
    return (
        f"{len(documents)} documents ({each}), {documents.tokens.numel()} tokens; "
        f"{len(different)} different ones, {sum(map(len, different))} tokens"
    )


# --- training ---------------------------------------------------------------------------------------------------------


def _drafter(options: argparse.Namespace) -> int:
    need_torch()
    chosen: RunOptions
    if options.kind == "longspec":
        chosen = from_preset(options.preset, changes(options, TrainOptions), TrainOptions(), PRESETS)
    else:
        chosen = from_preset(options.preset, changes(options, DFlashOptions), DFlashOptions(), DFLASH_PRESETS)
    generate = _generate_options(options, "generate_")
    _check_run(options)
    from fastspec.train.ranks import Ranks

    ranks = Ranks.join(options.device)
    try:
        return _train(options, chosen, generate, ranks)
    finally:
        ranks.leave()


def _check_run(options: argparse.Namespace) -> None:
    _check_cutting(options)
    files = [Path(name) for name in options.data if name != GENERATE]
    check_files([*files, *options.texts, *options.validation])
    if (GENERATE in options.data) != bool(options.texts):
        raise InvalidArgumentError(f"--texts is what --data {GENERATE} cuts prompts from: give both or none")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and (
        GENERATE in options.data or any(path.suffix != ".safetensors" for path in options.validation)
    ):
        raise InvalidArgumentError("several processes train on data that is there: make it with `train generate` first")
    has_checkpoint = (options.out / "checkpoint" / "state.json").is_file()
    if options.resume and not has_checkpoint:
        raise NotFoundError(f"{options.out} has no checkpoint to resume from")
    if has_checkpoint and not options.resume:
        raise InvalidArgumentError(f"{options.out} has the checkpoint of a run: give --resume, or another --out")
    if options.init is not None and options.resume:
        raise InvalidArgumentError("--init starts a run, --resume goes on with one: give one of them")


def _train(options: argparse.Namespace, chosen: RunOptions, generate: GenerateOptions, ranks: Any) -> int:
    import torch

    from fastspec.train.target import Target
    from fastspec.train.trainer import Trainer

    directory = hub.resolve_model(options.target)
    data = _training_data(options, generate, directory)
    validation = _validation(options, generate, directory)
    target = Target(directory, ranks.device, getattr(torch, chosen.dtype))
    torch.manual_seed(chosen.seed)
    recipe = _recipe(options.init, chosen, target)
    trainer = Trainer(recipe, data, validation, chosen, options.out, ranks, log=say)
    if ranks.first:
        say(f"options: {json.dumps(vars(chosen))}")
    if options.resume:
        trainer.resume()
    return 0 if trainer.run() else 130


def _recipe(init: Path | None, chosen: RunOptions, target: Target) -> Recipe:
    """The drafter that training starts from, with what its kind trains it by."""
    if isinstance(chosen, DFlashOptions):
        from fastspec.train.dflash_block import DFlashBlock
        from fastspec.train.dflash_files import dflash_shape, load_dflash
        from fastspec.train.dflash_recipe import DFlashRecipe

        if init is not None:
            return DFlashRecipe(target, load_dflash(init, target, chosen), chosen)
        return DFlashRecipe(target, DFlashBlock(dflash_shape(target, chosen)).to(target.device), chosen)
    from fastspec.train.block import LongSpecBlock, start_from_target
    from fastspec.train.drafter_files import load_drafter
    from fastspec.train.longspec_recipe import LongSpecRecipe

    assert isinstance(chosen, TrainOptions)
    if init is not None:
        return LongSpecRecipe(target, load_drafter(init, target), chosen)
    block = LongSpecBlock(target.block_shape(chosen.final_norm, chosen.window, chosen.intermediate_size or None))
    if chosen.start == "target":
        start_from_target(block, target.model, chosen.start_scale)
    return LongSpecRecipe(target, block.to(target.device), chosen)


def _training_data(options: argparse.Namespace, generate: GenerateOptions, target: Path) -> list[Documents]:
    from fastspec.train.documents import Documents
    from fastspec.train.generate import continue_prompts
    from fastspec.train.texts import whole_documents

    parts = []
    names = [name for name in options.data if name != GENERATE]
    parts += [Documents.load(Path(name), vocab_size(target)) for name in names if name.endswith(".safetensors")]
    if others := [Path(name) for name in names if not name.endswith(".safetensors")]:
        texts, tokenizer = _texts(others, target)
        parts.append(whole_documents(texts, tokenizer.encode))
    if GENERATE in options.data:
        kept = options.out / "generated.safetensors"
        if options.resume and kept.is_file():
            parts.append(Documents.load(kept, vocab_size(target)))
        else:
            parts.append(continue_prompts(target, _cut(options.texts, target, options), generate, say))
            parts[-1].save(kept)
    return parts


def _validation(options: argparse.Namespace, generate: GenerateOptions, target: Path) -> Documents | None:
    """Prompts of validation with greedy continuations, made here where the files have none."""
    if not options.validation:
        return None
    from dataclasses import replace

    from fastspec.train.generate import continue_prompts

    found = _cut(options.validation, target, options)
    if bool((found.starts.diff() > found.prompt_lengths).all()):
        return found
    greedy = replace(generate, sampled_share=0.0, opening=0, minutes=0.0, max_new=min(128, generate.max_new))
    return continue_prompts(target, found, greedy, say)


# --- evaluation -------------------------------------------------------------------------------------------------------


def _acceptance(options: argparse.Namespace) -> int:
    need_torch()
    from fastspec.train.acceptance import Prompt, coupling_table, measure, table, variants
    from fastspec.train.files import check_output, write_json

    _check_cutting(options)
    check_files(options.data)
    if options.contexts and min(options.contexts) < 1:
        raise InvalidArgumentError(f"contexts has {min(options.contexts)}, expected 1 or more")
    if options.json is not None:
        check_output(options.json)
    target = hub.resolve_model(options.target)
    if options.contexts:
        options.prompt_tokens = [max(options.contexts), max(options.contexts)]
    found = _cut(options.data, target, options)
    prompts = [Prompt(found.kind_name(i), found.prompt(i)) for i in range(len(found))]
    # Rows for every sequence's whole tree: a cut tree would count as a worse drafter.
    engine: dict[str, Any] = {"max_num_seqs": options.concurrency, "max_batch_rows": max(512, 80 * options.concurrency)}
    if options.max_draft_tokens is not None:
        engine["max_draft_tokens"] = options.max_draft_tokens
    cells = measure(
        target,
        variants([*options.drafter, "ngram"]),
        prompts,
        contexts=options.contexts,
        temperatures=options.temperatures,
        max_tokens=options.max_tokens,
        log=say,
        device=options.device,
        dtype=options.dtype,
        **engine,
    )
    print("\n" + table(cells))
    if coupling := coupling_table(cells):
        print("\n" + coupling)
    print("tau: committed tokens per decoding pass, bonus token included, prompt passes excluded")
    if options.json is not None:
        write_json(options.json, cells)
    return 0
