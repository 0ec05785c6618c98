/* No allocation inside a step: a run whose shapes are bound allocates nothing at all, and so does a training step after
 * the first; so does a run whose sizes depend on data, once the largest has been seen. Counted by standing in for the
 * allocator (glibc), or by the sanitizer's own hook. */
#include "tools/driver/driver.h"

#include "runtime/base/platform.h"
#include "runtime/sequences.h"
#include "runtime/session.h"
#include "tests/runtime/control_sample.h"

#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <cmocka.h>

static atomic_long allocations;

#if defined(__SANITIZE_ADDRESS__)
/* gcc installs libasan without its headers. */
extern int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                                     void (*on_free)(const volatile void *));
static void count_allocation(const volatile void *p, size_t size) {
  (void)p;
  (void)size;
  atomic_fetch_add(&allocations, 1);
}
static void ignore_free(const volatile void *p) {
  (void)p;
}
static void install(void) {
  assert_true(__sanitizer_install_malloc_and_free_hooks(count_allocation, ignore_free) > 0);
}
#else
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
void *malloc(size_t size) {
  atomic_fetch_add(&allocations, 1);
  return __libc_malloc(size);
}
void *calloc(size_t n, size_t size) {
  atomic_fetch_add(&allocations, 1);
  return __libc_calloc(n, size);
}
void *realloc(void *p, size_t size) {
  atomic_fetch_add(&allocations, 1);
  return __libc_realloc(p, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
  atomic_fetch_add(&allocations, 1);
  return __libc_memalign(alignment, size);
}
static void install(void) {}
#endif

static void the_counter_counts(void **unused) {
  (void)unused;
  install();
  long before = atomic_load(&allocations);
  void *volatile p = malloc(100);
  assert_non_null(p);
  free(p);
  p = calloc(3, 5);
  free(p);
  assert_int_equal(atomic_load(&allocations) - before, 2);
}

static void meet(void *met, int64_t first, int64_t last) {
  atomic_fetch_add((atomic_long *)met, last - first);
  while (atomic_load((atomic_long *)met) < 2) sched_yield();
}

/* A thread of the sanitizer allocates when it starts, which may be long after the session exists. */
static kva_session *create_session(const kva_artifact *a, const kva_session_options *options) {
  kva_session *s;
  assert_int_equal(kva_session_create(a, options, NULL, &s), KVA_OK);
  atomic_long met = 0;
  kva_pool_run(s->pool, 2, meet, &met);
  return s;
}

static void bound_runs_do_not_allocate(void **unused) {
  (void)unused;
  enum { HEIGHT = 500, WIDTH = 100 };
  kva_session *s = create_session(&sample_artifact, &(kva_session_options){.threads = 2, .profile = true});
  float *x = calloc(HEIGHT * WIDTH, sizeof *x);
  kva_tensor in = sample_matrix(x, HEIGHT, WIDTH), out[2] = {{0}};
  for (int run = 0; run < 5; run++) {
    long before = atomic_load(&allocations);
    out[0].data = out[1].data = NULL;
    assert_int_equal(kva_session_run(s, P_TOTAL, &in, out), KVA_OK);
    if (run) assert_int_equal(atomic_load(&allocations) - before, 0);
  }
  free(x);
  kva_session_destroy(s);
}

static kva_status fill_zeros(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                             kva_diag *diag) {
  (void)self, (void)seed, (void)step, (void)evaluation, (void)n, (void)diag;
  memset(tensors[0].data, 0, (size_t)kva_tensor_bytes(&tensors[0]));
  return KVA_OK;
}

static bool note_step(void *user, const kva_train_event *event) {
  long *marks = user;
  marks[event->step] = atomic_load(&allocations);
  return true;
}

static void training_steps_do_not_allocate(void **unused) {
  (void)unused;
  kva_session *s = create_session(&sample_artifact, &(kva_session_options){.threads = 2});
  kva_data_source zeros = {.name = "zeros", .fill = fill_zeros};
  long marks[11];
  kva_train_options options = {.steps = 10, .batch = 64, .schedule = {.lr = 0.1}, .progress = note_step, .user = marks};
  assert_int_equal(kva_train(s, &zeros, &options, NULL), KVA_OK);
  for (int i = 2; i <= 10; i++) assert_int_equal(marks[i] - marks[1], 0);
  kva_session_destroy(s);
}

/* Counts, too; without one, arenas come from the system. */
static void *allocate_counted(void *user, size_t bytes, size_t alignment) {
  (void)user;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void free_counted(void *user, void *p) {
  (void)user;
  free(p);
}

static void sizes_that_depend_on_data_do_not_allocate(void **unused) {
  (void)unused;
  enum { N = 3000 };
  const kva_artifact a = control_artifact_for(&kva_device_cpu);
  const kva_allocator counted = {.allocate = allocate_counted, .release = free_counted};
  const kva_session_options options = {
      .threads = 2, .allocator = &counted, .n_functions = COUNT(host_functions), .functions = host_functions};
  kva_session *s = create_session(&a, &options);
  static float x[N], v[2], step[2] = {0.001f, 0};
  bool cond = true;
  int64_t lengths[] = {N, 17, 0, N - 1, 40, N};
  long before = 0;
  for (int run = 0; run < 6; run++) {
    if (run == 1) before = atomic_load(&allocations);
    for (int i = 0; i < N; i++) x[i] = i < lengths[run];
    kva_tensor in = vector_of(x, N), out[2] = {{.data = NULL}, {.data = NULL}};
    assert_int_equal(kva_session_run(s, C_NONZERO, &in, out), KVA_OK);
    assert_int_equal(out[0].dims[0], lengths[run]);
    const kva_tensor loop[] = {{.dtype = KVA_I64, .data = &lengths[run]},
                               {.dtype = KVA_BOOL, .data = &cond},
                               vector_of(v, 2),
                               vector_of(step, 2),
                               vector_of(x, N)};
    kva_tensor rows[2] = {{.data = NULL}, {.data = NULL}};
    assert_int_equal(kva_session_run(s, C_REPEAT, loop, rows), KVA_OK);
    assert_int_equal(rows[1].dims[0], lengths[run]);
  }
  assert_int_equal(atomic_load(&allocations) - before, 0);
  kva_session_destroy(s);
}

/* One new row of one or of all sequences; no results are wanted. */
static void append_tokens(kva_sequences *q, int64_t n, int64_t rows) {
  static int32_t tokens[200];
  kva_tensor in = {.dtype = KVA_I32, .rank = 2, .dims = {1, rows}, .data = tokens};
  kva_sequence_rows parts[3];
  for (int64_t i = 0; i < n; i++) parts[i] = (kva_sequence_rows){.sequence = i, .rows = rows, .inputs = &in};
  assert_int_equal(kva_sequences_append(q, n, parts), KVA_OK);
}

/* Steps of sequences, also where pages are taken, copied for a fork or kept; and steps back. */
static void decoding_does_not_allocate(void **unused) {
  (void)unused;
  static const kva_define sizes[] = {{"vocab", "23"}, {"d", "16"}, {"ffn", "24"}, {"heads", "2"}, {"separator", "3"}};
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_compiled *c = NULL;
  const kva_load_options load = {.defines = sizes, .n_defines = COUNT(sizes)};
  assert_int_equal(kva_load_model("models/lm.kv", &load, diag, &m), KVA_OK);
  assert_int_equal(kva_compile(m, &(kva_compile_options){.decode = true}, diag, &c), KVA_OK);
  kva_session *s = create_session(c->artifact, &(kva_session_options){.threads = 2});
  kva_sequences *q;
  int64_t id;
  const kva_sequences_options room = {.longest = 300, .sequences = 3};
  assert_int_equal(kva_sequences_create(s, &room, diag, &q), KVA_OK);
  assert_int_equal(kva_sequences_add(q, &id), KVA_OK);
  append_tokens(q, 1, 100);
  for (int i = 0; i < 2; i++) assert_int_equal(kva_sequences_fork(q, 0, &id), KVA_OK);
  append_tokens(q, 3, 1);
  append_tokens(q, 1, 1);
  long before = atomic_load(&allocations);
  for (int i = 0; i < 100; i++) {
    append_tokens(q, i % 3 ? 3 : 1, 1);
    if (i % 7 == 0) assert_int_equal(kva_sequences_roll_back(q, 0, 1), KVA_OK);
  }
  assert_int_equal(atomic_load(&allocations) - before, 0);
  kva_sequences_destroy(q);
  kva_session_destroy(s);
  kva_compiled_destroy(c);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_counter_counts),
      cmocka_unit_test(bound_runs_do_not_allocate),
      cmocka_unit_test(training_steps_do_not_allocate),
      cmocka_unit_test(sizes_that_depend_on_data_do_not_allocate),
      cmocka_unit_test(decoding_does_not_allocate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
