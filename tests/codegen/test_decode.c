/* Function decode against one run over whole sequences, bit by bit: models of all kinds, chunks of every size, several
 * sequences at positions of their own, one and two threads, caches of different capacity. */
#include "runtime/sequences.h"
#include "tools/driver/driver.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MAX_STATES = 64, MAX_TENSORS = MAX_STATES + 4, LENGTH = 257, BATCH = 2, WORDS = 23 };

/* With KVA_TEST_PRINT the peer that is written by hand has its real size, and times are printed. */
static bool timed(void) {
  return getenv("KVA_TEST_PRINT") != NULL;
}

/* Of the GPU to compile for; NULL: the CPU. */
static const char *chosen_arch;

/* ---- a compiled model -------------------------------------------------------------------------------------------- */

typedef struct model {
  kva_diag *diag;
  kva_compiled *compiled;
  kva_session *session;
  int main, decode, step;
  const kva_program *program;  /* decode */
  int32_t n_states, n_outputs; /* states follow tokens and positions; their outputs the others */
  int64_t row;                 /* elements of the output for a token */
} model;

static void must(const model *m, kva_status status) {
  if (status == KVA_OK) return;
  kva_diag_print(m->diag, stderr);
  fail_msg("%s: %s", kva_status_name(status), m->session ? kva_session_error(m->session) : "");
}

static void start_session(model *m, int threads) {
  kva_session_destroy(m->session);
  m->session = NULL;
  const char *device = m->compiled->artifact && kva_artifact_arch(m->compiled->artifact) ? "ptxsim" : NULL;
  const kva_session_options options = {.threads = threads, .seed = 3, .device = device};
  must(m, kva_session_create(m->compiled->artifact, &options, m->diag, &m->session));
  m->main = kva_session_program(m->session, "main");
  m->decode = kva_session_program(m->session, "decode");
  m->step = kva_session_program(m->session, "step");
  assert_true(m->main >= 0 && m->decode >= 0 && m->step >= 0);
  m->program = kva_session_program_desc(m->session, m->decode);
  m->n_states = m->program->n_inputs - 2;
  m->n_outputs = m->program->n_outputs - m->n_states;
  assert_int_equal(m->n_outputs, 1);
  assert_in_range(m->n_states, 0, MAX_STATES);
}

static model compile(kva_module *module, kva_diag *diag) {
  model m = {.diag = diag};
  const kva_compile_options options = {.decode = true, .target = {.opt_level = timed() ? 2 : 1, .arch = chosen_arch}};
  must(&m, kva_compile(module, &options, diag, &m.compiled));
  start_session(&m, 1);
  return m;
}

static model load_pinned(const char *path, const char *const *defines, uint32_t n_pins, const kva_define *pins) {
  kva_define list[16];
  kva_load_options options = {.defines = list, .pins = pins, .n_pins = n_pins};
  for (; defines && defines[2 * options.n_defines]; options.n_defines++)
    list[options.n_defines] = (kva_define){defines[2 * options.n_defines], defines[2 * options.n_defines + 1]};
  model m = {.diag = kva_diag_create()};
  kva_module *module = NULL;
  must(&m, strstr(path, "=>") ? kva_load_text(path, "model.kv", &options, m.diag, &module)
                              : kva_load_model(path, &options, m.diag, &module));
  return compile(module, m.diag);
}

static model load(const char *path, const char *const *defines) {
  return load_pinned(path, defines, 0, NULL);
}

static void unload(model *m) {
  kva_session_destroy(m->session);
  kva_compiled_destroy(m->compiled);
  kva_diag_destroy(m->diag);
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

static int32_t tokens[BATCH * LENGTH];

static void draw_tokens(void) {
  for (uint64_t i = 0; i < BATCH * LENGTH; i++) tokens[i] = (int32_t)(kva_philox4x32(i, 0, 11).v[0] % WORDS);
}

static kva_tensor token_tensor(int64_t batch, int64_t rows, int32_t *data) {
  return (kva_tensor){.dtype = KVA_I32, .rank = 2, .dims = {batch, rows}, .data = data};
}

/* Results of one run over all rows, by sequence and row. */
static float *run_at_once(model *m) {
  kva_tensor in = token_tensor(BATCH, LENGTH, tokens), out = {0};
  must(m, kva_session_run(m->session, m->main, &in, &out));
  int64_t bytes = kva_tensor_bytes(&out);
  m->row = bytes / (int64_t)sizeof(float) / (BATCH * LENGTH);
  float *copy = malloc((size_t)bytes);
  assert_non_null(copy);
  return memcpy(copy, out.data, (size_t)bytes);
}

/* Sequences and their state. */
typedef struct sequences {
  int64_t n, position[BATCH];
  kva_tensor states[MAX_STATES];
} sequences;

/* Extents of an input that are no constants: the first is the batch, others the capacity. */
static kva_tensor new_state(const model *m, int32_t input, int64_t n, int64_t capacity) {
  const kva_buffer_desc *b = &m->program->buffers[m->program->inputs[input]];
  kva_tensor t = {.dtype = (kva_dtype)b->dtype, .rank = b->rank};
  for (int32_t d = 0; d < b->rank; d++) {
    const kva_formula_word *w = b->dims[d].words;
    t.dims[d] = w->op == KVA_FORMULA_CONST ? w->arg : d ? capacity : n;
  }
  t.data = calloc(1, (size_t)kva_tensor_bytes(&t) + 1);
  assert_non_null(t.data);
  return t;
}

/* Memory of caches that no row was written to may hold anything. */
static sequences begin(const model *m, int64_t n, int64_t capacity) {
  sequences s = {.n = n};
  for (int32_t i = 0; i < m->n_states; i++) {
    s.states[i] = new_state(m, 2 + i, n, capacity);
    const char *name = m->program->buffers[m->program->inputs[2 + i]].name;
    bool cache = !strncmp(name, "keys", 4) || !strncmp(name, "values", 6) || !strncmp(name, "mask", 4);
    if (cache) memset(s.states[i].data, 0xff, (size_t)kva_tensor_bytes(&s.states[i]));
  }
  return s;
}

static void end(const model *m, sequences *s) {
  for (int32_t i = 0; i < m->n_states; i++) free(s->states[i].data);
}

/* The next `rows` rows of every sequence, the i-th of which is sequence `which` + i of the batch. */
static const float *step(model *m, sequences *s, int64_t which, int64_t rows) {
  int32_t chunk[BATCH * LENGTH];
  kva_tensor in[MAX_TENSORS], out[MAX_TENSORS] = {{0}};
  for (int64_t b = 0; b < s->n; b++)
    memcpy(chunk + b * rows, tokens + (which + b) * LENGTH + s->position[b], (size_t)rows * sizeof *chunk);
  in[0] = token_tensor(s->n, rows, chunk);
  in[1] = (kva_tensor){.dtype = KVA_I64, .rank = 1, .dims = {s->n}, .data = s->position};
  memcpy(in + 2, s->states, sizeof *in * (size_t)m->n_states);
  must(m, kva_session_run(m->session, rows == 1 ? m->step : m->decode, in, out));
  for (int32_t i = 0; i < m->n_states; i++) assert_ptr_equal(out[m->n_outputs + i].data, s->states[i].data);
  for (int64_t b = 0; b < s->n; b++) s->position[b] += rows;
  return out[0].data;
}

static void same_rows(const model *m, const char *what, const float *expected, const float *found, int64_t first,
                      int64_t rows) {
  for (int64_t i = 0; i < rows; i++)
    if (memcmp(expected + i * m->row, found + i * m->row, (size_t)m->row * sizeof *found))
      fail_msg("%s: row %lld of a chunk of %lld differs", what, (long long)(first + i), (long long)rows);
}

/* Chunks of up to `longest` rows, drawn from a seed; 0: all rows at once. */
static void in_chunks(model *m, const char *what, const float *expected, int64_t length, int64_t longest, uint64_t seed,
                      int64_t capacity) {
  sequences s = begin(m, BATCH, capacity);
  for (uint64_t i = 0; s.position[0] < length; i++) {
    int64_t first = s.position[0], rows = longest ? 1 + (int64_t)(kva_philox4x32(i, seed, 5).v[0] % longest) : length;
    if (rows > length - first) rows = length - first;
    const float *found = step(m, &s, 0, rows);
    for (int64_t b = 0; b < BATCH; b++)
      same_rows(m, what, expected + (b * LENGTH + first) * m->row, found + b * rows * m->row, first, rows);
  }
  end(m, &s);
}

/* Two sequences at different positions in one batch, after prefills of their own. */
static void ragged(model *m, const char *what, const float *expected) {
  const int64_t begins[BATCH] = {5, 70}, capacity = 90;
  sequences both = begin(m, BATCH, capacity);
  for (int64_t b = 0; b < BATCH; b++) {
    sequences one = begin(m, 1, capacity);
    step(m, &one, b, begins[b]);
    both.position[b] = one.position[0];
    for (int32_t i = 0; i < m->n_states; i++) {
      int64_t bytes = kva_tensor_bytes(&one.states[i]);
      memcpy((char *)both.states[i].data + b * bytes, one.states[i].data, (size_t)bytes);
    }
    end(m, &one);
  }
  for (int64_t t = 0; t < 20; t += 2) {
    const float *found = step(m, &both, 0, 2);
    for (int64_t b = 0; b < BATCH; b++)
      same_rows(m, what, expected + (b * LENGTH + begins[b] + t) * m->row, found + b * 2 * m->row, begins[b] + t, 2);
  }
  end(m, &both);
}

static void check(model *m, const char *what) {
  draw_tokens();
  float *expected = run_at_once(m);
  in_chunks(m, what, expected, LENGTH, 0, 0, LENGTH);
  in_chunks(m, what, expected, 90, 1, 0, 300);
  in_chunks(m, what, expected, LENGTH, 16, 1, 512);
  ragged(m, what, expected);
  start_session(m, 2);
  in_chunks(m, what, expected, LENGTH, 40, 2, LENGTH);
  free(expected);
  unload(m);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

#define SMALL "vocab", "23", "d", "16", "ffn", "24"

static void language_model(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "4", "kv_heads", "2", NULL});
  check(&m, "lm.kv");
}

static void many_layers(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", "layers", "6", NULL});
  check(&m, "lm.kv with 6 layers");
}

static void without_shift(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", "shift", "false", NULL});
  check(&m, "lm.kv without shift");
}

static void documents(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "4", "kv_heads", "1", "separator", "3", NULL});
  check(&m, "lm.kv with documents");
}

static void shifts_of_all_kinds(void **state) {
  (void)state;
  model m = load("models/induction.kv",
                 (const char *[]){SMALL, "heads", "2", "layers", "2", "window", "3", "shift_q", "true", NULL});
  check(&m, "induction.kv, window 3");
  m = load("models/induction.kv", (const char *[]){SMALL, "heads", "2", "gate", "gate", "window", "2", NULL});
  check(&m, "induction.kv with gates");
}

/* Learned positions, masks of distances and of tokens, sliding window, soft cap, ALiBi, layer norm; shifts that keep or
 * repeat the first row, with weights for every token; running sums of floats. */
static const char mixed[] =
    "model mixed <d = 8> (int32[B, T] tokens) => (float[B, T, 8] y) {\n"
    "  param float[23, d] embed ~ normal(1)\n"
    "  param float[300, d] places ~ normal(1)\n"
    "  param float[d] scale ~ ones\n"
    "  param float[2, 2] w ~ normal(1)\n"
    "  param float[d, 6] gate ~ normal(1)\n"
    "  x = kv.gather(embed, tokens) + kv.slice <starts = [0, 0], shape = [T, d], steps = [1, 1]> (places)\n"
    "  x = kv.layer_norm(x, scale)\n"
    "  by_head = kv.reshape <shape = [B, T, 2, 4]> (x)\n"
    "  k, last_k = kv.kv_shift <time_axis = 1, boundary = \"keep\"> (by_head, w)\n"
    "  weights = kv.transpose <perm = [0, 2, 1, 3]> (kv.reshape <shape = [B, T, 2, 3]> (x @ gate))\n"
    "  v, last_v = kv.kv_shift <time_axis = 1, boundary = \"edge\"> (by_head, weights)\n"
    "  slopes = kv.constant <value = float[2] {0.5, 0.25}> ()\n"
    "  q = kv.transpose <perm = [0, 2, 1, 3]> (by_head)\n"
    "  distance = kv.iota <shape = [T, 1], axis = 0> () - kv.iota <shape = [1, T], axis = 1> ()\n"
    "  few = kv.reshape <shape = [B, 1, 1, T]> (tokens) < 17\n"
    "  mask = kv.logical_and(few, kv.logical_not(distance == 2))\n"
    "  a = kv.attention <window = 5, softcap = 3> (q, kv.transpose <perm = [0, 2, 1, 3]> (k),\n"
    "    kv.transpose <perm = [0, 2, 1, 3]> (v), mask, slopes)\n"
    "  a = kv.reshape <shape = [B, T, 8]> (kv.transpose <perm = [0, 2, 1, 3]> (a))\n"
    "  y = kv.softmax <axis = -1> (a + kv.cumsum <axis = 1> (a)) + kv.cumprod <axis = 1> (1 + 0.01 * x)\n"
    "}\n";

static void rules_of_all_kinds(void **state) {
  (void)state;
  model m = load(mixed, NULL);
  check(&m, "model with all rules");
}

/* As exporters write it: attention, its mask and the shift of keys in elementary operators, which pass raise finds. */
static const char spelled_out[] =
    "model spelled <d = 8> (int32[B, T] tokens) => (float[B, T, 8] y) {\n"
    "  param float[23, d] embed ~ normal(1)\n"
    "  param float[2, 1] now ~ normal(1)\n"
    "  param float[2, 1] before ~ normal(1)\n"
    "  x = kv.reshape <shape = [B, T, 2, 4]> (kv.gather(embed, tokens))\n"
    "  s = kv.slice <starts = [0, 0, 0, 0], shape = [B, T - 1, 2, 4]> (x)\n"
    "  p = kv.pad <before = [0, 1, 0, 0], after = [0, 0, 0, 0]> (s)\n"
    "  k = kv.transpose <perm = [0, 2, 3, 1]> (now * x + before * p)\n"
    "  q = kv.transpose <perm = [0, 2, 1, 3]> (x)\n"
    "  t = kv.iota <shape = [T, 1], axis = 0> ()\n"
    "  u = kv.iota <shape = [1, T], axis = 1> ()\n"
    "  a = kv.where(u <= t, (q @ k) * 0.5, float {-inf})\n"
    "  y = kv.reshape <shape = [B, T, 8]> (kv.transpose <perm = [0, 2, 1, 3]> (kv.softmax <axis = -1> (a) @ q))\n"
    "}\n";

static void spelled_out_operators(void **state) {
  (void)state;
  model m = load(spelled_out, NULL);
  check(&m, "model of elementary operators");
}

/* The code of a GPU, on the simulator, against the CPU's. */
static void on_simulator(void **state) {
  (void)state;
  enum { ROWS = 9 };
  static const char *const sizes[] = {SMALL, "heads", "4", "kv_heads", "2", "separator", "3", NULL};
  model cpu = load("models/lm.kv", sizes);
  chosen_arch = "sm_80";
  model gpu = load("models/lm.kv", sizes);
  chosen_arch = NULL;
  draw_tokens();
  float *expected = run_at_once(&cpu);
  gpu.row = cpu.row;
  sequences s = begin(&gpu, BATCH, 12);
  for (int64_t first = 0, rows = 1; first < ROWS; first += rows++) {
    if (rows > ROWS - first) rows = ROWS - first;
    const float *found = step(&gpu, &s, 0, rows);
    for (int64_t b = 0; b < BATCH; b++)
      for (int64_t i = 0; i < rows * gpu.row; i++)
        assert_float_equal(found[b * rows * gpu.row + i], expected[(b * LENGTH + first) * gpu.row + i], 1e-5);
  }
  end(&gpu, &s);
  free(expected);
  unload(&gpu);
  unload(&cpu);
}

/* ---- the peer ---------------------------------------------------------------------------------------------------- */

enum { PREFIX = 64, REPEATS = 300 };

/* tests/data/decode_by_hand.kv: tokens, caches of keys and values, last rows of both, positions; results: logits, and
 * what the next step takes instead. Everything grows by a row a step, so each step gets memory of its own. */
typedef struct hand {
  kva_compiled *compiled;
  kva_session *session;
  kva_tensor in[6], out[5];
} hand;

static hand load_hand(model *m, const char *const *sizes) {
  hand h = {0};
  kva_define list[8];
  const kva_define single_row[] = {{"B", "1"}, {"T", "1"}};
  kva_load_options options = {.defines = list, .pins = single_row, .n_pins = timed() ? 2 : 1};
  for (; sizes[2 * options.n_defines]; options.n_defines++)
    list[options.n_defines] = (kva_define){sizes[2 * options.n_defines], sizes[2 * options.n_defines + 1]};
  kva_module *module = NULL;
  must(m, kva_load_model("tests/data/decode_by_hand.kv", &options, m->diag, &module));
  const kva_compile_options how = {.target = {.opt_level = timed() ? 2 : 1}};
  must(m, kva_compile(module, &how, m->diag, &h.compiled));
  const kva_session_options single = {.threads = 1, .seed = 3};
  must(m, kva_session_create(h.compiled->artifact, &single, m->diag, &h.session));
  return h;
}

/* The states of the two models have the same names, and get the same values. */
static void share_weights(model *m, hand *h) {
  for (int i = 0; i < kva_session_state_count(h->session); i++)
    for (int k = 0; k < kva_session_state_count(m->session); k++) {
      kva_tensor to, from;
      const kva_state_desc *a = kva_session_state_desc(h->session, i, &to);
      const kva_state_desc *b = kva_session_state_desc(m->session, k, &from);
      if (strcmp(a->name, b->name)) continue;
      assert_int_equal(a->bytes, b->bytes);
      memcpy(to.data, from.data, (size_t)a->bytes);
    }
}

static void begin_hand(hand *h) {
  const kva_program *p = kva_session_program_desc(h->session, 0);
  for (int i = 1; i < 5; i++) {
    const kva_buffer_desc *b = &p->buffers[p->inputs[i]];
    h->in[i] = (kva_tensor){.dtype = KVA_F32, .rank = b->rank};
    for (int32_t d = 0; d < b->rank; d++) {
      const kva_formula_word *w = b->dims[d].words;
      h->in[i].dims[d] = w->op == KVA_FORMULA_CONST ? w->arg : d == 1 ? 1 : 0; /* B, P */
    }
    h->in[i].data = calloc(1, (size_t)kva_tensor_bytes(&h->in[i]) + 64);
  }
  h->in[5] = (kva_tensor){.dtype = KVA_F32, .rank = 1};
}

static void take_state(hand *h) {
  for (int i = 1; i < 5; i++) {
    free(h->in[i].data);
    h->in[i] = h->out[i];
  }
}

static const float *step_hand(model *m, hand *h, int64_t first, int64_t rows) {
  float positions[LENGTH];
  for (int64_t i = 0; i < rows; i++) positions[i] = (float)(first + i);
  h->in[0] = token_tensor(1, rows, tokens + first);
  h->in[5].dims[0] = rows, h->in[5].data = positions;
  for (int i = 0; i < 5; i++) {
    h->out[i] = (kva_tensor){0};
    if (i && i < 5) {
      kva_tensor t = h->in[i];
      if (i < 3) t.dims[3] += rows;
      h->out[i].data = malloc((size_t)kva_tensor_bytes(&t) + 64);
    }
  }
  must(m, kva_session_run(h->session, 0, h->in, h->out));
  return h->out[0].data;
}

static double best(double a, double seconds) {
  return a == 0 || seconds < a ? seconds : a;
}

/* A step behind PREFIX rows, again and again, in turns. */
static void print_times(model *m, hand *h, sequences *s) {
  double derived = 0, by_hand = 0;
  for (int i = 0; i < REPEATS; i++) {
    double start = kva_now();
    step(m, s, 0, 1);
    s->position[0]--;
    derived = best(derived, kva_now() - start);
    start = kva_now();
    step_hand(m, h, PREFIX, 1);
    by_hand = best(by_hand, kva_now() - start);
    for (int k = 1; k < 5; k++) free(h->out[k].data);
  }
  print_message("a step behind %d rows: derived %.3f ms, by hand %.3f ms\n", PREFIX, derived * 1e3, by_hand * 1e3);
}

static void as_by_hand(void **state) {
  (void)state;
  static const char *const small[] = {SMALL, "heads", "4", "kv_heads", "2", NULL}, *const real[] = {"vocab", "4096",
                                                                                                    NULL};
  model m = load_pinned("models/lm.kv", timed() ? real : small, 1, (const kva_define[]){{"B", "1"}});
  hand h = load_hand(&m, timed() ? real : small);
  draw_tokens();
  share_weights(&m, &h);
  begin_hand(&h);
  m.row = timed() ? 4096 : WORDS;
  sequences s = begin(&m, 1, PREFIX + 1);
  for (int64_t first = 0, rows; first < PREFIX; first += rows) {
    rows = timed() ? 1 : first ? 1 + first % 3 : 7;
    if (rows > PREFIX - first) rows = PREFIX - first;
    const float *found = step_hand(&m, &h, first, rows);
    same_rows(&m, "by hand", step(&m, &s, 0, rows), found, first, rows);
    take_state(&h);
  }
  if (timed()) print_times(&m, &h, &s);
  for (int i = 1; i < 5; i++) free(h.in[i].data);
  end(&m, &s);
  kva_session_destroy(h.session);
  kva_compiled_destroy(h.compiled);
  unload(&m);
}

/* ---- sequences as objects (runtime/sequences.h) ------------------------------------------------------------------ */

static kva_sequences *create_sequences(const model *m, int64_t n, int64_t capacity) {
  kva_sequences *q;
  must(m, kva_sequences_create(m->session, n, capacity, m->diag, &q));
  assert_int_equal(kva_sequences_inputs(q), 1);
  assert_int_equal(kva_sequences_outputs(q), 1);
  return q;
}

/* The next rows of all sequences, those of sequence 0 of the batch. */
static void append(model *m, kva_sequences *q, const float *expected, int64_t n, int64_t rows) {
  int32_t chunk[BATCH * LENGTH];
  int64_t first = kva_sequences_length(q, 0);
  for (int64_t i = 0; i < n; i++) memcpy(chunk + i * rows, tokens + first, (size_t)rows * sizeof *chunk);
  kva_tensor in = token_tensor(n, rows, chunk), out = {0};
  must(m, kva_sequences_append(q, &in, &out));
  for (int64_t i = 0; i < n; i++)
    same_rows(m, "sequence", expected + first * m->row, (const float *)out.data + i * rows * m->row, first, rows);
}

static void copies_continue_alike(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "4", "kv_heads", "2", "separator", "3", NULL});
  draw_tokens();
  float *expected = run_at_once(&m);
  kva_sequences *one = create_sequences(&m, 1, 50), *two = create_sequences(&m, 2, 30);
  append(&m, one, expected, 1, 13);
  append(&m, one, expected, 1, 1);
  for (int64_t i = 0; i < 2; i++) must(&m, kva_sequences_copy(two, i, one, 0));
  append(&m, one, expected, 1, 20);
  append(&m, two, expected, 2, 1);
  append(&m, two, expected, 2, 5);
  must(&m, kva_sequences_copy(two, 1, two, 0));
  append(&m, two, expected, 2, 10); /* all that they have room for */
  assert_int_equal(kva_sequences_length(two, 1), 30);
  kva_tensor in = token_tensor(2, 1, tokens), out = {0};
  assert_int_equal(kva_sequences_append(two, &in, &out), KVA_INVALID);
  assert_non_null(strstr(kva_session_error(m.session), "has 30 rows and room for 30; 1 more do not fit"));
  assert_int_equal(kva_sequences_copy(two, 0, one, 0), KVA_INVALID);
  assert_int_equal(kva_sequences_length(two, 0), 30);
  kva_sequences_destroy(one);
  kva_sequences_destroy(two);
  free(expected);
  unload(&m);
}

static void sequences_that_cannot_be(void **state) {
  (void)state;
  model m =
      load_pinned("models/lm.kv", (const char *[]){SMALL, "heads", "2", NULL}, 1, (const kva_define[]){{"B", "1"}});
  kva_sequences *q;
  assert_int_equal(kva_sequences_create(m.session, 2, 10, m.diag, &q), KVA_INVALID);
  assert_int_equal(kva_sequences_create(m.session, 1, 0, m.diag, &q), KVA_INVALID);
  assert_int_equal(kva_sequences_create(m.session, 1, INT64_MAX / 8, m.diag, &q), KVA_NO_MEMORY);
  assert_null(q);
  unload(&m);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The caller's buffers are those of the state, and a session takes no other memory for it. */
static void state_has_one_place(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", NULL});
  sequences s = begin(&m, 1, 64);
  kva_tensor in[MAX_TENSORS], out[MAX_TENSORS] = {{0}};
  in[0] = token_tensor(1, 1, tokens);
  in[1] = (kva_tensor){.dtype = KVA_I64, .rank = 1, .dims = {1}, .data = s.position};
  memcpy(in + 2, s.states, sizeof *in * (size_t)m.n_states);
  float other[64];
  out[m.n_outputs].data = other;
  assert_int_equal(kva_session_run(m.session, m.decode, in, out), KVA_INVALID);
  assert_non_null(strstr(kva_session_error(m.session), "expected no memory for it, or the input's"));
  end(&m, &s);
  unload(&m);
}

/* Nothing that a step runs or stores grows with the capacity. */
static void capacity_costs_nothing(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "4", "kv_heads", "2", "separator", "3", NULL});
  const kva_program *p = m.program;
  for (int32_t i = 0; i < p->n_steps; i++) {
    if (p->steps[i].kind != KVA_STEP_COPY) continue;
    const char *name = p->buffers[p->steps[i].args[0]].name;
    assert_true(strncmp(name, "keys", 4) && strncmp(name, "values", 6) && strncmp(name, "mask", 4));
  }
  int64_t bytes[2];
  for (int i = 0; i < 2; i++) {
    sequences s = begin(&m, 1, i ? 100000 : 64);
    kva_memory_report report;
    step(&m, &s, 0, 1);
    kva_session_memory(m.session, m.decode, &report);
    bytes[i] = report.temps;
    end(&m, &s);
  }
  assert_int_equal(bytes[0], bytes[1]);
  unload(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(language_model),
      cmocka_unit_test(many_layers),
      cmocka_unit_test(without_shift),
      cmocka_unit_test(documents),
      cmocka_unit_test(shifts_of_all_kinds),
      cmocka_unit_test(rules_of_all_kinds),
      cmocka_unit_test(spelled_out_operators),
      cmocka_unit_test(on_simulator),
      cmocka_unit_test(as_by_hand),
      cmocka_unit_test(copies_continue_alike),
      cmocka_unit_test(sequences_that_cannot_be),
      cmocka_unit_test(state_has_one_place),
      cmocka_unit_test(capacity_costs_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
