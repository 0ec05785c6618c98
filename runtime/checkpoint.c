/* Reads and writes checkpoints: states are tensors, the position of the run is metadata.
 *
 * The sum of format 2 covers everything that a reader uses: metadata, names, types, shapes and data. That of format 1
 * covers the data alone. */
#include "runtime/checkpoint.h"

#include "runtime/base/platform.h"
#include "runtime/safetensors.h"
#include "runtime/session.h"
#include "runtime/sum.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define FORMAT_KEY "kvasir.format"
#define MODEL_KEY  "kvasir.model"
#define SUM_KEY    "kvasir.sum"
enum { FORMAT = 2, FORMAT_SUM_OF_DATA = 1 };

static bool writes_state(const kva_program *p, int32_t state) {
  for (int32_t i = 0; i < p->n_steps; i++) {
    int32_t first, n = kva_step_writes(&p->steps[i], &first);
    for (int32_t k = first; k < first + n; k++)
      if (p->buffers[p->steps[i].args[k]].state == state) return true;
  }
  return false;
}

/* Buffers that no program writes are constants. Which ones exist depends on how the model was compiled. */
static bool is_saved(const kva_artifact *a, int32_t state) {
  if (a->states[state].role != KVA_ROLE_BUFFER) return a->states[state].role != KVA_ROLE_CACHE;
  for (int32_t i = 0; i < a->n_programs; i++)
    if (writes_state(&a->programs[i], state)) return true;
  return false;
}

uint64_t kva_model_hash(const kva_artifact *a) {
  uint64_t hash = 0;
  for (int32_t i = 0; i < a->n_states; i++) {
    const kva_state_desc *d = &a->states[i];
    if (!is_saved(a, i)) continue;
    bool divided = kva_state_is_divided(d);
    int32_t rank = divided ? d->whole_rank : d->rank;
    const int64_t numbers[3] = {d->role, d->dtype, rank}, *dims = divided ? d->whole : d->dims;
    hash = kva_hash(hash, d->name, strlen(d->name) + 1);
    hash = kva_hash(hash, numbers, sizeof numbers);
    hash = kva_hash(hash, dims, (size_t)rank * sizeof *dims);
  }
  return hash;
}

/* ---- metadata fields --------------------------------------------------------------------------------------------- */

typedef enum field_kind { FIELD_INT, FIELD_UINT, FIELD_DOUBLE } field_kind;
typedef struct field {
  const char *key, *name; /* name: for messages */
  field_kind kind;
  size_t offset;
  bool differs_by_right; /* no warning when it differs: a run may be extended */
} field;

#define AT(member) offsetof(kva_checkpoint, member)
static const field fields[] = {
    {"kvasir.step", "step", FIELD_INT, AT(step), true},
    {"kvasir.steps", "number of steps", FIELD_INT, AT(steps), true},
    {"kvasir.batch", "batch", FIELD_INT, AT(batch), false},
    {"kvasir.micro_batch", "micro-batch", FIELD_INT, AT(micro_batch), false},
    {"kvasir.seed", "seed", FIELD_UINT, AT(seed), true},
    {"kvasir.data", "data", FIELD_UINT, AT(data_id), false},
    {"kvasir.schedule", "schedule", FIELD_INT, 0, false}, /* handled apart: an enum */
    {"kvasir.lr", "learning rate", FIELD_DOUBLE, AT(schedule.lr), false},
    {"kvasir.final_ratio", "final ratio", FIELD_DOUBLE, AT(schedule.final_ratio), false},
    {"kvasir.warmup", "warm-up", FIELD_INT, AT(schedule.warmup), false},
    {"kvasir.total", "length of the schedule", FIELD_INT, AT(schedule.total), false},
    {"kvasir.weight_decay", "weight decay", FIELD_DOUBLE, AT(weight_decay), false},
    {"kvasir.clip", "clipping", FIELD_DOUBLE, AT(clip), false},
};
enum { N_FIELDS = sizeof fields / sizeof *fields, N_HEAD = 2, SCHEDULE = 6 };

/* Metadata in order: format, model, the fields. The sum is the last. */
static const char *key_at(int i) {
  static const char *const head[N_HEAD] = {FORMAT_KEY, MODEL_KEY};
  return i < N_HEAD ? head[i] : fields[i - N_HEAD].key;
}

static void print_field(const kva_checkpoint *c, int i, char text[40]) {
  const char *at = (const char *)c + fields[i].offset;
  if (i == SCHEDULE)
    snprintf(text, 40, "%d", (int)c->schedule.kind);
  else if (fields[i].kind == FIELD_INT)
    snprintf(text, 40, "%" PRId64, *(const int64_t *)at);
  else if (fields[i].kind == FIELD_UINT)
    snprintf(text, 40, "%" PRIu64, *(const uint64_t *)at);
  else
    snprintf(text, 40, "%.17g", *(const double *)at);
}

static bool parse_field(const char *text, int i, kva_checkpoint *c) {
  char *at = (char *)c + fields[i].offset, *end;
  errno = 0;
  if (i == SCHEDULE) {
    long kind = strtol(text, &end, 10);
    c->schedule.kind = (kva_schedule_kind)kind;
    return !errno && end != text && !*end && kind >= KVA_SCHEDULE_CONSTANT && kind <= KVA_SCHEDULE_LINEAR;
  }
  if (fields[i].kind == FIELD_INT)
    *(int64_t *)at = strtoll(text, &end, 10);
  else if (fields[i].kind == FIELD_UINT)
    *(uint64_t *)at = strtoull(text, &end, 10);
  else
    *(double *)at = strtod(text, &end);
  return !errno && end != text && !*end;
}

void kva_checkpoint_compare(const char *path, const kva_checkpoint *saved, const kva_checkpoint *own, kva_diag *diag) {
  kva_loc loc = {.file = path};
  for (int i = 0; i < N_FIELDS; i++) {
    char a[40], b[40];
    print_field(saved, i, a);
    print_field(own, i, b);
    if (fields[i].differs_by_right || !strcmp(a, b)) continue;
    kva_warn(diag, &loc, "%s: was %s when this was saved, is %s now; the run goes on, but not as it would have",
             fields[i].name, a, b);
  }
}

/* ---- the sum ----------------------------------------------------------------------------------------------------- */

/* Of a file that was read: its tensors are in order of names. */
static uint64_t sum_file(const kva_safetensors *f) {
  uint64_t sum = 0;
  for (int i = 0; i < N_HEAD + N_FIELDS; i++) {
    const char *value = kva_safetensors_metadata(f, key_at(i));
    sum = kva_sum_text(sum, value ? value : "");
  }
  for (int64_t i = 0; i < kva_safetensors_count(f); i++) {
    kva_tensor t;
    const char *name = kva_safetensors_at(f, i, &t);
    sum = kva_sum_tensor(sum, name, &t);
  }
  return sum;
}

/* Format 1: data in order of the session's states. */
static uint64_t sum_data(const kva_safetensors *f, kva_session *s) {
  uint64_t sum = 0;
  for (int i = 0; i < kva_session_state_count(s); i++) {
    kva_tensor t;
    const kva_state_desc *d = kva_session_state_desc(s, i, NULL);
    if (is_saved(kva_session_artifact(s), i) && kva_safetensors_find(f, d->name, &t))
      sum = kva_sum_bytes(sum, t.data, (size_t)kva_tensor_bytes(&t));
  }
  return sum;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static kva_status collect(kva_session *s, kva_diag *diag, kva_named_tensor *tensors, int64_t *out_n) {
  int64_t n = 0;
  for (int i = 0; i < kva_session_state_count(s); i++) {
    kva_tensor t;
    const kva_state_desc *d = kva_session_whole_state(s, i, &t);
    if (!is_saved(kva_session_artifact(s), i)) continue;
    if (!t.data && d->bytes) return kva_fail(diag, KVA_IO, NULL, "cannot read state '%s' from the device", d->name);
    tensors[n++] = (kva_named_tensor){d->name, t};
  }
  *out_n = n;
  return KVA_OK;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const kva_named_tensor *)a)->name, ((const kva_named_tensor *)b)->name);
}

/* Sorts the tensors. */
static kva_status write_tensors(const char *path, const kva_artifact *a, int64_t n, kva_named_tensor *tensors,
                                const kva_checkpoint *c, kva_diag *diag) {
  enum { SUM = N_HEAD + N_FIELDS, N };
  char values[N][40];
  kva_metadata metadata[N];
  uint64_t sum = 0;
  snprintf(values[0], sizeof values[0], "%d", FORMAT);
  snprintf(values[1], sizeof values[1], "%016" PRIx64, kva_model_hash(a));
  for (int i = 0; i < N_FIELDS; i++) print_field(c, i, values[N_HEAD + i]);
  for (int i = 0; i < SUM; i++) {
    metadata[i] = (kva_metadata){key_at(i), values[i]};
    sum = kva_sum_text(sum, values[i]);
  }
  qsort(tensors, (size_t)n, sizeof *tensors, by_name);
  for (int64_t i = 0; i < n; i++) sum = kva_sum_tensor(sum, tensors[i].name, &tensors[i].tensor);
  snprintf(values[SUM], sizeof values[SUM], "%016" PRIx64, sum);
  metadata[SUM] = (kva_metadata){SUM_KEY, values[SUM]};
  return kva_safetensors_write(path, n, tensors, N, metadata, diag);
}

kva_status kva_checkpoint_write(const char *path, kva_session *s, const kva_checkpoint *c, kva_diag *diag) {
  int64_t n = 0;
  kva_named_tensor *tensors = calloc((size_t)kva_session_state_count(s) + 1, sizeof *tensors);
  if (!tensors) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a checkpoint's table");
  kva_status status = collect(s, diag, tensors, &n);
  if (status == KVA_OK) status = write_tensors(path, kva_session_artifact(s), n, tensors, c, diag);
  free(tensors);
  return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void print_shape(kva_text *text, const kva_tensor *t) {
  kva_text_add(text, "%s[", kva_dtype_name(t->dtype));
  for (int32_t d = 0; d < t->rank; d++) kva_text_add(text, "%s%lld", d ? ", " : "", (long long)t->dims[d]);
  kva_text_add(text, "]");
}

static bool same_type(const kva_tensor *a, const kva_tensor *b) {
  if (a->dtype != b->dtype || a->rank != b->rank) return false;
  for (int32_t d = 0; d < a->rank; d++)
    if (a->dims[d] != b->dims[d]) return false;
  return true;
}

static kva_status wrong_type(const kva_loc *loc, const char *name, const kva_tensor *found, const kva_tensor *own,
                             kva_diag *diag) {
  kva_text text = {0};
  print_shape(&text, found);
  kva_text_add(&text, ", and this model's is ");
  print_shape(&text, own);
  kva_status status = kva_error(diag, loc, "is a checkpoint of another model: its tensor '%s' is %s", name, text.data);
  kva_text_free(&text);
  return status;
}

static const kva_state_desc *find_state(kva_session *s, const char *name, kva_tensor *out) {
  for (int i = 0; i < kva_session_state_count(s); i++) {
    const kva_state_desc *d = kva_session_whole_state(s, i, out);
    if (is_saved(kva_session_artifact(s), i) && !strcmp(d->name, name)) return d;
  }
  return NULL;
}

/* Every state needs a tensor of its type, and every tensor a state. */
static kva_status match(const kva_safetensors *f, kva_session *s, const kva_loc *loc, kva_diag *diag) {
  for (int i = 0; i < kva_session_state_count(s); i++) {
    kva_tensor own, found;
    const kva_state_desc *d = kva_session_whole_state(s, i, &own);
    if (!is_saved(kva_session_artifact(s), i)) continue;
    if (!kva_safetensors_find(f, d->name, &found))
      return kva_error(diag, loc, "is a checkpoint of another model: it has no tensor '%s'", d->name);
    if (!same_type(&own, &found)) return wrong_type(loc, d->name, &found, &own, diag);
  }
  for (int64_t i = 0; i < kva_safetensors_count(f); i++) {
    const char *name = kva_safetensors_at(f, i, NULL);
    kva_tensor own;
    if (!find_state(s, name, &own))
      return kva_error(diag, loc, "is a checkpoint of another model: this one has no tensor '%.200s'", name);
  }
  return KVA_OK;
}

static kva_status check_format(const kva_safetensors *f, const kva_loc *loc, kva_diag *diag, int *out_format) {
  const char *format = kva_safetensors_metadata(f, FORMAT_KEY);
  if (!format)
    return kva_fail(diag, KVA_DAMAGED, loc,
                    "is no checkpoint of Kvasir: its metadata lack '%s'; it may hold weights alone", FORMAT_KEY);
  *out_format = atoi(format);
  if (*out_format == FORMAT || *out_format == FORMAT_SUM_OF_DATA) return KVA_OK;
  return kva_fail(diag, KVA_UNSUPPORTED, loc, "is a checkpoint of format %.20s; this version reads %d and %d", format,
                  FORMAT_SUM_OF_DATA, FORMAT);
}

static kva_status read_fields(const kva_safetensors *f, const kva_loc *loc, kva_diag *diag, kva_checkpoint *c) {
  *c = (kva_checkpoint){0};
  for (int i = 0; i < N_FIELDS; i++) {
    const char *text = kva_safetensors_metadata(f, fields[i].key);
    if (!text || !parse_field(text, i, c))
      return kva_fail(diag, KVA_DAMAGED, loc, "damaged checkpoint: '%s' should be a number, found '%.40s'",
                      fields[i].key, text ? text : "nothing");
  }
  return c->step >= 0 ? KVA_OK : kva_fail(diag, KVA_DAMAGED, loc, "damaged checkpoint: step %lld", (long long)c->step);
}

static kva_status check_sum(const kva_safetensors *f, uint64_t sum, const kva_loc *loc, kva_diag *diag) {
  char own[20];
  snprintf(own, sizeof own, "%016" PRIx64, sum);
  const char *text = kva_safetensors_metadata(f, SUM_KEY);
  if (text && !strcmp(text, own)) return KVA_OK;
  return kva_fail(diag, KVA_DAMAGED, loc, "damaged checkpoint: its sum is %s, expected %.16s", own,
                  text ? text : "one in the metadata");
}

static kva_status take(const kva_safetensors *f, kva_session *s, const kva_loc *loc, kva_diag *diag,
                       kva_checkpoint *out) {
  int format = 0;
  KVA_TRY(check_format(f, loc, diag, &format));
  if (format == FORMAT) KVA_TRY(check_sum(f, sum_file(f), loc, diag));
  KVA_TRY(read_fields(f, loc, diag, out));
  KVA_TRY(match(f, s, loc, diag));
  if (format == FORMAT_SUM_OF_DATA) KVA_TRY(check_sum(f, sum_data(f, s), loc, diag));
  for (int64_t i = 0; i < kva_safetensors_count(f); i++) {
    kva_tensor from, to;
    const char *name = kva_safetensors_at(f, i, &from);
    if (!find_state(s, name, &to) || (!to.data && kva_tensor_bytes(&to)))
      return kva_fail(diag, KVA_IO, loc, "cannot write state '%s'", name);
    if (kva_tensor_bytes(&to)) memcpy(to.data, from.data, (size_t)kva_tensor_bytes(&to));
  }
  return KVA_OK;
}

kva_status kva_checkpoint_check(const char *path, kva_diag *diag) {
  kva_safetensors *f;
  int format;
  KVA_TRY(kva_safetensors_open(path, diag, &f));
  kva_status status = check_format(f, &(kva_loc){.file = path}, diag, &format);
  kva_safetensors_close(f);
  return status;
}

kva_status kva_checkpoint_read(const char *path, kva_session *s, kva_diag *diag, kva_checkpoint *out) {
  kva_safetensors *f;
  kva_loc loc = {.file = path};
  kva_status status = kva_safetensors_open(path, diag, &f);
  if (status == KVA_INVALID || status == KVA_UNSUPPORTED) return KVA_DAMAGED; /* checkpoints are never written so */
  KVA_TRY(status);
  status = take(f, s, &loc, diag, out);
  kva_safetensors_close(f);
  return status;
}
