/* Exchange between processes in the memory of their GPUs, by NCCL.
 *
 * The library moves bytes only, by sends and receives: its own reductions add in an order that depends on its version
 * and on the machine. As on the host (comm.c), segment r of every process's data goes to rank r, a kernel of this file
 * adds the copies in order of ranks, and the sum goes to all. So the bits are those of the host.
 *
 * Everything is in order on a stream of its own. Events tell it when operands are there, and the device's stream when
 * results are; the host waits for nothing. There is a communicator for each axis of the mesh, and MPI carries what they
 * are made from. */
#include "runtime/comm.h"
#include "runtime/cuda/cuda.h"

#include <stdlib.h>

enum { THREADS = 256, PIECES = 64, AXES = 3, ALIGNED = 16 };

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* What differs by type: registers 1 and 2 of `r` hold the sum and the next element. */
typedef struct sum_type {
  kva_dtype dtype;
  int width;
  const char *first, *next, *add, *store;
} sum_type;
#define LOAD(t, r)  "ld.global." t " " r ", [%x4];"
#define STORE(t, r) "st.global." t " [%x5], " r ";"
#define PLAIN(d, width, t, add, r) \
  { d, width, LOAD(t, r "1"), LOAD(t, r "2"), "add." add " " r "1, " r "1, " r "2;", STORE(t, r "1") }
static const sum_type sum_types[] = {
    PLAIN(KVA_F32, 4, "f32", "rn.f32", "%f"),
    PLAIN(KVA_F64, 8, "f64", "rn.f64", "%d"),
    PLAIN(KVA_I64, 8, "u64", "u64", "%y"),
    PLAIN(KVA_I32, 4, "u32", "u32", "%r"),
    {KVA_BF16, 2, LOAD("u16", "%h1") "mov.b32 %f1, {%h0, %h1};", LOAD("u16", "%h1") "mov.b32 %f2, {%h0, %h1};",
     "add.rn.f32 %f1, %f1, %f2;", "cvt.rn.bf16.f32 %h1, %f1;" STORE("u16", "%h1")},
    {KVA_F16, 2, LOAD("b16", "%h1") "cvt.f32.f16 %f1, %h1;", LOAD("b16", "%h1") "cvt.f32.f16 %f2, %h1;",
     "add.rn.f32 %f1, %f1, %f2;", "cvt.rn.f16.f32 %h1, %f1;" STORE("b16", "%h1")},
};
enum { SUM_TYPES = sizeof sum_types / sizeof *sum_types };

/* out[i] = in[i] + in[n + i] + ... of `parts` arrays, in this order. */
static void add_kernel(kva_text *out, int index, const sum_type *t) {
  kva_text_add(out,
               ".visible .entry kva_sum_%d(.param .u64 in, .param .u64 out, .param .u64 n, .param .u64 parts)\n{\n"
               ".reg .pred %%p<2>; .reg .b16 %%h<2>; .reg .b32 %%r<6>; .reg .f32 %%f<3>; .reg .f64 %%d<3>;\n"
               ".reg .b64 %%x<8>; .reg .b64 %%y<3>;\n"
               "mov.u32 %%r3, %%ctaid.x; mov.u32 %%r4, %%ntid.x; mov.u32 %%r5, %%tid.x; mov.u16 %%h0, 0;\n"
               "mul.wide.u32 %%x1, %%r3, %%r4; cvt.u64.u32 %%x2, %%r5; add.s64 %%x1, %%x1, %%x2;\n"
               "ld.param.u64 %%x3, [n]; setp.ge.u64 %%p1, %%x1, %%x3; @%%p1 bra DONE;\n"
               "ld.param.u64 %%x4, [in]; ld.param.u64 %%x5, [out]; ld.param.u64 %%x6, [parts];\n"
               "cvta.to.global.u64 %%x4, %%x4; cvta.to.global.u64 %%x5, %%x5;\n"
               "mul.lo.s64 %%x1, %%x1, %d; mul.lo.s64 %%x3, %%x3, %d;\n"
               "add.s64 %%x4, %%x4, %%x1; add.s64 %%x5, %%x5, %%x1;\n",
               index, t->width, t->width);
  kva_text_add(out, "%s\nNEXT:\nsub.s64 %%x6, %%x6, 1; setp.eq.s64 %%p1, %%x6, 0; @%%p1 bra STORE;\n", t->first);
  kva_text_add(out, "add.s64 %%x4, %%x4, %%x3;\n%s\n%s\nbra NEXT;\nSTORE:\n%s\nDONE:\nret;\n}\n", t->next, t->add,
               t->store);
}

/* ---- the device's part in exchange ------------------------------------------------------------------------------- */

typedef struct axis {
  const kva_comm *group;
  nccl_comm comm;
} axis;

/* Of an exchange: when it began and when it has ended. */
typedef struct interval {
  cu_event begin, end;
} interval;

struct cuda_peers {
  kva_nccl_api api;
  cu_stream stream;
  cu_module module;
  cu_function sums[SUM_TYPES];
  cu_pointer scratch;
  int64_t scratch_bytes;
  cu_event ready;
  interval *exchanges; /* by number */
  int32_t n_exchanges;
  axis axes[AXES];
  int n_axes;
};

static kva_status check(cuda_device *d, nccl_result result, const char *what) {
  if (result == NCCL_SUCCESS) return KVA_OK;
  return kva_cuda_fail(d, KVA_IO, "%s: %s", what, d->peers->api.ncclGetErrorString(result));
}

static kva_status load_sums(cuda_device *d) {
  cuda_peers *p = d->peers;
  kva_text ptx = {0};
  kva_text_add(&ptx, ".version 7.4\n.target sm_80\n.address_size 64\n");
  for (int i = 0; i < SUM_TYPES; i++) add_kernel(&ptx, i, &sum_types[i]);
  cu_result result = ptx.cut ? CU_ERROR_OUT_OF_MEMORY : d->api.cuModuleLoadDataEx(&p->module, ptx.data, 0, NULL, NULL);
  kva_text_free(&ptx);
  KVA_TRY(kva_cuda_check(d, result, "code for sums over processes"));
  for (int i = 0; i < SUM_TYPES; i++) {
    char name[16];
    snprintf(name, sizeof name, "kva_sum_%d", i);
    KVA_TRY(kva_cuda_check(d, d->api.cuModuleGetFunction(&p->sums[i], p->module, name), name));
  }
  return KVA_OK;
}

static kva_status create_parts(cuda_device *d, int64_t processes) {
  cuda_peers *p = d->peers;
  p->scratch_bytes = kva_comm_piece(processes);
  KVA_TRY(load_sums(d));
  KVA_TRY(kva_cuda_check(d, d->api.cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  KVA_TRY(
      kva_cuda_check(d, d->api.cuMemAlloc(&p->scratch, (size_t)p->scratch_bytes), "memory for sums over processes"));
  return kva_cuda_check(d, d->api.cuEventCreate(&p->ready, 0), "cuEventCreate");
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* Whether all processes say so. */
static bool all_agree(kva_comm *c, bool yes) {
  double refusals = !yes;
  return kva_comm_all_reduce(c, KVA_F64, 1, &refusals, &refusals) == KVA_OK && refusals == 0;
}

/* Rank 0 of the group makes the identifier. */
static kva_status join_group(cuda_device *d, kva_comm *group) {
  cuda_peers *p = d->peers;
  nccl_unique_id id = {0};
  nccl_result made = kva_comm_rank(group) ? NCCL_SUCCESS : p->api.ncclGetUniqueId(&id);
  if (kva_comm_broadcast(group, 0, (int64_t)sizeof made, &made) != KVA_OK ||
      kva_comm_broadcast(group, 0, (int64_t)sizeof id, &id) != KVA_OK)
    return kva_cuda_fail(d, KVA_IO, "%s", kva_comm_error(group));
  KVA_TRY(check(d, made, "ncclGetUniqueId"));
  axis *a = &p->axes[p->n_axes];
  KVA_TRY(
      check(d, p->api.ncclCommInitRank(&a->comm, kva_comm_size(group), id, kva_comm_rank(group)), "ncclCommInitRank"));
  a->group = group;
  p->n_axes++;
  return KVA_OK;
}

static kva_status join_axes(cuda_device *d, kva_comm *comm) {
  kva_comm_mesh m = kva_comm_mesh_of(comm);
  const int parts[AXES] = {m.tensor, m.sequence, m.data},
            strides[AXES] = {1, m.tensor, m.tensor * m.sequence * m.pipeline};
  if (kva_comm_size(comm) == 1) return join_group(d, comm);
  for (int i = 0; i < AXES; i++) {
    kva_comm *group = parts[i] > 1 ? kva_comm_group(comm, parts[i], strides[i]) : NULL;
    if (group) KVA_TRY(join_group(d, group));
  }
  return KVA_OK;
}

static kva_status refuse(cuda_device *d, kva_comm *comm, const char *why, kva_diag *diag) {
  if (*why && kva_comm_rank(comm) == 0)
    kva_note(diag, NULL, "sums between GPUs go through the memory of the host: %s", why);
  kva_cuda_peers_destroy(d);
  return KVA_MISSING;
}

/* The library, and what this process needs of the GPU. *out_why: a text that stays until the next call of the device.
 */
static bool prepare(cuda_device *d, int64_t processes, kva_text *out_why) {
  kva_diag *diag = kva_diag_create();
  const char *path;
  d->peers = calloc(1, sizeof *d->peers);
  bool found = d->peers && kva_nccl_api_load(diag, &d->peers->api, &path) == KVA_OK;
  if (kva_diag_count(diag)) kva_text_add(out_why, "%s", kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
  if (!found) return false;
  bool done = kva_cuda_enter(d) == KVA_OK && create_parts(d, processes) == KVA_OK;
  if (!done) kva_text_add(out_why, "%s", kva_text_string(&d->error));
  return done;
}

kva_status kva_cuda_join(kva_device *device, kva_comm *comm, kva_diag *diag) {
  cuda_device *d = (cuda_device *)device;
  kva_text why = {0};
  bool done = prepare(d, kva_comm_size(comm), &why);
  if (!all_agree(comm, done)) {
    done = false;
  } else if (!(done = join_axes(d, comm) == KVA_OK)) {
    kva_text_add(&why, "%s", kva_text_string(&d->error));
  }
  kva_status status = all_agree(comm, done) ? KVA_OK : refuse(d, comm, kva_text_string(&why), diag);
  kva_text_free(&why);
  return status;
}

void kva_cuda_peers_destroy(cuda_device *d) {
  cuda_peers *p = d->peers;
  if (!p) return;
  if (p->stream) d->api.cuStreamSynchronize(p->stream);
  for (int i = 0; i < p->n_axes; i++) (void)p->api.ncclCommDestroy(p->axes[i].comm);
  for (int32_t i = 0; i < p->n_exchanges; i++) {
    d->api.cuEventDestroy(p->exchanges[i].begin);
    d->api.cuEventDestroy(p->exchanges[i].end);
  }
  if (p->ready) d->api.cuEventDestroy(p->ready);
  if (p->scratch) d->api.cuMemFree(p->scratch);
  if (p->module) d->api.cuModuleUnload(p->module);
  if (p->stream) d->api.cuStreamDestroy(p->stream);
  free(p->exchanges);
  free(p);
  d->peers = NULL;
}

/* ---- sends and receives ------------------------------------------------------------------------------------------ */

/* An exchange in progress. */
typedef struct exchange {
  cuda_device *d;
  kva_comm *group;
  nccl_comm comm;
  int rank, size;
  const sum_type *type; /* of a sum */
  int function;
} exchange;

static cu_pointer scratch_at(const exchange *x, int64_t at) {
  return x->d->peers->scratch + (cu_pointer)at;
}

static void *pointer(cu_pointer p) {
  return (void *)(uintptr_t)p;
}

static kva_status send(exchange *x, const void *data, int64_t bytes, int to) {
  cuda_peers *p = x->d->peers;
  if (!bytes) return KVA_OK;
  kva_comm_add_bytes(x->group, bytes);
  return check(x->d, p->api.ncclSend(data, (size_t)bytes, NCCL_UINT8, to, x->comm, p->stream), "ncclSend");
}

static kva_status receive(exchange *x, void *data, int64_t bytes, int from) {
  cuda_peers *p = x->d->peers;
  if (!bytes) return KVA_OK;
  return check(x->d, p->api.ncclRecv(data, (size_t)bytes, NCCL_UINT8, from, x->comm, p->stream), "ncclRecv");
}

static kva_status copy(exchange *x, void *to, const void *from, int64_t bytes) {
  cuda_device *d = x->d;
  if (!bytes || to == from) return KVA_OK;
  return kva_cuda_check(
      d, d->api.cuMemcpyDtoDAsync(kva_cuda_address(to), kva_cuda_address(from), (size_t)bytes, d->peers->stream),
      "cuMemcpyDtoDAsync");
}

static kva_status clear(exchange *x, void *to, int64_t bytes) {
  cuda_device *d = x->d;
  if (!bytes) return KVA_OK;
  return kva_cuda_check(d, d->api.cuMemsetD8Async(kva_cuda_address(to), 0, (size_t)bytes, d->peers->stream),
                        "cuMemsetD8Async");
}

/* All sends and receives of `transfer` at once. */
static kva_status in_group(exchange *x, kva_status (*transfer)(exchange *x, const void *what), const void *what) {
  const kva_nccl_api *api = &x->d->peers->api;
  KVA_TRY(check(x->d, api->ncclGroupStart(), "ncclGroupStart"));
  kva_status status = transfer(x, what);
  nccl_result ended = api->ncclGroupEnd();
  return status == KVA_OK ? check(x->d, ended, "ncclGroupEnd") : status;
}

/* ---- sums over processes ----------------------------------------------------------------------------------------- */

/* y = the sum of n elements of x, of which this process adds `own`, from `begin` on, in scratch from `at` on. */
typedef struct piece {
  const char *x;
  char *y;
  int64_t n, begin, own, at;
} piece;
typedef struct batch {
  int n;
  int64_t used; /* of scratch */
  piece pieces[PIECES];
} batch;

static int64_t begin_of(const exchange *x, const piece *p, int r) {
  return p->n * r / x->size;
}

/* What this process and rank r swap of a piece, of which r adds n elements from `begin` on. */
typedef kva_status (*swap_fn)(exchange *x, const piece *p, int r, int64_t begin, int64_t n);

static kva_status with_others(exchange *x, const batch *b, swap_fn swap) {
  for (int i = 0; i < b->n; i++)
    for (int r = 0; r < x->size; r++) {
      const piece *p = &b->pieces[i];
      int64_t begin = begin_of(x, p, r);
      if (r != x->rank) KVA_TRY(swap(x, p, r, begin, begin_of(x, p, r + 1) - begin));
    }
  return KVA_OK;
}

static kva_status swap_addends(exchange *x, const piece *p, int r, int64_t begin, int64_t n) {
  int64_t width = x->type->width;
  KVA_TRY(send(x, p->x + begin * width, n * width, r));
  return receive(x, pointer(scratch_at(x, p->at + r * p->own * width)), p->own * width, r);
}

static kva_status swap_sums(exchange *x, const piece *p, int r, int64_t begin, int64_t n) {
  int64_t width = x->type->width;
  KVA_TRY(send(x, p->y + p->begin * width, p->own * width, r));
  return receive(x, p->y + begin * width, n * width, r);
}

static kva_status scatter_pieces(exchange *x, const void *what) {
  return with_others(x, what, swap_addends);
}

static kva_status spread_pieces(exchange *x, const void *what) {
  return with_others(x, what, swap_sums);
}

static kva_status launch_sum(exchange *x, int64_t at, void *y, int64_t n) {
  cuda_device *d = x->d;
  cu_pointer in = scratch_at(x, at), out = kva_cuda_address(y);
  uint64_t elements = (uint64_t)n, parts = (uint64_t)x->size;
  void *params[] = {&in, &out, &elements, &parts};
  if (!n) return KVA_OK;
  return kva_cuda_check(d,
                        d->api.cuLaunchKernel(d->peers->sums[x->function], (unsigned)((n + THREADS - 1) / THREADS), 1,
                                              1, THREADS, 1, 1, 0, d->peers->stream, params, NULL),
                        "a sum over processes");
}

static kva_status flush(exchange *x, batch *b) {
  int64_t width = x->type->width;
  for (int i = 0; i < b->n; i++) {
    const piece *p = &b->pieces[i];
    KVA_TRY(copy(x, pointer(scratch_at(x, p->at + x->rank * p->own * width)), p->x + p->begin * width, p->own * width));
  }
  KVA_TRY(in_group(x, scatter_pieces, b));
  for (int i = 0; i < b->n; i++) {
    const piece *p = &b->pieces[i];
    KVA_TRY(launch_sum(x, p->at, p->y + p->begin * width, p->own));
  }
  KVA_TRY(in_group(x, spread_pieces, b));
  b->n = 0;
  b->used = 0;
  return KVA_OK;
}

static kva_status add_piece(exchange *x, batch *b, const char *from, char *to, int64_t n) {
  piece p = {.x = from, .y = to, .n = n};
  p.begin = begin_of(x, &p, x->rank);
  p.own = begin_of(x, &p, x->rank + 1) - p.begin;
  int64_t bytes = (p.own * x->size * x->type->width + ALIGNED - 1) / ALIGNED * ALIGNED;
  if (b->n == PIECES || b->used + bytes > x->d->peers->scratch_bytes) KVA_TRY(flush(x, b));
  p.at = b->used;
  b->used += bytes;
  b->pieces[b->n++] = p;
  return KVA_OK;
}

static kva_status all_reduce(exchange *x, const kva_device_call *call) {
  const kva_step_desc *step = call->step;
  int64_t width = x->type->width, most = x->d->peers->scratch_bytes / width - x->size - ALIGNED;
  batch b = {0};
  for (int32_t i = 0; i < step->n_results; i++) {
    int64_t n = call->bytes[step->args[i]] / width;
    for (int64_t at = 0; at < n; at += most)
      KVA_TRY(add_piece(x, &b, (const char *)call->args[i] + at * width,
                        (char *)call->args[step->n_results + i] + at * width, n - at < most ? n - at : most));
  }
  return flush(x, &b);
}

/* Bytes [at, at + most) of the part of x that each process has. */
typedef struct slice {
  const char *x;
  int64_t part, total, at, most;
} slice;

static int64_t slice_of(const slice *s, int r) {
  int64_t rest = kva_part_filled(s->total, s->part, r) - s->at;
  return rest < 0 ? 0 : rest < s->most ? rest : s->most;
}

static kva_status scatter_slices(exchange *x, const void *what) {
  const slice *s = what;
  int64_t own = slice_of(s, x->rank);
  for (int r = 0; r < x->size; r++) {
    if (r == x->rank) continue;
    KVA_TRY(send(x, s->x + r * s->part + s->at, slice_of(s, r), r));
    KVA_TRY(receive(x, pointer(scratch_at(x, r * own)), own, r));
  }
  return KVA_OK;
}

static kva_status reduce_scatter(exchange *x, const kva_device_call *call) {
  const int32_t *args = call->step->args;
  int64_t width = x->type->width, most = x->d->peers->scratch_bytes / x->size / ALIGNED * ALIGNED;
  slice s = {.x = call->args[0], .part = call->bytes[args[1]], .total = call->bytes[args[0]], .most = most};
  for (; s.at < s.part; s.at += most) {
    int64_t own = slice_of(&s, x->rank), end = s.part - s.at < most ? s.part - s.at : most;
    char *y = (char *)call->args[1] + s.at;
    KVA_TRY(copy(x, pointer(scratch_at(x, x->rank * own)), s.x + x->rank * s.part + s.at, own));
    KVA_TRY(in_group(x, scatter_slices, &s));
    KVA_TRY(launch_sum(x, 0, y, own / width));
    KVA_TRY(clear(x, y + own, end - own));
  }
  return KVA_OK;
}

/* ---- what is not summed ------------------------------------------------------------------------------------------ */

static kva_status spread_parts(exchange *x, const void *what) {
  const kva_device_call *call = what;
  int64_t part = call->bytes[call->step->args[0]], total = call->bytes[call->step->args[1]];
  for (int r = 0; r < x->size; r++) {
    if (r == x->rank) continue;
    KVA_TRY(send(x, call->args[0], kva_part_filled(total, part, x->rank), r));
    KVA_TRY(receive(x, (char *)call->args[1] + r * part, kva_part_filled(total, part, r), r));
  }
  return KVA_OK;
}

static kva_status all_gather(exchange *x, const kva_device_call *call) {
  int64_t part = call->bytes[call->step->args[0]], total = call->bytes[call->step->args[1]];
  KVA_TRY(copy(x, (char *)call->args[1] + x->rank * part, call->args[0], kva_part_filled(total, part, x->rank)));
  return in_group(x, spread_parts, call);
}

static kva_status pass_on(exchange *x, const void *what) {
  const kva_device_call *call = what;
  int by = ((const kva_exchange_desc *)call->step->desc)->next ? -1 : 1, to = x->rank + by, from = x->rank - by;
  int64_t bytes = call->bytes[call->step->args[0]];
  if (to >= 0 && to < x->size) KVA_TRY(send(x, call->args[0], bytes, to));
  return from >= 0 && from < x->size ? receive(x, call->args[1], bytes, from) : clear(x, call->args[1], bytes);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static int function_of(kva_dtype type) {
  int i = 0;
  while (i < SUM_TYPES && sum_types[i].dtype != type) i++;
  return i < SUM_TYPES ? i : -1;
}

bool kva_cuda_exchanges(const kva_device *device, const kva_program *p, const kva_step_desc *step) {
  bool sums = step->call == KVA_CALL_ALL_REDUCE || step->call == KVA_CALL_REDUCE_SCATTER;
  return ((const cuda_device *)device)->peers &&
         (!sums || function_of((kva_dtype)p->buffers[step->args[0]].dtype) >= 0);
}

static kva_status perform(exchange *x, const kva_device_call *call) {
  switch (call->step->call) {
  case KVA_CALL_ALL_REDUCE: return all_reduce(x, call);
  case KVA_CALL_REDUCE_SCATTER: return reduce_scatter(x, call);
  case KVA_CALL_ALL_GATHER: return all_gather(x, call);
  default: return in_group(x, pass_on, call);
  }
}

static kva_status grow(cuda_device *d, int32_t number) {
  cuda_peers *p = d->peers;
  if (number < p->n_exchanges) return KVA_OK;
  interval *more = realloc(p->exchanges, sizeof *more * ((size_t)number + 1));
  if (!more) return kva_cuda_fail(d, KVA_NO_MEMORY, "no memory for an exchange");
  p->exchanges = more;
  for (; p->n_exchanges <= number; p->n_exchanges++) {
    interval *i = &more[p->n_exchanges];
    KVA_TRY(kva_cuda_check(d, d->api.cuEventCreate(&i->begin, 0), "cuEventCreate"));
    KVA_TRY(kva_cuda_check(d, d->api.cuEventCreate(&i->end, 0), "cuEventCreate"));
  }
  return KVA_OK;
}

kva_status kva_cuda_exchange(kva_device *device, kva_comm *group, const kva_device_call *call, int32_t number) {
  cuda_device *d = (cuda_device *)device;
  cuda_peers *p = d->peers;
  KVA_TRY(kva_cuda_enter(d));
  KVA_TRY(grow(d, number));
  exchange x = {.d = d, .group = group, .rank = kva_comm_rank(group), .size = kva_comm_size(group)};
  for (int i = 0; i < p->n_axes; i++)
    if (p->axes[i].group == group) x.comm = p->axes[i].comm;
  if (!x.comm) return kva_cuda_fail(d, KVA_INVALID, "there is no communicator for this group of processes");
  x.function = function_of((kva_dtype)call->program->buffers[call->step->args[0]].dtype);
  x.type = x.function < 0 ? NULL : &sum_types[x.function];
  KVA_TRY(kva_cuda_check(d, d->api.cuEventRecord(p->ready, d->stream), "cuEventRecord"));
  KVA_TRY(kva_cuda_check(d, d->api.cuStreamWaitEvent(p->stream, p->ready, 0), "cuStreamWaitEvent"));
  KVA_TRY(kva_cuda_check(d, d->api.cuEventRecord(p->exchanges[number].begin, p->stream), "cuEventRecord"));
  KVA_TRY(perform(&x, call));
  return kva_cuda_check(d, d->api.cuEventRecord(p->exchanges[number].end, p->stream), "cuEventRecord");
}

kva_status kva_cuda_exchanged(kva_device *device, int32_t number, double *out_seconds) {
  cuda_device *d = (cuda_device *)device;
  const interval *i = &d->peers->exchanges[number];
  float milliseconds = 0;
  *out_seconds = 0;
  KVA_TRY(kva_cuda_enter(d));
  KVA_TRY(kva_cuda_check(d, d->api.cuEventElapsedTime(&milliseconds, i->begin, i->end), "cuEventElapsedTime"));
  *out_seconds = milliseconds * 1e-3;
  return KVA_OK;
}

kva_status kva_cuda_await(kva_device *device, int32_t number) {
  cuda_device *d = (cuda_device *)device;
  KVA_TRY(kva_cuda_enter(d));
  return kva_cuda_check(d, d->api.cuStreamWaitEvent(d->stream, d->peers->exchanges[number].end, 0),
                        "cuStreamWaitEvent");
}
