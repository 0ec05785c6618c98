/* Command line of the tool: verbs, options, help. Exit codes: 0 success, 1 a negative answer, 2 wrong usage, 3 the
 * machine lacks something, 4 a training run was interrupted. */
#ifndef KVA_TOOLS_CLI_H
#define KVA_TOOLS_CLI_H

#include "runtime/device.h"
#include "runtime/exe/options.h"
#include "tools/library/library.h"

typedef struct kva_verb {
  const char *name;
  const char *arguments; /* "MODEL [options]" */
  const char *summary;   /* one line */
  const char *details;   /* paragraphs and examples for --help */
  int (*run)(int argc, char **argv);
} kva_verb;

/* kva_options_parse for a verb. */
int kva_cli_parse(const kva_verb *verb, int argc, char **argv, const kva_option *options, uint32_t n_options,
                  const char **positional, int max_positional, int *n_positional);

/* Loads a model with -D and --pin lists; prints and clears diagnostics, including warnings. Returns -1 and the module,
 * or an exit code. */
int kva_cli_load(const char *path, const kva_strings *defines, const kva_strings *pins, kva_diag *diag,
                 kva_module **out_module);
typedef struct kva_cli_source {
  const char *path;
  const kva_strings *defines, *pins;
  const char *weights;                  /* NULL: the model's own */
  bool free_batch, inference, language; /* see kva_load_options */
  bool keep_messages;                   /* they stay in the kva_diag and are not printed */
  bool packed;                          /* weights in blocks of codes stay so: they are only read */
  bool fixed;                           /* parameters are not set again: kva_set_constants */
} kva_cli_source;
/* Option row: how nodes of an ONNX graph in training mode compute. */
#define KVA_INFERENCE_OPTION(out)                                              \
  {                                                                            \
    "--inference", NULL, NULL, KVA_OPTION_FLAG, out,                           \
        "dropout and batch normalisation in training mode are as in inference" \
  }
#define KVA_WEIGHTS_HELP "values: a safetensors file or checkpoint, a Hugging Face folder, a GGUF file"
/* Where path is a Hugging Face folder or a GGUF file, the model is the .kv file of the tool that is for it. */
int kva_cli_load_from(const kva_cli_source *from, kva_diag *diag, kva_module **out_module);
/* Whether writing `output`, the value of an option or NULL, would replace one of the n inputs, of which NULLs do not
 * count; a message says so. */
bool kva_cli_replaces_input(const char *verb, const char *option, const char *output, int n, const char *const *inputs);
/* The same for the values of an option [NAME=]FILE. */
bool kva_cli_replaces_named(const char *verb, const char *option, const char *output, const kva_strings *inputs);
/* From now on SIGINT, SIGTERM and SIGHUP remove what this process has begun to write in the place of `output`, and end
 * the process as before. */
void kva_cli_clean_at_signal(const char *output);
/* The value of a symbol in a list of pins; 0: none. */
int64_t kva_cli_pin_of(const kva_strings *pins, const char *symbol);
/* The symbol of the batch: "B", or the first extent of every data input of a module that trains. */
const char *kva_cli_batch_symbol(const kva_module *m);
/* The length of the sequences that a train block reads, which its data source says as an argument or in its text; 0: it
 * does not. */
int64_t kva_cli_length_of(const kva_train_spec *spec);
/* Adds a pin for a symbol that inputs of m have, unless value is 0 or the list already pins it. */
void kva_cli_pin(const kva_module *m, const char *symbol, int64_t value, kva_strings *pins, kva_arena *arena);

/* Options for running passes, shared by all verbs that compile. Zero it before parsing. */
typedef struct kva_pass_choice {
  kva_pass_control control;
  const char *bisect_limit; /* text of control.max_changes */
  bool timing;
} kva_pass_choice;
#define KVA_PASS_OPTIONS(c)                                                                                       \
  {"--print-after",                                                                                               \
   NULL,                                                                                                          \
   "PASS",                                                                                                        \
   KVA_OPTION_STRING,                                                                                             \
   &(c)->control.print_after,                                                                                     \
   "print the IR after a pass, or after \"all\""},                                                                \
      {"--stop-after",                                                                                            \
       NULL,                                                                                                      \
       "PASS",                                                                                                    \
       KVA_OPTION_STRING,                                                                                         \
       &(c)->control.stop_after,                                                                                  \
       "print the IR after a pass, and end there"},                                                               \
      {"--verify-each", NULL, NULL, KVA_OPTION_FLAG, &(c)->control.verify_each, "check the IR after every pass"}, \
      {"--bisect-limit",                                                                                          \
       NULL,                                                                                                      \
       "N",                                                                                                       \
       KVA_OPTION_STRING,                                                                                         \
       &(c)->bisect_limit,                                                                                        \
       "make only the first N changes that may be left out, and name each"},                                      \
  {                                                                                                               \
    "--timing", NULL, NULL, KVA_OPTION_FLAG, &(c)->timing, "print what compiling took, by passes"                 \
  }
/* Checks the names of passes and parses the limit. Returns -1 to continue, or an exit code after printing
 * everything. */
int kva_cli_passes(const kva_verb *verb, kva_pass_choice *c);
/* Prints the time of each pass to stderr, if requested. */
void kva_cli_print_passes(const kva_pass_choice *c);

/* For verbs that run what they compile. Builds with sanitizers compile what release builds do: tests share the code. */
#if defined KVA_DEBUG && !defined __SANITIZE_ADDRESS__
enum { KVA_CLI_CHECK_INDICES = true };
#else
enum { KVA_CLI_CHECK_INDICES = false };
#endif
#define KVA_CHECK_INDICES_OPTION(flag)                               \
  {                                                                  \
    "--check-indices", NULL, NULL, KVA_OPTION_FLAG, (flag),          \
        "end where an index is out of range, instead of clamping it" \
  }

/* Bytes of a training program. */
#define KVA_MEMORY_OPTION(bytes) \
  { "--memory", NULL, "N", KVA_OPTION_BYTES, (bytes), "train within N bytes (40G): compute again instead of keeping" }

/* Where to run and what to compile for: --device and --target, and how: --gemm and --math. */
typedef struct kva_device_choice {
  const char *device, *target; /* NULL: the CPU; the device's default target */
  const char *gemm;            /* NULL: the device's default */
  const char *math;            /* NULL: exact */
} kva_device_choice;
#define KVA_DEVICE_WORD(name) "|" #name
#define KVA_DEVICES           (&(KVA_EACH_DEVICE(KVA_DEVICE_WORD))[1]) /* "cpu|cuda|ptxsim" */
#define KVA_PLACE_OPTIONS(choice)                                                                                     \
  {"--device", NULL, KVA_DEVICES, KVA_OPTION_WORD, &(choice)->device, "where to run; ptxsim: a simulated GPU (cpu)"}, \
  {                                                                                                                   \
    "--target", NULL, "ARCH", KVA_OPTION_STRING, &(choice)->target,                                                   \
        "GPU to compile for, sm_80 to sm_90a (the device's own)"                                                      \
  }
#define KVA_DEVICE_OPTIONS(choice)                                                                                \
  KVA_PLACE_OPTIONS(choice),                                                                                      \
      {"--gemm",        NULL,                                                                                     \
       KVA_GEMMS,       KVA_OPTION_WORD,                                                                          \
       &(choice)->gemm, "matrix products; library: cuBLASLt (cuda's default); bf16x3: floats on a CPU with AMX"}, \
      KVA_MATH_OPTION(&(choice)->math)
/* --mesh; NULL: none. -1, or the exit code of wrong usage, after a message. */
int kva_cli_mesh(const char *text, kva_mesh *out);
/* Fails for a device that this machine does not have; otherwise sets the compilation target. */
KVA_MUST_USE kva_status kva_cli_target(const kva_device_choice *choice, kva_diag *diag, kva_target_options *target);
/* For what is run here: the target, and the memory that there is. */
KVA_MUST_USE kva_status kva_cli_device(const kva_device_choice *choice, kva_diag *diag, kva_compile_options *options);

/* Prints "compiled in 1.19 s (passes 0.01, code 1.18), 69 kernels". */
void kva_cli_print_compiled(const kva_compiled *c);

/* read_proto of a kva_run_request. */
KVA_MUST_USE kva_status kva_cli_read_proto(const char *path, kva_diag *diag, kva_tensor *out);
/* write_proto of it. */
KVA_MUST_USE kva_status kva_cli_write_proto(const char *path, const char *name, const kva_tensor *t, kva_diag *diag);

/* Prints diag to stderr and returns the exit code of status. */
int kva_cli_fail(kva_status status, const kva_diag *diag);
/* Prints the warnings of what succeeded, and forgets them. */
void kva_cli_warn(kva_diag *diag);

extern const kva_verb kva_verb_run, kva_verb_generate, kva_verb_serve, kva_verb_train, kva_verb_eval, kva_verb_check,
    kva_verb_conform, kva_verb_ops, kva_verb_show, kva_verb_opt, kva_verb_doctor, kva_verb_export, kva_verb_ptxsim,
    kva_verb_build, kva_verb_data, kva_verb_quantize, kva_verb_experiment, kva_verb_report, kva_verb_diff,
    kva_verb_reduce, kva_verb_profile;

#endif
