#!/usr/bin/env bash
# Checkpoints of other programs: folders and GGUF files that tests/data/make_checkpoints.py made with their authors' packages
# give the logits and texts of these, and are written back with equal bytes; what does not fit is named, all of it.
# KVASIR_CHECKPOINTS=FOLDER: those in another folder of that script, too.
. "$(dirname "$0")/support.sh"

cat >"$work/npy.py" <<'PY'
"""npy.py FOUND EXPECTED: floats that differ by less than 1e-4. npy.py text FILE: the bytes that tokens are."""
import struct, sys
def read(path):
    data = open(path, "rb").read()
    start = 10 + struct.unpack("<H", data[8:10])[0]
    kind = "f" if b"<f4" in data[:start] else "i"
    return struct.unpack(f"<{(len(data) - start) // 4}{kind}", data[start:])
if sys.argv[1] == "text":
    sys.stdout.buffer.write(bytes(t for t in read(sys.argv[2])))
    sys.exit()
found, expected = read(sys.argv[1]), read(sys.argv[2])
worst = max(abs(a - b) for a, b in zip(found, expected))
sys.exit(len(found) != len(expected) or not worst < 1e-4)
PY

file_of() { # the model: a folder, or the GGUF file in it
  if [ -e "$1/model.gguf" ]; then echo "$1/model.gguf"; else echo "$1"; fi
}

# ---- read: logits; greedy text where tokens are bytes; written back
n=0
for folder in tests/data/checkpoints/* ${KVASIR_CHECKPOINTS:+"$KVASIR_CHECKPOINTS"/*}; do
  model=$(file_of "$folder")
  rm -rf "$work/o" && mkdir "$work/o"
  expect 0 run "$model" --input tokens="$folder/tokens.npy" --output "$work/o"
  python3 -B "$work/npy.py" "$work/o/logits.npy" "$folder/logits.npy" || fail "$model: other logits"
  n=$((n + 1))
  [ -d "$model" ] || continue
  expect 0 export "$model" --format huggingface -o "$work/back"
  for file in "$model"/*.safetensors "$model"/*.json; do
    cmp -s "$file" "$work/back/$(basename "$file")" || fail "$file is not written back as it was"
  done
  rm -rf "$work/back"
  grep -q '"vocab_size": 257' "$model/config.json" || continue
  python3 -B "$work/npy.py" text "$folder/tokens.npy" >"$work/prompt"
  python3 -B "$work/npy.py" text "$folder/greedy.npy" >"$work/text" 2>/dev/null || continue # 256 ends a text
  expect 0 generate "$model" --prompt "$(cat "$work/prompt")" --tokens 64
  cat "$work/prompt" "$work/text" >"$work/whole" && echo >>"$work/whole"
  cmp -s "$work/out" "$work/whole" || fail "$model: other text"
done
[ "$n" -ge 9 ] || fail "only $n checkpoints"

# ---- GGUF out: what was written is read again; q8_0 of values that were q8_0 is exact to rounding
small=tests/data/checkpoints/gguf_q8_0
for packing in f32 q8_0; do
  expect 0 export "$small/model.gguf" --format gguf --packing $packing -o "$work/$packing.gguf"
  expect 0 run "$work/$packing.gguf" --input tokens=$small/tokens.npy --output "$work/o"
  python3 -B "$work/npy.py" "$work/o/logits.npy" "$small/logits.npy" || fail "$packing: other logits"
done
expect 0 export tests/data/checkpoints/qwen3 --format gguf --packing f32 -o "$work/qwen3.gguf"
expect 0 run "$work/qwen3.gguf" --input tokens=tests/data/checkpoints/qwen3/tokens.npy --output "$work/o"
python3 -B "$work/npy.py" "$work/o/logits.npy" tests/data/checkpoints/qwen3/logits.npy || fail "qwen3 in GGUF: other logits"
expect 1 export tests/data/checkpoints/gpt2 --format gguf -o "$work/x.gguf"
says "'gpt2' has no names for GGUF"

# What the file would not be read as is refused before it is written: no row has the window, Llama 3's rope, these biases.
expect 1 export tests/data/checkpoints/llama3 --format gguf -o "$work/x.gguf"
says "the file would be read as another model: GGUF has places for family, vocab, d,"
for other in window=3 qkv_bias=true act=gelu; do
  expect 1 export models/llama.kv -D vocab=24 -D d=32 -D layers=1 -D heads=2 -D $other --format gguf -o "$work/x.gguf"
  says "the file would be read as another model"
done
[ ! -e "$work/x.gguf" ] || fail "a refused model was written"
expect 2 export models/llama.kv --pin B=1 --format gguf -o "$work/x.gguf"
says "--decode, --opset and --pin belong to --format onnx"

# ---- codes stay packed where they are only read, and become parameters where they train
for packing in q8_0 q4_0; do
  model=tests/data/checkpoints/gguf_$packing/model.gguf
  expect 0 run "$model" --stop-after raise
  for name in attention.0.w{q,k,v,o} mlp.0.{gate,up,down} unembed; do
    grep -qE "^ *\"?$name\"? = kv.dequantize <axis = 0, block = 32" "$work/out" || fail "$packing: $name is not packed"
  done
  grep -qE '^ *embed = kv.dequantize <block = 32' "$work/out" || fail "$packing: embed is not packed"
  expect 0 train models/llama.kv --weights "$model" --steps 1 --batch 1 --data random --print-after raise
  ! grep -q kv.dequantize "$work/out" || fail "$packing: codes do not train"
done

run_widened() { # narrow.gguf, and its values as floats
  expect 0 export "$work/narrow.gguf" --format gguf --packing f32 -o "$work/wide.gguf"
  for file in narrow wide; do
    rm -rf "${work:?}/$file" && mkdir "$work/$file"
    expect 0 run "$work/$file.gguf" --input tokens=$small/tokens.npy --output "$work/$file"
  done
}

# ---- 16 bits stay so where products widen them, and give the bits of widened ones
for packing in f16 bf16; do
  expect 0 export "$small/model.gguf" --format gguf --packing $packing -o "$work/narrow.gguf"
  expect 0 run "$work/narrow.gguf" --stop-after fold
  for name in embed attention.0.w{q,k,v,o} mlp.0.{gate,up,down} unembed; do
    grep -qE "^ *\"?$name\"? = kv.cast" "$work/out" || fail "$packing: $name is widened before it is read"
  done
  run_widened
  cmp "$work/narrow/logits.npy" "$work/wide/logits.npy" || fail "$packing has other bits than the floats that its values are"
done

# ---- an embedding that is the output layer: codes for both, floats of 16 bits widened
tied="-D tied=1 -D vocab=24 -D d=32 -D layers=1 -D heads=2 -D ffn=64"
expect 0 train models/llama.kv $tied --steps 1 --checkpoint "$work/tied" --batch 1 --data random
for packing in q8_0 bf16; do
  expect 0 export models/llama.kv $tied --weights "$work"/tied/*1.safetensors --format gguf --packing $packing -o "$work/narrow.gguf"
  expect 0 run "$work/narrow.gguf" --stop-after raise
  case $packing in
  q8_0) grep -qE '^ *embed = kv.dequantize <block = 32' "$work/out" || fail "a tied embedding is not packed" ;;
  bf16) says 'state float[24, 32] "embed" : param' ;;
  esac
  run_widened
  python3 -B "$work/npy.py" "$work/narrow/logits.npy" "$work/wide/logits.npy" || fail "tied, $packing: other logits"
done

# ---- trained values in the form of a folder
llama=tests/data/checkpoints/llama
expect 0 train models/llama.kv --weights $llama --steps 1 --checkpoint "$work/run" --batch 1 --data random
expect 0 export models/llama.kv --like $llama --weights "$work"/run/*1.safetensors --format huggingface -o "$work/trained"
cmp -s $llama/model.safetensors "$work/trained/model.safetensors" && fail "training changed nothing"
[ "$(wc -c <$llama/model.safetensors)" = "$(wc -c <"$work/trained/model.safetensors")" ] || fail "another size"

# ---- a folder or GGUF file is a model, which other values are for
for model in $llama "$work/trained"; do
  rm -rf "$work/o.${model##*/}" && mkdir "$work/o.${model##*/}"
  expect 0 run "$model" --weights "$work"/run/*1.safetensors --input tokens=$llama/tokens.npy --output "$work/o.${model##*/}"
done
expect 0 run "$work/trained" --input tokens=$llama/tokens.npy --output "$work/o"
for model in llama trained; do
  cmp "$work/o/logits.npy" "$work/o.$model/logits.npy" || fail "a folder with trained weights: other logits"
done
expect 1 run $llama --weights "$work/trained"
says "is a checkpoint of another program, and so is $work/trained: give one of them"

# ---- and may be written in the form of another folder, a GGUF file too
expect 0 export "$work/trained" --like $llama --format huggingface -o "$work/like"
cmp "$work/trained/model.safetensors" "$work/like/model.safetensors" || fail "a folder like another one has other values"
expect 0 export "$work/trained" --format gguf --packing f32 -o "$work/like.gguf"
expect 0 export "$work/like.gguf" --like $llama --format huggingface -o "$work/of_gguf"
cmp "$work/trained/model.safetensors" "$work/of_gguf/model.safetensors" || fail "a GGUF file as a folder has other values"

copy() { rm -rf "$work/m" && cp -r "$1" "$work/m"; }
edit() { # edit FILE SED-COMMAND: of the copy
  sed -i "$2" "$work/m/$1"
}

# ---- fields that a file leaves out have the defaults of its family: Gemma's output layer is the embedding, Qwen's window is off
copy tests/data/checkpoints/gemma && edit config.json '/tie_word_embeddings/d'
expect 0 run "$work/m" --input tokens="$work/m/tokens.npy" --output "$work/o"
python3 -B "$work/npy.py" "$work/o/logits.npy" "$work/m/logits.npy" || fail "gemma without a field: other logits"
copy tests/data/checkpoints/qwen2 && edit config.json '/use_sliding_window/d; s/"sliding_window": null/"sliding_window": 2/; s/"max_window_layers": [0-9]*/"max_window_layers": 0/'
grep -q '"sliding_window": 2' "$work/m/config.json" || fail "the window was not edited"
expect 0 run "$work/m" --input tokens="$work/m/tokens.npy" --output "$work/o"
python3 -B "$work/npy.py" "$work/o/logits.npy" "$work/m/logits.npy" || fail "qwen2 without a field: other logits"

# ---- the type of a scaled rope may stand there twice, by its old name, too
copy $llama && edit config.json 's/"default"/"linear", "type": "linear", "factor": 2.0/'
mkdir -p "$work/linear"
expect 0 run "$work/m" --input tokens="$work/m/tokens.npy" --output "$work/o"
expect 0 run $llama -D rope_type=linear -D rope_factor=2.0 --input tokens=$llama/tokens.npy --output "$work/linear"
cmp "$work/o/logits.npy" "$work/linear/logits.npy" || fail "a linear rope that is named twice: other logits"

# ---- buffers are no parameters: a mask of GPT-2 may be of bools
copy tests/data/checkpoints/gpt2
python3 - "$work/m/model.safetensors" <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
end = 8 + struct.unpack("<Q", data[:8])[0]
header, size = json.loads(data[8:end]), len(data) - end
header["transformer.h.0.attn.bias"] = {"dtype": "BOOL", "shape": [1, 1, 3, 3], "data_offsets": [size, size + 9]}
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data[end:] + bytes([1, 0, 0, 1, 1, 0, 1, 1, 1]))
PY
expect 0 run "$work/m" --input tokens="$work/m/tokens.npy" --output "$work/o"
python3 -B "$work/npy.py" "$work/o/logits.npy" "$work/m/logits.npy" || fail "gpt2 with a mask: other logits"
expect 0 export "$work/m" --format huggingface -o "$work/back"
cmp "$work/m/model.safetensors" "$work/back/model.safetensors" || fail "a mask is not written back as it was"

# ---- keys of GGUF that say where a model comes from and how it was quantised change nothing
python3 - $small/model.gguf "$work/keys.gguf" <<'PY'
import struct, sys
data = open(sys.argv[1], "rb").read()
string = lambda s: struct.pack("<Q", len(s)) + s.encode()
names = ["general.base_model.0.name", "general.license.name", "quantize.imatrix.file", "tokenizer.chat_template.tools"]
pairs = [string(name) + struct.pack("<I", 8) for name in names]
pad = -(sum(map(len, pairs)) + 8 * len(pairs)) % 32 # data stay at aligned places
more = b"".join(pair + string("x" * (pad if i == 0 else 0)) for i, pair in enumerate(pairs))
n, = struct.unpack("<Q", data[16:24])
open(sys.argv[2], "wb").write(data[:16] + struct.pack("<Q", n + len(pairs)) + more + data[24:])
PY
expect 0 run "$work/keys.gguf" --input tokens=$small/tokens.npy --output "$work/o"
python3 -B "$work/npy.py" "$work/o/logits.npy" "$small/logits.npy" || fail "more keys: other logits"

# ---- nor do fields that published folders have of tasks, versions and how attention is computed
copy tests/data/checkpoints/gpt2
edit config.json '0,/{/s//{ "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "n_special": 0, "output_past": true,/'
expect 0 run "$work/m" --input tokens="$work/m/tokens.npy" --output "$work/o"
copy $llama && edit config.json '0,/{/s//{ "_attn_implementation_autoset": true, "unsloth_version": "2024.9",/'
expect 0 run "$work/m" --input tokens="$work/m/tokens.npy" --output "$work/o"

# ---- what does not fit
refused() { # refused MESSAGE...
  expect 1 run "$work/m" --input tokens=$llama/tokens.npy
  for message; do says "$message"; done
}
copy $llama && edit config.json 's/"num_hidden_layers": 2/"num_hidden_layers": 1/'
refused "no parameter of 'llama' is tensor 'model.layers.1.mlp.gate_proj.weight'" "'model.layers.1.self_attn.q_proj.weight'"
copy $llama && edit config.json 's/"num_hidden_layers": 2/"num_hidden_layers": 3/'
refused "there is no tensor 'model.layers.2.input_layernorm.weight', parameter 'attention_norm.2.scale'" \
  "'model.layers.2.mlp.up_proj.weight'"
copy $llama && edit config.json 's/"intermediate_size": 12/"intermediate_size": 10/'
refused "tensor 'model.layers.0.mlp.down_proj.weight' is F32[8, 12], which as transposed is no float[10, 8] of parameter 'mlp.0.down'" \
  "'model.layers.1.mlp.gate_proj.weight'"
copy $llama && edit config.json 's/"hidden_act": "silu"/"hidden_act": "relu"/'
expect 1 run models/llama.kv --weights "$work/m" --input tokens=$llama/tokens.npy
says "field 'hidden_act' is \"relu\"; models/llama.kv takes: \"silu\", \"gelu\", \"gelu_pytorch_tanh\""
copy $llama && edit config.json 's/"mlp_bias": false/"mlp_bias": true, "new_thing": 3/'
refused 'fields that' 'mlp_bias = true, new_thing = 3'
copy $llama && edit config.json 's/"model_type": "llama"/"model_type": "phi9"/'
refused 'no .kv file beside the tool is for this model'
copy $llama && edit config.json 's/"default"/"yarn"/'
refused '"yarn"'
copy $llama && edit config.json 's/"default"/"default", "type": "yarn"/'
refused "fields 'rope_parameters.rope_type' and 'rope_parameters.type' differ"
copy $llama && edit model.safetensors 's/"model.norm.weight":{"dtype":"F32","shape":\[8\]/"model.norm.weight":{"dtype":"F64","shape":[4]/'
refused "tensor 'model.norm.weight' is of type double; those of parameters are F32, F16 or BF16"
expect 1 export $llama --like "$work/m" --format huggingface -o "$work/x"
says "tensor 'model.norm.weight' is of type double; those written are F32, F16 or BF16"
copy $llama && echo '{' >"$work/m/config.json"
refused 'is no JSON'
copy $llama && rm "$work/m/model.safetensors"
refused 'has neither model.safetensors nor'
copy tests/data/checkpoints/mistral && edit model.safetensors.index.json 's/model-00001/..\/model-00001/'
refused 'should be in a file of the folder'
mkdir "$work/empty"
expect 1 run "$work/empty"
says 'with config.json, found none'
expect 1 run models/mlp.kv --weights $llama
says 'a block `checkpoint huggingface { ... }`'
expect 1 export $llama --format huggingface -o $llama
says 'is the folder that the model comes from'
expect 2 export models/llama.kv --format huggingface -o "$work/x"
says '--like FOLDER'
expect 2 export models/llama.kv --packing q8_0 -o "$work/x"

# ---- GGUF files that are cut off or changed
head -c 1000 $small/model.gguf >"$work/cut.gguf"
expect 1 run "$work/cut.gguf"
printf 'GGUF\x01\0\0\0' >"$work/old.gguf"
expect 1 run "$work/old.gguf"
says 'is GGUF of version 1; 2 and 3 are read'
