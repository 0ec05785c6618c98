# Bash completion for kvasir: source this file, or put it into /usr/share/bash-completion/completions/kvasir.
# Verbs and options are read from the tool's own --help, so that they are always those of the installed version.

_kvasir_verbs() { "$1" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  *[^ ].*/\1/p'; }

_kvasir_options() { # _kvasir_options TOOL VERB
  "$1" "$2" --help 2>/dev/null | sed -n '/^Options:/,/^$/p' | grep -oE '^  (-[^ ,]+, )?--[^ []+' | tr -s ' ,' '\n'
}

_kvasir_passes() { "$1" opt --list 2>/dev/null | sed -n 's/^  \([a-z][a-z0-9_]*\)  *[^ ].*/\1/p'; }

# Whether the option takes a value: its help line names one after it, before the gap.
_kvasir_takes_value() { # _kvasir_takes_value TOOL VERB OPTION
  "$1" "$2" --help 2>/dev/null | sed -n '/^Options:/,/^$/p' | grep -E "^  ([^ ]*, )?$3(, --[^ ]*)? [^ ]" >/dev/null
}

_kvasir_values() { # _kvasir_values OPTION WORD
  case $1 in
    --stage) mapfile -t COMPREPLY < <(compgen -W "source graph fused plan kernels llvm asm ptx" -- "$2") ;;
    --format) mapfile -t COMPREPLY < <(compgen -W "text dot json" -- "$2") ;;
    --cluster) mapfile -t COMPREPLY < <(compgen -W "a100x8x1 h100x8x1 h200x8x1 b200x8x1" -- "$2") ;;
    --device) mapfile -t COMPREPLY < <(compgen -W "cpu ptxsim" -- "$2") ;;
    --target) mapfile -t COMPREPLY < <(compgen -W "sm_80 sm_86 sm_89 sm_90 sm_90a native x86-64-v2 x86-64-v3 x86-64-v4
      aarch64-linux-gnu cortex-a76 neoverse-n1 neoverse-v1" -- "$2") ;;
    --emit) mapfile -t COMPREPLY < <(compgen -W "ir kernel llvm asm ptx cubin header plan" -- "$2") ;;
    --runtime | --checkpoint | --tensorboard) mapfile -t COMPREPLY < <(compgen -d -- "$2") ;;
    --passes | --print-after | --stop-after) mapfile -t COMPREPLY < <(compgen -W "$(_kvasir_passes "${COMP_WORDS[0]}")" -- "$2") ;;
    --arch) mapfile -t COMPREPLY < <(compgen -W "sm_80 sm_86 sm_89 sm_90 sm_90a" -- "$2") ;;
    --data) mapfile -t COMPREPLY < <(
      compgen -W "induction ngram hop igsm random tokens: npy: safetensors:" -- "$2"
      compgen -f -- "$2"
    ) ;;
    --task) mapfile -t COMPREPLY < <(compgen -W "items lambada winogrande hellaswag arc mmlu cmmlu math" -- "$2") ;;
    --documents) mapfile -t COMPREPLY < <(compgen -W "packed apart" -- "$2") ;;
    --schedule) mapfile -t COMPREPLY < <(compgen -W "constant warmup cosine linear" -- "$2") ;;
    --resume) mapfile -t COMPREPLY < <(compgen -f -- "$2") ;;
    --gemm) mapfile -t COMPREPLY < <(compgen -W "library generated bf16x3" -- "$2") ;;
    --math) mapfile -t COMPREPLY < <(compgen -W "exact relaxed" -- "$2") ;;
    --precision) mapfile -t COMPREPLY < <(compgen -W "f32 bf16 f16" -- "$2") ;;
    --loss) mapfile -t COMPREPLY < <(compgen -W "cross_entropy mse" -- "$2") ;;
    --weights | --from) mapfile -t COMPREPLY < <(compgen -f -- "$2") ;;
    --input | -i | --metrics | --report | --tokenizer | --file | --shots-file | --details) mapfile -t COMPREPLY < <(compgen -f -- "$2") ;;
    --output | -o) mapfile -t COMPREPLY < <(compgen -f -- "$2") ;;
    *) COMPREPLY=() ;;
  esac
}

_kvasir() {
  local tool=${COMP_WORDS[0]} verb=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  compopt -o filenames 2>/dev/null
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_kvasir_verbs "$tool") help --help --version" -- "$word")
  elif [ "$word" = "=" ]; then # bash cuts --stage=plan into three words
    _kvasir_values "$before" ""
  elif [ "$before" = "=" ]; then
    _kvasir_values "${COMP_WORDS[COMP_CWORD - 2]}" "$word"
  elif [[ $before == -* ]] && _kvasir_takes_value "$tool" "$verb" "$before"; then
    _kvasir_values "$before" "$word"
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_kvasir_options "$tool" "$verb")" -- "$word")
  elif [ "$verb" = data ]; then
    mapfile -t COMPREPLY < <(
      [ "$COMP_CWORD" -ne 2 ] || compgen -W "make info decode" -- "$word"
      compgen -f -- "$word"
    )
  elif [ "$verb" = conform ]; then
    mapfile -t COMPREPLY < <(compgen -d -- "$word")
  else
    mapfile -t COMPREPLY < <(
      compgen -d -- "$word"
      compgen -f -X '!*.onnx' -- "$word"
      compgen -f -X '!*.kv' -- "$word"
      compgen -f -X '!*.ptx' -- "$word"
    )
  fi
}

complete -F _kvasir kvasir
