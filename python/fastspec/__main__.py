"""`python -m fastspec`: what the command line program cannot do: any chat template, hub names, GGUF, training,
curves of costs, profiles of sparse verification."""

from __future__ import annotations

import argparse
import inspect
import io
import json
import sys
from typing import Any, TextIO

from fastspec import LLM, FastSpecError, FinishReason, InvalidArgumentError, SamplingParams, hub, profile_plot
from fastspec.sparse import cli as sparse
from fastspec.train import cli as training


def main(arguments: list[str] | None = None) -> int:
    """Runs one command. Returns the exit code: 0, 1 for a failure, 2 for bad input, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        return code
    except FastSpecError as error:
        print(f"fastspec: {error}", file=sys.stderr)
        return 1 if error.code in ("internal", "device_failure", "out_of_memory") else 2
    except OSError as error:  # a full disk, a terminal that has gone
        print(f"fastspec: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fastspec", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    chat = commands.add_parser("chat", help="talk with a model, by its own chat template")
    chat.add_argument("--model", required=True, help="directory, name on the Hugging Face hub, or .gguf file")
    chat.add_argument(
        "--drafter",
        help="ngram, standalone:MODEL, dflash:MODEL or longspec:MODEL; longspec has drafters of its own for "
        + ", ".join(hub.shipped_drafters()),
    )
    chat.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or auto (the checkpoint's)")
    chat.add_argument("--device", default="cpu")
    chat.add_argument("--system", help="system prompt")
    chat.add_argument("--max-tokens", type=int, default=512, help="of one answer")
    chat.add_argument("--temperature", type=float, default=0.7, help="0 = greedy")
    chat.add_argument("--top-p", type=float, default=0.95)
    chat.add_argument("--seed", type=int)
    chat.add_argument(
        "--template-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=_template_argument,
        help="variable of the chat template, VALUE in JSON: enable_thinking=false",
    )
    chat.set_defaults(run=_chat)

    fetch = commands.add_parser(
        "fetch", help="print the local directory of a hub name, .gguf file or longspec:NAME, for fastspec-cli"
    )
    fetch.add_argument("model", help="or longspec:NAME, a drafter that comes with FastSpec")
    fetch.set_defaults(run=_fetch)

    training.add_training(commands)
    evaluate = commands.add_parser("evaluate", help="measure a drafter, or what sparse verification costs in quality")
    measures = evaluate.add_subparsers(required=True, metavar="WHAT")
    training.add_acceptance(measures)
    sparse.add_sparse(measures)
    profile = commands.add_parser("profile", help="costs of steps as a picture; heads for sparse verification")
    actions = profile.add_subparsers(required=True, metavar="ACTION")
    profile_plot.add_plot(actions)
    sparse.add_srh(actions)
    return parser


def _template_argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    if name in inspect.signature(LLM.stream_chat).parameters:
        raise argparse.ArgumentTypeError(f"{text!r}: '{name}' is no variable that a template can be given")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: the value is no JSON: {error}") from error


def _fetch(options: argparse.Namespace) -> int:
    _tolerate(sys.stdout, "surrogateescape")  # a path goes out in the very bytes it has
    is_drafter = options.model.startswith("longspec:")
    print(hub.resolve_drafter(options.model).model if is_drafter else hub.resolve_model(options.model))
    return 0


def _tolerate(stream: TextIO, errors: str) -> None:
    """Makes bytes or characters that the stream's encoding does not know no error."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=errors)


def _chat(options: argparse.Namespace) -> int:
    _tolerate(sys.stdin, "replace")
    _tolerate(sys.stdout, "replace")
    params = SamplingParams(
        temperature=options.temperature, top_p=options.top_p, seed=options.seed, max_tokens=options.max_tokens
    )
    opening = [] if options.system is None else [{"role": "system", "content": options.system}]
    with LLM(options.model, drafter=options.drafter, dtype=options.dtype, device=options.device) as llm:
        _ = llm.chat_template  # a model without one is refused before the first question
        print("/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer", file=sys.stderr)
        messages = list(opening)
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                print(file=sys.stderr)
                return 0
            if line == "/exit":
                return 0
            if line == "/reset":
                messages = list(opening)
            elif line:
                turn = {"role": "user", "content": line}
                try:
                    answer = _answer(llm, [*messages, turn], params, options.template_arg)
                except InvalidArgumentError as error:  # the context is full, or the template refuses the turn
                    print(f"fastspec: {error}; this turn is dropped, /reset starts afresh", file=sys.stderr)
                else:
                    messages += [turn, {"role": "assistant", "content": answer}]


def _answer(
    llm: LLM, messages: list[dict[str, str]], params: SamplingParams, template_arguments: list[tuple[str, Any]]
) -> str:
    """Streams an answer to stdout; Ctrl-C keeps what is there. Raises FastSpecError when the engine gave up on it."""
    with llm.stream_chat(messages, params, **dict(template_arguments)) as stream:
        try:
            for delta in stream:
                print(delta, end="", flush=True)
        except KeyboardInterrupt:
            print(" [stopped]", end="", file=sys.stderr)
        print()
        completion = stream.output.outputs[0]
        if completion.finish_reason is FinishReason.ERROR:
            raise FastSpecError(completion.error)
        return completion.text


if __name__ == "__main__":
    sys.exit(main())
