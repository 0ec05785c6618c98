/* Sequences against one run over whole ones, bit by bit: models of all kinds, chunks of every size, several sequences
 * with different numbers of rows a step, forks, rows that are taken back, one and two threads. */
#include "tests/support/target.h"
#include "tests/codegen/decode.h"

#include <unistd.h>

/* Chunks of up to `longest` rows, drawn from a seed; 0: all rows at once. */
static void in_chunks(model *m, const char *what, const float *expected, int64_t length, int64_t longest,
                      uint64_t seed) {
  kva_sequences *q = create_sequences(m, BATCH, length);
  live l[BATCH];
  for (int64_t b = 0; b < BATCH; b++) l[b] = begin(m, q, b);
  for (uint64_t i = 0; kva_sequences_length(q, 0) < length; i++) {
    int64_t first = kva_sequences_length(q, 0);
    int64_t rows = longest ? 1 + (int64_t)(kva_philox4x32(i, seed, 5).v[0] % longest) : length;
    for (int64_t b = 0; b < BATCH; b++) l[b].rows = rows < length - first ? rows : length - first;
    append(m, q, what, expected, BATCH, l);
  }
  kva_sequences_destroy(q);
}

/* ---- sequences that come, fork, go back and go ------------------------------------------------------------------- */

typedef struct walk {
  model *m;
  kva_sequences *q;
  const char *what;
  const float *expected;
  live l[MANY];
  int n;
} walk;

static uint32_t draw(uint64_t seed, uint64_t i, uint32_t below) {
  return kva_philox4x32(i, seed, 7).v[0] % below;
}

/* Each sequence gets rows of its own number: often none or one, sometimes many. */
static void walk_append(walk *w, uint64_t seed) {
  for (int i = 0; i < w->n; i++) {
    uint32_t kind = draw(seed, (uint64_t)i, 8), most = kind < 2 ? 0 : kind < 5 ? 1 : kind < 7 ? 16 : 150;
    int64_t left = LENGTH - kva_sequences_length(w->q, w->l[i].id);
    int64_t rows = most < 2 ? most : 1 + draw(seed, 100 + (uint64_t)i, most);
    w->l[i].rows = rows < left ? rows : left;
    w->l[i].last = draw(seed, 200 + (uint64_t)i, 4) > 0;
  }
  append(w->m, w->q, w->what, w->expected, w->n, w->l);
}

static void walk_fork(walk *w, uint64_t seed) {
  if (w->n == MANY) return;
  live *from = &w->l[draw(seed, 1, (uint32_t)w->n)], *to = &w->l[w->n++];
  *to = *from;
  must(w->m, kva_sequences_fork(w->q, from->id, &to->id));
  assert_int_equal(kva_sequences_length(w->q, to->id), kva_sequences_length(w->q, from->id));
}

static void walk_back(walk *w, uint64_t seed) {
  const live *l = &w->l[draw(seed, 1, (uint32_t)w->n)];
  int64_t length = kva_sequences_length(w->q, l->id), most = draw(seed, 2, 3) ? 4 : length;
  int64_t rows = draw(seed, 3, (uint32_t)(most < length ? most : length) + 1);
  must(w->m, kva_sequences_roll_back(w->q, l->id, rows));
  assert_int_equal(kva_sequences_length(w->q, l->id), length - rows);
}

static void walk_replace(walk *w, uint64_t seed) {
  live *l = &w->l[draw(seed, 1, (uint32_t)w->n)];
  kva_sequences_remove(w->q, l->id);
  *l = begin(w->m, w->q, draw(seed, 2, BATCH));
}

static void random_walk(model *m, const char *what, const float *expected, uint64_t seed, uint64_t steps) {
  walk w = {m, create_sequences(m, MANY + 1, LENGTH), what, expected, .n = 2};
  int64_t free_rows = kva_sequences_free_rows(w.q);
  for (int i = 0; i < w.n; i++) w.l[i] = begin(m, w.q, i);
  for (uint64_t i = 0; i < steps; i++) {
    static void (*const kinds[])(walk *, uint64_t) = {walk_append, walk_append, walk_append,
                                                      walk_fork,   walk_back,   walk_replace};
    kinds[draw(seed, i, i < 4 ? 3 : 6)](&w, seed * 1000 + i);
  }
  for (int i = 0; i < w.n; i++) kva_sequences_remove(w.q, w.l[i].id);
  assert_int_equal(kva_sequences_free_rows(w.q), free_rows);
  kva_sequences_destroy(w.q);
}

static void check_steps(model *m, const char *what, const float *expected) {
  assert_true(m->row <= 64);
  in_chunks(m, what, expected, LENGTH, 0, 0);
  in_chunks(m, what, expected, 90, 1, 0);
  in_chunks(m, what, expected, LENGTH, 16, 1);
  random_walk(m, what, expected, 1, 40);
  start_session(m, 2);
  in_chunks(m, what, expected, LENGTH, 40, 2);
  random_walk(m, what, expected, 2, 20);
}

static void check(model *m, const char *what) {
  draw_tokens();
  float *expected = run_at_once(m);
  check_steps(m, what, expected);
  free(expected);
  unload(m);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

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

/* A step's attention has a kernel of its own there: one, three and eight heads for a key head. */
static void heads_of_whole_vectors(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){"vocab", "23", "ffn", "24", "d", "64", "heads", "2", NULL});
  check(&m, "lm.kv with heads of 32 channels");
  m = load("models/lm.kv",
           (const char *[]){"vocab", "23", "ffn", "24", "d", "96", "heads", "6", "kv_heads", "2", NULL});
  check(&m, "lm.kv with 3 heads for a key head");
  m = load("models/lm.kv",
           (const char *[]){"vocab", "23", "ffn", "24", "d", "128", "heads", "8", "kv_heads", "1", NULL});
  check(&m, "lm.kv with 8 heads for a key head");
}

/* Results of all rows in one step, by sequence and row. */
static float *append_at_once(model *m) {
  int64_t sequence = LENGTH * m->row;
  float *all = malloc((size_t)(BATCH * sequence) * sizeof *all);
  assert_non_null(all);
  kva_sequences *q = create_sequences(m, BATCH, LENGTH);
  for (int64_t b = 0; b < BATCH; b++) {
    live l = begin(m, q, b);
    l.rows = LENGTH;
    must(m, try_append(q, 1, &l));
    memcpy(all + b * sequence, results[0], (size_t)sequence * sizeof *all);
  }
  kva_sequences_destroy(q);
  return all;
}

/* Caches that round: near a run without caches, not equal to it, and the same bits in any chunks. */
static void check_narrow(const char *const *sizes, kva_dtype caches, double tolerance) {
  caches_of = caches;
  model m = load("models/lm.kv", sizes);
  caches_of = KVA_DTYPE_NONE;
  draw_tokens();
  float *whole = run_at_once(&m), *expected = append_at_once(&m);
  for (int64_t i = 0; i < BATCH * LENGTH * m.row; i++) assert_float_equal(expected[i], whole[i], tolerance);
  assert_memory_not_equal(expected, whole, (size_t)(BATCH * LENGTH * m.row) * sizeof *whole);
  check_steps(&m, kva_dtype_name(caches), expected);
  free(whole);
  free(expected);
  unload(&m);
}

static void narrow_caches(void **state) {
  (void)state;
  check_narrow((const char *[]){SMALL, "heads", "4", "kv_heads", "2", NULL}, KVA_F16, 2e-3);
  check_narrow((const char *[]){"vocab", "23", "ffn", "24", "d", "96", "heads", "6", "kv_heads", "2", NULL}, KVA_F16,
               2e-3);
  check_narrow((const char *[]){"vocab", "23", "ffn", "24", "d", "64", "heads", "2", NULL}, KVA_BF16, 2e-2);
}

static void without_shift(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", "shift", "false", NULL});
  check(&m, "lm.kv without shift");
}

static void documents(void **state) {
  (void)state;
  steps_of = 3;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "4", "kv_heads", "1", "separator", "3", NULL});
  steps_of = 0;
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

/* Keys and values of earlier tokens alone, one by concatenation. */
static const char moved_rows[] =
    "model moved <d = 8> (int32[B, T] tokens) => (float[B, T, 8] y) {\n"
    "  param float[23, d] embed ~ normal(1)\n"
    "  x = kv.reshape <shape = [B, T, 2, 4]> (kv.gather(embed, tokens))\n"
    "  k = kv.pad <before = [0, 1, 0, 0], after = [0, -1, 0, 0]> (x)\n"
    "  zeros = kv.expand <shape = [B, 2, 2, 4]> (float {0.0})\n"
    "  v = kv.concat <axis = 1> (zeros, kv.slice <starts = [0, 0, 0, 0], shape = [B, T - 2, 2, 4]> (x))\n"
    "  a = kv.attention <causal = true> (kv.transpose <perm = [0, 2, 1, 3]> (x),\n"
    "    kv.transpose <perm = [0, 2, 1, 3]> (k), kv.transpose <perm = [0, 2, 1, 3]> (v))\n"
    "  y = kv.reshape <shape = [B, T, 8]> (kv.transpose <perm = [0, 2, 1, 3]> (a))\n"
    "}\n";

static void shifts_without_mix(void **state) {
  (void)state;
  model m = load(moved_rows, NULL);
  check(&m, "model of moved rows");
}

/* One tap, which all rows but the first of a sequence are multiplied by. */
static const char one_tap[] =
    "model one_tap <d = 8> (int32[B, T] tokens) => (float[B, T, 8] y) {\n"
    "  param float[23, d] embed ~ normal(1)\n"
    "  param float[2, 1] w ~ normal(1)\n"
    "  param float[d, 2] gate ~ normal(1)\n"
    "  x = kv.gather(embed, tokens)\n"
    "  by_head = kv.reshape <shape = [B, T, 2, 4]> (x)\n"
    "  k = kv.kv_shift <time_axis = 1, boundary = \"keep\"> (by_head, w)\n"
    "  weights = kv.transpose <perm = [0, 2, 1, 3]> (kv.reshape <shape = [B, T, 2, 1]> (x @ gate))\n"
    "  v = kv.kv_shift <time_axis = 1, boundary = \"keep\"> (by_head, weights)\n"
    "  a = kv.attention <causal = true> (kv.transpose <perm = [0, 2, 1, 3]> (by_head),\n"
    "    kv.transpose <perm = [0, 2, 1, 3]> (k), kv.transpose <perm = [0, 2, 1, 3]> (v))\n"
    "  y = kv.reshape <shape = [B, T, 8]> (kv.transpose <perm = [0, 2, 1, 3]> (a))\n"
    "}\n";

static void shifts_of_one_tap(void **state) {
  (void)state;
  model m = load(one_tap, NULL);
  check(&m, "model of shifts with one tap");
}

/* ---- a GPU, whose memory holds the caches ------------------------------------------------------------------------ */

typedef struct simulated {
  model cpu, gpu;
  float *expected;
  kva_sequences *q;
} simulated;

static simulated simulate(int64_t sequences, int64_t longest) {
  static const char *const sizes[] = {SMALL, "heads", "4", "kv_heads", "2", "separator", "3", NULL};
  simulated s = {.cpu = load("models/lm.kv", sizes)};
  chosen_arch = "sm_80";
  s.gpu = load("models/lm.kv", sizes);
  chosen_arch = NULL;
  draw_tokens();
  s.expected = run_at_once(&s.cpu);
  s.gpu.row = s.cpu.row;
  s.q = create_sequences(&s.gpu, sequences, longest);
  return s;
}

static void end(simulated *s) {
  kva_sequences_destroy(s->q);
  free(s->expected);
  unload(&s->gpu);
  unload(&s->cpu);
}

/* The next rows of n sequences against the CPU's, within the sums' tolerance. */
static void append_near(simulated *s, int n, live *l, int64_t rows) {
  int64_t first[MANY];
  for (int i = 0; i < n; i++) first[i] = kva_sequences_length(s->q, l[i].id), l[i].rows = rows;
  must(&s->gpu, try_append(s->q, n, l));
  for (int i = 0; i < n; i++)
    for (int64_t k = 0; k < rows * s->gpu.row; k++)
      assert_float_equal(results[i][k], s->expected[(l[i].which * LENGTH + first[i]) * s->gpu.row + k], 1e-5);
}

static void on_simulator(void **state) {
  (void)state;
  simulated s = simulate(BATCH, 13);
  live l[BATCH];
  for (int64_t b = 0; b < BATCH; b++) l[b] = begin(&s.gpu, s.q, b);
  append_near(&s, BATCH, l, 10);
  append_near(&s, BATCH, l, 1);
  append_near(&s, BATCH, l, 2);
  end(&s);
}

/* A page that two sequences have is copied when one writes there; rows run again; saved pages go back. */
static void pages_on_simulator(void **state) {
  (void)state;
  char path[] = "/tmp/kvasir-decode-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  simulated s = simulate(4, 2 * 64);
  live l[3] = {begin(&s.gpu, s.q, 1)};
  append_near(&s, 1, l, 66);
  l[1].which = l[2].which = 1;
  must(&s.gpu, kva_sequences_fork(s.q, l[0].id, &l[1].id));
  must(&s.gpu, kva_sequences_roll_back(s.q, l[1].id, 5));
  append_near(&s, 1, &l[1], 5);
  append_near(&s, 2, l, 1);
  must(&s.gpu, kva_sequences_save(s.q, l[0].id, path, s.gpu.diag));
  must(&s.gpu, kva_sequences_load(s.q, path, s.gpu.diag, &l[2].id));
  append_near(&s, 3, l, 2);
  remove(path);
  end(&s);
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
  const kva_compile_options how = {.target = test_target(timed() ? 2 : 1, NULL)};
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

static void read_rows(const model *m, kva_sequences *q, int64_t id, int64_t rows, int64_t wanted, float *out_results) {
  kva_tensor in = token_tensor(1, rows, tokens + kva_sequences_length(q, id)), out = {.data = out_results};
  const kva_sequence_rows part = {id, rows, &in, wanted, &out};
  must(m, kva_sequences_append(q, 1, &part));
}

static void step(const model *m, kva_sequences *q, int64_t id, int64_t rows, float *out_results) {
  read_rows(m, q, id, rows, rows, out_results);
}

/* A prompt of PREFIX rows: with results of all, and of the last. */
static void print_prefill_times(const model *m, kva_sequences *q, float *out_results) {
  double times[2] = {0};
  for (int i = 0; i < REPEATS / 3; i++)
    for (int last = 0; last < 2; last++) {
      must(m, kva_sequences_roll_back(q, 0, kva_sequences_length(q, 0)));
      double start = kva_now();
      read_rows(m, q, 0, PREFIX, last ? 1 : PREFIX, out_results);
      times[last] = best(times[last], kva_now() - start);
    }
  print_message("%d rows: %.3f ms, for results of the last %.3f ms\n", PREFIX, times[0] * 1e3, times[1] * 1e3);
}

/* A step behind PREFIX rows, again and again, in turns. */
static void print_times(model *m, hand *h, kva_sequences *q, float *out_results) {
  double derived = 0, by_hand = 0;
  for (int i = 0; i < REPEATS; i++) {
    double start = kva_now();
    step(m, q, 0, 1, out_results);
    derived = best(derived, kva_now() - start);
    must(m, kva_sequences_roll_back(q, 0, 1));
    start = kva_now();
    step_hand(m, h, PREFIX, 1);
    by_hand = best(by_hand, kva_now() - start);
    for (int k = 1; k < 5; k++) free(h->out[k].data);
  }
  print_message("a step behind %d rows: derived %.3f ms, by hand %.3f ms\n", PREFIX, derived * 1e3, by_hand * 1e3);
  print_prefill_times(m, q, out_results);
}

static void as_by_hand(void **state) {
  (void)state;
  static const char *const small[] = {SMALL, "heads", "4", "kv_heads", "2", NULL}, *const real[] = {"vocab", "4096",
                                                                                                    NULL};
  model m = load("models/lm.kv", timed() ? real : small);
  hand h = load_hand(&m, timed() ? real : small);
  draw_tokens();
  share_weights(&m, &h);
  begin_hand(&h);
  m.row = timed() ? 4096 : WORDS;
  kva_sequences *q = create_sequences(&m, 1, PREFIX + 1);
  live l = begin(&m, q, 0);
  float *found = malloc((size_t)(PREFIX * m.row) * sizeof *found);
  assert_non_null(found);
  for (int64_t first = 0, rows; first < PREFIX; first += rows) {
    rows = timed() ? 1 : first ? 1 + first % 3 : 7;
    if (rows > PREFIX - first) rows = PREFIX - first;
    step(&m, q, l.id, rows, found);
    same_rows(&m, "by hand", step_hand(&m, &h, first, rows), found, first, rows);
    take_state(&h);
  }
  if (timed()) print_times(&m, &h, q, found);
  for (int i = 1; i < 5; i++) free(h.in[i].data);
  free(found);
  kva_sequences_destroy(q);
  kva_session_destroy(h.session);
  kva_compiled_destroy(h.compiled);
  unload(&m);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

/* Nothing is done then. */
static void rows_that_cannot_be(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "4", "kv_heads", "2", "separator", "3", NULL});
  draw_tokens();
  float *expected = run_at_once(&m);
  kva_sequences *q = create_sequences(&m, 2, 70);
  live l[3] = {begin(&m, q, 0), begin(&m, q, 1), begin(&m, q, 0)};
  l[0].rows = 70, l[1].rows = 60, l[2].rows = 5;
  refused(&m, try_append(q, 3, l), KVA_OK, "");
  assert_int_equal(kva_sequences_free_rows(q), 0);
  l[0].rows = 1, l[1].rows = 0;
  refused(&m, try_append(q, 2, l), KVA_INVALID, "sequence 0 has 70 rows and room for 70; 1 more do not fit");
  l[0].rows = 0, l[1].rows = 5;
  refused(&m, try_append(q, 2, l), KVA_NO_MEMORY, "no page is free: all 4 pages of 64 rows are in use by sequences");
  assert_int_equal(kva_sequences_length(q, 1), 60);
  kva_sequences_remove(q, 2);
  assert_int_equal(kva_sequences_length(q, 2), -1);
  append(&m, q, "a page that was given back", expected, 2, l);
  l[0] = l[1];
  refused(&m, try_append(q, 2, l), KVA_INVALID, "sequence 1 is named twice");
  refused(&m, try_append(q, 1, &(live){.id = 2, .rows = 1}), KVA_INVALID, "there is no sequence 2");
  refused(&m, kva_sequences_roll_back(q, 1, 66), KVA_INVALID, "sequence 1 has not 66 rows to take away");
  kva_tensor in = token_tensor(2, 1, tokens), out = {0};
  refused(&m, kva_sequences_append(q, 1, &(kva_sequence_rows){1, 1, &in, 0, &out}), KVA_INVALID,
          "input 'tokens' of sequence 1: expected int32 of rank 2 with first dimension 1 and 1 rows");
  kva_sequences_destroy(q);
  free(expected);
  unload(&m);
}

static void sequences_that_cannot_be(void **state) {
  (void)state;
  model m =
      load_pinned("models/lm.kv", (const char *[]){SMALL, "heads", "2", NULL}, 1, (const kva_define[]){{"B", "2"}});
  kva_sequences *q;
  const kva_sequences_options one = {.longest = 10}, none = {.longest = 0}, vast = {.longest = INT64_MAX / 8};
  assert_int_equal(kva_sequences_create(m.session, &one, m.diag, &q), KVA_INVALID);
  unload(&m);
  m = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", NULL});
  assert_int_equal(kva_sequences_create(m.session, &none, m.diag, &q), KVA_INVALID);
  assert_int_equal(kva_sequences_create(m.session, &vast, m.diag, &q), KVA_NO_MEMORY);
  assert_null(q);
  unload(&m);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Nothing that a step runs or stores grows with the room. */
static void room_costs_nothing(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "4", "kv_heads", "2", "separator", "3", NULL});
  draw_tokens();
  int64_t bytes[2];
  for (int i = 0; i < 2; i++) {
    kva_sequences *q = create_sequences(&m, 1, i ? 100000 : 64);
    const kva_program *p = kva_sequences_program(q);
    for (int32_t k = 0; k < p->n_steps; k++) {
      if (p->steps[k].kind != KVA_STEP_COPY) continue;
      const char *name = p->buffers[p->steps[k].args[0]].name;
      assert_true(strncmp(name, "keys", 4) && strncmp(name, "values", 6) && strncmp(name, "mask", 4));
    }
    live l = begin(&m, q, 0);
    l.rows = 3;
    must(&m, try_append(q, 1, &l));
    kva_memory_report report;
    kva_session_memory(m.session, kva_session_program(m.session, "decode"), &report);
    bytes[i] = report.temps;
    kva_sequences_destroy(q);
  }
  assert_int_equal(bytes[0], bytes[1]);
  unload(&m);
}

/* Products by a transposed matrix have an order of their own for few rows, and yet: rows have the bits that they have
 * without company. */
static void company_changes_nothing(void **state) {
  (void)state;
  enum { STEPS = 6 };
  static const int64_t rows[3][STEPS] = {{30, 1, 1, 1, 1, 1}, {30, 0, 1, 12, 1, 1}, {9, 1, 1, 1, 0, 40}};
  static float alone[3][STEPS][64];
  steps_of = 2;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", "tied", "true", NULL});
  steps_of = 0;
  draw_tokens();
  m.row = WORDS;
  kva_sequences *q = create_sequences(&m, 6, LENGTH);
  live l[6];
  for (int i = 0; i < 6; i++) l[i] = begin(&m, q, i % 2), l[i].last = true;
  for (int i = 0; i < 3; i++)
    for (int k = 0; k < STEPS; k++) {
      live *one = &l[i];
      one->rows = rows[i][k], one->which = i % 2;
      must(&m, try_append(q, 1, one));
      memcpy(alone[i][k], results[0], sizeof alone[i][k]);
    }
  for (int k = 0; k < STEPS; k++) {
    for (int i = 0; i < 3; i++) l[3 + i].rows = rows[i][k], l[3 + i].which = i % 2;
    must(&m, try_append(q, 3, l + 3));
    for (int i = 0; i < 3; i++)
      if (rows[i][k]) assert_memory_equal(results[i], alone[i][k], (size_t)m.row * sizeof(float));
  }
  kva_sequences_destroy(q);
  unload(&m);
}

static int64_t output_bytes(const model *m, const char *program) {
  kva_memory_report report;
  kva_session_memory(m->session, kva_session_program(m->session, program), &report);
  return report.outputs;
}

/* Reading a prompt computes the results of its last row alone. */
static void prompts_need_one_result(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", NULL});
  draw_tokens();
  float *expected = run_at_once(&m);
  kva_sequences *q = create_sequences(&m, 1, LENGTH);
  live l = begin(&m, q, 0);
  l.rows = 20, l.last = true;
  append(&m, q, "a prompt", expected, 1, &l);
  int64_t last = output_bytes(&m, "prefill");
  l.last = false;
  append(&m, q, "rows", expected, 1, &l);
  assert_int_equal(output_bytes(&m, "decode") - last, 19 * m.row * (int64_t)sizeof(float));
  kva_sequences_destroy(q);
  free(expected);
  unload(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(language_model),          cmocka_unit_test(many_layers),
      cmocka_unit_test(heads_of_whole_vectors),  cmocka_unit_test(narrow_caches),
      cmocka_unit_test(without_shift),           cmocka_unit_test(documents),
      cmocka_unit_test(shifts_of_all_kinds),     cmocka_unit_test(rules_of_all_kinds),
      cmocka_unit_test(spelled_out_operators),   cmocka_unit_test(shifts_without_mix),
      cmocka_unit_test(shifts_of_one_tap),       cmocka_unit_test(on_simulator),
      cmocka_unit_test(pages_on_simulator),      cmocka_unit_test(as_by_hand),
      cmocka_unit_test(rows_that_cannot_be),     cmocka_unit_test(sequences_that_cannot_be),
      cmocka_unit_test(room_costs_nothing),      cmocka_unit_test(company_changes_nothing),
      cmocka_unit_test(prompts_need_one_result),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
