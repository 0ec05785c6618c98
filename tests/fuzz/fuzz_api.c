/* The interface of deployed models under random calls, right and wrong ones: sessions, contexts and trainers of one
 * compiled model. What is allowed succeeds with the right numbers; what the headers forbid is refused with a message
 * and changes nothing. */
#include "tests/fuzz/fuzz.h"
#include "tools/driver/driver.h"
#include "runtime/context.h"

#include <math.h>
#include <stdlib.h>

static const char source[] = "model api (float[B, T] x) => (float[B, T] y, float[B] total) {\n"
                             "  param float k ~ constant(2.0)\n"
                             "  param float[4] w ~ normal(0.5)\n"
                             "  y = x * k + 1\n"
                             "  total = kv.reduce_sum <axes = [1], keepdims = false> (kv.sin(y) * 0.25)\n"
                             "  total = total + kv.reduce_sum <keepdims = false> (w) * 0\n"
                             "}\n"
                             "train api (float[B] target) {\n"
                             "  d = total - target\n"
                             "  loss = kv.reduce_mean <keepdims = false> (d * d)\n"
                             "  optimizer = AdamW <lr = 1e-3>\n"
                             "  batch = 2\n"
                             "  data = random\n"
                             "}\n";

enum { SESSIONS = 3, MOST_ROWS = 5, MOST_COLUMNS = 40, ELEMENTS = MOST_ROWS * MOST_COLUMNS, MOST_CALLS = 60 };

typedef struct host {
  kva_session *sessions[SESSIONS];
  kva_context *contexts[SESSIONS];
  kva_trainer *trainers[SESSIONS];
  kva_symbol_value lengths[SESSIONS]; /* of trainers */
  kva_data_source data[SESSIONS];
  bool has_data[SESSIONS];
  bool lost[SESSIONS]; /* a state may hold anything: a trainer ran, or numbers were written */
  fuzz_bytes bytes;
  float x[ELEMENTS], y[ELEMENTS], more[ELEMENTS];
} host;

static const kva_compiled *model(void) {
  static kva_compiled *c;
  if (c) return c;
  kva_diag *diag = kva_diag_create();
  kva_module *m;
  kva_status status = kva_load_text(source, "api.kv", &(kva_load_options){0}, diag, &m);
  if (status == KVA_OK) status = kva_compile(m, &(kva_compile_options){.train = true}, diag, &c);
  if (status) kva_diag_print(diag, stderr);
  fuzz_require(status == KVA_OK, "the model does not compile");
  kva_diag_destroy(diag);
  return c;
}

static void say(const char *call, long long a, long long b, int status) {
  if (fuzz_prints()) fprintf(stderr, "%s %lld %lld: %d\n", call, a, b, status);
}

/* ---- the caller's memory and threads ----------------------------------------------------------------------------- */

static int64_t allocations, allowed; /* allowed: -1 all */

static void *allocate(void *user, size_t bytes, size_t alignment) {
  (void)user;
  if (allowed >= 0 && allocations >= allowed) return NULL;
  allocations++;
  void *memory = NULL;
  if (bytes > (size_t)1 << 30 || posix_memalign(&memory, alignment < 8 ? 8 : alignment, bytes + 1)) return NULL;
  memset(memory, 0xA5, bytes);
  return memory;
}

static void release(void *user, void *memory) {
  (void)user;
  free(memory);
}

static void run_backwards(void *user, int64_t n, void (*work)(void *ctx, int64_t begin, int64_t end), void *ctx) {
  (void)user;
  for (int64_t i = n; i-- > 0;) work(ctx, i, i + 1);
}

static const kva_allocator allocator = {allocate, release, NULL};
static const kva_parallel parallel = {2, run_backwards, NULL};

static void limit_memory(host *h) {
  allocations = 0;
  allowed = fuzz_below(&h->bytes, 2) ? -1 : (int64_t)fuzz_below(&h->bytes, 24);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static int64_t draw_extent(host *h, int64_t most) {
  static const int64_t odd[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 62}; /* bytes overflow */
  uint32_t k = fuzz_below(&h->bytes, 64);
  return k < 4 ? odd[k] : k % (most + 1);
}

static bool is_possible(int64_t rows, int64_t columns) {
  return rows >= 0 && columns >= 0 && rows <= MOST_ROWS && (columns <= MOST_COLUMNS || rows == 0);
}

/* y = k x + 1 and total = sum(sin(y)) / 4, from the state as it is. */
static void check_numbers(kva_session *s, const float *x, const float *y, const float *total, int64_t rows,
                          int64_t columns, float k) {
  kva_tensor t;
  if (s) {
    fuzz_require(kva_session_state(s, "k", &t), "state k is missing");
    k = *(const float *)t.data;
  }
  if (!isfinite(k) || fabsf(k) > 100) return;
  for (int64_t r = 0; r < rows; r++) {
    double sum = 0;
    for (int64_t c = 0; c < columns; c++) {
      double expected = (double)x[r * columns + c] * (double)k + 1;
      fuzz_require(fabs((double)y[r * columns + c] - expected) <= 1e-5 * fmax(1, fabs(expected)), "y is wrong");
      sum += sin(expected) * 0.25;
    }
    fuzz_require(fabs((double)total[r] - sum) <= 1e-3, "total is wrong");
  }
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

static void drop(host *h, uint32_t i) {
  kva_trainer_destroy(h->trainers[i]);
  kva_session_destroy(h->sessions[i]);
  kva_context_destroy(h->contexts[i]);
  if (h->has_data[i]) h->data[i].destroy(h->data[i].self);
  h->trainers[i] = NULL;
  h->sessions[i] = NULL;
  h->contexts[i] = NULL;
  h->has_data[i] = h->lost[i] = false;
}

static void create_session(host *h, uint32_t i) {
  static const char *const devices[] = {NULL, "cpu", NULL, "abacus"};
  static float arena[1024] __attribute__((aligned(64)));
  fuzz_bytes *b = &h->bytes;
  kva_session_options o = {.threads = 1 + (int)fuzz_below(b, 3), .seed = fuzz_below(b, 256), .sleep = true};
  o.device = devices[fuzz_below(b, 4)];
  o.profile = fuzz_below(b, 2);
  o.weights = fuzz_below(b, 8) ? NULL : "/there/is/no/such/file";
  o.allocator = fuzz_below(b, 2) ? &allocator : NULL;
  o.parallel = fuzz_below(b, 4) ? NULL : &parallel;
  if (!fuzz_below(b, 4)) o.arena = arena, o.arena_bytes = sizeof arena;
  if (o.allocator) limit_memory(h);
  kva_diag *diag = kva_diag_create();
  drop(h, i);
  kva_status status = kva_session_create(model()->artifact, &o, diag, &h->sessions[i]);
  allowed = -1;
  fuzz_answer(status, h->sessions[i] != NULL, diag);
  bool right = (!o.device || !strcmp(o.device, "cpu")) && !o.allocator && !o.weights;
  if (status && right) kva_diag_print(diag, stderr);
  fuzz_require(status == KVA_OK || !right, "a session is refused");
  say("kva_session_create", i, 0, status);
  kva_diag_destroy(diag);
}

/* Contradicts the model in one way, or in none. */
static bool spoil(host *h, kva_tensor *x) {
  switch (fuzz_below(&h->bytes, 16)) {
  case 0: x->dtype = KVA_F64; return true;
  case 1: x->rank = 1; return true;
  case 2: x->rank = -1; return true;
  case 3: x->rank = 9; return true;
  case 4: x->data = NULL; return x->dims[0] * x->dims[1] > 0;
  case 5: x->dtype = KVA_DTYPE_NONE; return true;
  default: return false;
  }
}

static void run_session(host *h, uint32_t i) {
  kva_session *s = h->sessions[i];
  if (!s) return;
  int64_t rows = draw_extent(h, MOST_ROWS), columns = draw_extent(h, MOST_COLUMNS);
  kva_tensor x = {.dtype = KVA_F32, .rank = 2, .dims = {rows, columns}, .data = h->x}, out[2] = {{0}};
  bool possible = is_possible(rows, columns);
  bool wrong = !possible || spoil(h, &x);
  int program = fuzz_below(&h->bytes, 8) ? kva_session_program(s, "api") : (int)fuzz_below(&h->bytes, 9) - 60;
  if (fuzz_below(&h->bytes, 2)) out[0].data = h->y, out[1].data = h->more;
  wrong |= program < 0;
  kva_status status = kva_session_run(s, program, &x, out);
  say("kva_session_run", rows, columns, status);
  fuzz_require(status != KVA_OK || !wrong, "a wrong call succeeds");
  fuzz_require((status == KVA_OK) == (*kva_session_error(s) == 0), "status and message contradict each other");
  if (status != KVA_OK) {
    fuzz_require(wrong || status == KVA_NO_MEMORY, "a right call fails");
    return;
  }
  fuzz_require(out[0].rank == 2 && out[0].dims[0] == rows && out[0].dims[1] == columns && out[1].dims[0] == rows,
               "the outputs have other extents");
  check_numbers(s, h->x, out[0].data, out[1].data, rows, columns, 0);
}

static void ask_session(host *h, uint32_t i) {
  kva_session *s = h->sessions[i];
  if (!s) return;
  kva_tensor t;
  kva_memory_report memory;
  int64_t bytes[64], *const none = NULL;
  const double *seconds;
  const int64_t *calls;
  int program = (int)fuzz_below(&h->bytes, (uint32_t)kva_artifact_programs(kva_session_artifact(s)));
  fuzz_require(!kva_session_state(s, "there is none", &t), "a state that is not there");
  fuzz_require(kva_session_program(s, "there is none") < 0, "a program that is not there");
  fuzz_require(!kva_session_program_desc(s, -1), "a description of program -1");
  fuzz_require(!kva_session_program_desc(s, 1000), "a description of program 1000");
  kva_session_memory(s, program, &memory);
  fuzz_require(memory.params >= 0 && memory.temps >= 0, "a negative size");
  kva_session_timeline(s, program, 64, bytes);
  kva_session_timeline(s, program, 0, none);
  int steps = kva_session_profile(s, program, &seconds, &calls);
  for (int k = 0; k < steps; k++) kva_session_step_bytes(s, program, k);
  for (int k = 0; k < kva_session_state_count(s); k++) kva_session_state_desc(s, k, &t);
}

static void write_state(host *h, uint32_t i) {
  kva_tensor t;
  if (!h->sessions[i] || !kva_session_state(h->sessions[i], "k", &t)) return;
  *(float *)t.data = (float)fuzz_below(&h->bytes, 17) / 4 - 2;
  h->lost[i] = true;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

static void create_context(host *h, uint32_t i) {
  fuzz_bytes *b = &h->bytes;
  char message[64] = "";
  kva_context_options o = {.threads = (int)fuzz_below(b, 4) - 1, .seed = fuzz_below(b, 256)};
  o.allocator = fuzz_below(b, 2) ? &allocator : NULL;
  o.parallel = fuzz_below(b, 4) ? NULL : &parallel;
  o.device = fuzz_below(b, 8) ? NULL : "abacus";
  if (o.allocator) limit_memory(h);
  kva_context *c = NULL;
  bool silent = fuzz_below(b, 4) == 0;
  int status = kva_context_create(model()->artifact, fuzz_below(b, 4) ? &o : NULL, &c, silent ? NULL : message,
                                  silent ? 0 : sizeof message);
  allowed = -1;
  say("kva_context_create", i, 0, status);
  fuzz_require((status == 0) == (c != NULL), "status and result contradict each other");
  fuzz_require(silent || (status == 0) == (*message == 0), "status and message contradict each other");
  kva_context_destroy(h->contexts[i]);
  h->contexts[i] = c;
}

static void run_context(host *h, uint32_t i) {
  kva_context *c = h->contexts[i];
  if (!c) return;
  int64_t dims[2] = {draw_extent(h, MOST_ROWS), draw_extent(h, MOST_COLUMNS)};
  const void *inputs[] = {fuzz_below(&h->bytes, 8) ? h->x : NULL};
  void *outputs[2] = {fuzz_below(&h->bytes, 2) ? h->y : NULL, NULL};
  uint32_t how = fuzz_below(&h->bytes, 32);
  int program = how == 0 ? -1 : how == 1 ? 99 : 0;
  bool wrong = how < 5 || !is_possible(dims[0], dims[1]) || (!inputs[0] && dims[0] * dims[1] > 0);
  int status = kva_context_run(c, program, how == 2 ? NULL : inputs, how == 3 ? NULL : outputs, how == 4 ? NULL : dims);
  say("kva_context_run", dims[0], dims[1], status);
  kva_context_arena_bytes(model()->artifact, program, dims);
  fuzz_require(status != 0 || !wrong, "a wrong call succeeds");
  fuzz_require((status == 0) == (*kva_context_error(c) == 0), "status and message contradict each other");
  if (status) {
    fuzz_require(wrong || status == KVA_NO_MEMORY, "a right call fails");
    return;
  }
  int64_t found[2] = {-1, -1};
  kva_context_dims(c, 0, found);
  fuzz_require(found[0] == dims[0] && found[1] == dims[1], "the context has other extents");
  check_numbers(NULL, h->x, outputs[0], outputs[1], dims[0], dims[1], 2);
}

/* Null pointers where none is allowed. */
static void call_with_null(host *h, uint32_t i) {
  const kva_artifact *a = model()->artifact;
  kva_diag *diag = kva_diag_create();
  kva_session *s = h->sessions[i];
  kva_tensor x = {.dtype = KVA_F32, .rank = 2, .data = h->x}, out[2] = {{0}};
  kva_context *c = NULL;
  char message[32] = "";
  fuzz_require(kva_session_create(NULL, NULL, diag, &s) != KVA_OK, "a session of nothing");
  fuzz_require(kva_session_create(a, NULL, diag, NULL) != KVA_OK, "a session for nobody");
  fuzz_require(kva_session_run(NULL, 0, &x, out) != KVA_OK, "a run of no session");
  s = h->sessions[i];
  fuzz_require(!s || kva_session_run(s, 0, NULL, out) != KVA_OK, "a run without inputs");
  fuzz_require(!s || kva_session_run(s, 0, &x, NULL) != KVA_OK, "a run without outputs");
  fuzz_require(*kva_session_error(s) && *kva_context_error(NULL), "an error without a message");
  fuzz_require(kva_context_create(NULL, NULL, &c, message, sizeof message) && *message, "a context of nothing");
  fuzz_require(kva_context_create(a, NULL, NULL, NULL, 0), "a context for nobody");
  fuzz_require(kva_context_run(NULL, 0, NULL, NULL, NULL), "a run of no context");
  fuzz_require(kva_context_arena_bytes(NULL, 0, NULL) < 0 && kva_context_arena_bytes(a, 0, NULL) < 0,
               "an arena of no size");
  kva_context_dims(h->contexts[i], 0, NULL);
  kva_diag_destroy(diag);
}

/* ---- trainers ---------------------------------------------------------------------------------------------------- */

static void create_trainer(host *h, uint32_t i) {
  static const int64_t counts[] = {2, 1, 4, 3, 0, -1, INT64_MAX, 6};
  fuzz_bytes *b = &h->bytes;
  const int64_t length = 1 + fuzz_below(b, 8);
  kva_train_options o = {.steps = counts[fuzz_below(b, 8)], .batch = counts[fuzz_below(b, 8)]};
  o.micro_batch = counts[fuzz_below(b, 8)];
  o.eval_batches = 1;
  o.schedule = (kva_schedule){.kind = KVA_SCHEDULE_CONSTANT, .lr = 1e-3, .total = 10};
  o.n_symbols = fuzz_below(b, 4) ? 1 : 0;
  o.symbols = &h->lengths[i];
  if (!h->sessions[i] || o.batch > 100 || o.micro_batch > 100) return;
  kva_trainer_destroy(h->trainers[i]);
  h->trainers[i] = NULL;
  h->lengths[i] = (kva_symbol_value){"T", length};
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_trainer_create(h->sessions[i], &o, diag, &h->trainers[i]);
  say("kva_trainer_create", o.batch, o.micro_batch, status);
  fuzz_answer(status, h->trainers[i] != NULL, diag);
  kva_diag_destroy(diag);
}

static void bind_data(host *h, uint32_t i) {
  static const char *const names[] = {"random", "induction", "ngram", "hop", "igsm", "nothing"};
  static const kva_data_arg args[] = {{"all", 0}, {"pool", 48}, {"pairs", -1}};
  kva_diag *diag = kva_diag_create();
  kva_data_source data;
  kva_status status =
      kva_data_create(names[fuzz_below(&h->bytes, sizeof names / sizeof *names)], (int)fuzz_below(&h->bytes, 3), args,
                      (int64_t)fuzz_below(&h->bytes, 100), diag, &data);
  fuzz_answer(status, status == KVA_OK, diag);
  if (status == KVA_OK && h->trainers[i] && !h->has_data[i]) {
    kva_trainer_bind(h->trainers[i], &h->data[i]);
    h->data[i] = data;
    h->has_data[i] = true;
  } else if (status == KVA_OK) {
    data.destroy(data.self);
  }
  kva_diag_destroy(diag);
}

static void step_trainer(host *h, uint32_t i) {
  if (!h->trainers[i] || !h->has_data[i]) return;
  kva_train_event event;
  kva_diag *diag = kva_diag_create();
  kva_trainer_bind(h->trainers[i], &h->data[i]);
  int64_t before = kva_trainer_done(h->trainers[i]);
  bool evaluates = fuzz_below(&h->bytes, 2);
  kva_status status = evaluates ? kva_trainer_evaluate(h->trainers[i], diag, fuzz_below(&h->bytes, 2) ? &event : NULL)
                                : kva_trainer_step(h->trainers[i], diag, fuzz_below(&h->bytes, 2) ? &event : NULL);
  fuzz_answer(status, status == KVA_OK, diag);
  int64_t steps = kva_trainer_done(h->trainers[i]) - before;
  fuzz_require(steps == (status == KVA_OK && !evaluates), "the trainer counts wrongly");
  say("kva_trainer_step", steps, evaluates, status);
  kva_diag_destroy(diag);
}

/* Saves and loads: the position is as before; or loads a file that is none. */
static void save_trainer(host *h, uint32_t i) {
  char path[64];
  if (!h->trainers[i]) return;
  snprintf(path, sizeof path, "/tmp/kvasir-fuzz-api-%p.safetensors", (void *)h);
  kva_diag *diag = kva_diag_create();
  int64_t done = kva_trainer_done(h->trainers[i]);
  bool wrong = fuzz_below(&h->bytes, 2);
  kva_status saved = kva_trainer_save(h->trainers[i], path, diag);
  kva_status loaded = kva_trainer_load(h->trainers[i], wrong ? "/dev/null" : path, diag);
  remove(path);
  if (saved || (loaded && !wrong)) kva_diag_print(diag, stderr);
  fuzz_require(saved == KVA_OK && (loaded == KVA_OK) == !wrong, "a checkpoint is not what was saved");
  fuzz_require(kva_trainer_done(h->trainers[i]) == done, "the position changed");
  say("kva_trainer_save", done, wrong, loaded);
  kva_diag_destroy(diag);
}

static void drop_one(host *h, uint32_t i) {
  drop(h, i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const calls[])(host * h, uint32_t i) = {create_session, run_session,  run_session,    run_session,
                                                        ask_session,    write_state,  call_with_null, create_context,
                                                        run_context,    run_context,  create_trainer, bind_data,
                                                        step_trainer,   step_trainer, save_trainer,   drop_one};
  static host h;
  memset(&h, 0, sizeof h);
  h.bytes = (fuzz_bytes){data, size};
  allowed = -1;
  for (int k = 0; k < ELEMENTS; k++) h.x[k] = (float)(k % 13) / 4 - 1.5f;
  for (uint32_t i = 0; i < SESSIONS; i++) create_session(&h, i);
  for (int k = 0; k < MOST_CALLS && h.bytes.n; k++) {
    uint32_t call = fuzz_below(&h.bytes, sizeof calls / sizeof *calls);
    calls[call](&h, fuzz_below(&h.bytes, SESSIONS));
  }
  for (uint32_t i = 0; i < SESSIONS; i++) drop(&h, i);
  return 0;
}
