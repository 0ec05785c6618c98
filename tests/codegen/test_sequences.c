/* What sequences keep beside their results: pages of windows, files, raw rows of shifts. */
#include "tests/codegen/decode.h"

#include "runtime/base/platform.h"
#include "runtime/sequences_internal.h"

#include <unistd.h>

enum { LONG = BATCH * LENGTH };

/* ---- windows ----------------------------------------------------------------------------------------------------- */

static const char windowed[] =
    "model windowed <d = 8> (int32[B, T] tokens) => (float[B, T, 8] y) {\n"
    "  param float[23, d] embed ~ normal(1)\n"
    "  param float[2, 2] w ~ normal(1)\n"
    "  x = kv.reshape <shape = [B, T, 2, 4]> (kv.gather(embed, tokens))\n"
    "  k, last = kv.kv_shift <time_axis = 1> (x, w)\n"
    "  q = kv.transpose <perm = [0, 2, 1, 3]> (x)\n"
    "  k = kv.transpose <perm = [0, 2, 1, 3]> (k)\n"
    "  near = kv.attention <causal = true, window = 70> (q, k, q)\n"
    "  nearer = kv.attention <causal = true, window = 3> (near, k, near)\n"
    "  all = kv.attention <causal = true> (nearer, k, near)\n"
    "  y = kv.reshape <shape = [B, T, 8]> (kv.transpose <perm = [0, 2, 1, 3]> (all + nearer))\n"
    "}\n";

static int32_t pages_in_use(const kva_sequences *q, int64_t window) {
  for (int32_t i = 0; i < q->n_pools; i++)
    if (q->pools[i].window == window) return q->n_pages - q->pools[i].n_free;
  fail_msg("no caches of a window of %lld", (long long)window);
  return 0;
}

static float *run_long(model *m) {
  kva_tensor in = token_tensor(1, LONG, tokens), out = {0};
  must(m, kva_session_run(m->session, m->main, &in, &out));
  size_t bytes = (size_t)kva_tensor_bytes(&out);
  m->row = (int64_t)(bytes / sizeof(float) / LONG);
  float *copy = malloc(bytes);
  assert_non_null(copy);
  return memcpy(copy, out.data, bytes);
}

static void append_to(const model *m, kva_sequences *q, live *l, const float *expected, int64_t end) {
  while ((l->rows = end - kva_sequences_length(q, l->id)) > 0) {
    if (l->rows > 100) l->rows = 100;
    append(m, q, "a window", expected, 1, l);
  }
}

/* Also back to where pages were given away, and in a fork whose prefix lies there. */
static void windows_give_pages_back(void **state) {
  (void)state;
  model m = load(windowed, NULL);
  draw_tokens();
  float *expected = run_long(&m);
  kva_sequences *q = create_sequences(&m, 2, LONG);
  live l = begin(&m, q, 0);
  append_to(&m, q, &l, expected, LONG);
  assert_int_equal(pages_in_use(q, 0), 9);
  assert_int_equal(pages_in_use(q, 70), 9 - (LONG - 70 - 256) / 64);
  assert_int_equal(pages_in_use(q, 3), 9 - (LONG - 3 - 256) / 64);
  live fork = l;
  must(&m, kva_sequences_fork(q, l.id, &fork.id));
  static const int64_t ends[] = {LONG - 7, LONG - 140, 250, 64, 0};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    must(&m, kva_sequences_roll_back(q, fork.id, kva_sequences_length(q, fork.id) - ends[i]));
    append_to(&m, q, &fork, expected, ends[i] + 30 < LONG ? ends[i] + 30 : LONG);
  }
  kva_sequences_remove(q, l.id);
  kva_sequences_remove(q, fork.id);
  assert_int_equal(pages_in_use(q, 0) + pages_in_use(q, 70) + pages_in_use(q, 3), 0);
  kva_sequences_destroy(q);
  free(expected);
  unload(&m);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static char path[] = "/tmp/kvasir-sequence-XXXXXX";

static int make_path(void **state) {
  (void)state;
  strcpy(path + sizeof path - 7, "XXXXXX");
  int file = mkstemp(path);
  return file < 0 || close(file);
}
static int remove_path(void **state) {
  (void)state;
  return unlink(path);
}

static void must_be_refused(kva_sequences *q, kva_status expected, const char *why) {
  int64_t id;
  kva_diag *diag = kva_diag_create();
  kva_severity severity;
  kva_loc loc;
  assert_int_equal(kva_sequences_load(q, path, diag, &id), expected);
  const char *text = kva_diag_message(diag, 0, &severity, &loc);
  if (!strstr(text, why)) fail_msg("%s", text);
  kva_diag_destroy(diag);
  assert_int_equal(kva_sequences_length(q, 1), -1);
}

/* A file with one byte, of its tensors, changed. */
static void damage(void) {
  kva_file f;
  assert_int_equal(kva_file_map(path, NULL, &f), KVA_OK);
  char *copy = malloc(f.size);
  assert_non_null(copy);
  memcpy(copy, f.data, f.size);
  copy[f.size - 5] ^= 1;
  assert_int_equal(kva_file_write(path, copy, f.size, NULL), KVA_OK);
  free(copy);
  kva_file_unmap(&f);
}

static void files_hold_sequences(void **state) {
  (void)state;
  static const char *const sizes[] = {SMALL, "heads", "4", "kv_heads", "2", "separator", "3", NULL};
  model m = load("models/lm.kv", sizes), other = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", NULL});
  draw_tokens();
  float *expected = run_at_once(&m);
  kva_sequences *q = create_sequences(&m, 2, LENGTH), *fresh = create_sequences(&m, 2, LENGTH),
                *small = create_sequences(&m, 1, 149), *strange = create_sequences(&other, 2, LENGTH);
  live l = begin(&m, q, 1);
  l.rows = 150;
  append(&m, q, "before saving", expected, 1, &l);
  must(&m, kva_sequences_save(q, l.id, path, m.diag));
  begin(&m, fresh, 0);
  live loaded = l;
  must(&m, kva_sequences_load(fresh, path, m.diag, &loaded.id));
  assert_int_equal(loaded.id, 1);
  assert_int_equal(kva_sequences_length(fresh, loaded.id), 150);
  loaded.rows = 20;
  append(&m, fresh, "after loading", expected, 1, &loaded);
  must(&m, kva_sequences_roll_back(fresh, loaded.id, 60));
  append(&m, fresh, "taken back after loading", expected, 1, &loaded);
  begin(&other, strange, 0), begin(&m, small, 0);
  must_be_refused(small, KVA_INVALID, "is a sequence of 150 rows; there is room for 149");
  must_be_refused(strange, KVA_INVALID, "is a sequence of another model, or of other parameters");
  kva_tensor embed;
  assert_true(kva_session_state(m.session, "embed", &embed));
  ((float *)embed.data)[5] += 1;
  kva_sequences *trained = create_sequences(&m, 1, LENGTH);
  must_be_refused(trained, KVA_INVALID, "is a sequence of another model, or of other parameters");
  damage();
  must_be_refused(q, KVA_DAMAGED, "is no saved sequence, or a damaged one: its sum");
  kva_sequences_destroy(q);
  kva_sequences_destroy(fresh);
  kva_sequences_destroy(small);
  kva_sequences_destroy(strange);
  kva_sequences_destroy(trained);
  free(expected);
  unload(&m);
  unload(&other);
}

/* A file keeps the type of the caches that it was written from. */
static void files_of_narrow_caches(void **state) {
  (void)state;
  static const char *const sizes[] = {SMALL, "heads", "2", NULL};
  caches_of = KVA_F16;
  model narrow = load("models/lm.kv", sizes);
  caches_of = KVA_DTYPE_NONE;
  model wide = load("models/lm.kv", sizes);
  draw_tokens();
  kva_sequences *from = create_sequences(&narrow, 1, LENGTH), *to = create_sequences(&wide, 1, LENGTH);
  live l = begin(&narrow, from, 0);
  l.rows = 3, narrow.row = wide.row = WORDS;
  must(&narrow, try_append(from, 1, &l));
  must(&narrow, kva_sequences_save(from, l.id, path, narrow.diag));
  must_be_refused(to, KVA_INVALID,
                  "is a sequence whose cache 'keys_0' is float16; the model is compiled with caches of float");
  kva_sequences_destroy(from);
  kva_sequences_destroy(to);
  unload(&narrow);
  unload(&wide);
}

/* ---- raw rows ---------------------------------------------------------------------------------------------------- */

enum { ROWS = 5, HEADS = 2, HEAD = 8 };

/* The tensor of pages of a state, and the state of a sequence, by the name of the input. */
static const kva_tensor *cache(const kva_sequences *q, const char *name) {
  for (int32_t i = 0; i < q->n_pools; i++)
    for (int32_t k = 0; k < q->pools[i].n_tensors; k++) {
      int32_t input = q->pools[i].inputs[k];
      if (input >= 0 && !strcmp(q->desc->buffers[q->desc->inputs[input]].name, name))
        return &q->pools[i].tensors[k].tensor;
    }
  fail_msg("no cache %s", name);
  return NULL;
}
static float *last_rows(const kva_sequences *q, const char *name) {
  for (int32_t i = 0; i < q->n_carried; i++)
    if (!strcmp(q->desc->buffers[q->desc->inputs[q->carried[i].input]].name, name))
      return (float *)(void *)(kva_sequence_state(q, q->sequences[0]) + q->carried[i].at);
  fail_msg("no state %s", name);
  return NULL;
}

static const float *cached_row(const kva_tensor *t, int64_t head, int64_t row) {
  return (const float *)t->data + (head * t->dims[2] + row) * HEAD;
}

/* The published listing keeps the mixed row where the raw one belongs, after prefill alone. */
static void keep_mixed_row(const kva_sequences *q) {
  for (int64_t h = 0; h < HEADS; h++) {
    memcpy(last_rows(q, "rows_0") + h * HEAD, cached_row(cache(q, "keys_0"), h, 0), HEAD * sizeof(float));
    memcpy(last_rows(q, "rows_1") + h * HEAD, cached_row(cache(q, "values_0"), h, 0), HEAD * sizeof(float));
  }
}

static bool same_row(const kva_sequences *a, const kva_sequences *b, const char *name, int64_t row) {
  bool same = true;
  for (int64_t h = 0; h < HEADS; h++)
    same &= !memcmp(cached_row(cache(a, name), h, row), cached_row(cache(b, name), h, row), HEAD * sizeof(float));
  return same;
}

/* In a model of one layer. A prefix of one row stands at position 0, where rotation does nothing. */
static void listing_differs_in_one_row(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", "layers", "1", NULL});
  draw_tokens();
  float *expected = run_at_once(&m);
  kva_sequences *raw = create_sequences(&m, 1, ROWS), *mixed = create_sequences(&m, 1, ROWS);
  live l = begin(&m, raw, 0);
  begin(&m, mixed, 0);
  l.rows = 1;
  for (int64_t row = 0; row < ROWS; row++) {
    append(&m, raw, "raw rows", expected, 1, &l);
    must(&m, try_append(mixed, 1, &l));
    if (row == 0) keep_mixed_row(mixed);
  }
  for (int64_t row = 0; row < ROWS; row++) {
    assert_int_equal(same_row(raw, mixed, "keys_0", row), row != 1);
    assert_int_equal(same_row(raw, mixed, "values_0", row), row != 1);
  }
  kva_sequences_destroy(raw);
  kva_sequences_destroy(mixed);
  free(expected);
  unload(&m);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

/* Where pages are lacking for one sequence, the others have taken none: neither new ones, nor copies of shared ones. */
static void pages_are_taken_together(void **state) {
  (void)state;
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "4", "kv_heads", "2", "separator", "3", NULL});
  draw_tokens();
  kva_sequences *q = create_sequences(&m, 2, 128);
  live l[3] = {begin(&m, q, 0), {.which = 0}, begin(&m, q, 1)};
  l[0].rows = 10, l[2].rows = 128;
  must(&m, try_append(q, 1, &l[0]));
  must(&m, try_append(q, 1, &l[2]));
  must(&m, kva_sequences_fork(q, l[0].id, &l[1].id));
  assert_int_equal(kva_sequences_free_rows(q), 64);
  l[0].rows = 0, l[1].rows = 60;
  refused(&m, try_append(q, 2, l), KVA_NO_MEMORY, "no page is free");
  l[0].rows = 1, l[1].rows = 60;
  refused(&m, try_append(q, 2, l), KVA_NO_MEMORY, "no page is free");
  assert_int_equal(kva_sequences_free_rows(q), 64);
  l[1].rows = 1; /* one of them copies the page that they share, the other keeps it */
  must(&m, try_append(q, 2, l));
  assert_int_equal(kva_sequences_free_rows(q), 0);
  kva_sequences_destroy(q);
  unload(&m);
}

static const char sided[] = "model sided <d = 8> (int32[B, T] tokens, float[B, S, 2] side) => (float[B, T, d] y) {\n"
                            "  param float[23, d] embed ~ normal(1)\n"
                            "  x = kv.gather(embed, tokens)\n"
                            "  s = kv.reduce_sum <axes = [1, 2], keepdims = false> (side)\n"
                            "  y = x + kv.reshape <shape = [B, 1, 1]> (s)\n"
                            "}\n";

static kva_status append_sided(kva_sequences *q, const int64_t ids[2], kva_tensor sides[2]) {
  kva_tensor inputs[2][2];
  kva_sequence_rows parts[2];
  for (int i = 0; i < 2; i++) {
    inputs[i][0] = token_tensor(1, 1, tokens), inputs[i][1] = sides[i];
    parts[i] = (kva_sequence_rows){.sequence = ids[i], .rows = 1, .inputs = inputs[i]};
  }
  return kva_sequences_append(q, 2, parts);
}

/* Before they are read: they are joined by the extents of the first one. */
static void extents_are_checked(void **state) {
  (void)state;
  model m = load(sided, NULL);
  draw_tokens();
  float numbers[6] = {1, 2, 3, 4, 5, 6};
  int64_t ids[2];
  kva_sequences *q;
  must(&m, kva_sequences_create(m.session, &(kva_sequences_options){.longest = 8, .sequences = 2}, m.diag, &q));
  for (int i = 0; i < 2; i++) must(&m, kva_sequences_add(q, &ids[i]));
  kva_tensor sides[2] = {{KVA_F32, 3, {1, 3, 2}, numbers}, {KVA_F32, 3, {1, 1, 2}, numbers}};
  refused(
      &m, append_sided(q, ids, sides), KVA_INVALID,
      "input 'side' of sequence 1: dimension 1 is 1, that of another sequence 3; append to them one after the other");
  sides[1].dims[1] = 3, sides[1].dims[2] = 1;
  refused(&m, append_sided(q, ids, sides), KVA_INVALID, "input 'side' of sequence 1: dimension 2 cannot be 1");
  sides[0].dims[1] = -1;
  refused(&m, append_sided(q, ids, sides), KVA_INVALID, "input 'side' of sequence 0: dimension 1 cannot be -1");
  sides[0].dims[1] = 3, sides[1].dims[2] = 2;
  must(&m, append_sided(q, ids, sides));
  kva_sequences_destroy(q);
  unload(&m);
}

static const char wide[] = "model wide <d = 8> (int32[B, T] tokens, float[B, T, S] more) => (float[B, T, d] y) {\n"
                           "  param float[23, d] embed ~ normal(1)\n"
                           "  y = kv.gather(embed, tokens) + kv.reduce_sum <axes = [2]> (more)\n"
                           "}\n";

/* History has no place for rows whose size is a call's. */
static void rows_of_any_size_do_not_run_again(void **state) {
  (void)state;
  enum { ROWS_NOW = 7, SIZE = 3 };
  model m = load(wide, NULL);
  draw_tokens();
  float numbers[ROWS_NOW * SIZE] = {0};
  kva_tensor in[2] = {token_tensor(1, ROWS_NOW, tokens), {KVA_F32, 3, {1, ROWS_NOW, SIZE}, numbers}};
  int64_t id;
  kva_sequences *q;
  must(&m, kva_sequences_create(m.session, &(kva_sequences_options){.longest = 8}, m.diag, &q));
  must(&m, kva_sequences_add(q, &id));
  must(&m, kva_sequences_append(q, 1, &(kva_sequence_rows){.sequence = id, .rows = ROWS_NOW, .inputs = in}));
  refused(&m, kva_sequences_roll_back(q, id, 6), KVA_UNSUPPORTED, "input 'more' has no rows, or rows whose size");
  assert_int_equal(kva_sequences_length(q, id), ROWS_NOW);
  must(&m, kva_sequences_roll_back(q, id, ROWS_NOW));
  kva_sequences_destroy(q);
  unload(&m);
}

/* Names that only a damaged artefact has. */
static void tables_are_checked(void **state) {
  (void)state;
  static const char *const names[] = {"pages_0",     "pages_48",   "pages_-64", "pages_x",
                                      "pages_64_-3", "pages_64_x", "pages_64_"};
  model m = load("models/lm.kv", (const char *[]){SMALL, "heads", "2", NULL});
  const kva_program *p = kva_session_program_desc(m.session, kva_session_program(m.session, "decode"));
  const char **name = NULL;
  for (int32_t i = 0; i < p->n_inputs; i++)
    if (!strncmp(p->buffers[p->inputs[i]].name, "pages_", 6))
      name = (const char **)(uintptr_t)&p->buffers[p->inputs[i]].name;
  assert_non_null(name);
  const char *own = *name;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    kva_sequences *q;
    *name = names[i];
    kva_diag *diag = kva_diag_create();
    assert_int_equal(kva_sequences_create(m.session, &(kva_sequences_options){.longest = 8}, diag, &q), KVA_INVALID);
    const char *text = kva_diag_message(diag, 0, NULL, NULL);
    if (!strstr(text, "is no table of pages") || !strstr(text, names[i])) fail_msg("%s", text);
    kva_diag_destroy(diag);
  }
  *name = own;
  unload(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(windows_give_pages_back),
      cmocka_unit_test_setup_teardown(files_hold_sequences, make_path, remove_path),
      cmocka_unit_test_setup_teardown(files_of_narrow_caches, make_path, remove_path),
      cmocka_unit_test(listing_differs_in_one_row),
      cmocka_unit_test(pages_are_taken_together),
      cmocka_unit_test(extents_are_checked),
      cmocka_unit_test(rows_of_any_size_do_not_run_again),
      cmocka_unit_test(tables_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
