#!/usr/bin/env bash
# kvasir build --generate --exe: one file that continues texts as `kvasir generate` does, with weights, tokenizer and format
# of chats inside, and needs libc and libm alone.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/support.sh"
[ -f "$(dirname "$KVASIR")/libkvasir-generate.a" ] || { echo "SKIP: no static libraries of PCRE2, utf8proc and jansson"; exit 77; }
. "$(dirname "$0")/../e2e/sentence.sh"

expect 0 build models/lm.kv "${size[@]}" --from "$weights" --generate --exe -o "$work/writer"
mkdir "$work/alone"
mv "$work/writer" "$work/alone/writer"
[ "$(stat -c %s "$work/alone/writer")" -lt 4000000 ] || fail "the executable has $(stat -c %s "$work/alone/writer") bytes"
ldd "$work/alone/writer" | grep -vE 'linux-vdso|ld-linux|libc\.so|libm\.so' && fail "the executable needs more than libc and libm"

written() { (cd / && env -i "$work/alone/writer" "$@"); }
# agrees OPTION...: the executable writes what the tool writes.
agrees() {
  written "$@" >"$work/built" || fail "the executable: $*"
  "$KVASIR" generate models/lm.kv "${size[@]}" --weights "$weights" "$@" >"$work/tool"
  same "$work/built" "$work/tool"
}
agrees --prompt 'the cat ' --tokens 40
grep -qxF 'the cat sat on the mat. the cat sat on the mat. ' "$work/built" || fail "the executable forgot the sentence"
agrees --prompt 'the ' --tokens 30 --temperature 2 --top-k 20 --n 3 --seed 7 --threads 1
printf 'the \nthe cat sat on \non\n' >"$work/prompts"
agrees --prompts "$work/prompts" --tokens 20 --temperature 2 --n 4 --json --stop mat
agrees --prompt 'sat' --system 'the cat' --chat plain --tokens 20
written --tokens 40 'the cat ' >"$work/argument"
printf 'the cat \n' | written --tokens 40 >"$work/stdin"
written --prompt 'the cat ' --tokens 40 >"$work/option"
same "$work/argument" "$work/option"
same "$work/stdin" "$work/option"
written --help >"$work/out"
says 'Tokens are bytes.'
says 'Language model with KV shifting attention'

# What it cannot do is said, with the tool's codes.
refused() { # refused CODE MESSAGE ARGUMENT...
  local code=0
  written "${@:3}" >"$work/out" 2>&1 || code=$?
  [ "$code" -eq "$1" ] || fail "'${*:3}': exit code $code, expected $1"
  says "$2"
}
refused 1 'expected at least one token, found none' </dev/null
refused 1 'found a zero byte' < <(printf 'a\0b')
refused 2 'the prompt is given twice' one --prompt two
refused 2 '--system is for --chat' one --system x
refused 1 'does not tell the format' one --chat auto

# A signal ends the text; what came stands.
python3 - "$work/alone/writer" <<'PY' || fail "SIGINT"
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
p = subprocess.Popen([sys.argv[1], "the cat ", "--tokens", "1000000"], stdout=subprocess.PIPE)
text = p.stdout.read(200)
p.send_signal(signal.SIGINT)
text += p.stdout.read()
assert p.wait() == 4, p.returncode
assert text.startswith(b"the cat sat on the mat.") and text.endswith(b"\n"), text
PY

# A tokenizer and its format of chats; weights in 4 bits; weights beside the executable.
mkdir "$work/tokens"
tokenizer=$work/tokens/tokenizer.json
cp tests/data/tokenizer_qwen.json "$tokenizer"
echo '{"chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}"}' >"$work/tokens/tokenizer_config.json"
small=(-D vocab=576 -D d=32 -D ffn=64 -D heads=2 -D layers=1)
expect 0 export models/lm.kv "${small[@]}" -o "$work/lm.onnx"
expect 0 quantize "$work/lm.onnx" --bits 4 -o "$work/small.safetensors"
expect 0 build "$work/lm.onnx" --from "$work/small.safetensors" --generate --exe --tokenizer "$tokenizer" \
  --weights "$work/alone/large.safetensors" -o "$work/alone/writer"
for option in --json '--chat auto'; do
  # shellcheck disable=SC2086
  written 'Hello, world' --tokens 12 --temperature 1 $option >"$work/built"
  # shellcheck disable=SC2086
  "$KVASIR" generate "$work/lm.onnx" --weights "$work/small.safetensors" --tokenizer "$tokenizer" --prompt 'Hello, world' \
    --tokens 12 --temperature 1 $option >"$work/tool"
  same "$work/built" "$work/tool"
done
written --help >"$work/out"
says '--chat auto is chatml'
rm "$work/alone/large.safetensors"
refused 1 'large.safetensors' x

# Weights lie in memory once, packed: a program with 19 million of them in 4 bits takes at most 30 % of their bytes in float.
large=(-D vocab=257 -D d=512 -D heads=8 -D layers=6 -D ffn=1408)
peak() { python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$@"; }
expect 0 export models/lm.kv "${large[@]}" -o "$work/large.onnx"
expect 0 quantize "$work/large.onnx" --bits 4 -o "$work/large.safetensors"
expect 0 build "$work/large.onnx" --from "$work/large.safetensors" --generate --exe -o "$work/packed"
most=$(($(stat -c %s "$work/large.onnx") * 3 / 10))
[ "$(stat -c %s "$work/packed")" -le $most ] || fail "the executable has $(stat -c %s "$work/packed") bytes"
[ $(($(peak "$work/packed" Hello --tokens 4) * 1024)) -le $most ] || fail "the executable takes more than $most bytes of memory"

# Learned positions end a text, too.
expect 0 build models/gpt2.kv -D vocab=257 -D d=16 -D heads=2 -D layers=1 -D ctx=24 --generate --exe -o "$work/alone/writer"
written 'eight...' --tokens 100 --json >"$work/out"
says '"tokens":16}'
refused 1 'a prompt has 24 tokens; the model has positions for 24, text included' 'and twenty-four bytes...'

# Builds that are refused.
wrong() { # wrong CODE MESSAGE ARGUMENT...
  expect "$1" build "${@:3}" -o "$work/none"
  says "$2"
}
wrong 2 '--generate is for executables' models/lm.kv --generate
wrong 2 '--generate is for executables' models/lm.kv --generate --exe --train
wrong 2 '--tokenizer is for --generate' models/lm.kv --exe --tokenizer "$tokenizer"
wrong 2 '--generate is for CPUs' models/lm.kv --generate --exe --target sm_80
wrong 1 'the model knows 8000 tokens' models/lm.kv --generate --exe
wrong 1 'kvasir build --generate: expected a model of tokens' tests/data/shift_conv.onnx --generate --exe
wrong 3 "found no libkvasir-generate.a in $work; give" models/lm.kv "${size[@]}" --generate --exe --runtime "$work"
