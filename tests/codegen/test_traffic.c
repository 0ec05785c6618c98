/* Memory-bound kernels move what they must: graphs go through the pipeline, their PTX runs on the simulator, and the
 * sectors of 32 bytes that its launches ask for are compared with the bytes of the inputs, once, and of the outputs,
 * once. Results are compared with the reference, which computes in float: of gradients of gather it rounds every
 * partial sum to the type. KVA_BENCH=1 prints the table, KVA_TEST_CASE=name picks a row. Then every kernel of a
 * language model's gradients is held to the bytes of its own operands and results. */
#include "frontend/frontend.h"
#include "ops/ids.h"
#include "passes/passes.h"
#include "tests/support/target.h"
#include "tests/support/part.h"
#include "tools/verify/simulated.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MAX_IO = 16, INTEGERS = 1000, DOCUMENT = 50 /* rows */ };

static const double MAX_RATIO = 1.05, MAX_CONFLICTS = 1.1;

typedef struct traffic_case {
  const char *name;
  const char *text; /* REAL stands for the type; gradients are those of output 0 by the states */
  int64_t rows;     /* the value of every shape symbol */
  bool gradients;
  bool loss;           /* output 0 remains, before its gradients */
  bool large;          /* without KVA_BENCH once in each type: both machines get the same code */
  int gathers;         /* input of which only what the output holds is needed, + 1 */
  int documents;       /* input that numbers the documents of rows, + 1 */
  int frequent;        /* input every other index of which is the same, + 1 */
  double instructions; /* at most so many for an element of 16 bits; 0: not compared */
} traffic_case;

/* declared, argument: of the documents of rows, or nothing. */
#define SHIFT_OF(title, b, t, h, d, declared, argument, length, document)            \
  {                                                                                  \
    .name = title,                                                                   \
    .text = "f (REAL[" b ", " t ", " h ", " d "] v, REAL[" h ", 2] w" declared ")\n" \
            "  => (REAL[" b ", " t ", " h ", " d "] y) {\n"                          \
            "  y, last = kv.kv_shift <time_axis = 1> (v, w" argument ")\n"           \
            "}",                                                                     \
    .rows = length, .documents = document                                            \
  }
#define SHIFT_ROPE_OF(title, b, t, h, declared, argument, length, document)        \
  {                                                                                \
    .name = title,                                                                 \
    .text = "f (REAL[" b ", " t ", " h ", 128] k, REAL[" h ", 2] w" declared ",\n" \
            "   REAL[" t ", 64] cos, REAL[" t ", 64] sin)\n"                       \
            "  => (REAL[" b ", " h ", " t ", 128] y) {\n"                          \
            "  s, last = kv.kv_shift <time_axis = 1> (k, w" argument ")\n"         \
            "  y = kv.rope(kv.transpose <perm = [0, 2, 1, 3]> (s), cos, sin)\n"    \
            "}",                                                                   \
    .rows = length, .documents = document                                          \
  }
#define SHIFT_ROPE_BACKWARD_OF(title, b, t, h, declared, argument, length, document) \
  {                                                                                  \
    .name = title,                                                                   \
    .text = "state REAL[" b ", " t ", " h ", 128] \"k\" : param ~ zeros\n"           \
            "state REAL[" h ", 2] \"w\" : param ~ zeros\n"                           \
            "f (REAL[" b ", " h ", " t ", 128] dy" declared ",\n"                    \
            "   REAL[" t ", 64] cos, REAL[" t ", 64] sin) => (REAL l) {\n"           \
            "  k = kv.state_read <state = \"k\"> ()\n"                               \
            "  w = kv.state_read <state = \"w\"> ()\n"                               \
            "  s, last = kv.kv_shift <time_axis = 1> (k, w" argument ")\n"           \
            "  y = kv.rope(kv.transpose <perm = [0, 2, 1, 3]> (s), cos, sin)\n"      \
            "  l = kv.reduce_sum <keepdims = false> (kv.mul(y, dy))\n"               \
            "}",                                                                     \
    .rows = length, .gradients = true, .documents = document                         \
  }
#define SHIFT(title, b, h, d)            SHIFT_OF(title, b, "T", h, d, "", "", 128, 0)
#define SHIFT_ROPE(title, b, h)          SHIFT_ROPE_OF(title, b, "T", h, "", "", 128, 0)
#define SHIFT_ROPE_BACKWARD(title, b, h) SHIFT_ROPE_BACKWARD_OF(title, b, "128", h, "", "", 128, 0)
#define DOCUMENT(b, t)                   ", int32[" b ", " t "] document"
#define DOCUMENTS_ALONE(title, b, t, h)  SHIFT_OF(title, b, t, h, "128", DOCUMENT(b, t), ", , document", 256, 3)
#define DOCUMENTS(title, b, t, h)        SHIFT_ROPE_OF(title, b, t, h, DOCUMENT(b, t), ", , document", 256, 3)
#define DOCUMENTS_BACKWARD(title, b, t, h) \
  SHIFT_ROPE_BACKWARD_OF(title, b, t, h, DOCUMENT(b, t), ", , document", 256, 2)
#define CROSS_ENTROPY(title, rows, vocab, ...)                                    \
  {                                                                               \
    .name = title,                                                                \
    .text = "state REAL[" rows ", " vocab "] \"x\" : param ~ zeros\n"             \
            "f (int32[" rows "] targets, float[" rows "] dloss) => (float l) {\n" \
            "  x = kv.state_read <state = \"x\"> ()\n"                            \
            "  loss, lse = kv.cross_entropy (x, targets)\n"                       \
            "  l = kv.reduce_sum <keepdims = false> (kv.mul(loss, dloss))\n"      \
            "}",                                                                  \
    .gradients = true, .loss = true, __VA_ARGS__                                  \
  }

#define GATHER_GRADIENT(title, n, columns, rows)                                                                    \
  .name = title, .text = "f (REAL[" n ", " columns "] dy, int32[" n "] at) => (REAL[" rows ", " columns "] dx) {\n" \
                         "  dx = kv.gather_grad <extent = " rows "> (dy, at)\n"                                     \
                         "}"

static const traffic_case cases[] = {
    {.name = "add",
     .text = "f (REAL[B, 1024] x, REAL[B, 1024] y) => (REAL[B, 1024] z) { z = kv.add(x, y) }",
     .rows = 64},
    {.name = "swiglu",
     .text = "f (REAL[B, 1408] x, REAL[B, 1408] y) => (REAL[B, 1408] z) { z = kv.mul(kv.silu(x), y) }",
     .instructions = 15,
     .rows = 64},
    {.name = "swiglu backward",
     .text = "state REAL[64, 1408] \"x\" : param ~ zeros\n"
             "state REAL[64, 1408] \"y\" : param ~ zeros\n"
             "f (REAL[64, 1408] dz) => (REAL l) {\n"
             "  x = kv.state_read <state = \"x\"> ()\n"
             "  y = kv.state_read <state = \"y\"> ()\n"
             "  l = kv.reduce_sum <keepdims = false> (kv.mul(kv.mul(kv.silu(x), y), dz))\n"
             "}",
     .instructions = 20,
     .rows = 64,
     .gradients = true},
    {.name = "rms_norm and residual",
     .text = "f (REAL[B, 2048] x, REAL[B, 2048] r, REAL[2048] scale) => (REAL[B, 2048] s, REAL[B, 2048] y) {\n"
             "  s = kv.add(x, r)\n"
             "  y = kv.rms_norm(s, scale)\n"
             "}",
     .rows = 3168},
    {.name = "rms_norm and residual, by warps",
     .text = "f (REAL[B, 768] x, REAL[B, 768] r, REAL[768] scale) => (REAL[B, 768] s, REAL[B, 768] y) {\n"
             "  s = kv.add(x, r)\n"
             "  y = kv.rms_norm(s, scale)\n"
             "}",
     .rows = 1024},
    {.name = "rms_norm backward",
     .text = "state REAL[B, 1024] \"x\" : param ~ zeros\n"
             "state REAL[1024] \"scale\" : param ~ zeros\n"
             "f (REAL[B, 1024] dy) => (REAL l) {\n"
             "  x = kv.state_read <state = \"x\"> ()\n"
             "  scale = kv.state_read <state = \"scale\"> ()\n"
             "  l = kv.reduce_sum <keepdims = false> (kv.mul(kv.rms_norm(x, scale), dy))\n"
             "}",
     .rows = 21120,
     .gradients = true,
     .large = true},
    {.name = "rms_norm backward, few rows",
     .text = "state REAL[B, 2048] \"x\" : param ~ zeros\n"
             "state REAL[2048] \"scale\" : param ~ zeros\n"
             "f (REAL[B, 2048] dy) => (REAL l) {\n"
             "  x = kv.state_read <state = \"x\"> ()\n"
             "  scale = kv.state_read <state = \"scale\"> ()\n"
             "  l = kv.reduce_sum <keepdims = false> (kv.mul(kv.rms_norm(x, scale), dy))\n"
             "}",
     .rows = 1056,
     .gradients = true},
    {.name = "layer_norm backward, short rows",
     .text = "state REAL[600, 9, 128] \"x\" : param ~ zeros\n"
             "state REAL[128] \"scale\" : param ~ zeros\n"
             "state REAL[128] \"bias\" : param ~ zeros\n"
             "f (REAL[600, 9, 128] dy) => (REAL l) {\n"
             "  x = kv.state_read <state = \"x\"> ()\n"
             "  scale = kv.state_read <state = \"scale\"> ()\n"
             "  bias = kv.state_read <state = \"bias\"> ()\n"
             "  l = kv.reduce_sum <keepdims = false> (kv.mul(kv.layer_norm(x, scale, bias), dy))\n"
             "}",
     .gradients = true},
    {.name = "gelu backward and bias gradient",
     .text = "state REAL[1200, 96] \"x\" : param ~ zeros\n"
             "state REAL[96] \"bias\" : param ~ zeros\n"
             "f (REAL[1200, 96] dy) => (REAL l) {\n"
             "  x = kv.state_read <state = \"x\"> ()\n"
             "  bias = kv.state_read <state = \"bias\"> ()\n"
             "  l = kv.reduce_sum <keepdims = false> (kv.mul(kv.gelu(kv.add(x, bias)), dy))\n"
             "}",
     .gradients = true},
    {.name = "layer_norm",
     .text = "f (REAL[B, 2048] x, REAL[2048] scale, REAL[2048] bias) => (REAL[B, 2048] y) {\n"
             "  y = kv.layer_norm(x, scale, bias)\n"
             "}",
     .rows = 3168},
    {.name = "softmax 1k", .text = "f (REAL[B, 1024] x) => (REAL[B, 1024] y) { y = kv.softmax(x) }", .rows = 64},
    {.name = "softmax 4k", .text = "f (REAL[B, 4096] x) => (REAL[B, 4096] y) { y = kv.softmax(x) }", .rows = 64},
    {.name = "softmax of unknown length",
     .text = "f (REAL[128, C] x) => (REAL[128, C] y) { y = kv.softmax(x) }",
     .rows = 776},
    {.name = "softmax of unknown, odd length",
     .text = "f (REAL[128, C] x) => (REAL[128, C] y) { y = kv.softmax(x) }",
     .rows = 777},
    {.name = "softmax of odd length",
     .text = "f (REAL[B, 3001] x) => (REAL[B, 3001] y) { y = kv.softmax(x) }",
     .rows = 64},
    {.name = "sums of products of short rows",
     .text = "f (REAL[2, 4, T, 128] y, REAL[2, T, 4, 128] dy) => (float[2, 4, T] z) {\n"
             "  p = kv.mul(kv.cast <to = float> (y), kv.cast <to = float> (kv.transpose <perm = [0, 2, 1, 3]> (dy)))\n"
             "  z = kv.reduce_sum <axes = [3], keepdims = false> (p)\n"
             "}",
     .rows = 128},
    SHIFT("kv_shift", "1", "8", "128"),
    SHIFT("kv_shift, batch, heads of 64", "4", "4", "64"),
    SHIFT("kv_shift, heads of 256", "2", "4", "256"),
    {.name = "rope, batch",
     .text = "f (REAL[4, T, 4, 128] x, REAL[T, 64] cos, REAL[T, 64] sin) => (REAL[4, 4, T, 128] y) {\n"
             "  y = kv.rope(kv.transpose <perm = [0, 2, 1, 3]> (x), cos, sin)\n"
             "}",
     .rows = 128},
    SHIFT_ROPE("kv_shift and rope", "1", "8"),
    SHIFT_ROPE("kv_shift and rope, batch", "4", "16"),
    SHIFT_ROPE("kv_shift and rope, batch, few heads", "17", "4"),
    SHIFT_ROPE_BACKWARD("kv_shift and rope backward", "1", "8"),
    SHIFT_ROPE_BACKWARD("kv_shift and rope backward, batch", "4", "16"),
    SHIFT_ROPE_BACKWARD("kv_shift and rope backward, batch, few heads", "17", "4"),
    DOCUMENTS_ALONE("kv_shift of documents", "4", "256", "4"),
    DOCUMENTS_ALONE("kv_shift of documents, unknown length", "4", "T", "4"),
    DOCUMENTS_ALONE("kv_shift of documents, unknown length, more heads", "2", "T", "8"),
    DOCUMENTS("kv_shift and rope of documents", "4", "256", "4"),
    DOCUMENTS("kv_shift and rope of documents, unknown length", "4", "T", "4"),
    DOCUMENTS_BACKWARD("kv_shift and rope backward of documents", "4", "256", "4"),
    DOCUMENTS_BACKWARD("kv_shift and rope backward of documents, unknown length", "4", "T", "4"),
    CROSS_ENTROPY("cross_entropy and its gradient", "64", "8192", .instructions = 22),
    CROSS_ENTROPY("cross_entropy and its gradient, odd vocabulary", "64", "7919", .instructions = 24),
    CROSS_ENTROPY("cross_entropy and its gradient, large vocabulary", "16", "32000", .instructions = 20),
    CROSS_ENTROPY("cross_entropy and its gradient, beyond registers", "4", "50000", .instructions = 20),
    CROSS_ENTROPY("cross_entropy and its gradient, beyond registers, odd", "4", "50257", .instructions = 20),
    CROSS_ENTROPY("cross_entropy and its gradient, beyond a block", "4", "70000"),
    CROSS_ENTROPY("cross_entropy and its gradient, beyond a block, odd", "4", "71003"),
    CROSS_ENTROPY("cross_entropy and its gradient, 128256", "2", "128256"),
    CROSS_ENTROPY("cross_entropy and its gradient, 100277", "4", "100277", .instructions = 20),
    CROSS_ENTROPY("cross_entropy and its gradient, 200019", "4", "200019"),
    CROSS_ENTROPY("cross_entropy and its gradient, 262144", "2", "262144"),
    {.name = "softmax, 160000",
     .text = "f (REAL[B, 160000] x) => (REAL[B, 160000] y) { y = kv.softmax <axis = -1> (x) }",
     .rows = 3},
    {.name = "softmax, 327680",
     .text = "f (REAL[B, 327680] x) => (REAL[B, 327680] y) { y = kv.softmax <axis = -1> (x) }",
     .rows = 1},
    {.name = "adamw",
     .text = "f (REAL[256, 512] p, REAL[256, 512] g, REAL[256, 512] m, REAL[256, 512] v, REAL lr, int64 step) =>\n"
             "  (REAL[256, 512] p2, REAL[256, 512] m2, REAL[256, 512] v2) {\n"
             "  p2, m2, v2 = kv.adamw <beta1 = 0.9, beta2 = 0.95, weight_decay = 0.1> (p, g, m, v, lr, step)\n"
             "}",
     .rows = 64},
    {GATHER_GRADIENT("gather gradient", "1024", "1024", "8000"), .large = true},
    {GATHER_GRADIENT("gather gradient, small", "1024", "512", "4000")},
    {GATHER_GRADIENT("gather gradient, small, unknown count", "B", "512", "4000"), .rows = 1024},
    {GATHER_GRADIENT("gather gradient, many indices", "65536", "128", "4000"), .large = true},
    {GATHER_GRADIENT("gather gradient, a frequent index", "20000", "128", "4000"), .large = true, .frequent = 2},
    {.name = "gather",
     .text = "f (REAL[2000, 1024] table, int32[B] at) => (REAL[B, 1024] y) { y = kv.gather(table, at) }",
     .rows = 256,
     .gathers = 1},
    {.name = "transpose",
     .text = "f (REAL[B, 512] x) => (REAL[512, B] y) { y = kv.transpose <perm = [1, 0]> (x) }",
     .rows = 256},
    {.name = "transpose of heads",
     .text = "f (REAL[2, T, 4, 64] x) => (REAL[2, 4, T, 64] y) { y = kv.transpose <perm = [0, 2, 1, 3]> (x) }",
     .rows = 64},
    {.name = "bias gradient",
     .text = "f (REAL[B, 512] x) => (REAL[512] y) { y = kv.reduce_sum <axes = [0], keepdims = false> (x) }",
     .rows = 512},
    {.name = "sum",
     .text = "f (REAL[B, 1024] x) => (REAL y) { y = kv.reduce_sum <keepdims = false> (x) }",
     .rows = 512},
    {.name = "cumsum",
     .text = "f (REAL[B, 1024] x) => (REAL[B, 1024] y) { y = kv.cumsum <axis = 1> (x) }",
     .rows = 128},
    {.name = "cumsum of a long row",
     .text = "f (REAL[B, 8192] x) => (REAL[B, 8192] y) { y = kv.cumsum <axis = 1, reverse = true> (x) }",
     .rows = 8},
};

static void require(kva_diag *diag, kva_status status, const char *what) {
  if (status == KVA_OK) return;
  kva_diag_print(diag, stderr);
  fail_msg("%s: failed", what);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static char *text_for(const char *text, const char *type) {
  kva_text out = {0};
  for (const char *at; (at = strstr(text, "REAL")); text = at + 4)
    kva_text_add(&out, "%.*s%s", (int)(at - text), text, type);
  kva_text_add(&out, "%s", text);
  return out.data;
}

/* States become inputs: only the traffic of kernels counts. */
static void states_to_inputs(kva_graph *g) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (!(n->op->traits & KVA_READS_STATE)) continue;
    const kva_state *s = ((const kva_state_read_attrs *)n->attrs)->state;
    kva_value_replace_all_uses(&n->results[0], kva_graph_add_input(g, n->results[0].type, s->name));
    kva_node_remove(n);
  }
}

/* The function returns the gradients of its output by the states instead, or behind it. */
static void return_gradients(kva_module *m, kva_function *f, bool loss, kva_diag *diag) {
  kva_value *grads[MAX_IO] = {NULL}, *outputs[MAX_IO];
  kva_gradients wanted = {f, kva_graph_output(f->graph, 0), grads};
  bool changed = false;
  require(diag, kva_autodiff(m, &(kva_pass_options){.gradients = &wanted}, &changed), f->name);
  uint32_t n = 0;
  if (loss) outputs[n++] = kva_graph_output(f->graph, 0);
  for (uint32_t s = 0; s < m->states.len; s++)
    if (grads[s]) outputs[n++] = grads[s];
  kva_loc loc = f->graph->last->loc;
  kva_node_remove(f->graph->last);
  kva_node_create(f->graph, NULL, KVA_OP(return ), n, outputs, 0, NULL, loc);
}

static kva_module *build(const traffic_case *c, const char *type, kva_diag *diag) {
  kva_module *m;
  kva_pass_options passes = {0};
  char *text = text_for(c->text, type);
  require(diag, kva_load_text(text, c->name, &(kva_load_options){0}, diag, &m), c->name);
  free(text);
  kva_function *f = m->functions.data[0];
  if (c->gradients) return_gradients(m, f, c->loss, diag);
  states_to_inputs(f->graph);
  require(diag, kva_optimize(m, &passes), c->name);
  return m;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef enum integers { SPREAD, DOCUMENTS_OF_ROWS, FREQUENT } integers;

static int64_t integer_at(integers kind, int64_t i) {
  if (kind == DOCUMENTS_OF_ROWS) return i / DOCUMENT;
  return kind == FREQUENT && i % 2 ? 3 : 1 + 7 * i % INTEGERS;
}

static kva_ref_tensor *values_for(const kva_type *t, int64_t rows, uint64_t key, integers kind) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < t->rank; d++)
    if (!kva_expr_is_const(t->dims[d], &dims[d])) dims[d] = rows;
  kva_ref_tensor *w = kva_ref_tensor_create(t->dtype, t->rank, dims);
  assert_non_null(w);
  for (int64_t i = 0; i < w->n; i++) {
    if (w->f)
      w->f[i] = kva_round_f64(t->dtype, 0.1 + kva_uniform01(kva_philox4x32((uint64_t)i, 0, key).v[0]));
    else
      w->i[i] = integer_at(kind, i);
  }
  return w;
}

static uint64_t bytes_of(const kva_ref_tensor *w) {
  int64_t bytes = 0;
  assert_true(kva_dtype_bytes(w->dtype, w->n, &bytes));
  return (uint64_t)bytes;
}

static void compare(const char *name, const kva_ref_tensor *want, const kva_ref_tensor *got, double tolerance) {
  double scale = 1e-30;
  assert_int_equal(want->n, got->n);
  for (int64_t i = 0; i < want->n; i++) scale = fmax(scale, fabs(kva_ref_tensor_get(want, i)));
  for (int64_t i = 0; i < want->n; i++) {
    double w = kva_ref_tensor_get(want, i), g = kva_ref_tensor_get(got, i);
    if (!(fabs(w - g) <= tolerance * scale))
      fail_msg("%s: element %lld: expected %.9g, found %.9g", name, (long long)i, w, g);
  }
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

typedef struct measured {
  double ratio, conflicts;
  double instructions; /* for an element of the largest result */
  uint64_t minimum;
  uint32_t launches;
} measured;

static uint64_t minimum_of(const traffic_case *c, uint32_t n_in, kva_ref_tensor *const *in, uint32_t n_out,
                           kva_ref_tensor *const *out) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < n_in; i++) sum += bytes_of(c->gathers == (int)i + 1 ? out[0] : in[i]);
  for (uint32_t i = 0; i < n_out; i++) sum += bytes_of(out[i]);
  return sum;
}

static double largest_of(uint32_t n, kva_ref_tensor *const *w) {
  int64_t largest = 1;
  for (uint32_t i = 0; i < n; i++) largest = w[i]->n > largest ? w[i]->n : largest;
  return (double)largest;
}

static integers integers_of(const traffic_case *c, uint32_t input) {
  if (c->documents == (int)input + 1) return DOCUMENTS_OF_ROWS;
  return c->frequent == (int)input + 1 ? FREQUENT : SPREAD;
}

/* A case's inputs in a type, and what the reference makes of them. */
typedef struct sample {
  const traffic_case *c;
  const char *type;
  uint32_t n_in, n_out;
  kva_ref_tensor *in[MAX_IO], *want[MAX_IO];
} sample;

static void run_reference(sample *s, kva_diag *diag) {
  kva_module *m = build(s->c, "float", diag);
  kva_function *f = m->functions.data[0];
  kva_ref_tensor floats[MAX_IO];
  const kva_ref_tensor *inputs[MAX_IO];
  for (uint32_t i = 0; i < s->n_in; i++) {
    floats[i] = *s->in[i];
    floats[i].dtype = f->graph->inputs.data[i]->type->dtype;
    inputs[i] = &floats[i];
  }
  require(diag, kva_ref_run(m, f, inputs, s->want, NULL, NULL, NULL, NULL, diag), s->c->name);
  kva_module_destroy(m);
}

static sample sample_create(const traffic_case *c, const char *type) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = build(c, type, diag);
  const kva_graph *g = m->functions.data[0]->graph;
  sample s = {.c = c, .type = type, .n_in = g->inputs.len, .n_out = kva_graph_output_count(g)};
  for (uint32_t i = 0; i < s.n_in; i++)
    s.in[i] = values_for(g->inputs.data[i]->type, c->rows, i + 1, integers_of(c, i));
  run_reference(&s, diag);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return s;
}

static void sample_free(sample *s) {
  for (uint32_t i = 0; i < s->n_in; i++) kva_ref_tensor_free(s->in[i]);
  for (uint32_t i = 0; i < s->n_out; i++) kva_ref_tensor_free(s->want[i]);
}

static measured measure(const sample *s, const char *arch) {
  const traffic_case *c = s->c;
  kva_diag *diag = kva_diag_create();
  kva_module *m = build(c, s->type, diag);
  kva_ref_tensor *got[MAX_IO];
  require(diag, kva_prepare(m, &(kva_pass_options){.target = kva_target_gpu("sm_80")}), c->name);
  kva_ptx_run run = {.cache = test_cache(), .arch = arch, .alias_views = true};
  require(diag, kva_run_ptx(&run, m, m->functions.data[0], (const kva_ref_tensor *const *)s->in, got, diag), c->name);
  double tolerance = strcmp(s->type, "float") ? 2e-2 : 2e-5;
  for (uint32_t i = 0; i < s->n_out; i++) compare(c->name, s->want[i], got[i], tolerance);
  const kva_ptx_traffic *t = &run.traffic;
  measured r = {.minimum = minimum_of(c, s->n_in, s->in, s->n_out, got), .launches = run.launches};
  r.ratio = 32.0 * (double)(t->load_sectors + t->store_sectors) / (double)r.minimum;
  r.instructions = (double)t->instructions / largest_of(s->n_out, got);
  r.conflicts = t->ideal_wavefronts ? (double)t->wavefronts / (double)t->ideal_wavefronts : 1;
  for (uint32_t i = 0; i < s->n_out; i++) kva_ref_tensor_free(got[i]);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return r;
}

static bool is_wanted(const traffic_case *c, const char *type, const char *arch) {
  const char *only = getenv("KVA_TEST_CASE");
  bool once = !strcmp(type, "float") == !strcmp(arch, "sm_80");
  return (!only || strstr(c->name, only)) && (once || !c->large || getenv("KVA_BENCH"));
}

/* Whether all is as it should be. */
static bool check_row(const sample *s, const char *arch) {
  measured r = measure(s, arch);
  bool bad = r.ratio > MAX_RATIO || r.conflicts > MAX_CONFLICTS;
  bad |= s->c->instructions && strcmp(s->type, "float") && r.instructions > s->c->instructions;
  if (bad || getenv("KVA_BENCH"))
    print_message("%-48s %-8s %-7s %8.1f KiB x %.3f, %u launches, bank conflicts %.2f, %.1f instructions%s\n",
                  s->c->name, s->type, arch, (double)r.minimum / 1024, r.ratio, r.launches, r.conflicts, r.instructions,
                  bad ? "  ABOVE" : "");
  return !bad;
}

static void run_table(const char *type) {
  static const char *const archs[] = {"sm_80", "sm_90a"};
  uint32_t above = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (!in_part(i) || (!is_wanted(&cases[i], type, archs[0]) && !is_wanted(&cases[i], type, archs[1]))) continue;
    sample s = sample_create(&cases[i], type);
    for (size_t k = 0; k < sizeof archs / sizeof *archs; k++)
      if (is_wanted(&cases[i], type, archs[k])) above += !check_row(&s, archs[k]);
    sample_free(&s);
  }
  assert_int_equal(above, 0);
}

/* ---- gradients of a model ---------------------------------------------------------------------------------------- */

enum { MAX_INPUTS = 64, SMALL_KERNEL = 256 << 10 /* bytes */ };

typedef struct model_traffic {
  const kva_ptx_run *run;
  const char *arch;
  uint32_t kernels, above;
} model_traffic;

/* Not bound by memory. */
static bool is_product(const char *kernel) {
  return strstr(kernel, "matmul") || strstr(kernel, "attention");
}

static void check_step(void *user, const kva_ptx_step *step) {
  model_traffic *t = user;
  const kva_ptx_counters *c = &t->run->counters;
  size_t minimum = step->operand_bytes;
  for (uint32_t i = 0; i < step->n_results; i++) minimum += step->results[i].bytes;
  if (minimum < SMALL_KERNEL) return;
  double ratio = 32.0 * (double)(c->global_load_sectors + c->global_store_sectors) / (double)minimum;
  bool bad = ratio > MAX_RATIO;
  t->kernels++;
  t->above += bad;
  if (bad || getenv("KVA_BENCH"))
    print_message("%-48s %-7s %8.1f KiB x %.3f%s\n", step->kernel, t->arch, (double)minimum / 1024, ratio,
                  bad ? "  ABOVE" : "");
}

static void check_model(kva_dtype compute, const char *arch, const char *separator) {
  const kva_define shape[] = {{"d", "1024"},     {"heads", "8"},  {"kv_heads", "4"},       {"ffn", "2816"},
                              {"vocab", "4000"}, {"layers", "1"}, {"separator", separator}};
  const kva_define pins[] = {{"B", "4"}, {"T", "256"}};
  const kva_load_options options = {
      .n_defines = sizeof shape / sizeof *shape, .defines = shape, .n_pins = 2, .pins = pins};
  kva_diag *diag = kva_diag_create();
  kva_module *m;
  require(diag, kva_load_model("models/lm.kv", &options, diag, &m), "models/lm.kv");
  kva_function *f = kva_module_find_function(m, "loss");
  assert_non_null(f);
  return_gradients(m, f, false, diag);
  states_to_inputs(f->graph);
  require(diag, kva_optimize(m, &(kva_pass_options){.target = kva_target_gpu("sm_80")}), "optimize");
  require(diag, kva_prepare(m, &(kva_pass_options){.target = kva_target_gpu("sm_80"), .compute = compute}), "prepare");
  kva_ref_tensor *in[MAX_INPUTS], *out[MAX_INPUTS];
  uint32_t n_in = f->graph->inputs.len, n_out = kva_graph_output_count(f->graph);
  assert_in_range(n_in + n_out, 1, MAX_INPUTS);
  for (uint32_t i = 0; i < n_in; i++) in[i] = values_for(f->graph->inputs.data[i]->type, 0, i + 1, SPREAD);
  kva_ptx_run run = {
      .cache = test_cache(), .arch = arch, .alias_views = true, .skips = is_product, .visit = check_step};
  model_traffic t = {.run = &run, .arch = arch};
  run.visitor = &t;
  require(diag, kva_run_ptx(&run, m, f, (const kva_ref_tensor *const *)in, out, diag), "run");
  for (uint32_t i = 0; i < n_in; i++) kva_ref_tensor_free(in[i]);
  for (uint32_t i = 0; i < n_out; i++) kva_ref_tensor_free(out[i]);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  assert_in_range(t.kernels, 15, 100);
  assert_int_equal(t.above, 0);
}

static void test_model(void **state) {
  (void)state;
  if (getenv("KVA_TEST_CASE")) {
    print_message("skipped: KVA_TEST_CASE picks a row of the table\n");
    skip();
  }
  if (in_part(0)) check_model(KVA_DTYPE_NONE, "sm_80", "-1");
  if (in_part(1)) check_model(KVA_BF16, "sm_90a", "0");
}

static void test_float(void **state) {
  (void)state;
  run_table("float");
}

static void test_bfloat16(void **state) {
  (void)state;
  run_table("bfloat16");
}

int main(void) {
  if (sanitized()) {
    printf("SKIP: what kernels move is the same without sanitizers\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_float), cmocka_unit_test(test_bfloat16),
                                     cmocka_unit_test(test_model)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
