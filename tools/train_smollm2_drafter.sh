#!/usr/bin/env bash
# Trains the drafter of SmolLM2-135M-Instruct that FastSpec ships: texts -> prompts -> the model's own continuations ->
# training -> acceptance. About ten minutes on one H200; the sources and licences of the texts are in tools/fetch_texts.py.
#   bash tools/train_smollm2_drafter.sh [OUT_DIR]        (default: build/smollm2-drafter)
# DEVICE=cuda:0 where the engine has CUDA; PYTHON= another interpreter with fastspec-engine[train].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build/smollm2-drafter}
python=${PYTHON:-.venv/bin/python}
device=${DEVICE:-cuda:0}
mkdir -p "$out"

model=$("$python" tools/fetch_demo_model.py | tail -n 1)
texts=$("$python" tools/fetch_texts.py --out "$out/texts" | tail -n 1)
fastspec() { "$python" -m fastspec "$@"; }

# 80,000 prompts of 32 to 256 tokens, a quarter of each kind, and 96 held-out ones of each kind.
fastspec train prompts --target "$model" --texts "$texts"/train/*.jsonl --out "$out/prompts.safetensors" \
  --each 20000 --prompt-tokens 32 256 --repeat --prompt-seed 1
fastspec train prompts --target "$model" --texts "$texts"/heldout/*.jsonl --out "$out/heldout-prompts.safetensors" \
  --each 96 --prompt-tokens 64 384 --prompt-seed 2

# The model's own continuations: greedy, half of them behind a few sampled tokens; 15 % sampled throughout, for T > 0.
engine=(--target "$model" --device "$device" --dtype bfloat16 --concurrency 512)
fastspec train generate "${engine[@]}" --prompts "$out/prompts.safetensors" --out "$out/generated.safetensors" \
  --max-new 192 --sampled-share 0.15 --opening 8 --minutes 2.5
fastspec train generate "${engine[@]}" --prompts "$out/heldout-prompts.safetensors" --out "$out/heldout.safetensors" \
  --max-new 128

fastspec train longspec --target "$model" --preset smollm2-demo --device "${device%%:*}" \
  --data "$out/generated.safetensors" --heldout "$out/heldout.safetensors" --out "$out/drafter"

fastspec evaluate acceptance --target "$model" --drafter "longspec:$out/drafter" --data "$out/heldout-prompts.safetensors" \
  --max-tokens 128 --device "$device" --dtype bfloat16 --json "$out/acceptance.json"
echo "the drafter is in $out/drafter"
