"""The commands `train` and `evaluate`: arguments, and the order of what they do. Bad input is refused before long work.

Imports torch only inside the commands, so that `python -m fastspec chat` starts without it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastspec import Tokenizer, hub
from fastspec.errors import InvalidArgumentError, NotFoundError, UnsupportedError
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
_TARGET_HELP = "directory, name on the Hugging Face hub, or .gguf file"
_FILES_HELP = ".txt or .jsonl files"


def add_commands(commands: Any) -> None:
    """Adds `train` and `evaluate` to a parser's commands."""
    train = commands.add_parser("train", help="train a drafter, or make data for it").add_subparsers(
        required=True, metavar="WHAT"
    )
    _add_prompts(train)
    _add_generate(train)
    _add_drafter(train, "longspec", "LongSpec", TrainOptions, list(PRESETS))
    _add_drafter(train, "dflash", "DFlash", DFlashOptions, list(DFLASH_PRESETS))
    evaluate = commands.add_parser("evaluate", help="measure a drafter").add_subparsers(required=True, metavar="WHAT")
    _add_acceptance(evaluate)


def _add_prompts(commands: Any) -> None:
    parser = commands.add_parser("prompts", help="cut prompts from texts and tokenize them")
    parser.add_argument("--target", required=True, help=_TARGET_HELP)
    parser.add_argument("--texts", nargs="+", type=Path, required=True, help=_FILES_HELP)
    parser.add_argument("--out", type=Path, required=True, help=".safetensors file to write")
    _add_cutting(parser)
    parser.set_defaults(run=_prompts)


def _add_generate(commands: Any) -> None:
    parser = commands.add_parser("generate", help="the target's own continuations of prompts")
    parser.add_argument("--target", required=True, help=_TARGET_HELP)
    parser.add_argument("--prompts", nargs="+", type=Path, required=True, help=f"of `train prompts`, or {_FILES_HELP}")
    parser.add_argument("--out", type=Path, required=True, help=".safetensors file to write")
    _add_cutting(parser)
    _add_fields(parser, GenerateOptions)
    parser.set_defaults(run=_generate)


def _add_drafter(commands: Any, kind: str, name: str, options: type[RunOptions], presets: list[str]) -> None:
    parser = commands.add_parser(
        kind, help=f"train a {name} drafter", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.epilog = "presets: " + ", ".join(presets)
    parser.add_argument("--target", required=True, help=_TARGET_HELP)
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        help=f"{_FILES_HELP}, .safetensors files of `train generate`, and the word `{GENERATE}`: the target's own "
        "continuations of prompts cut from --texts",
    )
    parser.add_argument("--texts", nargs="+", type=Path, default=[], help=f"{_FILES_HELP} for --data {GENERATE}")
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
    _add_fields(parser, options)
    _add_fields(parser, GenerateOptions, prefix="generate_")
    parser.set_defaults(run=_drafter, kind=kind)


def _add_acceptance(commands: Any) -> None:
    parser = commands.add_parser("acceptance", help="acceptance length by kind, context and position, by decoding")
    parser.add_argument("--target", required=True, help=_TARGET_HELP)
    parser.add_argument(
        "--drafter",
        action="append",
        default=[],
        help="longspec:DIR or NAME (as tree, as chain of 4, and uncoupled), dflash:DIR, standalone:MODEL; n-gram comes "
        "too",
    )
    parser.add_argument("--data", nargs="+", type=Path, required=True, help=f"{_FILES_HELP}, or of `train prompts`")
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


def _add_fields(parser: argparse.ArgumentParser, of: Any, prefix: str = "") -> None:
    """An option a field, with the help of the class's docstring; absent ones are None."""
    group = parser.add_argument_group(prefix.rstrip("_") or of.__name__)
    helps = dict(re.findall(r"\n {4,8}(\w+): (.*?)(?=\n {4,8}\w+: |\Z)", inspect.getdoc(of) or "", re.DOTALL))
    for field in fields(of):
        text = " ".join(helps.get(field.name, "of the engine or the run").split()).replace("%", "%%")
        group.add_argument(
            f"--{(prefix + field.name).replace('_', '-')}",
            dest=prefix + field.name,
            type=_parser_of(field),
            metavar=str(field.type).upper(),
            help=f"{text} (default: {field.default})" if field.default is not MISSING else text,
        )


def _parser_of(field: Field[Any]) -> Any:
    kinds = {"int": int, "float": float, "str": str, "bool": _boolean, "tuple[int, ...]": _integers}
    return kinds[str(field.type)]


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected integers with commas between them") from error


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected true or false")
    return text.lower() == "true"


def _changes(options: argparse.Namespace, of: Any, prefix: str = "") -> dict[str, Any]:
    """The fields that were given."""
    found = {field.name: getattr(options, prefix + field.name) for field in fields(of)}
    return {name: value for name, value in found.items() if value is not None}


# --- data -------------------------------------------------------------------------------------------------------------


def _need_torch() -> None:
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(f"this command needs {error.name}: pip install 'fastspec-engine[train]'") from error


def _generate_options(options: argparse.Namespace, prefix: str = "") -> GenerateOptions:
    chosen = GenerateOptions(**_changes(options, GenerateOptions, prefix))
    chosen.validate()
    return chosen


def _check_cutting(options: argparse.Namespace) -> None:
    least, most = options.prompt_tokens
    if not 1 <= least <= most:
        raise InvalidArgumentError(f"prompt-tokens is {least} {most}, expected 1 <= LEAST <= MOST")
    if options.each < 1:
        raise InvalidArgumentError(f"each is {options.each}, expected 1 or more")


def _check_files(paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.is_file():
            raise NotFoundError(f"{path} is no file" if path.exists() else f"{path}: no such file")


def _texts(paths: Sequence[Path], target: Path) -> tuple[list[Text], Tokenizer]:
    from fastspec.train.texts import read_texts

    return read_texts(paths, target), Tokenizer.load(target)


def _cut(paths: Sequence[Path], target: Path, options: argparse.Namespace) -> Documents:
    """Prompts: those of .safetensors files as they are, those of texts cut."""
    from fastspec.train.documents import Documents, concatenate
    from fastspec.train.texts import cut_prompts, joined

    made = [path for path in paths if path.suffix == ".safetensors"]
    parts = [Documents.load(path, _vocab_size(target)) for path in made]
    if others := [path for path in paths if path.suffix != ".safetensors"]:
        texts, tokenizer = _texts(others, target)
        if options.join:
            texts = joined(texts)
        least, most = options.prompt_tokens
        parts.append(
            cut_prompts(texts, tokenizer.encode, options.each, least, most, options.prompt_seed, options.repeat)
        )
    return concatenate(parts)


def _vocab_size(target: Path) -> int:
    path = target / "config.json"
    if not path.is_file():
        raise NotFoundError(f"{target} is no model: it has no config.json")
    return int(json.loads(path.read_text(encoding="utf-8"))["vocab_size"])


def _prompts(options: argparse.Namespace) -> int:
    _need_torch()
    from fastspec.train.files import check_output

    _check_cutting(options)
    _check_files(options.texts)
    check_output(options.out)
    found = _cut(options.texts, hub.resolve_model(options.target), options)
    found.save(options.out)
    print(f"{options.out}: {_described(found)}")
    return 0


def _generate(options: argparse.Namespace) -> int:
    _need_torch()
    from fastspec.train.files import check_output
    from fastspec.train.generate import continue_prompts

    _check_cutting(options)
    _check_files(options.prompts)
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
    _need_torch()
    chosen: RunOptions
    if options.kind == "longspec":
        chosen = from_preset(options.preset, _changes(options, TrainOptions), TrainOptions(), PRESETS)
    else:
        chosen = from_preset(options.preset, _changes(options, DFlashOptions), DFlashOptions(), DFLASH_PRESETS)
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
    _check_files([*files, *options.texts, *options.validation])
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
    trainer = Trainer(recipe, data, validation, chosen, options.out, ranks, log=_say)
    if ranks.first:
        _say(f"options: {json.dumps(vars(chosen))}")
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


def _say(line: str) -> None:
    print(line, flush=True)


def _training_data(options: argparse.Namespace, generate: GenerateOptions, target: Path) -> list[Documents]:
    from fastspec.train.documents import Documents
    from fastspec.train.generate import continue_prompts
    from fastspec.train.texts import whole_documents

    parts = []
    names = [name for name in options.data if name != GENERATE]
    parts += [Documents.load(Path(name), _vocab_size(target)) for name in names if name.endswith(".safetensors")]
    if others := [Path(name) for name in names if not name.endswith(".safetensors")]:
        texts, tokenizer = _texts(others, target)
        parts.append(whole_documents(texts, tokenizer.encode))
    if GENERATE in options.data:
        kept = options.out / "generated.safetensors"
        if options.resume and kept.is_file():
            parts.append(Documents.load(kept, _vocab_size(target)))
        else:
            parts.append(continue_prompts(target, _cut(options.texts, target, options), generate, _say))
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
    return continue_prompts(target, found, greedy, _say)


# --- evaluation -------------------------------------------------------------------------------------------------------


def _acceptance(options: argparse.Namespace) -> int:
    _need_torch()
    from fastspec.train.acceptance import Prompt, coupling_table, measure, table, variants
    from fastspec.train.files import check_output, write_json

    _check_cutting(options)
    _check_files(options.data)
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
        log=_say,
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
