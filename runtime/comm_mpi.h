/* MPI as Kvasir uses it: found when a run has several processes, never linked.
 *
 * Open MPI and MPICH (with Intel MPI, MVAPICH and Cray MPICH, which share its interface) differ in what handles are:
 * addresses of objects in the library, or numbers. Both fit a pointer, and both calling conventions that Kvasir runs on
 * (System V on x86-64, AAPCS64) pass an int as the low half of the same register or stack slot. A request that the
 * library writes as an int is the low half of a pointer that was NULL. */
#ifndef KVA_RUNTIME_COMM_MPI_H
#define KVA_RUNTIME_COMM_MPI_H

#include "runtime/base/base.h"

typedef void *kva_mpi_handle;

enum {
  KVA_MPI_SUCCESS = 0,
  KVA_MPI_THREAD_SERIALIZED = 2,
  KVA_MPI_TEXT = 8192 /* the longest text of either library */
};

#define KVA_MPI_FUNCTIONS(X)                                                                                     \
  X(Get_library_version, (char *text, int *len))                                                                 \
  X(Initialized, (int *flag))                                                                                    \
  X(Init_thread, (int *argc, char ***argv, int required, int *provided))                                         \
  X(Query_thread, (int *provided))                                                                               \
  X(Finalize, (void))                                                                                            \
  X(Abort, (kva_mpi_handle comm, int code))                                                                      \
  X(Comm_rank, (kva_mpi_handle comm, int *rank))                                                                 \
  X(Comm_size, (kva_mpi_handle comm, int *size))                                                                 \
  X(Comm_set_errhandler, (kva_mpi_handle comm, kva_mpi_handle handler))                                          \
  X(Comm_split, (kva_mpi_handle comm, int color, int key, kva_mpi_handle *out))                                  \
  X(Error_string, (int error, char *text, int *len))                                                             \
  X(Bcast, (void *data, int n, kva_mpi_handle type, int root, kva_mpi_handle comm))                              \
  X(Send, (const void *data, int n, kva_mpi_handle type, int to, int tag, kva_mpi_handle comm))                  \
  X(Recv, (void *data, int n, kva_mpi_handle type, int from, int tag, kva_mpi_handle comm, void *status))        \
  X(Alltoallv, (const void *x, const int *n_x, const int *at_x, kva_mpi_handle type_x, void *y, const int *n_y,  \
                const int *at_y, kva_mpi_handle type_y, kva_mpi_handle comm))                                    \
  X(Allgatherv, (const void *x, int n, kva_mpi_handle type_x, void *y, const int *n_y, const int *at_y,          \
                 kva_mpi_handle type_y, kva_mpi_handle comm))                                                    \
  X(Ialltoallv, (const void *x, const int *n_x, const int *at_x, kva_mpi_handle type_x, void *y, const int *n_y, \
                 const int *at_y, kva_mpi_handle type_y, kva_mpi_handle comm, void **request))                   \
  X(Iallgatherv, (const void *x, int n, kva_mpi_handle type_x, void *y, const int *n_y, const int *at_y,         \
                  kva_mpi_handle type_y, kva_mpi_handle comm, void **request))                                   \
  X(Test, (void **request, int *flag, void *status))

typedef struct kva_mpi {
#define KVA_MPI_MEMBER(name, params) int(*name) params;
  KVA_MPI_FUNCTIONS(KVA_MPI_MEMBER)
#undef KVA_MPI_MEMBER
  kva_mpi_handle world, byte, errors_return;
  void *in_place, *status_ignore;
  const char *path;  /* what was loaded; a text that stays */
  char version[128]; /* the first line of the library's own */
} kva_mpi;

/* Finds the library of the launcher that started this process, else any: $KVASIR_MPI_LIBRARY, or those of Open MPI and
 * MPICH by their names. KVA_MISSING with what to install. The library stays loaded. */
KVA_MUST_USE kva_status kva_mpi_load(kva_diag *diag, kva_mpi *out_mpi);

#endif
