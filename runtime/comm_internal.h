/* Internals of a communicator, shared by comm.c, comm_agree.c and comm_thread.c. */
#ifndef KVA_RUNTIME_COMM_INTERNAL_H
#define KVA_RUNTIME_COMM_INTERNAL_H

#include "runtime/comm.h"
#include "runtime/comm_mpi.h"

#include <pthread.h>
#include <stdatomic.h>

/* The thread that runs jobs while the caller computes; of a communicator that is no group. */
typedef struct kva_comm_thread {
  bool allowed; /* by MPI, and by the user */
  bool runs;
  pthread_t id;
  pthread_mutex_t lock;
  pthread_cond_t posted, ended;
  kva_comm_job *first, *last; /* jobs that are not done, in order; the first one is being run */
  atomic_bool awaited;        /* the caller waits for a job, so this thread need not share its core */
  atomic_bool stop;
} kva_comm_thread;

typedef struct kva_comm_buffer {
  char *data;
  int64_t bytes;
} kva_comm_buffer;

struct kva_comm {
  kva_mpi mpi;
  int rank, size;
  bool finalizes; /* this communicator initialised MPI */
  bool agreed;    /* the others know of the failure */
  int64_t bytes;
  kva_comm_buffer in, out;            /* of kva_comm_piece(size) bytes at most */
  int *n_in, *at_in, *n_out, *at_out; /* by rank, in bytes */
  int64_t *numbers;                   /* by rank: what all agree on */
  char name[160], error[512];
  kva_comm_mesh mesh;
  kva_comm *parent;                        /* of a group; else NULL */
  kva_comm *data, *stages, *rows, *slices; /* the groups of the axes data, pipeline, sequence, tensor; NULL: all is
                                              data */
  kva_comm_thread thread;
  kva_comm_times times;
};

/* KVA_OK, or KVA_IO with the library's text. */
kva_status kva_comm_check(kva_comm *c, const char *what, int result);

/* ---- comm_thread.c ----------------------------------------------------------------------------------------------- */

void kva_comm_thread_init(kva_comm *c, bool allowed);
/* Ends the thread, in the middle of a job if there is one: what it exchanges is lost. */
void kva_comm_thread_stop(kva_comm *c);
/* Whether the calling thread is the one that runs jobs. */
bool kva_comm_on_thread(const kva_comm *c);
/* Waits, on that thread, until a request of MPI has ended. */
KVA_MUST_USE kva_status kva_comm_finish(kva_comm *c, void **request);

#endif
