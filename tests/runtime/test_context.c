/* Contexts: programs by plain pointers, with the caller's memory, arena and threads; failures as messages. */
#include "runtime/context.h"
#include "tests/runtime/sample.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { ROWS = 400, COLUMNS = 100 }; /* enough for threads to be used */

typedef struct counts {
  int live, total, limit; /* limit: allocations after which there is no memory; 0: none */
} counts;

static void *allocate(void *user, size_t bytes, size_t alignment) {
  counts *c = user;
  if (c->limit && c->total >= c->limit) return NULL;
  c->live++;
  c->total++;
  void *p = aligned_alloc(alignment, bytes);
  memset(p, 0xA5, bytes); /* whoever needs zeros must write them */
  return p;
}

static void release(void *user, void *memory) {
  ((counts *)user)->live--;
  free(memory);
}

/* Backwards, item by item: the order must not matter. */
static void run_backwards(void *user, int64_t n, void (*work)(void *ctx, int64_t begin, int64_t end), void *ctx) {
  ++*(int *)user;
  for (int64_t i = n; i-- > 0;) work(ctx, i, i + 1);
}

static float *numbers(void) {
  float *x = malloc(ROWS * COLUMNS * sizeof *x);
  for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i % 7) - 2.5f;
  return x;
}

/* The outputs of program "total" by a session. */
static void expect_total(const float *x, float *out) {
  kva_session *s;
  assert_int_equal(kva_session_create(&sample_artifact, NULL, NULL, &s), KVA_OK);
  kva_tensor in = sample_matrix((float *)(uintptr_t)x, ROWS, COLUMNS), o[2] = {{0}};
  assert_int_equal(kva_session_run(s, P_TOTAL, &in, o), KVA_OK);
  for (int i = 0; i < 2; i++) memcpy(&out[i], o[i].data, sizeof(float));
  kva_session_destroy(s);
}

/* dims of sample_artifact's program in its symbols' order. */
static void fill_dims(int64_t *dims) {
  const kva_program *p = &sample_artifact.programs[P_TOTAL];
  for (int32_t i = 0; i < p->n_symbols; i++) dims[i] = i == 0 ? ROWS : COLUMNS;
}

static void run_total(kva_context *c, const float *x, float *out) {
  const void *in[] = {x};
  void *o[] = {NULL, NULL};
  int64_t dims[8];
  fill_dims(dims);
  assert_int_equal(kva_context_run(c, P_TOTAL, in, o, dims), 0);
  for (int i = 0; i < 2; i++) memcpy(&out[i], o[i], sizeof(float));
}

static void gives_what_sessions_give(void **unused) {
  (void)unused;
  float *x = numbers(), expected[2], found[2];
  expect_total(x, expected);
  kva_context *c;
  assert_int_equal(kva_context_create(&sample_artifact, NULL, &c, NULL, 0), 0);
  run_total(c, x, found);
  assert_memory_equal(expected, found, sizeof found);
  assert_string_equal(kva_context_error(c), "");
  kva_context_destroy(c);
  free(x);
}

static void takes_memory_and_threads(void **unused) {
  (void)unused;
  float *x = numbers(), expected[2], found[2];
  int64_t dims[8];
  fill_dims(dims);
  expect_total(x, expected);
  int64_t bytes = kva_context_arena_bytes(&sample_artifact, P_TOTAL, dims);
  assert_true(bytes > 0);
  counts n = {0};
  int jobs = 0;
  void *arena = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
  kva_allocator allocator = {allocate, release, &n};
  kva_parallel parallel = {2, run_backwards, &jobs};
  kva_context_options o = {
      .allocator = &allocator, .parallel = &parallel, .arena = arena, .arena_bytes = (size_t)bytes};
  kva_context *c;
  assert_int_equal(kva_context_create(&sample_artifact, &o, &c, NULL, 0), 0);
  run_total(c, x, found);
  assert_memory_equal(expected, found, sizeof found);
  assert_true(jobs > 0);
  int before = n.total;
  run_total(c, x, found);
  assert_int_equal(n.total, before);
  kva_context_destroy(c);
  assert_int_equal(n.live, 0);
  o.arena_bytes--;
  assert_int_equal(kva_context_create(&sample_artifact, &o, &c, NULL, 0), 0);
  const void *in[] = {x};
  void *out[] = {NULL, NULL};
  assert_int_equal(kva_context_run(c, P_TOTAL, in, out, dims), KVA_NO_MEMORY);
  assert_non_null(strstr(kva_context_error(c), "arena"));
  kva_context_destroy(c);
  free(arena);
  free(x);
}

/* No memory at any point: a status and nothing left behind. */
static void survives_without_memory(void **unused) {
  (void)unused;
  bool created = false;
  for (int limit = 1; !created && limit < 200; limit++) {
    counts n = {.limit = limit};
    kva_allocator allocator = {allocate, release, &n};
    kva_context *c;
    char message[100] = "";
    int status = kva_context_create(&sample_artifact, &(kva_context_options){.allocator = &allocator}, &c, message,
                                    sizeof message);
    created = status == 0;
    assert_true(created || (status == KVA_NO_MEMORY && message[0] && !c));
    kva_context_destroy(c);
    assert_int_equal(n.live, 0);
  }
  assert_true(created);
}

static void tells_what_is_wrong(void **unused) {
  (void)unused;
  kva_context *c;
  char message[200];
  uint64_t junk[64] = {0};
  assert_int_equal(kva_context_create((const kva_artifact *)(const void *)junk, NULL, &c, message, sizeof message),
                   KVA_INVALID);
  assert_non_null(strstr(message, "artefact"));
  assert_null(c);
  assert_int_equal(kva_context_create(&sample_artifact, &(kva_context_options){.arena = (char *)junk + 1}, &c, message,
                                      sizeof message),
                   KVA_INVALID);
  assert_non_null(strstr(message, "aligned"));
  assert_int_equal(kva_context_create(&sample_artifact, &(kva_context_options){.weights = "/no/such/weights"}, &c,
                                      message, sizeof message),
                   KVA_IO);
  assert_non_null(strstr(message, "/no/such/weights: "));
  assert_int_equal(kva_context_create(&sample_artifact, NULL, &c, message, 5), 0);
  const void *in[] = {NULL};
  void *out[] = {NULL, NULL};
  int64_t dims[8];
  fill_dims(dims);
  assert_int_equal(kva_context_run(c, 99, in, out, dims), KVA_INVALID);
  assert_int_equal(kva_context_run(c, P_TOTAL, NULL, out, dims), KVA_INVALID);
  assert_int_equal(kva_context_run(c, P_TOTAL, in, out, dims), KVA_INVALID);
  assert_non_null(strstr(kva_context_error(c), "no data"));
  dims[0] = -1;
  assert_int_equal(kva_context_run(c, P_TOTAL, in, out, dims), KVA_INVALID);
  assert_true(kva_context_error(c)[0]);
  assert_int_equal(kva_context_arena_bytes(&sample_artifact, 99, dims), -1);
  const int64_t impossible[][2] = {{-1, 4}, {4, -1}, {INT64_MAX / 2, INT64_MAX / 2}};
  for (int i = 0; i < 3; i++) assert_int_equal(kva_context_arena_bytes(&sample_artifact, P_TOTAL, impossible[i]), -1);
  kva_context_destroy(c);
}

static void null_pointers(void **state) {
  (void)state;
  kva_context *c = NULL;
  char message[64];
  assert_int_equal(kva_context_create(NULL, NULL, &c, message, sizeof message), KVA_INVALID);
  assert_string_equal(message, "artifact and out_context must not be null");
  assert_int_equal(kva_context_create(&sample_artifact, NULL, NULL, NULL, 0), KVA_INVALID);
  assert_int_equal(kva_context_run(NULL, 0, NULL, NULL, NULL), KVA_INVALID);
  assert_non_null(kva_context_error(NULL));
  assert_int_equal(kva_context_arena_bytes(NULL, 0, NULL), -1);
  assert_int_equal(kva_context_arena_bytes(&sample_artifact, P_TOTAL, NULL), -1);
  kva_context_dims(NULL, 0, NULL);
  kva_context_destroy(NULL);
  const kva_allocator no_release = {.allocate = allocate};
  const kva_parallel no_run = {.threads = 2};
  const kva_context_options without[] = {{.allocator = &no_release}, {.parallel = &no_run}};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(kva_context_create(&sample_artifact, &without[i], &c, message, sizeof message), KVA_INVALID);
    assert_string_equal(message, "allocator or parallel lacks a function");
  }
  assert_int_equal(kva_context_create(&sample_artifact, NULL, &c, NULL, 0), KVA_OK);
  assert_int_equal(kva_context_run(c, P_TOTAL, NULL, NULL, NULL), KVA_INVALID);
  assert_string_equal(kva_context_error(c), "inputs, outputs and dims must not be null");
  kva_context_dims(c, P_TOTAL, NULL);
  kva_context_destroy(c);
  kva_diag *diag = kva_diag_create();
  kva_session *s = NULL;
  assert_int_equal(kva_session_create(NULL, NULL, diag, &s), KVA_INVALID);
  assert_int_equal(kva_session_create(&sample_artifact, NULL, diag, NULL), KVA_INVALID);
  assert_int_equal(kva_session_create(&sample_artifact, NULL, diag, &s), KVA_OK);
  assert_int_equal(kva_session_run(NULL, P_TOTAL, NULL, NULL), KVA_INVALID);
  assert_non_null(kva_session_error(NULL));
  assert_int_equal(kva_session_run(s, P_TOTAL, NULL, NULL), KVA_INVALID);
  assert_non_null(strstr(kva_session_error(s), "must not be null"));
  kva_session_destroy(s);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(null_pointers),
      cmocka_unit_test(gives_what_sessions_give),
      cmocka_unit_test(takes_memory_and_threads),
      cmocka_unit_test(survives_without_memory),
      cmocka_unit_test(tells_what_is_wrong),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
