/* Collective operations over MPI. The library moves bytes only: sums are this file's.
 *
 * A sum over all ranks is a reduce-scatter by pairwise exchange and an all-gather: rank r gets segment r of every
 * rank's data, adds the copies in order of ranks, and sends the sum to all. Each rank sends 2 (size - 1) / size of the
 * data, the least possible, and every element is added by one rank in one order. Long data pass in pieces of BUFFER
 * bytes, so that counts fit MPI's ints. */
#include "runtime/comm_internal.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
  SHARE = 2 << 20,   /* of a process in a piece: much more than a message's latency is worth */
  PIECE = 256 << 20, /* at most: memory for buffers */
  FEW = 1 << 16,     /* bytes that buffers begin with: processes agree without memory for more */
  TAG = 1,
  MESSAGE = 1 << 30,
  PAUSE_MS = 20, /* between looks at what a launcher has read */
  LOOKS = 100,   /* at most */
};

static kva_comm *joined; /* until kva_comm_destroy; after a failure to the end */

int kva_comm_rank(const kva_comm *c) {
  return c ? c->rank : 0;
}
int kva_comm_size(const kva_comm *c) {
  return c ? c->size : 1;
}
const char *kva_comm_name(const kva_comm *c) {
  return c->name;
}
const char *kva_comm_library(const kva_comm *c) {
  return c->mpi.version;
}
const char *kva_comm_error(const kva_comm *c) {
  return c->error;
}
int64_t kva_comm_bytes(const kva_comm *c) {
  int64_t bytes = c->bytes;
  if (c->data) bytes += c->data->bytes + c->stages->bytes + c->rows->bytes + c->slices->bytes;
  return bytes;
}

void kva_comm_add_bytes(kva_comm *c, int64_t bytes) {
  c->bytes += bytes;
}

void kva_comm_note_agreed(kva_comm *c, bool failed) {
  c->agreed = failed;
}
bool kva_comm_agreed(const kva_comm *c) {
  return c->agreed;
}

kva_status kva_comm_check(kva_comm *c, const char *what, int result) {
  char text[KVA_MPI_TEXT] = "";
  int len = 0;
  if (result == KVA_MPI_SUCCESS) return KVA_OK;
  if (c->mpi.Error_string(result, text, &len) != KVA_MPI_SUCCESS) text[0] = 0;
  kva_comm *told = c->parent ? c->parent : c;
  snprintf(told->error, sizeof told->error, "%s: %s failed: %.300s", told->name, what, text[0] ? text : "no text");
  return KVA_IO;
}

/* ---- joining and leaving ----------------------------------------------------------------------------------------- */

/* A launcher that a job tells to end may drop what it has not read, or read but not yet written (Open MPI 4.1's on a
 * busy machine): it is given time to read the pipe, and one pause more to write. */
static void await_launcher(void) {
  struct stat info;
  if (fstat(STDERR_FILENO, &info) || !S_ISFIFO(info.st_mode)) return;
  const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
  for (int i = 0, unread = 1; i < LOOKS && unread; i++) {
    if (ioctl(STDERR_FILENO, FIONREAD, &unread)) return;
    nanosleep(&pause, NULL);
  }
}

static void end_all(kva_comm *c, const char *why, int code) {
  fprintf(stderr, "%s %s; it ends the other processes\n", c->name, why);
  await_launcher();
  (void)c->mpi.Abort(c->mpi.world, code);
}

/* Runs at exit: the others would wait for this process for ever. */
static void abandon(void) {
  if (!joined) return;
  kva_comm_thread_stop(joined);
  end_all(joined, "ends before its run does", 1);
}

static void release(kva_comm *c) {
  if (!c) return;
  release(c->data);
  release(c->stages);
  release(c->rows);
  release(c->slices);
  free(c->in.data);
  free(c->out.data);
  free(c->n_in);
  free(c->numbers);
  free(c);
}

/* What the buffer has stays. */
static kva_status reserve(kva_comm *c, kva_comm_buffer *b, int64_t bytes) {
  if (bytes <= b->bytes) return KVA_OK;
  kva_comm *told = c->parent ? c->parent : c;
  char *data = realloc(b->data, (size_t)bytes);
  if (data) {
    *b = (kva_comm_buffer){data, bytes};
    return KVA_OK;
  }
  snprintf(told->error, sizeof told->error, "%s: no memory for %lld bytes to exchange", told->name, (long long)bytes);
  return KVA_NO_MEMORY;
}

static kva_status allocate(kva_comm *c) {
  KVA_TRY(reserve(c, &c->in, FEW + c->size * (int64_t)sizeof(int64_t)));
  KVA_TRY(reserve(c, &c->out, FEW + c->size * (int64_t)sizeof(int64_t)));
  c->n_in = calloc((size_t)c->size, 4 * sizeof *c->n_in);
  c->numbers = calloc((size_t)c->size, sizeof *c->numbers);
  if (!c->n_in || !c->numbers) return KVA_NO_MEMORY;
  c->at_in = c->n_in + c->size;
  c->n_out = c->at_in + c->size;
  c->at_out = c->n_out + c->size;
  return KVA_OK;
}

static kva_status initialise(kva_comm *c) {
  int initialised = 0, threads = 0;
  KVA_TRY(kva_comm_check(c, "MPI_Initialized", c->mpi.Initialized(&initialised)));
  snprintf(c->name, sizeof c->name, "a process that cannot join (pid %ld)", (long)getpid());
  if (!initialised)
    KVA_TRY(kva_comm_check(c, "MPI_Init_thread", c->mpi.Init_thread(NULL, NULL, KVA_MPI_THREAD_SERIALIZED, &threads)));
  c->finalizes = !initialised;
  KVA_TRY(kva_comm_check(c, "MPI_Query_thread", c->mpi.Query_thread(&threads)));
  kva_comm_thread_init(c, threads >= KVA_MPI_THREAD_SERIALIZED);
  KVA_TRY(kva_comm_check(c, "MPI_Comm_set_errhandler", c->mpi.Comm_set_errhandler(c->mpi.world, c->mpi.errors_return)));
  KVA_TRY(kva_comm_check(c, "MPI_Comm_rank", c->mpi.Comm_rank(c->mpi.world, &c->rank)));
  KVA_TRY(kva_comm_check(c, "MPI_Comm_size", c->mpi.Comm_size(c->mpi.world, &c->size)));
  c->mesh = (kva_comm_mesh){.data = c->size, .pipeline = 1, .sequence = 1, .tensor = 1};
  char host[64] = "";
  if (gethostname(host, sizeof host - 1)) host[0] = 0;
  snprintf(c->name, sizeof c->name, "process %d of %d (%s, pid %ld)", c->rank, c->size, host, (long)getpid());
  return KVA_OK;
}

/* What fails after MPI has started ends the others at exit, when the message is printed: MPI_Finalize would wait for
 * them. */
kva_status kva_comm_create(kva_diag *diag, kva_comm **out_comm) {
  *out_comm = NULL;
  KVA_ASSERT(!joined);
  kva_comm *c = calloc(1, sizeof *c);
  if (!c) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a communicator");
  kva_status status = kva_mpi_load(diag, &c->mpi);
  if (status == KVA_OK && (status = initialise(c)) != KVA_OK)
    status = kva_fail(diag, KVA_MISSING, NULL, "%s does not start: %s", c->mpi.version, c->error);
  if (status == KVA_OK && (status = allocate(c)) != KVA_OK)
    status = kva_fail(diag, status, NULL, "no memory for a communicator");
  if (status != KVA_OK && !c->finalizes) {
    release(c);
    return status;
  }
  joined = c;
  (void)atexit(abandon);
  if (status == KVA_OK) *out_comm = c;
  return status;
}

void kva_comm_destroy(kva_comm *c, int code) {
  if (!c) return;
  joined = NULL;
  kva_comm_thread_stop(c);
  if (code && !c->agreed) end_all(c, "failed", code);
  if (c->finalizes) (void)c->mpi.Finalize();
  release(c);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

kva_comm_mesh kva_comm_mesh_of(const kva_comm *c) {
  return c->mesh;
}

kva_comm_mesh kva_comm_place(const kva_comm *c, int rank) {
  const kva_comm_mesh *m = &c->mesh;
  int stage = rank / m->tensor / m->sequence; /* counted over all parts of a batch */
  return (kva_comm_mesh){.data = stage / m->pipeline,
                         .pipeline = stage % m->pipeline,
                         .sequence = rank / m->tensor % m->sequence,
                         .tensor = rank % m->tensor};
}

/* Ranks of a group keep their order, so sums in it have one order. */
static kva_status create_group(kva_comm *c, int parts, int stride, kva_comm **out) {
  kva_comm *g = *out = calloc(1, sizeof *g);
  if (!g) return KVA_NO_MEMORY;
  int place = c->rank / stride % parts, first = c->rank - place * stride;
  g->mpi = c->mpi;
  g->parent = c;
  g->mpi.world = NULL;
  KVA_TRY(kva_comm_check(c, "MPI_Comm_split", c->mpi.Comm_split(c->mpi.world, first, c->rank, &g->mpi.world)));
  g->rank = place;
  g->size = parts;
  g->mesh = (kva_comm_mesh){.data = parts, .pipeline = 1, .sequence = 1, .tensor = 1};
  snprintf(g->name, sizeof g->name, "%s", c->name);
  return allocate(g);
}

kva_status kva_comm_set_mesh(kva_comm *c, const kva_comm_mesh *mesh) {
  KVA_ASSERT(!c->data && kva_comm_mesh_size(mesh) == c->size);
  c->mesh = *mesh;
  if (mesh->data == c->size) return KVA_OK;
  kva_status status = create_group(c, mesh->tensor, 1, &c->slices);
  if (status == KVA_OK) status = create_group(c, mesh->sequence, mesh->tensor, &c->rows);
  if (status == KVA_OK) status = create_group(c, mesh->pipeline, mesh->sequence * mesh->tensor, &c->stages);
  if (status == KVA_OK) status = create_group(c, mesh->data, mesh->pipeline * mesh->sequence * mesh->tensor, &c->data);
  return status;
}

kva_comm *kva_comm_group(kva_comm *c, int64_t parts, int64_t stride) {
  const kva_comm_mesh *m = &c->mesh;
  if (parts == c->size && stride == 1) return c;
  if (c->data && parts == m->tensor && stride == 1) return c->slices;
  if (c->data && parts == m->sequence && stride == m->tensor) return c->rows;
  if (c->data && parts == m->pipeline && stride == (int64_t)m->sequence * m->tensor) return c->stages;
  if (c->data && parts == m->data && stride == (int64_t)m->pipeline * m->sequence * m->tensor) return c->data;
  snprintf(c->error, sizeof c->error, "no axis of the mesh has %lld processes, %lld ranks apart", (long long)parts,
           (long long)stride);
  return NULL;
}

kva_comm *kva_comm_data(kva_comm *c) {
  return c && c->data ? c->data : c;
}

kva_comm *kva_comm_stages(kva_comm *c) {
  return c && c->data && c->mesh.pipeline > 1 ? c->stages : NULL;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* y = sum over n_x arrays of n elements, one after the other in x, in their order. */
#define SUM(name, type)                                                        \
  static void name(int n_x, int64_t n, const void *x, void *y) {               \
    const type *in = x;                                                        \
    type *sum = y;                                                             \
    memcpy(sum, in, (size_t)n * sizeof *sum);                                  \
    for (int r = 1; r < n_x; r++)                                              \
      for (int64_t i = 0; i < n; i++) sum[i] = (type)(sum[i] + in[r * n + i]); \
  }
SUM(sum_f32, float)
SUM(sum_f64, double)
SUM(sum_u64, uint64_t)
SUM(sum_u32, uint32_t)
SUM(sum_u16, uint16_t)
SUM(sum_u8, uint8_t)
#undef SUM

static void sum_narrow(kva_dtype t, int n_x, int64_t n, const void *x, void *y) {
  for (int64_t i = 0; i < n; i++) {
    float sum = (float)kva_load_f64(t, x, i);
    for (int r = 1; r < n_x; r++) sum += (float)kva_load_f64(t, x, r * n + i);
    kva_store_f64(t, y, i, sum);
  }
}

static void sum_ranks(kva_dtype t, int n_x, int64_t n, const void *x, void *y) {
  if (n == 0) return;
  if (kva_dtype_is_float(t)) {
    if (t == KVA_F32)
      sum_f32(n_x, n, x, y);
    else if (t == KVA_F64)
      sum_f64(n_x, n, x, y);
    else
      sum_narrow(t, n_x, n, x, y);
    return;
  }
  switch (kva_dtype_bits(t)) { /* two's complement: the sum of signed integers is that of unsigned ones */
  case 8: sum_u8(n_x, n, x, y); break;
  case 16: sum_u16(n_x, n, x, y); break;
  case 32: sum_u32(n_x, n, x, y); break;
  default: sum_u64(n_x, n, x, y); break;
  }
}

int64_t kva_comm_piece(int64_t processes) {
  return processes < PIECE / SHARE ? processes * SHARE : PIECE;
}

/* Elements of the pieces of a sum, whose segments may be one element longer than others. */
static int64_t most_elements(const kva_comm *c, int64_t width) {
  return kva_comm_piece(c->size) / width - c->size;
}

static kva_status check_type(kva_comm *c, kva_dtype t) {
  if ((kva_dtype_is_float(t) || kva_dtype_is_int(t)) && kva_dtype_bits(t) >= 8) return KVA_OK;
  kva_comm *told = c->parent ? c->parent : c;
  snprintf(told->error, sizeof told->error,
           "sums over processes are of floats and of integers of 8 bits and more, found %s", kva_dtype_name(t));
  return KVA_UNSUPPORTED;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* n_out[r] bytes from at_out[r] of x go to rank r; n_in[r] bytes from it to at_in[r] of y. */
static kva_status exchange(kva_comm *c, const void *x, void *y) {
  for (int r = 0; r < c->size; r++) c->bytes += r == c->rank ? 0 : c->n_out[r];
  const kva_mpi *m = &c->mpi;
  if (!kva_comm_on_thread(c))
    return kva_comm_check(c, "MPI_Alltoallv",
                          m->Alltoallv(x, c->n_out, c->at_out, m->byte, y, c->n_in, c->at_in, m->byte, m->world));
  void *request = NULL;
  KVA_TRY(kva_comm_check(
      c, "MPI_Ialltoallv",
      m->Ialltoallv(x, c->n_out, c->at_out, m->byte, y, c->n_in, c->at_in, m->byte, m->world, &request)));
  return kva_comm_finish(c, &request);
}

/* Every rank's part, n_out[r] bytes at at_out[r] of y, goes to all. */
static kva_status spread(kva_comm *c, void *y) {
  c->bytes += (int64_t)(c->size - 1) * c->n_out[c->rank];
  const kva_mpi *m = &c->mpi;
  if (!kva_comm_on_thread(c))
    return kva_comm_check(c, "MPI_Allgatherv",
                          m->Allgatherv(m->in_place, 0, m->byte, y, c->n_out, c->at_out, m->byte, m->world));
  void *request = NULL;
  KVA_TRY(kva_comm_check(c, "MPI_Iallgatherv",
                         m->Iallgatherv(m->in_place, 0, m->byte, y, c->n_out, c->at_out, m->byte, m->world, &request)));
  return kva_comm_finish(c, &request);
}

/* The sum of a piece that fits the buffer, of n elements. */
static kva_status all_reduce_piece(kva_comm *c, kva_dtype t, int64_t width, int64_t n, const char *x, char *y) {
  int64_t own = n * c->rank / c->size, n_own = n * (c->rank + 1) / c->size - own;
  for (int r = 0; r < c->size; r++) {
    int64_t begin = n * r / c->size;
    c->at_out[r] = (int)(begin * width);
    c->n_out[r] = (int)((n * (r + 1) / c->size - begin) * width);
    c->n_in[r] = (int)(n_own * width);
    c->at_in[r] = (int)(r * n_own * width);
  }
  KVA_TRY(reserve(c, &c->in, c->size * n_own * width));
  KVA_TRY(exchange(c, x, c->in.data));
  sum_ranks(t, c->size, n_own, c->in.data, y + own * width);
  return spread(c, y);
}

kva_status kva_comm_all_reduce(kva_comm *c, kva_dtype dtype, int64_t n, const void *x, void *y) {
  kva_comm_drain(c);
  KVA_TRY(check_type(c, dtype));
  int64_t width = kva_dtype_bits(dtype) / 8, most = most_elements(c, width);
  for (int64_t at = 0; at < n; at += most)
    KVA_TRY(all_reduce_piece(c, dtype, width, n - at < most ? n - at : most, (const char *)x + at * width,
                             (char *)y + at * width));
  return KVA_OK;
}

kva_status kva_comm_pack_flush(kva_comm *c, kva_comm_pack *p) {
  kva_comm_drain(c);
  int64_t width = kva_dtype_bits(p->dtype) / 8;
  KVA_TRY(kva_comm_all_reduce(c, p->dtype, p->elements, c->out.data, c->out.data));
  const char *from = c->out.data;
  for (int i = 0; i < p->n_parts; i++) {
    size_t bytes = (size_t)(p->parts[i].n * width);
    if (bytes) memcpy(p->parts[i].y, from, bytes);
    from += bytes;
  }
  p->n_parts = 0;
  p->elements = 0;
  return KVA_OK;
}

kva_status kva_comm_pack_add(kva_comm *c, kva_comm_pack *p, int64_t n, const void *x, void *y) {
  kva_comm_drain(c);
  int64_t width = kva_dtype_bits(p->dtype) / 8, room = most_elements(c, width);
  if (p->n_parts == KVA_COMM_PACK || p->elements + n > room) KVA_TRY(kva_comm_pack_flush(c, p));
  if (n > room) return kva_comm_all_reduce(c, p->dtype, n, x, y);
  KVA_TRY(reserve(c, &c->out, (p->elements + n) * width));
  if (n) memcpy(c->out.data + p->elements * width, x, (size_t)(n * width));
  p->parts[p->n_parts].n = n;
  p->parts[p->n_parts++].y = y;
  p->elements += n;
  return KVA_OK;
}

static void equal_parts(kva_comm *c, int64_t bytes) {
  for (int r = 0; r < c->size; r++) {
    c->n_in[r] = c->n_out[r] = (int)bytes;
    c->at_in[r] = c->at_out[r] = (int)(r * bytes);
  }
}

/* Bytes that rank r's part of a tensor has from byte `at` of the part on, `piece` at most. Parts are `part` bytes long,
 * but for what lies beyond the tensor's `total` bytes. */
static int64_t piece_of(int r, int64_t part, int64_t total, int64_t at, int64_t piece) {
  int64_t rest = kva_part_filled(total, part, r) - at;
  return rest < 0 ? 0 : rest < piece ? rest : piece;
}

/* Bytes [at, at + piece) of each rank's part of x arrive in the buffer, one after the other. */
static kva_status exchange_piece(kva_comm *c, int64_t part, int64_t total, int64_t at, int64_t piece, const char *x) {
  int64_t own = piece_of(c->rank, part, total, at, piece);
  KVA_TRY(reserve(c, &c->in, c->size * own));
  KVA_TRY(reserve(c, &c->out, c->size * piece));
  for (int r = 0; r < c->size; r++) {
    int64_t n = piece_of(r, part, total, at, piece);
    c->n_out[r] = (int)n;
    c->at_out[r] = (int)(r * piece);
    c->n_in[r] = (int)own;
    c->at_in[r] = (int)(r * own);
    if (n) memcpy(c->out.data + r * piece, x + r * part + at, (size_t)n);
  }
  return exchange(c, c->out.data, c->in.data);
}

/* Bytes of one rank's share of a piece, whole elements of up to 8 bytes. */
static int64_t share_of(const kva_comm *c) {
  return kva_comm_piece(c->size) / c->size / 8 * 8;
}

kva_status kva_comm_reduce_scatter(kva_comm *c, kva_dtype dtype, int64_t n, int64_t total, const void *x, void *y) {
  kva_comm_drain(c);
  KVA_TRY(check_type(c, dtype));
  int64_t width = kva_dtype_bits(dtype) / 8, most = share_of(c), part = n * width;
  for (int64_t at = 0; at < part; at += most) {
    int64_t piece = part - at < most ? part - at : most;
    int64_t own = piece_of(c->rank, part, total * width, at, piece);
    KVA_TRY(exchange_piece(c, part, total * width, at, piece, x));
    sum_ranks(dtype, c->size, own / width, c->in.data, (char *)y + at);
    memset((char *)y + at + own, 0, (size_t)(piece - own));
  }
  return KVA_OK;
}

kva_status kva_comm_all_gather(kva_comm *c, int64_t bytes, int64_t total, const void *x, void *y) {
  kva_comm_drain(c);
  for (int64_t at = 0, most = share_of(c); at < bytes; at += most) {
    int64_t piece = bytes - at < most ? bytes - at : most;
    equal_parts(c, piece);
    KVA_TRY(reserve(c, &c->in, c->size * piece));
    memcpy(c->in.data + c->rank * piece, (const char *)x + at, (size_t)piece);
    KVA_TRY(spread(c, c->in.data));
    for (int r = 0; r < c->size; r++) {
      int64_t n = piece_of(r, bytes, total, at, piece);
      if (n) memcpy((char *)y + r * bytes + at, c->in.data + r * piece, (size_t)n);
    }
  }
  return KVA_OK;
}

kva_status kva_comm_broadcast(kva_comm *c, int root, int64_t bytes, void *data) {
  kva_comm_drain(c);
  for (int64_t at = 0; at < bytes; at += MESSAGE) {
    int piece = (int)(bytes - at < MESSAGE ? bytes - at : MESSAGE);
    KVA_TRY(kva_comm_check(c, "MPI_Bcast", c->mpi.Bcast((char *)data + at, piece, c->mpi.byte, root, c->mpi.world)));
  }
  return KVA_OK;
}

kva_status kva_comm_send(kva_comm *c, int to, int64_t bytes, const void *data) {
  kva_comm_drain(c);
  c->bytes += bytes;
  for (int64_t at = 0; at < bytes; at += MESSAGE) {
    int piece = (int)(bytes - at < MESSAGE ? bytes - at : MESSAGE);
    KVA_TRY(
        kva_comm_check(c, "MPI_Send", c->mpi.Send((const char *)data + at, piece, c->mpi.byte, to, TAG, c->mpi.world)));
  }
  return KVA_OK;
}

kva_status kva_comm_receive(kva_comm *c, int from, int64_t bytes, void *data) {
  kva_comm_drain(c);
  for (int64_t at = 0; at < bytes; at += MESSAGE) {
    int piece = (int)(bytes - at < MESSAGE ? bytes - at : MESSAGE);
    KVA_TRY(kva_comm_check(
        c, "MPI_Recv",
        c->mpi.Recv((char *)data + at, piece, c->mpi.byte, from, TAG, c->mpi.world, c->mpi.status_ignore)));
  }
  return KVA_OK;
}

/* Every other rank receives before it sends, so that all do not wait for each other. */
kva_status kva_comm_shift(kva_comm *c, int by, int64_t bytes, const void *x, void *y) {
  int to = c->rank + by, from = c->rank - by;
  bool sends = to >= 0 && to < c->size, receives = from >= 0 && from < c->size, early = c->rank % 2 == 0;
  if (!receives && bytes) memset(y, 0, (size_t)bytes);
  if (sends && early) KVA_TRY(kva_comm_send(c, to, bytes, x));
  if (receives) KVA_TRY(kva_comm_receive(c, from, bytes, y));
  return sends && !early ? kva_comm_send(c, to, bytes, x) : KVA_OK;
}
