/* A thread that runs an engine: texts come from any thread, and wait in a queue for a free slot. */
#ifndef KVA_TOOLS_SERVE_SERVICE_H
#define KVA_TOOLS_SERVE_SERVICE_H

#include "tools/generate/engine.h"

typedef struct kva_service kva_service;

/* Borrows the engine, which no other thread may use until kva_service_stop. */
KVA_MUST_USE kva_status kva_service_start(kva_engine *e, int64_t max_waiting, kva_diag *diag,
                                          kva_service **out_service);
/* Ends all texts as they end by themselves, and the thread. No text may be submitted any more. */
void kva_service_stop(kva_service *s);
/* Submits n texts, all or none; false: so many do not fit in the queue. Their callbacks come from the service's thread,
 * and none after on_end, which comes for each. */
bool kva_service_submit(kva_service *s, kva_completion *texts, int64_t n);

typedef struct kva_service_stats {
  kva_engine_stats engine;
  int64_t waiting;
  bool failed; /* the last step of the engine did */
} kva_service_stats;
kva_service_stats kva_service_get_stats(kva_service *s);

#endif
