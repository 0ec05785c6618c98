/* Exchange that goes on while the caller computes: jobs, and the thread that runs them.
 *
 * MPI moves data only while a call of it runs, so somebody must call. The caller's kernels take milliseconds, in which
 * a message of a few megabytes has many turns; hence a thread. One thread at a time is in MPI (MPI_THREAD_SERIALIZED):
 * the caller's own exchanges first wait for all jobs. Jobs run one after the other in the order of the plan, which is
 * the same in all processes, so that none waits for another in a circle.
 *
 * The thread may share a core with one that computes. A call of MPI that waits spins, and would take half of that core;
 * so the thread starts an exchange without waiting (MPI_Ialltoallv), asks whether it has ended, and sleeps between two
 * questions: asking moves what has arrived, and takes a few microseconds. When the caller waits, its core is free, and
 * the thread asks all the time. */
#include "runtime/comm_internal.h"

#include "runtime/base/platform.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

enum {
  SHORTEST = 20000, /* nanoseconds of a sleep */
  LONGEST = 50000,
  SLACK = 1000,
  QUESTIONS = 4, /* between two sleeps: what one makes the other end send, the next may find */
};

static kva_comm *root_of(kva_comm *c) {
  return c->parent ? c->parent : c;
}

void kva_comm_thread_init(kva_comm *c, bool allowed) {
  const char *wish = getenv("KVASIR_OVERLAP");
  kva_comm_thread *t = &c->thread;
  t->allowed = allowed && !(wish && (!strcmp(wish, "0") || !strcmp(wish, "off")));
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->posted, NULL);
  pthread_cond_init(&t->ended, NULL);
}

bool kva_comm_on_thread(const kva_comm *c) {
  const kva_comm_thread *t = &(c->parent ? c->parent : c)->thread;
  return t->runs && pthread_equal(t->id, pthread_self());
}

/* ---- waiting for MPI --------------------------------------------------------------------------------------------- */

static void pause_for(long *nanoseconds) {
  const struct timespec pause = {.tv_nsec = *nanoseconds};
  nanosleep(&pause, NULL);
  *nanoseconds = *nanoseconds * 2 > LONGEST ? LONGEST : *nanoseconds * 2;
}

kva_status kva_comm_finish(kva_comm *c, void **request) {
  kva_comm_thread *t = &root_of(c)->thread;
  for (long pause = SHORTEST;;) {
    int ended = 0;
    for (int i = 0; i < QUESTIONS && !ended; i++)
      KVA_TRY(kva_comm_check(c, "MPI_Test", c->mpi.Test(request, &ended, c->mpi.status_ignore)));
    if (ended) return KVA_OK;
    if (atomic_load(&t->stop)) return KVA_IO;
    if (atomic_load(&t->awaited))
      sched_yield();
    else
      pause_for(&pause);
  }
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* The next job; NULL: the thread is to end. */
static kva_comm_job *next_job(kva_comm_thread *t) {
  pthread_mutex_lock(&t->lock);
  while (!t->first && !atomic_load(&t->stop)) pthread_cond_wait(&t->posted, &t->lock);
  kva_comm_job *job = atomic_load(&t->stop) ? NULL : t->first;
  pthread_mutex_unlock(&t->lock);
  return job;
}

static void end_job(kva_comm *c, kva_comm_job *job, kva_status status, double seconds) {
  kva_comm_thread *t = &c->thread;
  pthread_mutex_lock(&t->lock);
  c->times.exchange += seconds;
  t->first = job->next;
  if (!t->first) t->last = NULL;
  job->status = status;
  job->done = true;
  pthread_cond_broadcast(&t->ended);
  pthread_mutex_unlock(&t->lock);
}

/* Sleeps must not be rounded up to the system's 50 microseconds. */
static void *work(void *argument) {
  kva_comm *c = argument;
  (void)prctl(PR_SET_TIMERSLACK, SLACK);
  for (kva_comm_job *job; (job = next_job(&c->thread));) {
    double begin = kva_now();
    kva_status status = job->run(job->user);
    end_job(c, job, status, kva_now() - begin);
  }
  return NULL;
}

/* Signals belong to the program's own threads. */
static void start(kva_comm *c) {
  sigset_t all, before;
  kva_comm_thread *t = &c->thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_mutex_lock(&t->lock); /* the thread's own look at `runs` and `id` comes after */
  t->runs = !pthread_create(&t->id, NULL, work, c);
  if (!t->runs) t->allowed = false; /* exchange waits then */
  pthread_mutex_unlock(&t->lock);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void kva_comm_thread_stop(kva_comm *c) {
  kva_comm_thread *t = &c->thread;
  if (!t->runs) return;
  pthread_mutex_lock(&t->lock);
  atomic_store(&t->stop, true);
  pthread_cond_signal(&t->posted);
  pthread_mutex_unlock(&t->lock);
  pthread_join(t->id, NULL);
  t->runs = false;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

void kva_comm_post(kva_comm *c, kva_comm_job *job) {
  c = root_of(c);
  kva_comm_thread *t = &c->thread;
  if (t->allowed && !t->runs) start(c);
  job->next = NULL;
  job->done = false;
  if (!t->allowed) {
    job->status = kva_comm_run(c, job);
    return;
  }
  pthread_mutex_lock(&t->lock);
  if (t->last)
    t->last->next = job;
  else
    t->first = job;
  t->last = job;
  pthread_cond_signal(&t->posted);
  pthread_mutex_unlock(&t->lock);
}

/* Until the job has ended; NULL: until all have. */
static void wait_for(kva_comm *c, const kva_comm_job *job) {
  kva_comm_thread *t = &c->thread;
  double begin = kva_now();
  pthread_mutex_lock(&t->lock);
  atomic_store(&t->awaited, true);
  while (job ? !job->done : t->first != NULL) pthread_cond_wait(&t->ended, &t->lock);
  atomic_store(&t->awaited, false);
  c->times.waited += kva_now() - begin;
  pthread_mutex_unlock(&t->lock);
}

kva_status kva_comm_wait(kva_comm *c, kva_comm_job *job) {
  if (root_of(c)->thread.runs) wait_for(root_of(c), job);
  return job->status;
}

void kva_comm_drain(kva_comm *c) {
  if (!c || !root_of(c)->thread.runs || kva_comm_on_thread(c)) return;
  wait_for(root_of(c), NULL);
}

kva_status kva_comm_run(kva_comm *c, kva_comm_job *job) {
  kva_comm_drain(c);
  double begin = kva_now();
  job->status = job->run(job->user);
  job->done = true;
  double seconds = kva_now() - begin;
  root_of(c)->times.exchange += seconds;
  root_of(c)->times.waited += seconds;
  return job->status;
}

kva_comm_times kva_comm_measured(const kva_comm *c) {
  return c->parent ? c->parent->times : c->times;
}

void kva_comm_add_times(kva_comm *c, const kva_comm_times *times) {
  root_of(c)->times.exchange += times->exchange;
  root_of(c)->times.waited += times->waited;
}
