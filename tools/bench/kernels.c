/* kva_bench_kernels: small graphs and whole models, compiled as `kvasir run` compiles them, ready to be timed.
 *
 *   matmul:MxNxK:LAYOUT[:BATCH]  LAYOUT NN, NT (right operand stored N x K), TN (left operand stored K x M)
 *   bf16x3:MxNxK:LAYOUT[:BATCH]  the same with --gemm bf16x3, on a CPU with AMX
 *   bf16:MxNxK:LAYOUT[:BATCH]    the same of bfloat16, result too
 *   bytes:MxNxK                  product of uint8 by int8 with sums in int32
 *   add:RxC, softmax:RxC         rows of C elements
 *   rms_norm:RxC                 with a scale
 *   swiglu:RxC                   silu(x) * y
 *   shift_rope:BxTxHxD           KV shift over time, then rotation: what stands between projection and attention
 *   model:FILE[:NAME=N,...]      an ONNX model, its symbolic dimensions pinned
 *   relaxed:FILE[:NAME=N,...]    the same with --math relaxed
 *   int8:FILE[:NAME=N,...]       the same with --math int8
 *
 * A call runs the compiled program on tensors of the caller. Inputs are the same in every program of tools/bench, so
 * that `check`, the mean magnitude of the first output, can be compared. */
#include "tools/bench/serve.h"
#include "ops/ids.h"
#include "tools/driver/driver.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_TENSORS = 16, MAX_NUMBERS = 4, MAX_PINS = 8, ALIGN = 64 };

typedef struct bench_case {
  kva_compiled *compiled;
  kva_session *session;
  kva_tensor in[MAX_TENSORS], out[MAX_TENSORS];
  double check;
} bench_case;

/* The text of a case, cut: "matmul:512x512x64:NT:16" has n = {512, 512, 64}. */
typedef struct spec {
  int64_t n[MAX_NUMBERS];
  int n_numbers;
  bool left, right; /* transposed */
  int64_t batch;
} spec;

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static kva_value *add_typed(kva_builder *b, kva_dtype t, uint32_t rank, const int64_t *dims) {
  kva_dim d[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) d[i] = kva_expr_const(b->m->exprs, dims[i]);
  const char *name = kva_arena_printf(b->m->arena, "x%u", b->graph->inputs.len);
  return kva_graph_add_input(b->graph, kva_type_tensor(b->m, t, rank, d), name);
}

static kva_value *add_input(kva_builder *b, uint32_t rank, const int64_t *dims) {
  return add_typed(b, KVA_F32, rank, dims);
}

static kva_value *build_product(kva_builder *b, const spec *s, kva_dtype t) {
  int64_t m = s->n[0], n = s->n[1], k = s->n[2], one = s->batch == 1;
  int64_t x[3] = {s->batch, s->left ? k : m, s->left ? m : k}, y[3] = {s->batch, s->right ? n : k, s->right ? k : n};
  kva_value *left = add_typed(b, t, one ? 2 : 3, x + one), *right = add_typed(b, t, one ? 2 : 3, y + one);
  return kva_matmul(b, left, right, s->left, s->right);
}

static kva_value *build_matmul(kva_builder *b, const spec *s) {
  return build_product(b, s, KVA_F32);
}

static kva_value *build_bf16(kva_builder *b, const spec *s) {
  return build_product(b, s, KVA_BF16);
}

static kva_value *build_bytes(kva_builder *b, const spec *s) {
  int64_t x[2] = {s->n[0], s->n[2]}, y[2] = {s->n[2], s->n[1]};
  kva_value *factors[] = {add_typed(b, KVA_U8, 2, x), add_typed(b, KVA_I8, 2, y)};
  return kva_build(b, KVA_OP_matmul, 2, factors, &(kva_matmul_attrs){.to = KVA_I32});
}

static kva_value *build_add(kva_builder *b, const spec *s) {
  kva_value *x = add_input(b, 2, s->n), *y = add_input(b, 2, s->n);
  return kva_add(b, x, y);
}

static kva_value *build_swiglu(kva_builder *b, const spec *s) {
  kva_value *x = add_input(b, 2, s->n), *y = add_input(b, 2, s->n);
  return kva_mul(b, kva_build1(b, KVA_OP_silu, x), y);
}

static kva_value *build_softmax(kva_builder *b, const spec *s) {
  return kva_build1(b, KVA_OP_softmax, add_input(b, 2, s->n));
}

static kva_value *build_rms_norm(kva_builder *b, const spec *s) {
  kva_value *x = add_input(b, 2, s->n), *scale = add_input(b, 1, &s->n[1]);
  return kva_build2(b, KVA_OP_rms_norm, x, scale);
}

static kva_value *build_shift_rope(kva_builder *b, const spec *s) {
  const int64_t *n = s->n, weights[2] = {n[2], 2}, angles[2] = {n[1], n[3] / 2}, perm[4] = {0, 2, 1, 3};
  kva_value *x = add_input(b, 4, n), *w = add_input(b, 2, weights);
  kva_value *cosine = add_input(b, 2, angles), *sine = add_input(b, 2, angles);
  kva_value *y = kva_build(b, KVA_OP_kv_shift, 2, (kva_value *[]){x, w}, &(kva_kv_shift_attrs){.time_axis = 1});
  return kva_build3(b, KVA_OP_rope, kva_transpose(b, y, perm), cosine, sine);
}

static const struct graph_kind {
  const char *name;
  int n_numbers;
  kva_value *(*build)(kva_builder *b, const spec *s);
} kinds[] = {{"matmul", 3, build_matmul},   {"bf16x3", 3, build_matmul},     {"bf16", 3, build_bf16},
             {"bytes", 3, build_bytes},     {"add", 2, build_add},           {"swiglu", 2, build_swiglu},
             {"softmax", 2, build_softmax}, {"rms_norm", 2, build_rms_norm}, {"shift_rope", 4, build_shift_rope}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* ---- reading a case ---------------------------------------------------------------------------------------------- */

/* Parses "AxBxC"; returns the rest, or NULL if there is no number. */
static const char *read_numbers(const char *p, spec *s) {
  do {
    char *end;
    s->n[s->n_numbers] = strtoll(p, &end, 10);
    if (end == p || s->n[s->n_numbers++] <= 0) return NULL;
    p = end;
  } while (*p == 'x' && s->n_numbers < MAX_NUMBERS && *++p);
  return p;
}

static bool read_layout(const char *p, spec *s) {
  if (*p == 0) return true;
  if (p[0] != ':' || !p[1] || !p[2]) return false;
  s->left = p[1] == 'T';
  s->right = p[2] == 'T';
  if (p[3] == ':') s->batch = atoll(p + 4);
  return s->batch > 0;
}

static kva_status build_graph(const char *text, kva_diag *diag, kva_module **out_module) {
  size_t len = strcspn(text, ":");
  for (int i = 0; i < N_KINDS; i++) {
    if (strlen(kinds[i].name) != len || strncmp(text, kinds[i].name, len) != 0) continue;
    spec s = {.batch = 1};
    const char *rest = text[len] ? read_numbers(text + len + 1, &s) : NULL;
    if (!rest || s.n_numbers != kinds[i].n_numbers || !read_layout(rest, &s)) break;
    kva_module *m = *out_module = kva_module_create(diag);
    kva_builder b = {.m = m, .graph = kva_function_create(m, "main")->graph};
    kva_value *y = kinds[i].build(&b, &s);
    kva_build_node(&b, KVA_OP_return, 1, &y, 0, NULL);
    return b.failed ? KVA_INVALID : kva_module_verify(m);
  }
  return kva_error(diag, NULL, "cannot read the case '%s'", text);
}

static bool is_kind(const char *text, const char *prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

static kva_status load_case(const char *text, kva_diag *diag, kva_module **out_module) {
  bool model = is_kind(text, "model:") || is_kind(text, "relaxed:") || is_kind(text, "int8:");
  if (!model) return build_graph(text, diag, out_module);
  kva_arena *arena = kva_arena_create();
  kva_define pins[MAX_PINS];
  kva_load_options options = {.pins = pins};
  char *path = kva_arena_printf(arena, "%s", strchr(text, ':') + 1), *pin = strrchr(path, ':');
  if (pin) *pin++ = 0;
  for (; pin && options.n_pins < MAX_PINS; options.n_pins++) {
    char *name = pin, *value = strchr(name, '=');
    if (!value) break;
    *value++ = 0;
    if ((pin = strchr(value, ',')) != NULL) *pin++ = 0;
    pins[options.n_pins] = (kva_define){name, value};
  }
  kva_status status = kva_load_model(path, &options, diag, out_module);
  kva_arena_destroy(arena);
  return status;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Element i of input number k: in [-0.5, 0.5), any byte, or 0 and 1: tokens and masks. */
static void set_input(const kva_tensor *t, int64_t i, int k) {
  uint32_t h = ((uint32_t)i + 1000003u * (uint32_t)k) * 2654435761u;
  if (kva_dtype_is_float(t->dtype))
    kva_store_f64(t->dtype, t->data, i, (double)(h >> 16) / 65536 - 0.5);
  else if (t->dtype == KVA_I64)
    ((int64_t *)t->data)[i] = h >> 31;
  else
    ((uint8_t *)t->data)[i] = (uint8_t)(h >> 24);
}

static bool is_known(kva_dtype t) {
  return t == KVA_F32 || t == KVA_BF16 || t == KVA_I32 || t == KVA_I64 || t == KVA_U8 || t == KVA_I8;
}

static kva_status make_tensor(const kva_buffer_desc *buffer, kva_diag *diag, kva_tensor *out, int64_t *out_n) {
  *out = (kva_tensor){.dtype = (kva_dtype)buffer->dtype, .rank = buffer->rank};
  *out_n = 1;
  for (int32_t d = 0; d < buffer->rank; d++) {
    const kva_formula *f = &buffer->dims[d];
    if (f->n != 1 || f->words[0].op != KVA_FORMULA_CONST)
      return kva_fail(diag, KVA_UNSUPPORTED, NULL, "dimension %d of '%s' is symbolic", d, buffer->name);
    out->dims[d] = f->words[0].arg;
    *out_n *= out->dims[d];
  }
  int64_t bytes = kva_tensor_bytes(out);
  if (!is_known(out->dtype) || bytes < 0)
    return kva_fail(diag, KVA_UNSUPPORTED, NULL, "'%s' is %s", buffer->name, kva_dtype_name(out->dtype));
  out->data = aligned_alloc(ALIGN, ((size_t)bytes / ALIGN + 1) * ALIGN);
  return out->data ? KVA_OK : kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for '%s'", buffer->name);
}

static kva_status make_tensors(bench_case *c, kva_diag *diag) {
  const kva_program *p = kva_session_program_desc(c->session, 0);
  if (p->n_inputs > MAX_TENSORS || p->n_outputs > MAX_TENSORS)
    return kva_fail(diag, KVA_UNSUPPORTED, NULL, "more than %d inputs or outputs", MAX_TENSORS);
  int64_t n;
  for (int32_t k = 0; k < p->n_inputs; k++) {
    KVA_TRY(make_tensor(&p->buffers[p->inputs[k]], diag, &c->in[k], &n));
    for (int64_t i = 0; i < n; i++) set_input(&c->in[k], i, k);
  }
  for (int32_t k = 0; k < p->n_outputs; k++) {
    KVA_TRY(make_tensor(&p->buffers[p->outputs[k]], diag, &c->out[k], &n));
    memset(c->out[k].data, 0, (size_t)kva_tensor_bytes(&c->out[k]));
  }
  return KVA_OK;
}

static double mean_magnitude(const kva_tensor *t) {
  int64_t n = kva_tensor_bytes(t) * 8 / kva_dtype_bits(t->dtype);
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += fabs(kva_dtype_is_float(t->dtype) ? kva_load_f64(t->dtype, t->data, i)
                                             : (double)kva_load_i64(t->dtype, t->data, i));
  return n ? sum / (double)n : 0;
}

/* ---- preparing and running --------------------------------------------------------------------------------------- */

static kva_status prepare(const char *text, int threads, kva_diag *diag, bench_case *c) {
  kva_module *m = NULL;
  kva_status status = load_case(text, diag, &m);
  if (status != KVA_OK) {
    if (m) kva_module_destroy(m);
    return status;
  }
  const kva_target_options target = {.opt_level = 2,
                                     .bf16x3_gemm = is_kind(text, "bf16x3:"),
                                     .relaxed_math = is_kind(text, "relaxed:") || is_kind(text, "int8:"),
                                     .byte_math = is_kind(text, "int8:")};
  KVA_TRY(kva_compile(m, &(kva_compile_options){.target = target}, diag, &c->compiled));
  KVA_TRY(kva_session_create(c->compiled->artifact, &(kva_session_options){.threads = threads}, diag, &c->session));
  KVA_TRY(make_tensors(c, diag));
  KVA_TRY(kva_session_run(c->session, 0, c->in, c->out));
  c->check = mean_magnitude(&c->out[0]);
  return KVA_OK;
}

static bool call(void *user, int i) {
  bench_case *c = (bench_case *)user + i;
  if (c->session && kva_session_run(c->session, 0, c->in, c->out) == KVA_OK) return true;
  fprintf(stderr, "kva_bench_kernels: case %d: %s\n", i, c->session ? kva_session_error(c->session) : "not prepared");
  return false;
}

static void add_error(kva_text *t, const char *message) {
  kva_text_add(t, ", \"error\": ");
  kva_text_add_quoted(t, message);
}

static void describe(const char *text, int threads, bench_case *c, kva_text *t) {
  kva_diag *diag = kva_diag_create();
  kva_text_add(t, "{\"case\": ");
  kva_text_add_quoted(t, text);
  kva_status status = prepare(text, threads, diag, c);
  if (status != KVA_OK) {
    const char *why = c->session ? kva_session_error(c->session) : "";
    add_error(t, kva_diag_count(diag) ? kva_diag_message(diag, 0, NULL, NULL) : *why ? why : kva_status_name(status));
    kva_session_destroy(c->session);
    c->session = NULL;
  } else {
    kva_text_add(t, ", \"check\": %.9g, \"steps\": %d, \"compile_seconds\": %.4f", c->check,
                 kva_session_program_desc(c->session, 0)->n_steps,
                 c->compiled->pass_seconds + c->compiled->codegen_seconds);
  }
  kva_text_add(t, "}");
  kva_diag_destroy(diag);
}

static void release(bench_case *c) {
  kva_session_destroy(c->session);
  kva_compiled_destroy(c->compiled);
  for (int k = 0; k < MAX_TENSORS; k++) {
    free(c->in[k].data);
    free(c->out[k].data);
  }
}

int main(int argc, char **argv) {
  bench_options o;
  const char *usage = "CASE: matmul:MxNxK:NN[:BATCH], bf16x3:MxNxK:NN[:BATCH], bf16:MxNxK:NN[:BATCH], add:RxC, "
                      "swiglu:RxC, softmax:RxC,\n"
                      "      rms_norm:RxC, shift_rope:BxTxHxD, model:FILE[:NAME=N,...],\n"
                      "      relaxed:FILE[:NAME=N,...], int8:FILE[:NAME=N,...]\n";
  if (!bench_parse(argc, argv, usage, &o)) return 2;
  bench_case *cases = calloc((size_t)o.n_cases, sizeof *cases);
  if (!cases) return 3;
  kva_text t = {0};
  kva_text_add(&t, "{\"ready\": true, \"version\": \"%s\", \"cases\": [", KVA_VERSION);
  for (int i = 0; i < o.n_cases; i++) {
    if (i) kva_text_add(&t, ", ");
    describe(o.cases[i], o.threads, &cases[i], &t);
  }
  printf("%s]}\n", t.data);
  fflush(stdout);
  kva_text_free(&t);
  int code = bench_run(&o, call, cases);
  for (int i = 0; i < o.n_cases; i++) release(&cases[i]);
  free(cases);
  return code;
}
