/* Streams, events, graphs: queues of work that run when somebody waits. */
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>

struct cu_event_object {
  uint64_t records, done; /* numbers of the last one, and of the last that is through */
  double time;
};
struct cu_stream_object {
  fake_ops queue;
  size_t next;                       /* in the queue */
  struct cu_graph_object *recording; /* NULL: not capturing */
  bool spoilt;                       /* a call broke the capture */
};
struct cu_graph_object {
  fake_ops ops;
};
struct cu_graph_exec_object {
  fake_ops ops;
};

enum { MAX_STREAMS = 8 };
static cu_stream streams[MAX_STREAMS];
static cu_result failure; /* stays */
static int graph_launches;

static bool push(fake_ops *ops, const fake_op *op) {
  fake_op *more = realloc(ops->data, sizeof *more * (ops->n + 1));
  if (!more) return false;
  ops->data = more;
  more[ops->n++] = *op;
  return true;
}

static size_t param_bytes(const fake_op *op) {
  const kva_ptx_kernel_info *info = kva_ptx_kernel_get_info(op->function->kernel);
  size_t bytes = 0;
  for (uint32_t i = 0; i < info->n_params; i++) {
    size_t end = info->params[i].offset + info->params[i].size;
    bytes = end > bytes ? end : bytes;
  }
  return bytes;
}

/* Graphs run more than once: each run has parameters of its own. */
static bool push_copy(fake_ops *ops, const fake_op *op) {
  fake_op copy = *op;
  if (op->kind == FAKE_KERNEL) {
    copy.params = malloc(param_bytes(op) + 1);
    if (!copy.params) return false;
    memcpy(copy.params, op->params, param_bytes(op));
  }
  return push(ops, &copy);
}

static bool push_copies(fake_ops *to, const fake_ops *from) {
  for (size_t i = 0; i < from->n; i++)
    if (!push_copy(to, &from->data[i])) return false;
  return true;
}

static void clear(fake_ops *ops) {
  for (size_t i = 0; i < ops->n; i++) free(ops->data[i].params);
  free(ops->data);
  *ops = (fake_ops){0};
}

static bool is_stream(cu_stream s) {
  for (int i = 0; i < MAX_STREAMS; i++)
    if (s && streams[i] == s) return true;
  fake_violation("%p is no stream", (void *)s);
  return false;
}

bool fake_capturing(void) {
  for (int i = 0; i < MAX_STREAMS; i++)
    if (streams[i] && streams[i]->recording) return true;
  return false;
}

void fake_invalidate_capture(void) {
  for (int i = 0; i < MAX_STREAMS; i++)
    if (streams[i]) streams[i]->spoilt = true;
}

cu_result fake_failure(void) {
  return failure;
}

void fake_forget_failure(void) {
  failure = CU_SUCCESS;
}

int fake_cuda_graph_launches(void) {
  return graph_launches;
}

cu_result fake_enqueue(cu_stream s, const fake_op *op) {
  cu_result r = fake_state();
  if (r == CU_SUCCESS && !is_stream(s)) r = ERROR_INVALID_HANDLE;
  if (r == CU_SUCCESS && !push(s->recording ? &s->recording->ops : &s->queue, op)) r = CU_ERROR_OUT_OF_MEMORY;
  if (r != CU_SUCCESS) free(op->params);
  return r;
}

static bool is_recorded_in(cu_stream s, const fake_op *wait) {
  for (size_t i = s->next; i < s->queue.n; i++) {
    const fake_op *op = &s->queue.data[i];
    if (op->kind == FAKE_EVENT && op->event == wait->event && op->record == wait->record) return true;
  }
  return false;
}

static void run_next(cu_stream s);

/* Other streams go on up to the record that this one waits for. */
static void await(const fake_op *op) {
  for (int i = 0; i < MAX_STREAMS && op->event->done < op->record; i++)
    while (streams[i] && streams[i]->next < streams[i]->queue.n && failure == CU_SUCCESS &&
           op->event->done < op->record && is_recorded_in(streams[i], op))
      run_next(streams[i]);
  if (failure == CU_SUCCESS && op->event->done < op->record)
    fake_violation("a stream waits for an event that no stream comes to");
}

static void run_next(cu_stream s) {
  const fake_op op = s->queue.data[s->next++];
  switch (op.kind) {
  case FAKE_EVENT: op.event->done = op.record, op.event->time = kva_now(); break;
  case FAKE_AWAIT: await(&op); break;
  default: failure = fake_run(&op);
  }
}

/* Device memory is open for the whole queue: changing its protection takes longer than most operations. */
static void run_queue(cu_stream s) {
  bool has_work = s->next < s->queue.n && failure == CU_SUCCESS;
  if (has_work) fake_open_memory(true);
  while (s->next < s->queue.n && failure == CU_SUCCESS) run_next(s);
  if (has_work) fake_open_memory(false);
  clear(&s->queue);
  s->next = 0;
}

cu_result fake_wait(cu_stream stream) {
  for (int i = 0; i < MAX_STREAMS; i++)
    if (streams[i] && (!stream || streams[i] == stream)) run_queue(streams[i]);
  return failure;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

cu_result fake_cuStreamCreate(cu_stream *out_stream, unsigned flags) {
  cu_result r = fake_state();
  if (r != CU_SUCCESS || flags > 1) return r != CU_SUCCESS ? r : CU_ERROR_INVALID_VALUE;
  for (int i = 0; i < MAX_STREAMS; i++) {
    if (streams[i]) continue;
    streams[i] = *out_stream = calloc(1, sizeof **out_stream);
    return streams[i] ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
  }
  return CU_ERROR_OUT_OF_MEMORY;
}

cu_result fake_cuStreamDestroy(cu_stream stream) {
  if (!is_stream(stream)) return ERROR_INVALID_HANDLE;
  run_queue(stream);
  if (stream->recording) fake_violation("a stream is destroyed while it is captured");
  for (int i = 0; i < MAX_STREAMS; i++)
    if (streams[i] == stream) streams[i] = NULL;
  free(stream);
  return failure;
}

static cu_result may_wait(void) {
  cu_result r = fake_state();
  if (r != CU_SUCCESS || !fake_capturing()) return r;
  fake_invalidate_capture();
  return ERROR_CAPTURE_UNSUPPORTED;
}

cu_result fake_cuStreamSynchronize(cu_stream stream) {
  cu_result r = may_wait();
  if (r != CU_SUCCESS) return r;
  return is_stream(stream) ? fake_wait(stream) : ERROR_INVALID_HANDLE;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static cu_result copy(void *to, bool to_device, const void *from, bool from_device, size_t bytes, cu_stream stream) {
  cu_result r = fake_state();
  if (r != CU_SUCCESS) return r;
  if ((!to_device && !fake_is_pinned(to, bytes)) || (!from_device && !fake_is_pinned(from, bytes))) {
    fake_violation("an asynchronous copy of %zu bytes uses host memory that is not pinned", bytes);
    return CU_ERROR_INVALID_VALUE;
  }
  if ((to_device && !fake_is_device(to, bytes)) || (from_device && !fake_is_device(from, bytes)))
    return CU_ERROR_INVALID_VALUE;
  const fake_op op = {.kind = FAKE_COPY, .to = to, .from = from, .bytes = bytes};
  return fake_enqueue(stream, &op);
}

cu_result fake_cuMemcpyHtoDAsync(cu_pointer to, const void *from, size_t bytes, cu_stream stream) {
  return copy((void *)(uintptr_t)to, true, from, false, bytes, stream);
}

cu_result fake_cuMemcpyDtoHAsync(void *to, cu_pointer from, size_t bytes, cu_stream stream) {
  return copy(to, false, (const void *)(uintptr_t)from, true, bytes, stream);
}

cu_result fake_cuMemcpyDtoDAsync(cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream) {
  return copy((void *)(uintptr_t)to, true, (const void *)(uintptr_t)from, true, bytes, stream);
}

cu_result fake_cuMemsetD8Async(cu_pointer to, unsigned char value, size_t bytes, cu_stream stream) {
  void *p = (void *)(uintptr_t)to;
  if (!fake_is_device(p, bytes)) return CU_ERROR_INVALID_VALUE;
  const fake_op op = {.kind = FAKE_FILL, .to = p, .bytes = bytes, .value = value};
  return fake_enqueue(stream, &op);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static bool is_through(cu_event event) {
  return event->done == event->records;
}

cu_result fake_cuEventCreate(cu_event *out_event, unsigned flags) {
  cu_result r = fake_state();
  if (r != CU_SUCCESS || flags) return r != CU_SUCCESS ? r : CU_ERROR_INVALID_VALUE;
  *out_event = calloc(1, sizeof **out_event);
  return *out_event ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result fake_cuEventDestroy(cu_event event) {
  fake_wait(NULL); /* the driver waits with the release until the event is through */
  free(event);
  return CU_SUCCESS;
}

cu_result fake_cuEventRecord(cu_event event, cu_stream stream) {
  const fake_op op = {.kind = FAKE_EVENT, .event = event, .record = ++event->records};
  return fake_enqueue(stream, &op);
}

/* Waits for the last record that there is now; without one for nothing. */
cu_result fake_cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned flags) {
  const fake_op op = {.kind = FAKE_AWAIT, .event = event, .record = event->records};
  return flags ? CU_ERROR_INVALID_VALUE : fake_enqueue(stream, &op);
}

cu_result fake_cuEventSynchronize(cu_event event) {
  cu_result r = may_wait();
  if (r != CU_SUCCESS || !event->records) return r;
  return is_through(event) ? failure : fake_wait(NULL);
}

cu_result fake_cuEventElapsedTime(float *out_milliseconds, cu_event from, cu_event to) {
  if (!from->records || !to->records) return ERROR_INVALID_HANDLE;
  if (!is_through(from) || !is_through(to)) return ERROR_NOT_READY;
  *out_milliseconds = (float)((to->time - from->time) * 1e3);
  return failure;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

cu_result fake_cuStreamBeginCapture(cu_stream stream, cu_result mode) {
  cu_result r = fake_state();
  if (r != CU_SUCCESS) return r;
  if (!is_stream(stream) || stream->recording || mode < 0 || mode > 2) return CU_ERROR_INVALID_VALUE;
  stream->spoilt = false;
  stream->recording = calloc(1, sizeof *stream->recording);
  return stream->recording ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result fake_cuStreamEndCapture(cu_stream stream, cu_graph *out_graph) {
  *out_graph = NULL;
  if (!is_stream(stream) || !stream->recording) return CU_ERROR_INVALID_VALUE;
  cu_graph graph = stream->recording;
  stream->recording = NULL;
  if (!stream->spoilt) return *out_graph = graph, fake_state();
  fake_cuGraphDestroy(graph);
  return ERROR_CAPTURE_INVALIDATED;
}

cu_result fake_cuGraphInstantiateWithFlags(cu_graph_exec *out_exec, cu_graph graph, unsigned long long flags) {
  cu_result r = fake_state();
  if (r != CU_SUCCESS || flags) return r != CU_SUCCESS ? r : CU_ERROR_INVALID_VALUE;
  *out_exec = calloc(1, sizeof **out_exec);
  return *out_exec && push_copies(&(*out_exec)->ops, &graph->ops) ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result fake_cuGraphLaunch(cu_graph_exec exec, cu_stream stream) {
  cu_result r = fake_state();
  if (r != CU_SUCCESS) return r;
  if (!is_stream(stream) || stream->recording) return CU_ERROR_INVALID_VALUE;
  graph_launches++;
  return push_copies(&stream->queue, &exec->ops) ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result fake_cuGraphExecDestroy(cu_graph_exec exec) {
  clear(&exec->ops);
  free(exec);
  return CU_SUCCESS;
}

cu_result fake_cuGraphDestroy(cu_graph graph) {
  clear(&graph->ops);
  free(graph);
  return CU_SUCCESS;
}
