/* Nodes whose extents are symbols, compiled once, against the same nodes at fixed sizes, evaluated by the reference;
 * and sizes that do not fit, which are refused when they are bound. */
#include "tests/frontend/onnx_pack.h"
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

enum { OPSET = 28, MAX_SYMBOLS = 12 };

typedef struct node_case {
  const char *op, *attrs; /* "group=2;pads=1 1;auto_pad=SAME_UPPER" */
  const char *inputs;     /* "float N,C,4;int64 K;=int64 2 -1": values; -: left out */
  uint32_t outputs;
  const char *sizes[3]; /* "N=2,C=4" */
} node_case;

static const node_case cases[] = {
    {"ConvTranspose",
     "strides=2 1;pads=1 0 0 1;output_padding=1 0;group=2",
     "float N,C,H,W;float C,M,K,L;float 4",
     1,
     {"N=1,C=4,H=3,W=4,M=2,K=3,L=2", "N=2,C=2,H=5,W=1,M=2,K=2,L=3", NULL}},
    {"ConvTranspose",
     "strides=2;output_shape=7",
     "float N,C,H;float C,M,K",
     1,
     {"N=1,C=2,H=3,M=2,K=3", "N=2,C=1,H=3,M=1,K=4", NULL}},
    {"ConvTranspose",
     "strides=3;auto_pad=SAME_UPPER",
     "float N,C,H;float C,M,K",
     1,
     {"N=1,C=2,H=3,M=2,K=3", "N=2,C=1,H=4,M=1,K=5", NULL}},
    {"ConvTranspose",
     "kernel_shape=2;dilations=2",
     "float N,C,H;float ?,M,?",
     1,
     {"N=1,C=2,H=3,M=2,w_0=2,w_2=2", "N=3,C=4,H=1,M=1,w_0=4,w_2=2", NULL}},
    {"Conv",
     "strides=2 1;pads=1 0 2 1;dilations=1 2;group=2",
     "float N,C,H,W;float M,D,K,L;float M",
     1,
     {"N=2,C=4,H=6,W=5,M=4,D=2,K=3,L=2", "N=1,C=2,H=4,W=7,M=2,D=1,K=2,L=3", NULL}},
    {"Conv",
     "strides=2;auto_pad=SAME_LOWER",
     "float N,C,H;float M,C,K",
     1,
     {"N=2,C=3,H=6,M=2,K=3", "N=1,C=1,H=5,M=3,K=4", "N=1,C=1,H=4,M=1,K=1"}},
    {"Conv",
     "strides=3;auto_pad=SAME_UPPER",
     "float N,C,H;float M,C,2",
     1,
     {"N=2,C=3,H=6,M=2", "N=1,C=1,H=7,M=3", "N=1,C=1,H=8,M=1"}},
    {"DeformConv",
     "kernel_shape=2 2;offset_group=2;pads=1 0 0 1",
     "float N,C,4,4;float M,?,?,?;float ?,?,H,W",
     1,
     {"N=2,C=4,M=3,w_1=4,w_2=2,w_3=2,b_0=2,b_1=16,H=4,W=4", "N=1,C=2,M=1,w_1=2,w_2=2,w_3=2,b_0=1,b_1=16,H=4,W=4",
      NULL}},
    {"CausalConvWithState",
     "activation=silu",
     "float N,C,T;float ?,1,K;float C;float N,C,P",
     2,
     {"N=2,C=3,T=5,w_0=3,K=4,P=3", "N=1,C=2,T=1,w_0=2,K=2,P=1", "N=1,C=2,T=3,w_0=2,K=1,P=0"}},
    {"CausalConvWithState", "", "float N,C,T;float C,1,K", 2, {"N=2,C=3,T=5,K=4", "N=1,C=2,T=1,K=3", NULL}},
    {"LSTM",
     "hidden_size=3;direction=bidirectional",
     "float T,B,I;float ?,?,I;float ?,?,?;float ?,?",
     3,
     {"T=4,B=2,I=5,w_0=2,w_1=12,b_0=2,b_1=12,b_2=3,c_0=2,c_1=24",
      "T=1,B=3,I=1,w_0=2,w_1=12,b_0=2,b_1=12,b_2=3,c_0=2,c_1=24", NULL}},
    {"RNN",
     "hidden_size=2",
     "float T,B,I;float 1,2,I;float 1,2,2;;;float 1,D,2",
     2,
     {"T=4,B=2,I=5,D=2", "T=1,B=3,I=1,D=3", NULL}},
    {"GRU",
     "hidden_size=2;layout=1",
     "float B,T,I;float ?,?,I;float 1,?,?",
     2,
     {"T=4,B=2,I=5,w_0=1,w_1=6,b_1=6,b_2=2", "T=1,B=3,I=1,w_0=1,w_1=6,b_1=6,b_2=2", NULL}},
    {"LinearAttention",
     "q_num_heads=4;kv_num_heads=2;update_rule=gated_delta",
     "float B,T,Q;float B,T,K;float B,T,V;float B,?,D,E;float B,T,G;float B,T,H",
     2,
     {"B=2,T=3,Q=12,K=6,V=8,c_1=2,D=3,E=4,G=6,H=2", "B=1,T=1,Q=8,K=4,V=2,c_1=2,D=2,E=1,G=2,H=1", NULL}},
    {"LinearAttention",
     "q_num_heads=2;kv_num_heads=2;update_rule=linear",
     "float B,T,Q;float B,T,Q;float B,T,V",
     2,
     {"B=2,T=3,Q=6,V=8", "B=1,T=4,Q=2,V=2", NULL}},
    {"RotaryEmbedding",
     "num_heads=2",
     "float B,T,C;float ?,?,?;float ?,?,?",
     1,
     {"B=2,T=3,C=8,w_0=2,w_1=3,w_2=2,b_0=2,b_1=3,b_2=2", "B=1,T=1,C=4,w_0=1,w_1=1,w_2=1,b_0=1,b_1=1,b_2=1", NULL}},
    {"ScatterND",
     "reduction=add",
     "float N,M;int64 K,?;float ?",
     1,
     {"N=4,M=5,K=3,w_1=2,b_0=3", "N=3,M=3,K=1,w_1=2,b_0=1", NULL}},
    {"ScatterND",
     "",
     "float N,M;int64 1,?;float ?,?",
     1,
     {"N=4,M=5,w_1=1,b_0=1,b_1=5", "N=3,M=1,w_1=1,b_0=1,b_1=1", NULL}},
    {"DequantizeLinear",
     "axis=1",
     "uint8 N,C;float ?;uint8 ?",
     1,
     {"N=2,C=3,w_0=3,b_0=3", "N=1,C=2,w_0=2,b_0=2", NULL}},
    {"DequantizeLinear",
     "axis=1;block_size=2",
     "uint8 N,C;float ?,?;uint8 ?,?",
     1,
     {"N=2,C=6,w_0=2,w_1=3,b_0=2,b_1=3", "N=1,C=3,w_0=1,w_1=2,b_0=1,b_1=2", NULL}},
    {"ReverseSequence", "", "float T,B;int64 ?", 1, {"T=3,B=4,w_0=4", "T=5,B=2,w_0=2", NULL}},
    {"SwiGLU", "alpha=0.5", "float N,M;float ?,?", 1, {"N=3,M=4,w_0=3,w_1=4", "N=1,M=2,w_0=1,w_1=2", NULL}},
    {"TensorScatter",
     "mode=circular",
     "float B,1,S,D;float ?,1,T,?;int64 ?",
     1,
     {"B=2,S=5,D=3,w_0=2,T=2,w_3=3,b_0=2", "B=3,S=4,D=1,w_0=3,T=1,w_3=1,b_0=3", NULL}},
    {"Attention",
     "",
     "float B,2,T,D;float B,2,S,D;float B,2,S,D;float T,M",
     1,
     {"B=2,T=3,S=5,D=4,M=3", "B=1,T=2,S=4,D=8,M=4", NULL}},
    {"DFT", "onesided=1", "float B,N,1", 1, {"B=2,N=5", "B=1,N=8", "B=1,N=1"}},
    {"DFT", "inverse=1", "float B,N,C", 1, {"B=2,N=5,C=2", "B=1,N=4,C=1", NULL}},
    {"DFT", "inverse=1;onesided=1", "float B,N,2", 1, {"B=2,N=5", "B=1,N=3", NULL}},
    {"DFT", "", "float B,N,2;=int64 6", 1, {"B=2,N=5", "B=1,N=8", NULL}},
    {"STFT", "", "float B,N,1;=int64 2;float W", 1, {"B=2,N=9,W=4", "B=1,N=5,W=5", NULL}},
    {"Resize",
     "coordinate_transformation_mode=tf_crop_and_resize;extrapolation_value=7.5;mode=linear",
     "float N,H;=float 0. 0.25 1. 1.5;-;=int64 3 4",
     1,
     {"N=3,H=5", "N=2,H=2", "N=1,H=4"}},
    {"Resize",
     "coordinate_transformation_mode=asymmetric;nearest_mode=floor",
     "float N,H;-;=float 1.7 1.3",
     1,
     {"N=20,H=20", "N=10,H=10", NULL}},
    {"Resize",
     "keep_aspect_ratio_policy=not_larger;axes=0 1",
     "float N,H;-;-;=int64 7 6",
     1,
     {"N=3,H=5", "N=2,H=2", NULL}},
    {"Resize",
     "keep_aspect_ratio_policy=not_smaller;mode=linear;axes=0 1",
     "float N,H;-;-;=int64 7 6",
     1,
     {"N=3,H=5", "N=4,H=2", NULL}},
    {"Slice",
     "",
     "float N,M;=int64 -1 3;=int64 -9000000000 -3;=int64 0 1;=int64 -2 -1",
     1,
     {"N=5,M=6", "N=4,M=3", "N=1,M=5"}},
    {"Slice",
     "",
     "float N,M;=int64 9000000000 -2;=int64 1 0;=int64 0 1;=int64 -1 -3",
     1,
     {"N=5,M=6", "N=2,M=9", "N=1,M=3"}},
    {"Slice",
     "",
     "float N,M;=int64 -3 -1;=int64 -9000000000 2;=int64 0 1;=int64 -1 1",
     1,
     {"N=5,M=2", "N=0,M=5", "N=2,M=0"}},
    {"MaxPool",
     "kernel_shape=3 2;strides=2 3;auto_pad=SAME_LOWER",
     "float N,1,H,W",
     1,
     {"N=2,H=5,W=4", "N=1,H=1,W=7", NULL}},
    {"AveragePool",
     "kernel_shape=3;strides=2;auto_pad=SAME_UPPER",
     "float N,2,H",
     1,
     {"N=2,H=5", "N=1,H=6", "N=1,H=1"}},
    {"AveragePool",
     "kernel_shape=3;strides=2;auto_pad=SAME_LOWER;count_include_pad=1",
     "float 1,2,H",
     1,
     {"H=5", "H=6", "H=1"}},
    {"LpPool", "kernel_shape=3;strides=2;auto_pad=SAME_UPPER;p=1", "float 1,2,H", 1, {"H=5", "H=6", "H=1"}},
    {"LpPool", "kernel_shape=2;strides=3;pads=1 0;ceil_mode=1", "float 1,2,H", 1, {"H=4", "H=5", "H=6"}},
    {"NegativeLogLikelihoodLoss", "", "float N,3;=int64 0 2", 1, {"N=2", NULL}},
    {"RotaryEmbedding", "num_heads=1", "float B,2,4;float 1,2,C;float S,2,2", 1, {"B=3,C=2,S=1", NULL}},
    {"CausalConvWithState", "", "float N,C,T;float C,U,2", 2, {"N=2,C=3,T=4,U=1", NULL}},
    /* an extent of 1 where nothing broadcasts is what the others have, too */
    {"Concat", "axis=1", "float N,M;float 1,2", 1, {"N=1,M=3", "N=1,M=1", NULL}},
    {"BatchNormalization",
     "",
     "float N,C,H;float ?;float 1;float ?;float ?",
     1,
     {"N=2,C=1,H=3,w_0=1,c_0=1,d_0=1", NULL}},
    {"LayerNormalization", "", "float 3,1;float C;float 1", 1, {"C=1", NULL}},
    {"Attention", "", "float B,1,T,D;float 1,H,S,D;float 1,H,S,4;float T,S", 1, {"B=1,T=2,S=3,D=4,H=1", NULL}},
};

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* The next part of *list up to the separator, in `part`; false: there is none. */
static bool next_part(const char **list, char separator, char part[128]) {
  size_t n = strcspn(*list, (char[]){separator, 0});
  if (!**list) return false;
  assert_true(n < 128);
  memcpy(part, *list, n);
  part[n] = 0;
  *list += n + ((*list)[n] == separator);
  return true;
}

/* Numbers with a point are floats; several or one, of an attribute that is a list in ONNX, integers; else a string. */
static kva_text attribute(const char *name, const char *value) {
  static const char *const lists[] = {"strides", "pads",           "dilations",    "kernel_shape",
                                      "axes",    "output_padding", "output_shape", "inputdimensions"};
  bool list = false, number = (*value >= '0' && *value <= '9') || *value == '-';
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) list |= !strcmp(lists[i], name);
  if (number && strchr(value, '.')) return pk_attr_float(name, strtof(value, NULL));
  if (number && !list) return pk_attr_int(name, strtoll(value, NULL, 10));
  kva_text a = {0};
  pk_str(&a, 1, name);
  pk_int(&a, 20, list ? 7 : 3);
  if (!list) pk_str(&a, 4, value);
  char part[128];
  while (list && next_part(&value, ' ', part)) pk_int(&a, 8, strtoll(part, NULL, 10));
  return a;
}

static int dtype_of(const char *name) {
  return !strcmp(name, "float") ? KVA_F32 : !strcmp(name, "int64") ? KVA_I64 : KVA_U8;
}

/* "int64 2 -1" */
static kva_text values(const char *name, const char *text) {
  char part[128];
  int64_t n = 0, whole[8];
  float real[8];
  (void)next_part(&text, ' ', part);
  int dtype = dtype_of(part);
  for (; n < 8 && next_part(&text, ' ', part); n++) whole[n] = strtoll(part, NULL, 10), real[n] = strtof(part, NULL);
  return dtype == KVA_I64 ? pk_i64s(name, n, whole) : pk_tensor(name, dtype, 1, &n, real, (size_t)n * 4);
}

/* Inputs are x, w, b, c, d, e; outputs y0, y1, ... */
static kva_text model_of(const node_case *c) {
  static const char *const names[] = {"x", "w", "b", "c", "d", "e"};
  kva_text g = {0}, inputs = {0}, outputs = {0};
  char part[128];
  const char *rest = c->inputs;
  for (uint32_t i = 0; next_part(&rest, ';', part); i++) {
    char *shape = strchr(part, ' ');
    if (*part == '=') {
      kva_text_add(&inputs, " %s", names[i]);
      pk_sub(&g, 5, values(names[i], part + 1));
      continue;
    }
    if (!shape) {
      kva_text_add(&inputs, " -");
      continue;
    }
    *shape++ = 0;
    kva_text_add(&inputs, "%s%s", i ? " " : "", names[i]);
    pk_sub(&g, 11, pk_value(names[i], dtype_of(part), shape));
  }
  for (uint32_t i = 0; i < c->outputs; i++) {
    char name[16];
    snprintf(name, sizeof name, "y%u", i);
    kva_text_add(&outputs, "%s%s", i ? " " : "", name);
    kva_text out = {0};
    pk_str(&out, 1, name);
    pk_sub(&g, 12, out);
  }
  kva_text node = pk_node(c->op, inputs.data, outputs.data, "node");
  rest = c->attrs;
  while (next_part(&rest, ';', part)) {
    char *value = strchr(part, '=');
    *value++ = 0;
    pk_sub(&node, 5, attribute(part, value));
  }
  pk_sub(&g, 1, node);
  kva_text_free(&inputs);
  kva_text_free(&outputs);
  return pk_model(g, OPSET);
}

typedef struct bindings {
  uint32_t n;
  char names[MAX_SYMBOLS][32], values[MAX_SYMBOLS][32];
  kva_define pins[MAX_SYMBOLS];
  eval_size sizes[MAX_SYMBOLS + 1];
} bindings;

static void read_bindings(const char *text, bindings *b) {
  char part[128];
  *b = (bindings){0};
  while (next_part(&text, ',', part)) {
    char *value = strchr(part, '=');
    *value++ = 0;
    assert_true(b->n < MAX_SYMBOLS);
    snprintf(b->names[b->n], 32, "%.31s", part);
    snprintf(b->values[b->n], 32, "%.31s", value);
    b->pins[b->n] = (kva_define){b->names[b->n], b->values[b->n]};
    b->sizes[b->n] = (eval_size){b->names[b->n], strtoll(value, NULL, 10)};
    b->n++;
  }
}

static kva_module *load(const node_case *c, const bindings *pinned) {
  kva_text bytes = model_of(c);
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_load_options options = {.in_memory = true};
  if (pinned) options.n_pins = pinned->n, options.pins = pinned->pins;
  kva_status status = kva_load_bytes(bytes.data, bytes.len, "model", &options, diag, &m);
  if (status) kva_diag_print(diag, stderr);
  if (status) fail_msg("%s %s does not load", c->op, c->attrs);
  m->diag = NULL;
  kva_diag_destroy(diag);
  kva_text_free(&bytes);
  return m;
}

static void check_sizes(const node_case *c, const kva_compiled *code, const char *sizes) {
  bindings b;
  read_bindings(sizes, &b);
  kva_module *fixed = load(c, &b);
  evaluated expected = evaluate_reference(fixed, fixed->functions.data[0], b.sizes);
  evaluated found = evaluate_compiled(code, code->module->functions.data[0], b.sizes);
  if (!evaluated_equal(c->op, fixed, &expected, &found, 1e-4)) fail_msg("%s %s with %s", c->op, c->attrs, sizes);
  evaluated_free(&expected);
  evaluated_free(&found);
  kva_module_destroy(fixed);
}

static void test_symbols_give_what_numbers_give(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const node_case *c = &cases[i];
    kva_diag *diag = kva_diag_create();
    kva_compiled *code = NULL;
    const kva_compile_options options = {.target = test_target(1, NULL)};
    kva_status status = kva_compile(load(c, NULL), &options, diag, &code);
    if (status) kva_diag_print(diag, stderr);
    if (status) fail_msg("%s %s does not compile", c->op, c->attrs);
    for (uint32_t k = 0; k < 3 && c->sizes[k]; k++) check_sizes(c, code, c->sizes[k]);
    kva_compiled_destroy(code);
    kva_diag_destroy(diag);
  }
}

/* Compiled code of cases[i] at sizes that do not fit: the message names the reader, and both extents. */
static void expect_refusal(const char *op, const char *attrs, const char *inputs, const char *sizes, const char *part) {
  const node_case c = {op, attrs, inputs, 1, {sizes}};
  bindings b;
  kva_diag *diag = kva_diag_create();
  kva_compiled *code = NULL;
  kva_session *s = NULL;
  kva_tensor in[8] = {{0}}, out[4] = {{0}};
  const kva_compile_options options = {.target = test_target(1, NULL)};
  assert_int_equal(kva_compile(load(&c, NULL), &options, diag, &code), KVA_OK);
  assert_int_equal(kva_session_create(code->artifact, &(kva_session_options){.threads = 1}, diag, &s), KVA_OK);
  read_bindings(sizes, &b);
  const kva_graph *g = code->module->functions.data[0]->graph;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    kva_ref_tensor *w = eval_input(g->inputs.data[i], b.sizes);
    in[i] = (kva_tensor){.dtype = w->dtype, .rank = (int32_t)w->rank};
    memcpy(in[i].dims, w->dims, w->rank * sizeof *w->dims);
    in[i].data = calloc((size_t)w->n + 1, 8);
    kva_ref_tensor_to_data(w, in[i].data);
    kva_ref_tensor_free(w);
  }
  assert_int_equal(kva_session_run(s, 0, in, out), KVA_INVALID);
  if (!strstr(kva_session_error(s), part)) fail_msg("expected '%s', found '%s'", part, kva_session_error(s));
  for (uint32_t i = 0; i < g->inputs.len; i++) free(in[i].data);
  kva_session_destroy(s);
  kva_compiled_destroy(code);
  kva_diag_destroy(diag);
}

static void test_other_sizes_are_refused(void **state) {
  (void)state;
  expect_refusal("LSTM", "hidden_size=2", "float T,B,I;float 1,?,I;float 1,?,?", "T=2,B=1,I=3,w_1=8,b_1=8,b_2=3",
                 "extent 2 of R at node 'node' is b_2 = 3 here, but must be 2");
  expect_refusal("ConvTranspose", "", "float N,C,H;float ?,M,K", "N=1,C=2,H=3,w_0=3,M=1,K=2",
                 "extent 0 of weights of a convolution at node 'node' is w_0 = 3 here, but must be C = 2");
  expect_refusal("Attention", "", "float B,2,T,D;float B,2,S,D;float B,2,S,D;float T,M", "B=1,T=2,S=3,D=4,M=4",
                 "the mask of Attention");
  expect_refusal("Attention", "", "float B,2,T,D;float B,2,S,D;float B,2,S,D;float T,M", "B=1,T=2,S=3,D=4,M=1",
                 "the mask of Attention");
  expect_refusal("LinearAttention", "q_num_heads=2;kv_num_heads=2;update_rule=gated",
                 "float B,T,Q;float B,T,Q;float B,T,V;-;float B,T,G", "B=1,T=2,Q=8,V=2,G=6",
                 "decay or beta of LinearAttention");
  expect_refusal("Slice", "", "float N,M;=int64 -1;=int64 9223372036854775807", "N=0,M=3",
                 "extent 0 of the last elements, of Slice at node 'node' is min(N, 1) = 0 here, but must be 1");
}

/* Factors that are known at run time, in a list whose length has no number. */
static void test_scales_are_as_many_as_axes(void **state) {
  (void)state;
  const node_case c = {"Resize", "mode=linear", "float N,4;-;float ?", 1, {NULL}};
  kva_module_destroy(load(&c, NULL));
}

static kva_module *loaded(kva_text bytes) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = kva_load_bytes(bytes.data, bytes.len, "model", &(kva_load_options){.in_memory = true}, diag, &m);
  if (status) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  m->diag = NULL;
  kva_diag_destroy(diag);
  kva_text_free(&bytes);
  return m;
}

/* Scan inputs, one of a known length. */
static void test_scans_have_one_length(void **state) {
  (void)state;
  kva_text g = {0}, body = {0}, n = pk_node("Scan", "x w", "y", "node");
  pk_sub(&body, 1, pk_node("Add", "a b", "sum", "add"));
  pk_sub(&body, 11, pk_value("a", 1, "2"));
  pk_sub(&body, 11, pk_value("b", 1, "2"));
  pk_sub(&body, 12, pk_value("sum", 1, "2"));
  pk_sub(&n, 5, pk_attr_int("num_scan_inputs", 2));
  pk_sub(&n, 5, pk_attr_graph("body", body));
  pk_sub(&g, 1, n);
  pk_sub(&g, 11, pk_value("x", 1, "L,2"));
  pk_sub(&g, 11, pk_value("w", 1, "3,2"));
  pk_sub(&g, 12, pk_value("y", 1, "3,2"));
  kva_module_destroy(loaded(pk_model(g, 21)));
}

/* Lists of attributes tell how many features there are. */
static void test_features_are_as_many_as_in_lists(void **state) {
  (void)state;
  kva_text g = {0}, n = pk_node("FeatureVectorizer", "x w", "y", "node");
  pk_str(&n, 7, "ai.onnx.ml");
  pk_sub(&n, 5, attribute("inputdimensions", "3 2"));
  pk_sub(&g, 1, n);
  pk_sub(&g, 11, pk_value("x", 1, "N,F"));
  pk_sub(&g, 11, pk_value("w", 1, "N,2"));
  pk_sub(&g, 12, pk_value("y", 1, "N,5"));
  kva_text bytes = pk_model(g, 21);
  pk_sub(&bytes, 8, pk_opset("ai.onnx.ml", 3));
  kva_module_destroy(loaded(bytes));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_symbols_give_what_numbers_give), cmocka_unit_test(test_other_sizes_are_refused),
      cmocka_unit_test(test_scales_are_as_many_as_axes), cmocka_unit_test(test_scans_have_one_length),
      cmocka_unit_test(test_features_are_as_many_as_in_lists)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
