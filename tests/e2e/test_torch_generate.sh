#!/usr/bin/env bash
# PyTorch exports of transformers' language models (tests/data/make_language_exports.py) become models that decode: attention
# with its mask is recognised, and texts are those that PyTorch gives. So do graphs that keep a cache, those of ONNX
# Runtime's model builder among them (tests/data/make_cached_exports.py).
. "$(dirname "$0")/support.sh"

for model in gpt2 llama mistral cached grouped; do
  text=$model
  [ $model != grouped ] || text=cached
  expect 0 generate "tests/data/lm_$model.onnx" --prompt 'the cat sat on ' --tokens 24
  cmp -s "$work/out" "tests/data/lm_$text.txt" || fail "$model: another text than PyTorch's"
done

for model in gpt2 llama mistral; do
  expect 0 opt "tests/data/lm_$model.onnx" --passes=optimize,decode
  says 'kv.attention_cached'
done
