#include "tools/serve/service.h"

#include <pthread.h>
#include <stdlib.h>

struct kva_service {
  kva_engine *engine;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t came;
  kva_completion *first, **last; /* that wait */
  int64_t max_waiting;
  bool stops;
  kva_service_stats stats; /* of the engine: as of the last step, with the texts that came since */
};

/* Cancelled texts leave the queue at once: their clients are gone. */
static kva_completion *take_cancelled(kva_service *s) {
  kva_completion *gone = NULL;
  for (kva_completion **p = &s->first; *p;) {
    kva_completion *c = *p;
    if (!atomic_load(&c->cancelled)) {
      p = &c->next;
      continue;
    }
    *p = c->next;
    c->next = gone;
    gone = c;
    s->stats.waiting--;
  }
  s->last = &s->first;
  while (*s->last) s->last = &(*s->last)->next;
  return gone;
}

static void admit(kva_service *s) {
  while (s->first && kva_engine_free_slots(s->engine)) {
    kva_completion *c = s->first;
    s->first = c->next;
    if (!s->first) s->last = &s->first;
    s->stats.waiting--;
    kva_engine_add(s->engine, c);
  }
  s->stats.engine = kva_engine_get_stats(s->engine);
}

static void end_each(kva_completion *c) {
  for (kva_completion *next; c; c = next) {
    next = c->next;
    kva_completion_end(c, KVA_FINISH_CANCELLED);
  }
}

static void step(kva_service *s) {
  kva_diag *diag = kva_diag_create();
  bool failed = kva_engine_step(s->engine, diag) != KVA_OK;
  if (failed) kva_diag_print(diag, stderr);
  kva_diag_destroy(diag);
  pthread_mutex_lock(&s->lock);
  s->stats.engine = kva_engine_get_stats(s->engine);
  s->stats.failed = failed;
  pthread_mutex_unlock(&s->lock);
}

static void *work(void *arg) {
  kva_service *s = arg;
  for (;;) {
    pthread_mutex_lock(&s->lock);
    bool idle = false;
    while ((idle = !s->first && !kva_engine_get_stats(s->engine).running) && !s->stops)
      pthread_cond_wait(&s->came, &s->lock);
    kva_completion *gone = take_cancelled(s);
    admit(s);
    pthread_mutex_unlock(&s->lock);
    end_each(gone);
    if (idle) return NULL;
    step(s);
  }
}

kva_status kva_service_start(kva_engine *e, int64_t max_waiting, kva_diag *diag, kva_service **out_service) {
  kva_service *s = calloc(1, sizeof *s);
  *out_service = NULL;
  if (!s) return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  *s = (kva_service){.engine = e, .max_waiting = max_waiting};
  s->last = &s->first;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->came, NULL);
  if (pthread_create(&s->thread, NULL, work, s)) {
    free(s);
    return kva_fail(diag, KVA_MISSING, NULL, "the system gives no thread");
  }
  *out_service = s;
  return KVA_OK;
}

void kva_service_stop(kva_service *s) {
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  s->stops = true;
  pthread_cond_signal(&s->came);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  pthread_cond_destroy(&s->came);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

bool kva_service_submit(kva_service *s, kva_completion *texts, int64_t n) {
  pthread_mutex_lock(&s->lock);
  bool fits = s->stats.waiting + n <= s->max_waiting;
  for (int64_t i = 0; fits && i < n; i++) {
    *s->last = &texts[i];
    s->last = &texts[i].next;
    s->stats.waiting++;
  }
  if (fits) pthread_cond_signal(&s->came);
  pthread_mutex_unlock(&s->lock);
  return fits;
}

kva_service_stats kva_service_get_stats(kva_service *s) {
  pthread_mutex_lock(&s->lock);
  kva_service_stats stats = s->stats;
  pthread_mutex_unlock(&s->lock);
  return stats;
}
