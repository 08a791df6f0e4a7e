#!/usr/bin/env bash
# Trains a drafter for long contexts, in two stages, for a small model with a large vocabulary such as
# Qwen2.5-Coder-0.5B-Instruct: about ten minutes on one H200.
#   bash tools/train_long_drafter.sh --model DIR|FILE.gguf [--out DIR]        (default: build/long-drafter)
# Stage 1: short rows of the model's own continuations, moved by anchor offsets up to the longest position that the model
# knows. Stage 2: long rows of text, where they are, and short ones between them; what is asked for is the model's own
# most likely token, so that nothing long is generated. Texts, licences and splits: tools/fetch_texts.py.
# DEVICE=cuda:0 where the engine has CUDA; GENERATE_MINUTES=2.5; PYTHON= another interpreter with fastspec-engine[train].
# What is made already is not made again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=build/long-drafter model=
while [[ $# -gt 0 ]]; do
  case $1 in
    --model) model=$2 ;;
    --out) out=$2 ;;
    *) echo "train_long_drafter: unknown option $1" >&2 && exit 2 ;;
  esac
  shift 2
done
[[ -n $model ]] || { echo "train_long_drafter: give --model DIR or FILE.gguf" >&2; exit 2; }
python=${PYTHON:-.venv/bin/python}
device=${DEVICE:-cuda:0}
mkdir -p "$out"
fastspec() { "$python" -m fastspec "$@"; }

if [[ ! -f $out/heldout-prompts.safetensors ]]; then
  texts=$("$python" tools/fetch_texts.py | tail -n 1)
  prompts() { fastspec train prompts --target "$model" --out "$out/$1-prompts.safetensors" --texts "${@:2}"; }
  prompts short "$texts"/train/*.jsonl --each 16000 --prompt-tokens 32 256 --repeat --prompt-seed 1
  prompts mixed "$texts"/train/*.jsonl --each 2500 --prompt-tokens 32 256 --repeat --prompt-seed 2
  prompts long "$texts"/train/{prose,code,docs}.jsonl --join --each 25 --prompt-tokens 32768 32768 --prompt-seed 3
  prompts validation "$texts"/validation/{prose,code,docs}.jsonl --each 24 --prompt-tokens 64 512 --prompt-seed 4
  prompts long-validation "$texts"/validation/{prose,code,docs}.jsonl --join --each 4 --prompt-tokens 16000 16000 \
    --prompt-seed 5
  prompts heldout "$texts"/heldout/{prose,code,docs}.jsonl --join --each 16 --prompt-tokens 30000 30000 --prompt-seed 6
fi

engine=(--target "$model" --device "$device" --dtype bfloat16)
continued() { fastspec train generate "${engine[@]}" --prompts "$out/$1-prompts.safetensors" --out "$out/$1.safetensors" "${@:2}"; }
if [[ ! -f $out/long-validation.safetensors ]]; then
  continued short --concurrency 512 --max-new 192 --sampled-share 0.15 --opening 8 --minutes "${GENERATE_MINUTES:-2.5}"
  continued mixed --concurrency 512 --max-new 192 --sampled-share 0.15 --opening 8 --seed 1
  continued validation --concurrency 128 --max-new 128
  continued long-validation --concurrency 12 --max-new 128
fi

train() { fastspec train longspec --target "$model" --device "${device%%:*}" "$@"; }
validation=(--validation "$out/validation.safetensors" "$out/long-validation.safetensors" --eval-documents 28)
train --preset long-context-1 --data "$out"/{short,mixed}.safetensors "${validation[@]}" --out "$out/stage1"
train --preset long-context-2 --init "$out/stage1" --data "$out/long-prompts.safetensors" "$out/mixed.safetensors" \
  "${validation[@]}" --out "$out/drafter"

fastspec evaluate acceptance "${engine[@]}" --drafter "longspec:$out/drafter" --data "$out/heldout-prompts.safetensors" \
  --contexts 2048 8192 16384 30000 --temperatures 0 --max-tokens 128 --concurrency 8 --json "$out/acceptance.json"
echo "the drafter is in $out/drafter"
