/* The processes of one run, and what they exchange. A launcher (mpirun, srun) starts them; MPI, found when a run asks
 * for it, carries the messages. One process needs neither: it has no kva_comm.
 *
 * All functions but the queries, send and receive are collective: every process calls them, in the same order and with
 * the same sizes. Sums are taken in order of ranks, so their bits depend on neither timing nor the library. One thread
 * at a time uses a communicator, beside its own for jobs. A failure is a status; kva_comm_error has its text. */
#ifndef KVA_RUNTIME_COMM_H
#define KVA_RUNTIME_COMM_H

#include "runtime/base/base.h"

typedef struct kva_comm kva_comm;
struct kva_artifact;

/* Joins the processes that the launcher started; without a launcher this one is alone. KVA_MISSING: there is no MPI;
 * the message says what to install. A process has only one communicator in its life, as MPI allows it. */
KVA_MUST_USE kva_status kva_comm_create(kva_diag *diag, kva_comm **out_comm);
/* Leaves when all processes do; `code` is this one's exit code. NULL is ignored. A process that ends without this call,
 * or calls it after a failure that the others do not know of (code is not 0, and no kva_comm_agree gave the reason),
 * ends them all. */
void kva_comm_destroy(kva_comm *c, int code);
/* Processes that a launcher of MPI says it started, of which this is one; 1: none did. */
int kva_comm_launched(void);

/* The axes of a mesh, numbers of processes: rank = ((place on data * pipeline + place on pipeline) * sequence + place
 * on sequence) * tensor + place on tensor. Makes the group of each axis: the processes that differ in their place on it
 * alone. The product is the number of processes. */
typedef struct kva_comm_mesh {
  int data, pipeline, sequence, tensor;
} kva_comm_mesh;
static inline int64_t kva_comm_mesh_size(const kva_comm_mesh *m) {
  return (int64_t)m->data * m->pipeline * m->sequence * m->tensor;
}
KVA_MUST_USE kva_status kva_comm_set_mesh(kva_comm *c, const kva_comm_mesh *mesh);
/* The processes whose ranks differ from this one's by multiples of `stride` within `parts * stride`, as a communicator
 * of their own, which c owns; NULL, with a text: no axis of the mesh is such a group. */
kva_comm *kva_comm_group(kva_comm *c, int64_t parts, int64_t stride);
/* The processes that hold what this one holds, for other parts of a batch: the axis data; c itself without a mesh. */
kva_comm *kva_comm_data(kva_comm *c);
/* The processes that have the other stages of this one's part of a batch, by stage; NULL: there is one stage. */
kva_comm *kva_comm_stages(kva_comm *c);
/* What an artefact was compiled for. */
kva_comm_mesh kva_artifact_mesh(const struct kva_artifact *a);
/* What kva_comm_set_mesh said; else all processes are on the axis data. */
kva_comm_mesh kva_comm_mesh_of(const kva_comm *c);
/* The place of a rank on the axes. */
kva_comm_mesh kva_comm_place(const kva_comm *c, int rank);

int kva_comm_rank(const kva_comm *c);            /* from 0 up; 0 where c is NULL */
int kva_comm_size(const kva_comm *c);            /* 1 where c is NULL */
const char *kva_comm_name(const kva_comm *c);    /* "process 1 of 4 (node7, pid 4711)" */
const char *kva_comm_library(const kva_comm *c); /* "Open MPI v4.1.4, ..." */
const char *kva_comm_error(const kva_comm *c);

/* Bytes of the pieces that sums and gathers among so many processes pass in: 2 MiB for each, 256 MiB at most. A
 * communicator, or group, has two buffers of that size at most, which grow as tensors need them. */
int64_t kva_comm_piece(int64_t processes);
/* y[i] = the sum over ranks of their x[i], for n elements; x and y are the same memory or do not overlap. Elements of
 * less than a byte, complex numbers and strings: KVA_UNSUPPORTED. Floats of 16 and 8 bits are summed in float and
 * rounded once; integers wrap. A process sends 2 (size - 1) / size of x's bytes. */
KVA_MUST_USE kva_status kva_comm_all_reduce(kva_comm *c, kva_dtype dtype, int64_t n, const void *x, void *y);
/* Sums of several tensors of one type, which travel together: a message costs time of its own. add takes n elements; x
 * may change then, and y is not read or written by others before flush, which every pack ends with. Zero but for dtype
 * at the start. */
enum { KVA_COMM_PACK = 64 };
typedef struct kva_comm_pack {
  kva_dtype dtype;
  int n_parts;
  int64_t elements;
  struct {
    int64_t n;
    void *y;
  } parts[KVA_COMM_PACK];
} kva_comm_pack;
KVA_MUST_USE kva_status kva_comm_pack_add(kva_comm *c, kva_comm_pack *p, int64_t n, const void *x, void *y);
KVA_MUST_USE kva_status kva_comm_pack_flush(kva_comm *c, kva_comm_pack *p);
/* x has `total` elements, of which rank r's part are those from r n on; y[i] = the sum over ranks of element i of the
 * part for this one. What parts have beyond the end of x is zero. A process sends what x has beside its own part. */
KVA_MUST_USE kva_status kva_comm_reduce_scatter(kva_comm *c, kva_dtype dtype, int64_t n, int64_t total, const void *x,
                                                void *y);
/* y gets the `bytes` bytes of every rank's x, in order of ranks, up to `total` bytes in all. A process sends its part
 * to each of the others. */
KVA_MUST_USE kva_status kva_comm_all_gather(kva_comm *c, int64_t bytes, int64_t total, const void *x, void *y);
/* All get root's data. */
KVA_MUST_USE kva_status kva_comm_broadcast(kva_comm *c, int root, int64_t bytes, void *data);
/* A message from one process to another; both name the same number of bytes. */
KVA_MUST_USE kva_status kva_comm_send(kva_comm *c, int to, int64_t bytes, const void *data);
KVA_MUST_USE kva_status kva_comm_receive(kva_comm *c, int from, int64_t bytes, void *data);
/* y gets the x of rank - by, where by is 1 or -1; zeros where there is no such rank. */
KVA_MUST_USE kva_status kva_comm_shift(kva_comm *c, int by, int64_t bytes, const void *x, void *y);
/* Bytes that this process has sent to others in sums, gathers and messages; add: by other means than these functions.
 */
int64_t kva_comm_bytes(const kva_comm *c);
void kva_comm_add_bytes(kva_comm *c, int64_t bytes);

/* Exchange that goes on while the caller computes. Jobs run one after the other, in the order in which they are posted,
 * on a thread of the communicator; at once in the caller where MPI or KVASIR_OVERLAP=off allows none. A job is one
 * collective or several, and must touch nothing that the caller does before wait. All functions above wait for jobs
 * that are not done. All processes post the same jobs. */
typedef struct kva_comm_job {
  kva_status (*run)(void *user);
  void *user;
  kva_status status; /* of run */
  bool done;
  struct kva_comm_job *next;
} kva_comm_job;
/* The job must stay where it is until it is done. Of a group or its whole communicator: they share the order. */
void kva_comm_post(kva_comm *c, kva_comm_job *job);
/* Until the job is done; its status. */
KVA_MUST_USE kva_status kva_comm_wait(kva_comm *c, kva_comm_job *job);
/* In the caller, behind all that are posted. */
KVA_MUST_USE kva_status kva_comm_run(kva_comm *c, kva_comm_job *job);
/* Until all are done. c NULL: there are none. */
void kva_comm_drain(kva_comm *c);
/* Seconds in which jobs ran, from the first byte that a process could send to the last that it got; and those in which
 * the caller waited for them. */
typedef struct kva_comm_times {
  double exchange, waited;
} kva_comm_times;
kva_comm_times kva_comm_measured(const kva_comm *c);
/* Adds times of exchange by other means than these functions. */
void kva_comm_add_times(kva_comm *c, const kva_comm_times *times);

/* All get root's text. c NULL: the text stays. */
KVA_MUST_USE kva_status kva_comm_broadcast_text(kva_comm *c, int root, kva_text *text);
/* All get the text of the first rank whose own is not empty, behind its process's name; returns that rank, -1: none has
 * one. c NULL: the text stays. */
int kva_comm_share(kva_comm *c, kva_text *text);
/* All get the same status: that of the first rank with a failure, else of the first that is not KVA_OK. The errors of
 * that rank take the place of diag's. c NULL: the status stays. */
KVA_MUST_USE kva_status kva_comm_agree(kva_comm *c, kva_status status, kva_diag *diag);
/* Says that all processes have the failure that this one has, until they next agree that there is none; and whether
 * that is so. */
void kva_comm_note_agreed(kva_comm *c, bool failed);
bool kva_comm_agreed(const kva_comm *c);
/* Compares lines `name: value` of all processes with those of rank 0; KVA_INVALID names the first that differ, with
 * process and both values. Agreed. */
KVA_MUST_USE kva_status kva_comm_compare(kva_comm *c, const char *lines, kva_diag *diag);

#endif
