/* kvasir quantize: weights in 8 or 4 bits. */
#include "ops/ids.h"
#include "passes/quantize.h"
#include "passes/tune.h"
#include "runtime/safetensors.h"
#include "tools/cli.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_quantize = {
    "quantize", "MODEL --weights FILE -o FILE.safetensors [options]", "write a model's weights in 8 or 4 bits",
    "Matrices that products read as second operand become integers with a scale, and a zero point unless --symmetric,\n"
    "for every block along the depth of the product. Everything else stays as it is: embeddings, a head that is tied "
    "to\n"
    "them, norms, biases, the weights of KV shifts. The file is one of weights: run, generate, build, export and eval\n"
    "take it with --weights, keep it packed in memory and compute in float, or with --math int8 in bytes. An ONNX\n"
    "model brings its weights itself.\n\n"
    "Examples:\n"
    "  kvasir quantize models/lm.kv -D vocab=257 --weights model.safetensors --bits 4 -o model-4.safetensors\n"
    "  kvasir generate models/lm.kv -D vocab=257 --weights model-4.safetensors --prompt \"Once upon\"",
    run};

typedef struct quantize_options {
  kva_strings defines;
  const char *weights, *output;
  int64_t bits, block;
  bool symmetric;
} quantize_options;

typedef struct writer {
  kva_quantization how;
  kva_arena *arena;
  kva_diag *diag;
  KVA_VEC(kva_named_tensor) tensors;
  int64_t matrices, before, after; /* bytes of all parameters */
} writer;

static void add(writer *w, const char *name, const kva_tensor_data *t) {
  kva_tensor tensor = {.dtype = t->dtype, .rank = (int32_t)t->rank, .data = (void *)(uintptr_t)t->data};
  for (uint32_t d = 0; d < t->rank; d++) tensor.dims[d] = t->dims[d];
  if (kva_dtype_bits(t->dtype) < 8) { /* the format has no such type: bytes */
    tensor.dtype = KVA_U8;
    tensor.rank = 1;
    tensor.dims[0] = t->bytes;
  }
  kva_named_tensor entry = {name, tensor};
  KVA_PUSH(w->arena, &w->tensors, entry);
  w->after += t->bytes;
}

static kva_status add_quantized(writer *w, const char *name, const kva_tensor_data *t, uint32_t axis) {
  kva_quantized q;
  KVA_TRY(kva_quantize_matrix(&w->how, t, axis, name, w->arena, w->diag, &q));
  add(w, name, &q.codes);
  add(w, kva_arena_printf(w->arena, "%s" KVA_QUANTIZED_SCALE, name), &q.scale);
  if (q.zero.data) add(w, kva_arena_printf(w->arena, "%s" KVA_QUANTIZED_ZERO, name), &q.zero);
  w->matrices++;
  return KVA_OK;
}

static kva_status add_parameter(writer *w, const char *name, const kva_tensor_data *t, bool quantizable,
                                uint32_t axis) {
  w->before += t->bytes;
  if (quantizable) return add_quantized(w, name, t, axis);
  add(w, name, t);
  return KVA_OK;
}

/* Here and below the axis is asked for in a statement of its own: arguments of one call are evaluated in any order. */
static kva_status add_states(writer *w, const kva_module *m) {
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *s = m->states.data[i];
    uint32_t axis = 0;
    if (s->kind != KVA_STATE_PARAM) continue;
    if (!s->data) return kva_error(w->diag, &s->loc, "parameter '%s' has no value: give --weights", s->name);
    kva_readers readers = kva_readers_of_state(m, s, &axis);
    KVA_TRY(add_parameter(w, s->name, s->data, readers == KVA_READ_BY_PRODUCTS, axis));
  }
  return KVA_OK;
}

static kva_status add_constants(writer *w, const kva_module *m) {
  for (kva_node *n = m->functions.data[0]->graph->first; n; n = n->next) {
    uint32_t axis = 0;
    if (!kva_is_named_constant(n) || !kva_is(n, KVA_OP_constant)) continue;
    const kva_value *v = &n->results[0];
    const kva_tensor_data *t = ((const kva_constant_attrs *)n->attrs)->value;
    kva_readers readers = kva_readers_of(v, &axis);
    KVA_TRY(add_parameter(w, v->name, t, readers == KVA_READ_BY_PRODUCTS, axis));
  }
  return KVA_OK;
}

static kva_status write_file(writer *w, const kva_module *m, const char *path) {
  KVA_TRY(kva_file_prepare(path, w->diag));
  KVA_TRY(add_states(w, m));
  KVA_TRY(add_constants(w, m));
  if (!w->matrices)
    return kva_error(w->diag, NULL, "'%s' has no matrix that products alone read as second operand", m->name);
  const kva_metadata metadata[] = {
      {"model", m->name},
      {"kvasir.quantized", kva_arena_printf(w->arena, "bits=%d block=%lld%s", w->how.bits, (long long)w->how.block,
                                            w->how.symmetric ? " symmetric" : "")}};
  return kva_safetensors_write(path, w->tensors.len, w->tensors.data, 2, metadata, w->diag);
}

static int quantize(const char *path, const quantize_options *o) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  writer w = {.how = {(int)o->bits, o->block, o->symmetric}, .arena = kva_arena_create(), .diag = diag};
  const kva_cli_source from = {.path = path, .defines = &o->defines, .pins = &(kva_strings){0}, .weights = o->weights};
  int code = kva_cli_load_from(&from, diag, &m);
  if (code < 0) {
    kva_status status = write_file(&w, m, o->output);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
    if (status == KVA_OK)
      printf("%lld matrices in %d bits: %.1f MB of parameters are %.1f MB (%.1f %%)\n", (long long)w.matrices,
             w.how.bits, (double)w.before / 1e6, (double)w.after / 1e6, 100.0 * (double)w.after / (double)w.before);
  }
  kva_module_destroy(m);
  kva_arena_destroy(w.arena);
  kva_diag_destroy(diag);
  return code;
}

static int misused(const char *what) {
  fprintf(stderr, "kvasir quantize: %s\n", what);
  return EXIT_USAGE;
}

static int run(int argc, char **argv) {
  quantize_options o = {.bits = 8, .block = 32};
  const kva_option options[] = {
      {"--output", "-o", "FILE", KVA_OPTION_STRING, &o.output, "where to write: a safetensors file"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, KVA_WEIGHTS_HELP},
      {"--bits", NULL, "N", KVA_OPTION_INT, &o.bits, "of a weight: 8 or 4 (8)"},
      {"--block", NULL, "N", KVA_OPTION_INT, &o.block, "weights that share a scale: 32 or 128 (32)"},
      {"--symmetric", NULL, NULL, KVA_OPTION_FLAG, &o.symmetric, "no zero points: smaller and faster, less exact"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_quantize, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (!n) return misused("a model is missing");
  if (!o.output) return misused("-o FILE is missing");
  if (o.bits != 8 && o.bits != 4) return misused("--bits is 8 or 4");
  if (o.block != 32 && o.block != 128) return misused("--block is 32 or 128");
  const char *inputs[] = {path, o.weights};
  if (kva_cli_replaces_input("quantize", "-o", o.output, 2, inputs)) return EXIT_USAGE;
  kva_cli_clean_at_signal(o.output);
  return quantize(path, &o);
}
