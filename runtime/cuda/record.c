/* Runs of successive steps as CUDA graphs. A launch costs the host a few microseconds; a graph of all launches of a
 * program costs about as much as one of them.
 *
 * The first run with given symbols and addresses is not recorded: the library times its algorithms then. The second is
 * captured from the stream, and later ones start the captured graph. Symbols and addresses determine everything that a
 * step passes to the driver, so equal ones mean an equal graph. */
#include "runtime/cuda/cuda.h"

#include <stdlib.h>

enum { MAX_RECORDINGS = 16 };

typedef struct recording {
  const kva_program *program; /* NULL: free */
  int32_t first;              /* index of the first step */
  int64_t *symbols;
  void **pointers;
  cu_graph_exec exec; /* NULL: seen only once */
  uint64_t used;      /* time of last use, for LRU eviction */
} recording;

struct cuda_recordings {
  recording list[MAX_RECORDINGS];
  uint64_t clock;
  bool capturing;
};

cuda_recordings *kva_cuda_recordings_create(void) {
  return calloc(1, sizeof(cuda_recordings));
}

bool kva_cuda_is_capturing(const cuda_device *d) {
  return d->recordings && d->recordings->capturing;
}

static void forget(cuda_device *d, recording *r) {
  if (r->exec) d->api.cuGraphExecDestroy(r->exec);
  free(r->symbols);
  free(r->pointers);
  *r = (recording){0};
}

void kva_cuda_recordings_destroy(cuda_device *d) {
  for (int i = 0; d->recordings && i < MAX_RECORDINGS; i++) forget(d, &d->recordings->list[i]);
  free(d->recordings);
  d->recordings = NULL;
}

static bool same(const void *a, const void *b, int32_t n, size_t size) {
  return !n || !memcmp(a, b, (size_t)n * size);
}

static recording *find(cuda_device *d, const kva_device_run *run) {
  const kva_program *p = run->program;
  for (int i = 0; i < MAX_RECORDINGS; i++) {
    recording *r = &d->recordings->list[i];
    if (r->program == p && r->first == run->first &&
        same(r->symbols, run->symbols, p->n_symbols, sizeof *run->symbols) &&
        same(r->pointers, run->pointers, p->n_buffers, sizeof *run->pointers))
      return r;
  }
  return NULL;
}

/* Notes that this run was seen. Without memory the run is never recorded, which is harmless. */
static void note(cuda_device *d, const kva_device_run *run) {
  const kva_program *p = run->program;
  recording *r = &d->recordings->list[0];
  for (int i = 1; i < MAX_RECORDINGS; i++)
    if (d->recordings->list[i].used < r->used) r = &d->recordings->list[i];
  forget(d, r);
  r->symbols = malloc(sizeof *r->symbols * (size_t)p->n_symbols + 1);
  r->pointers = malloc(sizeof *r->pointers * (size_t)p->n_buffers + 1);
  if (!r->symbols || !r->pointers) {
    forget(d, r);
    return;
  }
  if (p->n_symbols) memcpy(r->symbols, run->symbols, sizeof *r->symbols * (size_t)p->n_symbols);
  if (p->n_buffers) memcpy(r->pointers, run->pointers, sizeof *r->pointers * (size_t)p->n_buffers);
  r->program = p;
  r->first = run->first;
  r->used = ++d->recordings->clock;
}

kva_status kva_cuda_begin(kva_device *device, const kva_device_run *run, bool *out_done) {
  cuda_device *d = (cuda_device *)device;
  *out_done = false;
  KVA_TRY(kva_cuda_enter(d));
  if (!d->recordings || !run->n) return KVA_OK;
  recording *r = find(d, run);
  if (!r) {
    note(d, run);
    return KVA_OK;
  }
  r->used = ++d->recordings->clock;
  if (!r->exec) {
    KVA_TRY(kva_cuda_check(d, d->api.cuStreamBeginCapture(d->stream, CU_CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture"));
    d->recordings->capturing = true;
    return KVA_OK;
  }
  *out_done = true;
  return kva_cuda_check(d, d->api.cuGraphLaunch(r->exec, d->stream), "cuGraphLaunch");
}

static kva_status instantiate(cuda_device *d, const kva_device_run *run, cu_graph graph) {
  recording *r = find(d, run);
  if (!r) return kva_cuda_fail(d, KVA_INVALID, "the recording of '%s' was lost", run->program->name);
  KVA_TRY(kva_cuda_check(d, d->api.cuGraphInstantiateWithFlags(&r->exec, graph, 0), "cuGraphInstantiateWithFlags"));
  return kva_cuda_check(d, d->api.cuGraphLaunch(r->exec, d->stream), "cuGraphLaunch");
}

kva_status kva_cuda_end(kva_device *device, const kva_device_run *run, bool failed) {
  cuda_device *d = (cuda_device *)device;
  if (!d->recordings || !d->recordings->capturing) return KVA_OK;
  d->recordings->capturing = false;
  cu_graph graph = NULL;
  cu_result ended = d->api.cuStreamEndCapture(d->stream, &graph);
  kva_status status = KVA_OK; /* the message of a failed step must stay */
  if (!failed) status = kva_cuda_check(d, ended, "cuStreamEndCapture");
  if (!failed && status == KVA_OK) status = instantiate(d, run, graph);
  if (ended == CU_SUCCESS && graph) d->api.cuGraphDestroy(graph);
  return status;
}
