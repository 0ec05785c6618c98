/* Reads and writes checkpoints: states are tensors, the position of the run is metadata.
 *
 * The sum of formats 2 and 3 covers everything that a reader uses: metadata, names, types, shapes and data; that of
 * format 3, a folder of shards, has the data by the shards' sums. That of format 1 covers the data alone. */
#include "runtime/checkpoint.h"

#include "runtime/base/numbers.h"
#include "runtime/checkpoint_shards.h"
#include "runtime/session.h"
#include "runtime/sum.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define SUM_KEY "kvasir.sum"
enum { FORMAT = 2, FORMAT_SUM_OF_DATA = 1 };

/* Buffers that no program writes are constants. Which ones exist depends on how the model was compiled. */
static bool is_saved(const kva_artifact *a, int32_t state) {
  if (a->states[state].role != KVA_ROLE_BUFFER) return a->states[state].role != KVA_ROLE_CACHE;
  return kva_state_is_written(a, state);
}

uint64_t kva_model_hash(const kva_artifact *a) {
  uint64_t hash = 0;
  for (int32_t i = 0; i < a->n_states; i++) {
    const kva_state_desc *d = &a->states[i];
    if (!is_saved(a, i)) continue;
    kva_tensor whole;
    kva_state_whole(d, &whole);
    const int64_t numbers[3] = {d->role, d->dtype, whole.rank};
    hash = kva_hash(hash, d->name, strlen(d->name) + 1);
    hash = kva_hash(hash, numbers, sizeof numbers);
    hash = kva_hash(hash, whole.dims, (size_t)whole.rank * sizeof *whole.dims);
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
    {KVA_STEP_KEY, "step", FIELD_INT, AT(step), true},
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
  static const char *const head[N_HEAD] = {KVA_FORMAT_KEY, KVA_MODEL_KEY};
  return i < N_HEAD ? head[i] : fields[i - N_HEAD].key;
}

static void print_double(double v, char text[40]) {
  locale_t before = kva_numbers_enter();
  snprintf(text, 40, "%.17g", v);
  kva_numbers_leave(before);
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
    print_double(*(const double *)at, text);
}

static bool parse_field(const char *text, int i, kva_checkpoint *c) {
  char *at = (char *)c + fields[i].offset, *end;
  if (i != SCHEDULE && fields[i].kind == FIELD_DOUBLE) return kva_parse_double(text, (double *)at);
  errno = 0;
  if (i == SCHEDULE) {
    long kind = strtol(text, &end, 10);
    c->schedule.kind = (kva_schedule_kind)kind;
    return !errno && end != text && !*end && kind >= KVA_SCHEDULE_CONSTANT && kind <= KVA_SCHEDULE_LINEAR;
  }
  if (fields[i].kind == FIELD_INT)
    *(int64_t *)at = strtoll(text, &end, 10);
  else
    *(uint64_t *)at = strtoull(text, &end, 10);
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

static uint64_t sum_head(const kva_safetensors *f) {
  uint64_t sum = 0;
  for (int i = 0; i < N_HEAD + N_FIELDS; i++) {
    const char *value = kva_safetensors_metadata(f, key_at(i));
    sum = kva_sum_text(sum, value ? value : "");
  }
  return sum;
}

/* Of one file: its tensors are in order of names. */
static uint64_t sum_file(const kva_safetensors *f) {
  uint64_t sum = sum_head(f);
  for (int64_t i = 0; i < kva_safetensors_count(f); i++) {
    kva_tensor t;
    const char *name = kva_safetensors_at(f, i, &t);
    sum = kva_sum_tensor(sum, name, &t);
  }
  return sum;
}

/* Format 1: data in order of the session's states. */
static uint64_t sum_data(const kva_safetensors *f, const kva_artifact *a) {
  uint64_t sum = 0;
  for (int32_t i = 0; i < a->n_states; i++) {
    kva_tensor t;
    if (is_saved(a, i) && kva_safetensors_find(f, a->states[i].name, &t))
      sum = kva_sum_bytes(sum, t.data, (size_t)kva_tensor_bytes(&t));
  }
  return sum;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

bool kva_checkpoint_in_shards(const kva_artifact *a) {
  for (int32_t i = 0; i < a->n_states; i++)
    if (kva_state_is_divided(&a->states[i]) || a->states[i].stages) return true;
  return false;
}

static int format_of(const kva_artifact *a) {
  bool stages = false;
  for (int32_t i = 0; i < a->n_states; i++) stages |= a->states[i].stages != 0;
  return stages ? KVA_STAGES_FORMAT : kva_checkpoint_in_shards(a) ? KVA_SHARDS_FORMAT : (int)FORMAT;
}

static int by_name(const void *a, const void *b) {
  return strcmp((*(const kva_state_desc *const *)a)->name, (*(const kva_state_desc *const *)b)->name);
}

kva_status kva_checkpoint_possible(const kva_artifact *a, kva_diag *diag) {
  for (int32_t i = 0; i < a->n_states; i++) {
    const kva_state_desc *d = &a->states[i];
    if (!is_saved(a, i) || kva_safetensors_dtype_name((kva_dtype)d->dtype)) continue;
    return kva_fail(
        diag, KVA_UNSUPPORTED, NULL,
        "checkpoints are safetensors files, which cannot hold '%s' of type %s; store it as int8 or uint8, or "
        "train without --checkpoint",
        d->name, kva_dtype_name((kva_dtype)d->dtype));
  }
  return KVA_OK;
}

/* Saved states in order of names; returns their number. */
static int64_t list_saved(const kva_artifact *a, const kva_state_desc **out) {
  int64_t n = 0;
  for (int32_t i = 0; i < a->n_states; i++)
    if (is_saved(a, i)) out[n++] = &a->states[i];
  qsort(out, (size_t)n, sizeof *out, by_name);
  return n;
}

static kva_status write_file(const char *path, kva_session *s, int64_t n, const kva_state_desc *const *saved,
                             const kva_checkpoint_head *head, kva_diag *diag) {
  kva_named_tensor *tensors = calloc((size_t)n + 1, sizeof *tensors);
  kva_status status = tensors ? KVA_OK : KVA_NO_MEMORY;
  uint64_t sum = head->sum;
  for (int64_t i = 0; status == KVA_OK && i < n; i++) {
    status = kva_checkpoint_state(s, saved[i], diag, &tensors[i]);
    if (status == KVA_OK) sum = kva_sum_tensor(sum, saved[i]->name, &tensors[i].tensor);
  }
  char text[20];
  kva_metadata metadata[N_HEAD + N_FIELDS + 1];
  memcpy(metadata, head->metadata, (N_HEAD + N_FIELDS) * sizeof *metadata);
  snprintf(text, sizeof text, "%016" PRIx64, sum);
  metadata[N_HEAD + N_FIELDS] = (kva_metadata){SUM_KEY, text};
  if (status == KVA_OK) status = kva_safetensors_write(path, n, tensors, N_HEAD + N_FIELDS + 1, metadata, diag);
  free(tensors);
  return status;
}

kva_status kva_checkpoint_state(kva_session *s, const kva_state_desc *d, kva_diag *diag, kva_named_tensor *out) {
  *out = (kva_named_tensor){.name = d->name};
  (void)kva_session_state_desc(s, (int)(d - kva_session_artifact(s)->states), &out->tensor);
  if (out->tensor.data || !d->bytes) return KVA_OK;
  return kva_fail(diag, KVA_IO, NULL, "cannot read state '%s' from the device", d->name);
}

static void make_head(const kva_artifact *a, const kva_checkpoint *c, char values[][40], kva_metadata *metadata,
                      kva_checkpoint_head *out) {
  *out = (kva_checkpoint_head){.n = N_HEAD + N_FIELDS, .metadata = metadata, .sum_key = SUM_KEY};
  snprintf(values[0], sizeof values[0], "%d", format_of(a));
  snprintf(values[1], sizeof values[1], "%016" PRIx64, kva_model_hash(a));
  for (int i = 0; i < N_FIELDS; i++) print_field(c, i, values[N_HEAD + i]);
  for (int i = 0; i < N_HEAD + N_FIELDS; i++) {
    metadata[i] = (kva_metadata){key_at(i), values[i]};
    out->sum = kva_sum_text(out->sum, values[i]);
  }
}

kva_status kva_checkpoint_write(const char *path, kva_session *s, const kva_checkpoint *c, kva_diag *diag) {
  const kva_artifact *a = kva_session_artifact(s);
  char values[N_HEAD + N_FIELDS][40];
  kva_metadata metadata[N_HEAD + N_FIELDS];
  kva_checkpoint_head head;
  make_head(a, c, values, metadata, &head);
  const kva_state_desc **saved = calloc((size_t)a->n_states + 1, sizeof *saved);
  bool writes = path && saved;
  kva_status status = kva_comm_agree(s->options.comm, writes ? KVA_OK : KVA_NO_MEMORY, diag);
  int64_t n = writes ? list_saved(a, saved) : 0;
  if (status == KVA_OK && kva_checkpoint_in_shards(a)) {
    status = kva_checkpoint_write_shards(path, s, n, saved, &head, diag);
  } else if (status == KVA_OK) {
    status = kva_comm_rank(s->options.comm) ? KVA_OK : write_file(path, s, n, saved, &head, diag);
    status = kva_comm_agree(s->options.comm, status, diag);
  }
  free(saved);
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
  kva_status status =
      kva_error(diag, loc, "is a checkpoint of another model: its tensor '%s' is %s", name, kva_text_string(&text));
  kva_text_free(&text);
  return status;
}

static bool has_saved(const kva_artifact *a, const char *name) {
  for (int32_t i = 0; i < a->n_states; i++)
    if (is_saved(a, i) && !strcmp(a->states[i].name, name)) return true;
  return false;
}

/* Every state needs a tensor of its type, and every tensor a state. */
static kva_status match(const kva_shards *f, const kva_artifact *a, const kva_loc *loc, kva_diag *diag) {
  for (int32_t i = 0; i < a->n_states; i++) {
    const kva_state_desc *d = &a->states[i];
    kva_tensor own, found;
    if (!is_saved(a, i)) continue;
    int64_t at = kva_shards_find(f, d->name);
    if (at < 0) return kva_error(diag, loc, "is a checkpoint of another model: it has no tensor '%s'", d->name);
    (void)kva_shards_at(f, at, &found);
    kva_state_whole(d, &own);
    if (!same_type(&own, &found)) return wrong_type(loc, d->name, &found, &own, diag);
  }
  for (int64_t i = 0; i < kva_shards_count(f); i++) {
    kva_tensor found;
    const char *name = kva_shards_at(f, i, &found);
    if (!has_saved(a, name))
      return kva_error(diag, loc, "is a checkpoint of another model: this one has no tensor '%.200s'", name);
  }
  return KVA_OK;
}

static kva_status check_format(const kva_shards *f, const kva_loc *loc, kva_diag *diag, int *out_format) {
  const char *format = kva_safetensors_metadata(kva_shards_head(f), KVA_FORMAT_KEY);
  if (!format)
    return kva_fail(diag, KVA_DAMAGED, loc,
                    "is no checkpoint of Kvasir: its metadata lack '%s'; it may hold weights alone", KVA_FORMAT_KEY);
  *out_format = atoi(format);
  if (kva_shards_number(f)) return KVA_OK;
  if (*out_format == FORMAT || *out_format == FORMAT_SUM_OF_DATA) return KVA_OK;
  if (*out_format == KVA_SHARDS_FORMAT || *out_format == KVA_STAGES_FORMAT)
    return kva_fail(diag, KVA_DAMAGED, loc, "is one file of a checkpoint in several; give the folder that it is in");
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

/* Files are large, so each is summed by one process; all of them agree on the result. */
static kva_status check_files(kva_shards *f, const kva_comm *c, const kva_loc *loc, kva_diag *diag) {
  const kva_safetensors *head = kva_shards_head(f);
  if (!kva_shards_number(f)) return kva_comm_rank(c) ? KVA_OK : check_sum(head, sum_file(head), loc, diag);
  KVA_TRY(check_sum(head, kva_shards_sum(f, sum_head(head)), loc, diag));
  for (int64_t i = kva_comm_rank(c); i < kva_shards_number(f); i += kva_comm_size(c))
    KVA_TRY(kva_shards_check(f, i, diag));
  return KVA_OK;
}

kva_status kva_checkpoint_check_sums(kva_shards *f, const char *path, kva_diag *diag) {
  int format = 0;
  kva_loc loc = {.file = path};
  if (!kva_safetensors_metadata(kva_shards_head(f), KVA_FORMAT_KEY)) return KVA_OK;
  KVA_TRY(check_format(f, &loc, diag, &format));
  return format == FORMAT_SUM_OF_DATA ? KVA_OK : check_files(f, NULL, &loc, diag);
}

/* This process's elements of a state; to NULL: opens their files. */
static kva_status copy_state(kva_shards *f, const kva_state_desc *d, const kva_comm *c, char *to, kva_diag *diag) {
  kva_state_share share = kva_state_share_of(d, c, kva_comm_rank(c));
  int64_t width = kva_dtype_bits((kva_dtype)d->dtype) / 8, at = kva_shards_find(f, d->name), run;
  for (int64_t i = 0; i < share.n; i += run) {
    int64_t place = kva_state_place(d, share.slice, share.first + i, &run);
    if (run > share.n - i) run = share.n - i;
    KVA_TRY(kva_shards_copy(f, at, place, run, to ? to + i * width : NULL, diag));
  }
  return KVA_OK;
}

static kva_status copy_states(kva_shards *f, kva_session *s, bool opens, kva_diag *diag) {
  const kva_artifact *a = kva_session_artifact(s);
  for (int32_t i = 0; i < a->n_states; i++) {
    kva_named_tensor own = {0};
    if (!is_saved(a, i) || !kva_session_holds(s, i)) continue;
    KVA_TRY(kva_checkpoint_state(s, &a->states[i], diag, &own));
    KVA_TRY(copy_state(f, &a->states[i], s->options.comm, opens ? NULL : own.tensor.data, diag));
  }
  return KVA_OK;
}

/* Everything that can fail. */
static kva_status check_all(kva_shards *f, kva_session *s, const kva_loc *loc, kva_diag *diag, kva_checkpoint *out) {
  int format = 0;
  const kva_comm *c = s->options.comm;
  const kva_artifact *a = kva_session_artifact(s);
  const kva_safetensors *head = kva_shards_head(f);
  KVA_TRY(check_format(f, loc, diag, &format));
  if (format != FORMAT_SUM_OF_DATA) KVA_TRY(check_files(f, c, loc, diag));
  KVA_TRY(read_fields(head, loc, diag, out));
  KVA_TRY(match(f, a, loc, diag));
  if (format == FORMAT_SUM_OF_DATA && !kva_comm_rank(c)) KVA_TRY(check_sum(head, sum_data(head, a), loc, diag));
  return copy_states(f, s, true, diag);
}

/* A file whose status is that of a safetensors file: checkpoints are never written so. */
static kva_status open_checkpoint(const char *path, kva_diag *diag, kva_shards **out) {
  kva_status status = kva_shards_open(path, diag, out);
  return status == KVA_INVALID || (status == KVA_UNSUPPORTED && !kva_shards_is(path)) ? KVA_DAMAGED : status;
}

kva_status kva_checkpoint_check(const char *path, kva_diag *diag) {
  kva_shards *f;
  int format;
  KVA_TRY(kva_shards_open(path, diag, &f));
  kva_status status = check_format(f, &(kva_loc){.file = path}, diag, &format);
  kva_shards_close(f);
  return status;
}

/* Processes on several hosts may have other files of this name. */
static kva_status compare_files(const kva_shards *f, kva_comm *c, kva_diag *diag) {
  kva_text line = {0};
  const char *sum = kva_safetensors_metadata(kva_shards_head(f), SUM_KEY);
  kva_text_add(&line, "the checkpoint's sum: %.16s\n", sum ? sum : "");
  kva_status status = line.cut ? KVA_NO_MEMORY : KVA_OK;
  if (status == KVA_OK) status = kva_comm_compare(c, line.data, diag);
  kva_text_free(&line);
  return status;
}

kva_status kva_checkpoint_read(const char *path, kva_session *s, kva_diag *diag, kva_checkpoint *out) {
  kva_shards *f = NULL;
  kva_status status = open_checkpoint(path, diag, &f);
  if (status == KVA_OK) status = check_all(f, s, &(kva_loc){.file = path}, diag, out);
  status = kva_comm_agree(s->options.comm, status, diag);
  if (status == KVA_OK) status = compare_files(f, s->options.comm, diag);
  if (status == KVA_OK) status = copy_states(f, s, false, diag);
  kva_shards_close(f);
  return status;
}
