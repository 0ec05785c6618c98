/* Preloaded: ranks that wait sleep for a moment. They ask for progress in a loop: MPICH over UCX gives the core to
 * nobody meanwhile, Open MPI yields it to others after each question. Of more ranks than cores, one that computes then
 * gets little of them, and questions take a third of the time. */
#include <dlfcn.h>
#include <time.h>

unsigned ucp_worker_progress(void *worker);
int sched_yield(void);

static void rest(void) {
  nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

unsigned ucp_worker_progress(void *worker) {
  static unsigned (*real)(void *worker);
  /* RTLD_NEXT does not find libraries that MPICH, itself loaded by dlopen, brings along. */
  if (!real) *(void **)&real = dlsym(dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD), "ucp_worker_progress");
  unsigned progress = real(worker);
  if (!progress) rest();
  return progress;
}

int sched_yield(void) {
  rest();
  return 0;
}
