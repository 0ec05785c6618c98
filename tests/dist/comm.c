/* Every collective against a reference, in as many processes as a launcher starts; tests/dist/test_comm.sh runs it.
 * What a rank gives is a function of rank and index, so that every process knows what all must get, sums in order of
 * ranks to the bit. Arguments: the number of processes; then what the last one does instead: "fail" or "leave"; or
 * "device": device cuda exchanges what lies in its memory. */
#include "runtime/comm.h"
#include "runtime/device.h"

#include <stdlib.h>

#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) {                                                            \
      printf("%s: %s:%d: %s\n", kva_comm_name(c), __FILE__, __LINE__, #condition); \
      exit(1);                                                                     \
    }                                                                              \
  } while (0)

/* Sums of these are not exact: their order shows. */
static double value_of(int rank, int64_t i) {
  return (double)(i % 1021 + 1) / (3 + rank) - 100. * (rank % 2);
}

static void fill(kva_dtype t, int rank, int64_t n, void *x) {
  for (int64_t i = 0; i < n; i++) kva_store_f64(t, x, i, value_of(rank, i));
}

/* y = the sum over ranks of elements [at, at + n) of what they have. */
static void sum(kva_dtype t, int size, int64_t at, int64_t n, void *y) {
  int64_t scratch = 0;
  for (int64_t i = 0; i < n; i++) {
    double f64 = 0;
    float f32 = 0;
    int64_t whole = 0;
    for (int r = 0; r < size; r++) {
      kva_store_f64(t, &scratch, 0, value_of(r, at + i));
      double v = kva_load_f64(t, &scratch, 0);
      f64 = r ? f64 + v : v;
      f32 = r ? f32 + (float)v : (float)v;
      if (kva_dtype_is_int(t)) whole += kva_load_i64(t, &scratch, 0);
    }
    if (kva_dtype_is_int(t))
      kva_store_i64(t, y, i, whole);
    else
      kva_store_f64(t, y, i, t == KVA_F64 ? f64 : f32);
  }
}

static void check_sums(kva_comm *c, kva_dtype t, int64_t n, bool in_place) {
  int rank = kva_comm_rank(c), size = kva_comm_size(c);
  int64_t width = kva_dtype_bits(t) / 8, sent = kva_comm_bytes(c);
  size_t bytes = (size_t)(n * width), all = bytes * (size_t)size;
  char *x = malloc(all + 1), *y = malloc(bytes + 1), *expected = malloc(bytes + 1);
  EXPECT(x && y && expected);
  fill(t, rank, n, x);
  sum(t, size, 0, n, expected);
  EXPECT(kva_comm_all_reduce(c, t, n, x, in_place ? x : y) == KVA_OK);
  EXPECT(!memcmp(in_place ? x : y, expected, bytes));
  int64_t own = n * (rank + 1) / size - n * rank / size;
  if (n < 1000) EXPECT(kva_comm_bytes(c) - sent == (n - own + own * (size - 1)) * width);
  for (int64_t total = n * size; total >= 0; total -= n + 3) { /* the last parts have less, or nothing */
    int64_t filled = kva_part_filled(total, n, rank);
    fill(t, rank, total, x);
    memset(expected, 0, bytes);
    memset(y, 1, bytes);
    sum(t, size, n * rank, filled, expected);
    sent = kva_comm_bytes(c);
    EXPECT(kva_comm_reduce_scatter(c, t, n, total, x, y) == KVA_OK);
    EXPECT(!memcmp(y, expected, bytes));
    EXPECT(kva_comm_bytes(c) - sent == (total - filled) * width);
  }
  free(x);
  free(y);
  free(expected);
}

static char byte_of(int from, int to, int64_t i) {
  return (char)(from * 31 + to * 7 + i % 251);
}

static void fill_bytes(int from, int to, int64_t n, char *x) {
  for (int64_t i = 0; i < n; i++) x[i] = byte_of(from, to, i);
}

static void check_moves(kva_comm *c, int64_t bytes) {
  int rank = kva_comm_rank(c), size = kva_comm_size(c);
  size_t n = (size_t)bytes, all = n * (size_t)size;
  char *x = malloc(all + 1), *y = malloc(all + 1), *expected = malloc(all + 1);
  EXPECT(x && y && expected);
  fill_bytes(rank, 0, bytes, x);
  for (int r = 0; r < size; r++) fill_bytes(r, 0, bytes, expected + r * bytes);
  for (int64_t total = bytes * size; total >= 0; total -= bytes + 3) {
    memset(y, 99, all);
    memset(expected + total, 99, all - (size_t)total);
    EXPECT(kva_comm_all_gather(c, bytes, total, x, y) == KVA_OK);
    EXPECT(!memcmp(y, expected, all));
  }
  for (int root = 0; root < size; root++) {
    fill_bytes(rank, root, bytes, x);
    fill_bytes(root, root, bytes, expected);
    EXPECT(kva_comm_broadcast(c, root, bytes, x) == KVA_OK);
    EXPECT(!memcmp(x, expected, n));
  }
  fill_bytes(rank, 1, bytes, x);
  fill_bytes(rank - 1, 1, bytes, expected);
  if (rank) EXPECT(kva_comm_receive(c, rank - 1, bytes, y) == KVA_OK);
  if (rank + 1 < size) EXPECT(kva_comm_send(c, rank + 1, bytes, x) == KVA_OK);
  EXPECT(!rank || !memcmp(y, expected, n));
  for (int by = -1; by <= 1; by += 2) {
    int from = rank - by, to = rank + by;
    int64_t sent = kva_comm_bytes(c);
    memset(y, 99, n);
    memset(expected, 0, n);
    if (from >= 0 && from < size) fill_bytes(from, 1, bytes, expected);
    EXPECT(kva_comm_shift(c, by, bytes, x, y) == KVA_OK);
    EXPECT(!memcmp(y, expected, n));
    EXPECT(kva_comm_bytes(c) - sent == (to >= 0 && to < size ? bytes : 0));
  }
  free(x);
  free(y);
  free(expected);
}

/* Agreement needs no memory: a process that has none still takes part. --wrap=malloc calls this. */
static bool full;
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size) {
  return full ? NULL : __real_malloc(size);
}

static void check_without_memory(kva_comm *c) {
  int rank = kva_comm_rank(c), last = kva_comm_size(c) - 1;
  kva_text text = {0};
  for (int i = 0; i < 10000 && rank == last; i++) kva_text_add_bytes(&text, "text", 4);
  full = rank != last;
  kva_status sent = kva_comm_broadcast_text(c, last, &text), agreed = kva_comm_agree(c, KVA_OK, NULL);
  full = false;
  EXPECT(sent == KVA_OK && agreed == KVA_OK && text.len == 40000 && !strcmp(text.data + 39990, "xttexttext"));
  kva_text_free(&text);
}

static void check_agreement(kva_comm *c) {
  int rank = kva_comm_rank(c), size = kva_comm_size(c), last = size - 1;
  kva_diag *diag = kva_diag_create();
  EXPECT(kva_comm_agree(c, KVA_OK, diag) == KVA_OK);
  EXPECT(kva_comm_agree(c, rank == last ? KVA_INTERRUPTED : KVA_OK, diag) == KVA_INTERRUPTED);
  kva_status own = rank == last ? kva_fail(diag, KVA_NO_MEMORY, NULL, "the last one is full") : KVA_INTERRUPTED;
  EXPECT(kva_comm_agree(c, own, diag) == KVA_NO_MEMORY);
  EXPECT(kva_diag_errors(diag) == 1 && strstr(kva_diag_message(diag, 0, NULL, NULL), "the last one is full"));
  kva_text text = {0};
  EXPECT(kva_comm_share(c, &text) == -1);
  if (rank == last) kva_text_add(&text, "here");
  EXPECT(kva_comm_share(c, &text) == last && strstr(text.data, "here"));
  kva_text_free(&text);
  kva_diag_clear(diag);
  EXPECT(kva_comm_compare(c, "steps: 5\nseed: 1", diag) == KVA_OK);
  const char *odd = rank == last && rank ? "steps: 5\nseed: 2" : "steps: 5\nseed: 1";
  EXPECT(kva_comm_compare(c, odd, diag) == (size > 1 ? KVA_INVALID : KVA_OK));
  if (size > 1) EXPECT(strstr(kva_diag_message(diag, 0, NULL, NULL), "seed: 2, there 1"));
  kva_diag_destroy(diag);
}

/* A mesh of two in the inner axes, as far as the number of processes allows: sums and gathers of each axis. */
static void check_groups(kva_comm *c) {
  int rank = kva_comm_rank(c), size = kva_comm_size(c), tensor = size % 2 ? 1 : 2, sequence = size % 4 ? 1 : 2;
  int pipeline = size % 8 ? 1 : 2, stage = sequence * tensor;
  const kva_comm_mesh mesh = {
      .data = size / pipeline / stage, .pipeline = pipeline, .sequence = sequence, .tensor = tensor};
  EXPECT(kva_comm_data(c) == c && kva_comm_group(c, size, 1) == c && kva_comm_group(c, size, 2) == NULL);
  EXPECT(kva_comm_set_mesh(c, &mesh) == KVA_OK);
  kva_comm_mesh place = kva_comm_place(c, rank);
  EXPECT(((place.data * pipeline + place.pipeline) * sequence + place.sequence) * tensor + place.tensor == rank);
  kva_comm *stages = kva_comm_stages(c);
  EXPECT(pipeline == 1 ? !stages : stages == kva_comm_group(c, pipeline, stage));
  const int axes[4][3] = {{mesh.tensor, 1, place.tensor},
                          {mesh.sequence, tensor, place.sequence},
                          {mesh.pipeline, stage, place.pipeline},
                          {mesh.data, pipeline * stage, place.data}};
  for (int a = 0; a < 4 && size > 1; a++) {
    int parts = axes[a][0], stride = axes[a][1], first = rank - axes[a][2] * stride;
    kva_comm *g = kva_comm_group(c, parts, stride);
    if (parts == 1) continue;
    EXPECT(g && kva_comm_size(g) == parts && kva_comm_rank(g) == axes[a][2]);
    double sum = rank, all[8];
    int64_t sent = kva_comm_bytes(c);
    EXPECT(kva_comm_all_reduce(g, KVA_F64, 1, &sum, &sum) == KVA_OK);
    EXPECT(sum == parts * first + stride * parts * (parts - 1) / 2);
    sum = rank;
    EXPECT(kva_comm_all_gather(g, sizeof sum, (int64_t)sizeof sum * parts, &sum, all) == KVA_OK);
    for (int i = 0; i < parts; i++) EXPECT(all[i] == first + i * stride);
    EXPECT(kva_comm_bytes(c) > sent);
  }
  EXPECT(kva_comm_group(c, size + 1, 1) == NULL && strstr(kva_comm_error(c), "no axis of the mesh"));
}

/* Sums and gathers that go on while the caller does something else. */
enum { N_JOBS = 3, JOB_ELEMENTS = 300007 };
typedef struct summing {
  kva_comm_job job;
  kva_comm *c;
  float *x, *y;
  int64_t n;
  kva_dtype type;
} summing;

static kva_status sum_job(void *user) {
  const summing *s = user;
  return kva_comm_all_reduce(s->c, s->type, s->n, s->x, s->y);
}

static void check_jobs(kva_comm *c) {
  int rank = kva_comm_rank(c), size = kva_comm_size(c);
  summing jobs[N_JOBS] = {0};
  float *expected = malloc(JOB_ELEMENTS * sizeof *expected);
  EXPECT(expected);
  for (int i = 0; i < N_JOBS; i++) {
    int64_t n = i == 1 ? 3 : JOB_ELEMENTS - i;
    jobs[i] = (summing){.job = {.run = sum_job, .user = &jobs[i]}, .c = c, .n = n, .type = KVA_F32};
    jobs[i].x = malloc((size_t)n * sizeof *jobs[i].x);
    jobs[i].y = malloc((size_t)n * sizeof *jobs[i].y);
    EXPECT(jobs[i].x && jobs[i].y);
    fill(KVA_F32, rank + i, n, jobs[i].x);
    kva_comm_post(c, &jobs[i].job);
  }
  double own = rank, sum = 0; /* of the caller, behind those of the jobs */
  EXPECT(kva_comm_all_reduce(c, KVA_F64, 1, &own, &sum) == KVA_OK && sum == size * (size - 1) / 2);
  for (int i = N_JOBS; i-- > 0;) {
    EXPECT(jobs[i].job.done && kva_comm_wait(c, &jobs[i].job) == KVA_OK);
    fill(KVA_F32, i, jobs[i].n, expected);
    for (int r = 1; r < size; r++)
      for (int64_t k = 0; k < jobs[i].n; k++) expected[k] += (float)value_of(r + i, k);
    EXPECT(!memcmp(jobs[i].y, expected, (size_t)jobs[i].n * sizeof *expected));
  }
  jobs[0].type = KVA_BOOL;
  kva_comm_post(c, &jobs[0].job);
  EXPECT(kva_comm_wait(c, &jobs[0].job) == KVA_UNSUPPORTED && strstr(kva_comm_error(c), "bool"));
  kva_comm_times t = kva_comm_measured(c);
  EXPECT(t.exchange > 0 && t.waited > 0);
  for (int i = 0; i < N_JOBS; i++) free(jobs[i].x), free(jobs[i].y);
  free(expected);
}

static void check_all(kva_comm *c) {
  static const kva_dtype types[] = {KVA_F32, KVA_F64, KVA_BF16, KVA_I8, KVA_I64};
  static const int64_t counts[] = {1, 7, 999};
  char none;
  for (size_t t = 0; t < sizeof types / sizeof *types; t++)
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) check_sums(c, types[t], counts[i], i % 2);
  check_sums(c, KVA_F32, 0, false);
  if (kva_comm_size(c) <= 3)
    check_sums(c, KVA_F32, kva_comm_piece(kva_comm_size(c)) / 4 + 51431, true); /* two pieces */
  check_moves(c, 0);
  check_moves(c, 5);
  check_moves(c, kva_comm_piece(kva_comm_size(c)) / kva_comm_size(c) + 1);
  EXPECT(kva_comm_all_reduce(c, KVA_BOOL, 1, &none, &none) == KVA_UNSUPPORTED);
  EXPECT(strstr(kva_comm_error(c), "bool"));
  check_jobs(c);
  check_agreement(c);
  check_without_memory(c);
  check_groups(c);
}

/* ---- in the memory of a device ----------------------------------------------------------------------------------- */

/* One call of device cuda: x of `n_x` elements goes in, y of `n_y` comes out and into *out. */
static void exchange_on_device(kva_comm *c, kva_device *d, int32_t call, kva_dtype t, int64_t n_x, const void *x,
                               int64_t n_y, void *y) {
  const kva_device_class *class = d->class;
  const kva_exchange_desc desc = {.parts = kva_comm_size(c), .stride = 1};
  const kva_buffer_desc buffers[] = {{.dtype = (int32_t)t}, {.dtype = (int32_t)t}};
  const int32_t args[] = {0, 1};
  const kva_step_desc step = {
      .kind = KVA_STEP_CALL, .call = call, .n_args = 2, .n_results = 1, .args = args, .desc = &desc};
  const kva_program p = {.name = "exchange", .n_buffers = 2, .buffers = buffers, .n_steps = 1, .steps = &step};
  int64_t width = kva_dtype_bits(t) / 8, bytes[] = {n_x * width, n_y * width};
  kva_block blocks[2];
  for (int i = 0; i < 2; i++) EXPECT(class->allocate(d, bytes[i] + 1, &blocks[i]) == KVA_OK);
  void *const pointers[] = {blocks[0].data, blocks[1].data};
  const kva_device_call what = {.program = &p, .step = &step, .args = pointers, .bytes = bytes};
  EXPECT(class->exchanges(d, &p, &step));
  EXPECT(class->copy_in(d, pointers[0], x, bytes[0]) == KVA_OK);
  EXPECT(class->exchange(d, c, &what, 3) == KVA_OK && class->await(d, 3) == KVA_OK);
  EXPECT(class->copy_out(d, y, pointers[1], bytes[1]) == KVA_OK);
  for (int i = 0; i < 2; i++) class->free(d, &blocks[i]);
}

static void check_sums_on(kva_comm *c, kva_device *d, kva_dtype t, int64_t n) {
  int rank = kva_comm_rank(c), size = kva_comm_size(c);
  size_t bytes = (size_t)(n * kva_dtype_bits(t) / 8);
  char *x = malloc(bytes * (size_t)size + 1), *y = malloc(bytes + 1), *expected = malloc(bytes + 1);
  EXPECT(x && y && expected);
  fill(t, rank, n, x);
  sum(t, size, 0, n, expected);
  exchange_on_device(c, d, KVA_CALL_ALL_REDUCE, t, n, x, n, y);
  EXPECT(!memcmp(y, expected, bytes));
  int64_t total = n * size - n / 3, filled = kva_part_filled(total, n, rank);
  fill(t, rank, total, x);
  memset(expected, 0, bytes);
  sum(t, size, n * rank, filled, expected);
  exchange_on_device(c, d, KVA_CALL_REDUCE_SCATTER, t, total, x, n, y);
  EXPECT(!memcmp(y, expected, bytes));
  free(x);
  free(y);
  free(expected);
}

static void check_moves_on(kva_comm *c, kva_device *d, int64_t n) {
  int rank = kva_comm_rank(c), size = kva_comm_size(c), from = rank - 1;
  int64_t total = n * size - n / 3;
  char *x = malloc((size_t)n), *y = malloc((size_t)(n * size));
  EXPECT(x && y);
  fill_bytes(rank, 0, n, x);
  exchange_on_device(c, d, KVA_CALL_ALL_GATHER, KVA_U8, n, x, total, y);
  for (int64_t i = 0; i < total; i++) EXPECT(y[i] == byte_of((int)(i / n), 0, i % n));
  int64_t sent = kva_comm_bytes(c);
  exchange_on_device(c, d, KVA_CALL_NEIGHBOUR, KVA_U8, n, x, n, y);
  for (int64_t i = 0; i < n; i++) EXPECT(y[i] == (from < 0 ? 0 : byte_of(from, 0, i)));
  EXPECT(kva_comm_bytes(c) - sent == (rank + 1 < size ? n : 0));
  free(x);
  free(y);
}

static void check_device(kva_comm *c) {
  static const kva_dtype types[] = {KVA_F32, KVA_F64, KVA_BF16, KVA_F16, KVA_I32, KVA_I64};
  kva_diag *diag = kva_diag_create();
  kva_device *d;
  kva_pool *pool = kva_pool_create(1);
  kva_status status = kva_device_cuda.create(pool, diag, &d);
  if (status == KVA_OK) status = kva_device_cuda.join(d, c, diag);
  kva_diag_print(diag, stderr);
  EXPECT(status == KVA_OK);
  for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
    check_sums_on(c, d, types[t], 1);
    check_sums_on(c, d, types[t], 1001);
  }
  check_sums_on(c, d, KVA_F32, kva_comm_piece(kva_comm_size(c)) / 4 + 1001); /* two pieces */
  check_moves_on(c, d, 1);
  check_moves_on(c, d, 100003);
  kva_device_cuda.destroy(d);
  kva_pool_destroy(pool);
  kva_diag_destroy(diag);
}

int main(int argc, char **argv) {
  kva_diag *diag = kva_diag_create();
  kva_comm *c;
  kva_status status = kva_comm_create(diag, &c);
  const char *mode = argc > 2 ? argv[2] : "";
  kva_diag_print(diag, stderr);
  if (status != KVA_OK) return kva_status_exit_code(status);
  EXPECT(argc > 1 && kva_comm_size(c) == atoi(argv[1]));
  bool last = kva_comm_rank(c) == kva_comm_size(c) - 1;
  if (!strcmp(mode, "leave") && last) exit(7);
  if (!strcmp(mode, "fail") && last) kva_comm_destroy(c, 1);
  if (!strcmp(mode, "device"))
    check_device(c);
  else if (*mode)
    return kva_comm_broadcast(c, kva_comm_size(c) - 1, 1, &(char){0}) == KVA_OK ? 0 : 1;
  if (!*mode) check_all(c);
  if (!kva_comm_rank(c)) printf("%d processes, %s\n", kva_comm_size(c), kva_comm_library(c));
  kva_diag_destroy(diag);
  kva_comm_destroy(c, 0);
  return 0;
}
