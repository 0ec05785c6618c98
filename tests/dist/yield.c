/* Preloaded: ranks of MPICH that wait leave the cores to the others, as Open MPI's do by an option. MPICH over UCX asks
 * for progress in a loop and has no such option: each rank of more than there are cores computes for as long as the
 * scheduler lets the others spin. */
#include <dlfcn.h>
#include <sched.h>

unsigned ucp_worker_progress(void *worker);

unsigned ucp_worker_progress(void *worker) {
  static unsigned (*real)(void *worker);
  /* RTLD_NEXT does not find libraries that MPICH, itself loaded by dlopen, brings along. */
  if (!real) *(void **)&real = dlsym(dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD), "ucp_worker_progress");
  unsigned progress = real(worker);
  if (!progress) sched_yield();
  return progress;
}
