/* The inference executable: runs a model on files and documents itself with --help. */
#include "runtime/exe/exe.h"
#include "runtime/exe/files.h"
#include "runtime/exe/streams.h"
#include "runtime/formula.h"

#include <stdlib.h>
#include <string.h>

typedef struct settings {
  kva_strings files, pins;
  const char *output_dir, *weights, *device;
  int64_t threads, seed, repeat;
  kva_symbol_value dims[64];
} settings;

/* ---- help -------------------------------------------------------------------------------------------------------- */

/* On one line whatever it is called, at least as wide as a column. */
static void add_name(kva_text *text, const char *name) {
  size_t start = text->len;
  for (const unsigned char *c = (const unsigned char *)name; *c; c++)
    kva_text_add(text, *c < 0x20 || *c == 0x7f ? "\\x%02x" : "%c", *c);
  while (!text->cut && text->len < start + 20) kva_text_add_bytes(text, " ", 1);
}

static void describe(const kva_program *p, const char *role, int32_t n, const int32_t *numbers, kva_text *text) {
  for (int32_t i = 0; i < n; i++) {
    const kva_buffer_desc *b = &p->buffers[numbers[i]];
    kva_text_add(text, "  %-7s ", role);
    add_name(text, b->name);
    kva_text_add(text, " %s[", kva_dtype_name((kva_dtype)b->dtype));
    for (int32_t d = 0; d < b->rank; d++) {
      if (d) kva_text_add(text, ", ");
      kva_formula_print(&b->dims[d], p->symbols, text);
    }
    kva_text_add(text, "]\n");
  }
}

static void describe_model(const kva_artifact *a, const char *const *info, kva_text *text) {
  const kva_program *p = &a->programs[0];
  const char *description = kva_info_get(info, "description");
  if (description) kva_text_add(text, "%s\n\n", description);
  kva_text_add(text, "Model %s, compiled for %s:\n", a->model ? a->model : "unnamed",
               a->target ? a->target : "unknown");
  describe(p, "input", p->n_inputs, p->inputs, text);
  describe(p, "output", p->n_outputs, p->outputs, text);
  if (p->n_symbols) kva_text_add(text, "  symbols");
  for (int32_t i = 0; i < p->n_symbols; i++) kva_text_add(text, "%s %s", i ? "," : "", p->symbols[i]);
  kva_text_add(
      text,
      "%sInputs are .npy files, by name or in order, or bare elements where the shape is known. Those not "
      "given are random; the\nsymbols of their shapes need --pin. Parameters without a value start from --seed.\n",
      p->n_symbols ? "\n\n" : "\n");
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Parses the pins, such as "T=16", into names and values. */
static bool read_pins(settings *o, const char *program, kva_arena *arena) {
  for (uint32_t i = 0; i < o->pins.n; i++) {
    const char *equals = strchr(o->pins.v[i], '=');
    char *end = NULL;
    int64_t value = equals ? strtoll(equals + 1, &end, 10) : -1;
    if (!equals || !equals[1] || *end || value < 0) {
      fprintf(stderr, "%s: --pin needs SYMBOL=N, found '%s'\n", program, o->pins.v[i]);
      return false;
    }
    o->dims[i] = (kva_symbol_value){kva_arena_strndup(arena, o->pins.v[i], (size_t)(equals - o->pins.v[i])), value};
  }
  return true;
}

static kva_status run_model(const kva_artifact *a, const settings *o, kva_diag *diag) {
  kva_session *s;
  KVA_TRY(kva_session_create(
      a,
      &(kva_session_options){
          .threads = (int)o->threads, .seed = (uint64_t)o->seed, .weights = o->weights, .device = o->device},
      diag, &s));
  kva_diag_print(diag, stderr); /* warnings */
  kva_diag_clear(diag);
  kva_run_request request = {.files = &o->files,
                             .n_dims = (int)o->pins.n,
                             .dims = o->dims,
                             .seed = (uint64_t)o->seed,
                             .repeat = o->repeat,
                             .output_dir = o->output_dir};
  kva_status status = kva_run_files(s, 0, &request, diag);
  kva_session_destroy(s);
  return status;
}

int kva_infer_main(int argc, char **argv, const kva_artifact *artifact, const char *const *info) {
  settings o = {0};
  const kva_option options[] = {
      {"--input", "-i", "[NAME=]FILE", KVA_OPTION_LIST, &o.files, "a file for an input"},
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &o.output_dir, "write every output as DIR/<name>.npy"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "a shape symbol of inputs that no .npy file gives"},
      {"--device", NULL, "NAME", KVA_OPTION_STRING, &o.device,
       "where to run: cpu, or for code of a GPU cuda (what the code is for)"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, "of a model whose weights are not inside"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of random inputs and of parameters without a value (0)"},
      {"--repeat", NULL, "N", KVA_OPTION_COUNT, &o.repeat, "run N times and print median and spread"},
  };
  kva_streams_open();
  kva_text text = {0};
  describe_model(artifact, info, &text);
  const char *program = kva_exe_name(argc, argv), *none[1];
  const kva_usage usage = {program, "[options]", "runs the model that it was compiled from", kva_text_string(&text)};
  int n, code = kva_options_parse(&usage, argc - 1, argv + 1, options, sizeof options / sizeof *options, none, 0, &n);
  if (text.cut) code = kva_exit_code(program, KVA_NO_MEMORY, NULL);
  kva_arena *arena = kva_arena_create();
  if (code < 0 && !read_pins(&o, program, arena)) code = EXIT_USAGE;
  if (!o.device && kva_artifact_arch(artifact)) o.device = "cuda";
  if (!o.weights) o.weights = kva_exe_beside(kva_info_get(info, "weights"), arena);
  if (code < 0) {
    kva_diag *diag = kva_diag_create();
    kva_status status = run_model(artifact, &o, diag);
    code = kva_exit_code(program, status, diag);
    kva_diag_destroy(diag);
  }
  kva_arena_destroy(arena);
  kva_text_free(&text);
  return kva_streams_close(program, code);
}
