/* Shared by the tests of sequences: a compiled model, tokens, results of one run over whole sequences, and of sequences
 * that grow. */
#ifndef KVA_TESTS_CODEGEN_DECODE_H
#define KVA_TESTS_CODEGEN_DECODE_H

#include "tests/support/target.h"
#include "runtime/sequences.h"
#include "tools/driver/driver.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { LENGTH = 257, BATCH = 2, WORDS = 23, MANY = 5 };

/* With KVA_TEST_PRINT the peer that is written by hand has its real size, and times are printed. */
static inline bool timed(void) {
  return getenv("KVA_TEST_PRINT") != NULL;
}

/* Sequences of which there is a program for a step of all; 0: of one alone. */
static int64_t steps_of;

/* kva_pass_options.caches */
static kva_dtype caches_of;

/* Of the GPU to compile for; NULL: the CPU. */
static const char *chosen_arch;

/* ---- a compiled model -------------------------------------------------------------------------------------------- */

typedef struct model {
  kva_diag *diag;
  kva_compiled *compiled;
  kva_session *session;
  int main;
  int64_t row; /* elements of the output for a token */
} model;

static inline void must(const model *m, kva_status status) {
  if (status == KVA_OK) return;
  kva_diag_print(m->diag, stderr);
  fail_msg("%s: %s", kva_status_name(status), m->session ? kva_session_error(m->session) : "");
}

static inline void start_session(model *m, int threads) {
  kva_session_destroy(m->session);
  m->session = NULL;
  const char *device = m->compiled->artifact && kva_artifact_arch(m->compiled->artifact) ? "ptxsim" : NULL;
  const kva_session_options options = {.threads = threads, .seed = 3, .device = device};
  must(m, kva_session_create(m->compiled->artifact, &options, m->diag, &m->session));
  m->main = kva_session_program(m->session, "main");
  assert_true(m->main >= 0);
}

static inline model compile(kva_module *module, kva_diag *diag) {
  model m = {.diag = diag};
  const kva_compile_options options = {.decode = true,
                                       .passes = {.sequences = steps_of, .caches = caches_of},
                                       .target = test_target(timed() ? 2 : 1, chosen_arch)};
  must(&m, kva_compile(module, &options, diag, &m.compiled));
  start_session(&m, 1);
  return m;
}

static inline model load_pinned(const char *path, const char *const *defines, uint32_t n_pins, const kva_define *pins) {
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

static inline model load(const char *path, const char *const *defines) {
  return load_pinned(path, defines, 0, NULL);
}

static inline void unload(model *m) {
  kva_session_destroy(m->session);
  kva_compiled_destroy(m->compiled);
  kva_diag_destroy(m->diag);
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

static int32_t tokens[BATCH * LENGTH];

static inline void draw_tokens(void) {
  for (uint64_t i = 0; i < BATCH * LENGTH; i++) tokens[i] = (int32_t)(kva_philox4x32(i, 0, 11).v[0] % WORDS);
}

static inline kva_tensor token_tensor(int64_t batch, int64_t rows, int32_t *data) {
  return (kva_tensor){.dtype = KVA_I32, .rank = 2, .dims = {batch, rows}, .data = data};
}

/* Results of one run over all rows, by sequence and row. */
static inline float *run_at_once(model *m) {
  kva_tensor in = token_tensor(BATCH, LENGTH, tokens), out = {0};
  must(m, kva_session_run(m->session, m->main, &in, &out));
  int64_t bytes = kva_tensor_bytes(&out);
  m->row = bytes / (int64_t)sizeof(float) / (BATCH * LENGTH);
  float *copy = malloc((size_t)bytes);
  assert_non_null(copy);
  return memcpy(copy, out.data, (size_t)bytes);
}

static inline kva_sequences *create_sequences(const model *m, int64_t n, int64_t longest) {
  const kva_sequences_options options = {.longest = longest, .sequences = n};
  kva_sequences *q;
  must(m, kva_sequences_create(m->session, &options, m->diag, &q));
  assert_int_equal(kva_sequences_inputs(q), 1);
  assert_int_equal(kva_sequences_outputs(q), 1);
  return q;
}

/* A sequence that reads sequence `which` of the batch, and the rows that it gets next. */
typedef struct live {
  int64_t id, which, rows;
  bool last; /* results of the last of them are wanted, not of all */
} live;

static inline live begin(const model *m, kva_sequences *q, int64_t which) {
  live l = {.which = which};
  must(m, kva_sequences_add(q, &l.id));
  return l;
}

static float results[MANY][LENGTH * 64];

static inline int64_t wanted_rows(const live *l) {
  return l->last && l->rows ? 1 : l->rows;
}

/* Appends to n sequences; results of sequence i come to results[i]. */
static inline kva_status try_append(kva_sequences *q, int n, const live *l) {
  kva_tensor in[MANY], out[MANY];
  kva_sequence_rows parts[MANY];
  for (int i = 0; i < n; i++) {
    in[i] = token_tensor(1, l[i].rows, tokens + l[i].which * LENGTH + kva_sequences_length(q, l[i].id));
    out[i].data = results[i];
    parts[i] = (kva_sequence_rows){l[i].id, l[i].rows, &in[i], wanted_rows(&l[i]), &out[i]};
  }
  return kva_sequences_append(q, n, parts);
}

static inline void same_rows(const model *m, const char *what, const float *expected, const float *found, int64_t first,
                             int64_t rows) {
  for (int64_t i = 0; i < rows; i++)
    if (memcmp(expected + i * m->row, found + i * m->row, (size_t)m->row * sizeof *found))
      fail_msg("%s: row %lld of a chunk of %lld differs", what, (long long)(first + i), (long long)rows);
}

static inline void append(const model *m, kva_sequences *q, const char *what, const float *expected, int n,
                          const live *l) {
  int64_t first[MANY];
  for (int i = 0; i < n; i++) first[i] = kva_sequences_length(q, l[i].id);
  must(m, try_append(q, n, l));
  for (int i = 0; i < n; i++) {
    assert_int_equal(kva_sequences_length(q, l[i].id), first[i] + l[i].rows);
    int64_t wanted = wanted_rows(&l[i]), row = first[i] + l[i].rows - wanted;
    same_rows(m, what, expected + (l[i].which * LENGTH + row) * m->row, results[i], row, wanted);
  }
}

static inline void refused(model *m, kva_status status, kva_status expected, const char *why) {
  assert_int_equal(status, expected);
  if (!strstr(kva_session_error(m->session), why)) fail_msg("%s", kva_session_error(m->session));
}

#define SMALL "vocab", "23", "d", "16", "ffn", "24"

#endif
