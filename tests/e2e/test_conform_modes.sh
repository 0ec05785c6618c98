#!/usr/bin/env bash
# The official ONNX suite with symbolic extents, and its gradients: `kvasir conform --mode dynamic` and `--grad`.
. "$(dirname "$0")/support.sh"
. "$(dirname "$0")/suite_28.sh"

# Every extent above 1 a symbol: what an operator needs to be equal, or to be a number, is assumed and checked. Sanitizers
# see every third.
operators=(test_gather test_scatter test_gridsample_bilinear test_nonmaxsuppression test_basic_ test_convtranspose \
  test_causal_conv_with_state_s test_col2im test_center_crop test_lstm test_gru test_simple_rnn test_linear_attention_g \
  test_rotary_embedding_no test_tensorscatter test_tfidfvectorizer test_ai_onnx_ml_tree test_reversesequence test_swiglu \
  test_string_concat test_dequantizelinear_ test_attention_4d_gqa test_attention_4d_causal_padded \
  test_dft test_stft test_resize_ test_slice test_nllloss_NCd1d2d3d4d5_mean_weight_expanded)
stride=1
[ -z "${KVASIR_SANITIZED:-}" ] || stride=3
for ((i = 0; i < ${#operators[@]}; i += stride)); do
  expect 0 conform "$suite" --mode dynamic --filter "node/${operators[i]}" --expected tests/onnx/dynamic.txt
done
# A GPU rounds probabilities before it multiplies them: float16 is within the suite's unit all the same.
for case in test_attention_4d_fp16 test_attention_4d_causal_fp16; do
  expect 0 conform "$suite" --filter "node/$case" --device ptxsim --target sm_80
done
expect 0 conform "$suite" --mode dynamic --filter node/test_det_2d -v
says "skip $suite/node/test_det_2d: Det-22: expected a known number of 1 to"

# Gradients against slopes of the reference: how many operators, and which cases disagree. Sanitizers see a share.
filter=(--filter /)
[ -z "${KVASIR_SANITIZED:-}" ] || filter=(--filter node/test_r)
expect 0 conform "$suite" "${filter[@]}" --grad --expected tests/onnx/gradients.txt
tail -1 "$work/out"
operators=$(sed -n 's/.* compared, \([0-9]*\) of them right in every case$/\1/p' "$work/out")
[ -n "${KVASIR_SANITIZED:-}" ] || [ "$operators" -ge 125 ] || fail "only $operators operators have right gradients"
expect 1 conform "$suite" --filter mode3_zero --grad
says "gradient by input 0"
