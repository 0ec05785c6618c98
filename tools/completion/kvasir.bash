# Bash completion for kvasir: source this file, or put it into /usr/share/bash-completion/completions/kvasir.
# Verbs, options and most values are read from the tool's own --help, so that they are always those of the installed version.

_kvasir_verbs() { "$1" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  *[^ ].*/\1/p'; }

_kvasir_options() { # _kvasir_options TOOL VERB
  "$1" "$2" --help 2>/dev/null | sed -n '/^Options:/,/^$/p' | grep -oE '^  (-[^ ,]+, )?--[^ []+' | tr -s ' ,' '\n'
}

_kvasir_passes() { "$1" opt --list 2>/dev/null | sed -n 's/^  \([a-z][a-z0-9_]*\)  *[^ ].*/\1/p'; }

# What the option's help line names as its value: "N", "FILE", "f32|bf16|f16"; nothing for a flag.
_kvasir_value() { # _kvasir_value TOOL VERB OPTION
  "$1" "$2" --help 2>/dev/null | sed -n '/^Options:/,/^$/p' | sed -nE "s/^  ([^ ]*, )?$3(, --[^ ]*)? ([^ ]+).*/\3/p"
}

_kvasir_values() { # _kvasir_values TOOL VERB OPTION WORD
  local value words=
  value=$(_kvasir_value "$1" "$2" "$3")
  case $3 in
    --cluster) words="a100x8x1 h100x8x1 h200x8x1 b200x8x1" ;;
    --target) words="sm_80 sm_86 sm_89 sm_90 sm_90a native x86-64-v2 x86-64-v3 x86-64-v4
      aarch64-linux-gnu cortex-a76 neoverse-n1 neoverse-v1" ;;
    --arch) words="sm_80 sm_86 sm_89 sm_90 sm_90a" ;;
    --emit) words="ir kernel llvm asm ptx cubin header plan" ;;
    --passes | --print-after | --stop-after) words=$(_kvasir_passes "$1") ;;
    --data) words="induction ngram hop igsm random tokens: npy: safetensors:" value=FILE ;;
    --resume) value=FILE ;; # its value follows a "="
  esac
  [[ $value != *"|"* ]] || words=$(tr '|' '\n' <<<"$value" | grep '^[a-z]')
  mapfile -t COMPREPLY < <(
    compgen -W "$words" -- "$4"
    case $value in
      *DIR* | FOLDER) compgen -d -- "$4" ;;
      *FILE* | *PATH* | OUT | PROGRAM) compgen -f -- "$4" ;;
    esac
  )
}

_kvasir() {
  local tool=${COMP_WORDS[0]} verb=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  compopt -o filenames 2>/dev/null
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_kvasir_verbs "$tool") help --help --version" -- "$word")
  elif [ "$word" = "=" ]; then # bash cuts --stage=plan into three words
    _kvasir_values "$tool" "$verb" "$before" ""
  elif [ "$before" = "=" ]; then
    _kvasir_values "$tool" "$verb" "${COMP_WORDS[COMP_CWORD - 2]}" "$word"
  elif [[ $before == -* && -n $(_kvasir_value "$tool" "$verb" "$before") ]]; then
    _kvasir_values "$tool" "$verb" "$before" "$word"
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
