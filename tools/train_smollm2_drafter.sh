#!/usr/bin/env bash
# Trains the drafter of SmolLM2-135M-Instruct that FastSpec ships (python/fastspec/drafters): texts -> prompts -> the model's
# own continuations -> training -> acceptance. About fifteen minutes on one H200; the sources and licences of the texts, and
# the splits, are in tools/fetch_texts.py. Validation chooses among the weights; what is held out is only measured.
#   bash tools/train_smollm2_drafter.sh [OUT_DIR] [-- OPTION...]   (default: build/smollm2-drafter)
# KIND=dflash trains a block drafter from the same data, into OUT_DIR/dflash. OPTIONs go to `train longspec` or `train dflash`,
# for example --minutes 2 --distill 0.5; the shipped drafter has --steps 1243, what one H200 with two other runs beside this one
# did in the preset's four minutes. What is made already is not made again.
# DEVICE=cuda:0 where the engine has CUDA; GENERATE_MINUTES=3; PYTHON= another interpreter with fastspec-engine[train].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=build/smollm2-drafter
if [[ $# -gt 0 && $1 != -- ]]; then out=$1; shift; fi
if [[ $# -gt 0 ]]; then shift; fi
python=${PYTHON:-.venv/bin/python}
device=${DEVICE:-cuda:0}
kind=${KIND:-longspec}
drafter=$out/drafter acceptance=$out/acceptance.json
if [[ $kind != longspec ]]; then drafter=$out/$kind acceptance=$out/$kind-acceptance.json; fi
mkdir -p "$out"
model=$("$python" tools/fetch_demo_model.py | tail -n 1)
fastspec() { "$python" -m fastspec "$@"; }

# Prompts of 32 to 256 tokens to train on, more than there is time for; 64 of each kind for validation, and 96 held out.
if [[ ! -f $out/heldout-prompts.safetensors ]]; then
  texts=$("$python" tools/fetch_texts.py | tail -n 1)
  fastspec train prompts --target "$model" --texts "$texts"/train/*.jsonl --out "$out/prompts.safetensors" \
    --each 32000 --prompt-tokens 32 256 --repeat --prompt-seed 1
  fastspec train prompts --target "$model" --texts "$texts"/validation/{prose,code,chat}.jsonl \
    --out "$out/validation-prompts.safetensors" --each 64 --prompt-tokens 64 512 --prompt-seed 2
  fastspec train prompts --target "$model" --texts "$texts"/heldout/{prose,code,chat}.jsonl \
    --out "$out/heldout-prompts.safetensors" --each 96 --prompt-tokens 64 512 --prompt-seed 3
fi

# The model's own continuations: greedy, half of them behind a few sampled tokens; 15 % sampled throughout, for T > 0.
engine=(--target "$model" --device "$device" --dtype bfloat16 --concurrency 512)
if [[ ! -f $out/validation.safetensors ]]; then
  fastspec train generate "${engine[@]}" --prompts "$out/prompts.safetensors" --out "$out/generated.safetensors" \
    --max-new 192 --sampled-share 0.15 --opening 8 --minutes "${GENERATE_MINUTES:-3}"
  fastspec train generate "${engine[@]}" --prompts "$out/validation-prompts.safetensors" \
    --out "$out/validation.safetensors" --max-new 128
fi

fastspec train "$kind" --target "$model" --preset smollm2-demo --device "${device%%:*}" \
  --data "$out/generated.safetensors" --validation "$out/validation.safetensors" --out "$drafter" "$@"

fastspec evaluate acceptance --target "$model" --drafter "$kind:$drafter" --data "$out/heldout-prompts.safetensors" \
  --max-tokens 128 --device "$device" --dtype bfloat16 --json "$acceptance"
echo "the drafter is in $drafter"
