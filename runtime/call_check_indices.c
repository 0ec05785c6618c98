/* Ends the run where an index is out of range; else a copy of the indices. */
#include "runtime/calls.h"
#include "runtime/session.h"

enum { INDICES, LIMITS, COPY };

static bool check(const kva_program *p, const kva_step_desc *s, kva_text *why) {
  const kva_buffer_desc *indices = &p->buffers[s->args[INDICES]], *limits = &p->buffers[s->args[LIMITS]];
  bool fine = kva_dtype_is_int((kva_dtype)indices->dtype) && kva_dtype_bits((kva_dtype)indices->dtype) >= 8 &&
              limits->dtype == KVA_I64 && p->buffers[s->args[COPY]].dtype == indices->dtype;
  if (!fine) kva_text_add(why, "it checks indices of type %d by limits of type %d", indices->dtype, limits->dtype);
  return fine;
}

static int64_t n_limits(const kva_step_desc *s, const int64_t *bytes) {
  return bytes[s->args[LIMITS]] / (int64_t)sizeof(int64_t);
}

static bool fits(const kva_program *p, const kva_step_desc *s, const int64_t *sizes, const int64_t *bytes) {
  (void)p, (void)sizes;
  return bytes[s->args[INDICES]] == bytes[s->args[COPY]] && n_limits(s, bytes) >= 2;
}

/* " [1, 2]" for element `at`. */
static void add_place(const kva_buffer_desc *b, const int64_t *symbols, int64_t at, kva_text *out) {
  kva_tensor t;
  int64_t place[KVA_ABI_MAX_RANK];
  if (!kva_eval_dims(b, symbols, &t)) return;
  for (int32_t d = t.rank; d-- > 0; at /= t.dims[d]) place[d] = at % t.dims[d];
  kva_text_add(out, " at [");
  for (int32_t d = 0; d < t.rank; d++) kva_text_add(out, "%s%lld", d ? ", " : "", (long long)place[d]);
  kva_text_add(out, "]");
}

static kva_status report(kva_session *s, const kva_device_call *call, int64_t at, int64_t index, int64_t count) {
  const kva_check_indices_desc *desc = call->step->desc;
  const kva_buffer_desc *b = &call->program->buffers[call->step->args[INDICES]];
  const int64_t *limits = call->args[LIMITS];
  int64_t n = n_limits(call->step, call->bytes), k = at % (n / 2);
  kva_text text = {0};
  kva_text_add(&text, "%s: kv.%s: index %lld", call->program->name, desc->user, (long long)index);
  add_place(b, call->symbols, at, &text);
  kva_text_add(&text, " is out of range for axis %lld of extent %lld: expected %lld to %lld", (long long)desc->axis + k,
               (long long)limits[2 * k + 1], (long long)limits[2 * k], (long long)limits[2 * k + 1] - 1);
  if (desc->ignores) kva_text_add(&text, " or %lld", (long long)limits[n - 1]);
  if (count > 1) kva_text_add(&text, "; %lld indices are", (long long)count);
  kva_status status = kva_session_fail(s, KVA_INVALID, "%s", kva_text_string(&text));
  kva_text_free(&text);
  return status;
}

static kva_status run(kva_session *s, const kva_device_call *call) {
  const kva_step_desc *step = call->step;
  const kva_check_indices_desc *desc = step->desc;
  kva_dtype type = (kva_dtype)call->program->buffers[step->args[INDICES]].dtype;
  int64_t bytes = call->bytes[step->args[INDICES]], n = bytes * 8 / kva_dtype_bits(type), first = 0, bad = 0;
  int64_t lengths = n_limits(step, call->bytes), found = 0;
  const int64_t *limits = call->args[LIMITS];
  for (int64_t i = 0; i < n; i++) {
    int64_t v = kva_load_i64(type, call->args[INDICES], i), k = i % (lengths / 2);
    if ((v >= limits[2 * k] && v < limits[2 * k + 1]) || (desc->ignores && v == limits[lengths - 1])) continue;
    if (!bad++) first = i, found = v;
  }
  if (bad) return report(s, call, first, found, bad);
  if (bytes) memmove(call->args[COPY], call->args[INDICES], (size_t)bytes);
  return KVA_OK;
}

const kva_call_class kva_call_check_indices = {.n_args = 3, .n_results = 1, .check = check, .fits = fits, .run = run};
