/* Reads checkpoints in one file or in shards. Nothing in a file is trusted: whatever the index says, no element is read
 * beyond the tensor of a shard that has it. */
#include "runtime/shards.h"

#include "runtime/base/platform.h"
#include "runtime/session.h"
#include "runtime/sum.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 1 << 20 }; /* shards */

typedef struct tensor {
  kva_state_desc d; /* data: the whole tensor, once it was asked for */
  int64_t stage;    /* whose shards have it */
  int64_t at;       /* number of the tensor in the first of these */
} tensor;

struct kva_shards {
  char *path;
  bool in_folder;
  kva_safetensors *index;       /* of a folder */
  int64_t data, stages, tensor; /* of its mesh */
  kva_safetensors **files;
  tensor *tensors; /* in order of names */
  int64_t n;
};

/* ---- the index --------------------------------------------------------------------------------------------------- */

char *kva_shards_path(const char *folder, int64_t shard, int64_t n) {
  char *path = NULL;
  int length = asprintf(&path, "%s/" KVA_SHARDS_PREFIX "%05" PRId64 "-of-%05" PRId64 ".safetensors", folder, shard, n);
  return length < 0 ? NULL : path;
}

static char *index_path(const char *folder) {
  char *path = NULL;
  return asprintf(&path, "%s/" KVA_SHARDS_INDEX, folder) < 0 ? NULL : path;
}

bool kva_shards_is(const char *path) {
  char *index = kva_is_folder(path) ? index_path(path) : NULL;
  bool found = index && !access(index, F_OK);
  free(index);
  return found;
}

void kva_shards_print(const kva_state_desc *d, kva_text *out) {
  for (int32_t i = 0; i < d->whole_rank; i++) kva_text_add(out, "%s%" PRId64, i ? "," : "", d->whole[i]);
  kva_text_add(out, " axis=%d slices=%d part=%" PRId64, (int)d->split_axis, (int)d->slices, d->parts ? d->dims[0] : 0);
}

static bool parse_shape(const char **at, kva_state_desc *d) {
  int64_t n = 1;
  for (bool more = true; more; *at += more) {
    char *end;
    errno = 0;
    if (d->whole_rank == KVA_ABI_MAX_RANK || **at < '0' || **at > '9') return false;
    int64_t extent = strtoll(*at, &end, 10);
    if (errno || !kva_mul_size(n, extent, &n)) return false;
    d->whole[d->whole_rank++] = extent;
    *at = end;
    more = **at == ',';
  }
  return true;
}

/* Slices and parts that do not have all elements, or have numbers beyond what fits, are refused. */
static bool fits(const kva_shards *f, const kva_state_desc *d) {
  int64_t all = 0;
  if (d->split_axis < 0 || d->split_axis >= d->whole_rank || (d->slices && d->slices != f->tensor)) return false;
  if (d->slices && d->whole[d->split_axis] % d->slices) return false;
  int64_t n = kva_state_elements(d) / (d->slices ? d->slices : 1);
  if (!d->parts) return d->slices;
  return d->dims[0] > 0 && kva_mul_size(d->dims[0], f->data, &all) && all >= n;
}

/* The inverse of kva_shards_print. */
static bool parse_division(const kva_shards *f, const char *text, kva_state_desc *d) {
  int axis, slices, end = 0;
  int64_t part;
  d->rank = 1;
  if (!parse_shape(&text, d)) return false;
  if (sscanf(text, " axis=%9d slices=%9d part=%18" SCNd64 "%n", &axis, &slices, &part, &end) != 3 || text[end])
    return false;
  d->split_axis = axis;
  d->slices = slices;
  d->parts = part ? (int32_t)f->data : 0;
  d->dims[0] = part;
  return fits(f, d);
}

static const char *division_of(const kva_shards *f, const char *name) {
  char *key = NULL;
  if (!f->in_folder || asprintf(&key, KVA_SHARDS_DIVIDED "%s", name) < 0) return NULL;
  const char *text = kva_safetensors_metadata(f->index, key);
  free(key);
  return text;
}

uint64_t kva_shards_sum(const kva_shards *f, uint64_t sum) {
  const char *mesh = kva_safetensors_metadata(f->index, KVA_SHARDS_MESH);
  const char *sums = kva_safetensors_metadata(f->index, KVA_SHARDS_SUMS);
  sum = kva_sum_text(kva_sum_text(sum, mesh ? mesh : ""), sums ? sums : "");
  for (int64_t i = 0; i < f->n; i++) {
    const char *division = division_of(f, f->tensors[i].d.name);
    sum = kva_sum_text(sum, division ? division : "");
  }
  return sum;
}

static kva_status damaged(const char *path, kva_diag *diag, const char *what, const char *name) {
  return kva_fail(diag, KVA_DAMAGED, &(kva_loc){.file = path}, "damaged checkpoint: %s%.200s", what, name);
}

static kva_status check_format(const kva_shards *f, kva_diag *diag) {
  const char *format = kva_safetensors_metadata(f->index, KVA_FORMAT_KEY);
  if (!format) return damaged(f->path, diag, "its index lacks ", KVA_FORMAT_KEY);
  if (atoi(format) == KVA_SHARDS_FORMAT || atoi(format) == KVA_STAGES_FORMAT) return KVA_OK;
  return kva_fail(diag, KVA_UNSUPPORTED, &(kva_loc){.file = f->path},
                  "is a folder of a checkpoint of format %.20s; this version reads %d and %d", format,
                  KVA_SHARDS_FORMAT, KVA_STAGES_FORMAT);
}

/* As many numbers as the format has. */
static bool scan_mesh(const kva_shards *f, const char *text, int *data, int *stages, int *tensor_axis) {
  int end = 0;
  *stages = 1;
  bool read = atoi(kva_safetensors_metadata(f->index, KVA_FORMAT_KEY)) == KVA_STAGES_FORMAT
                  ? sscanf(text, "data=%7d,pipeline=%7d,tensor=%7d%n", data, stages, tensor_axis, &end) == 3
                  : sscanf(text, "data=%7d,tensor=%7d%n", data, tensor_axis, &end) == 2;
  return read && !text[end];
}

static kva_status parse_mesh(kva_shards *f, kva_diag *diag) {
  const char *text = kva_safetensors_metadata(f->index, KVA_SHARDS_MESH);
  int data = 0, stages = 0, slices = 0;
  bool read = text && scan_mesh(f, text, &data, &stages, &slices) && data > 0 && stages > 0 && slices > 0;
  if (!read || stages > MOST || (int64_t)data * slices > MOST / stages)
    return damaged(f->path, diag, "its index names no mesh, but ", text ? text : "nothing");
  f->data = data;
  f->stages = stages;
  f->tensor = slices;
  return KVA_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

int64_t kva_shards_number(const kva_shards *f) {
  return f->in_folder ? f->data * f->stages * f->tensor : 0;
}

const kva_safetensors *kva_shards_head(const kva_shards *f) {
  return f->in_folder ? f->index : f->files[0];
}

/* Opens a file of the folder, which has been there when it was written. */
static kva_status open_file(const char *path, kva_diag *diag, kva_safetensors **out) {
  if (access(path, F_OK) && errno == ENOENT)
    return kva_fail(diag, KVA_DAMAGED, &(kva_loc){.file = path}, "damaged checkpoint: this file of it is missing");
  kva_status status = kva_safetensors_open(path, diag, out);
  return status == KVA_INVALID || status == KVA_UNSUPPORTED ? KVA_DAMAGED : status;
}

static kva_status need(kva_shards *f, int64_t shard, kva_diag *diag) {
  if (f->files[shard]) return KVA_OK;
  char *path = kva_shards_path(f->path, shard, kva_shards_number(f));
  kva_status status = path ? open_file(path, diag, &f->files[shard]) : KVA_NO_MEMORY;
  free(path);
  return status;
}

static kva_status open_folder(kva_shards *f, kva_diag *diag) {
  char *path = index_path(f->path);
  kva_status status = path ? open_file(path, diag, &f->index) : KVA_NO_MEMORY;
  free(path);
  KVA_TRY(status);
  KVA_TRY(check_format(f, diag));
  KVA_TRY(parse_mesh(f, diag));
  f->files = calloc((size_t)kva_shards_number(f), sizeof *f->files);
  return f->files ? need(f, 0, diag) : KVA_NO_MEMORY;
}

static kva_status open_single(kva_shards *f, kva_diag *diag) {
  f->files = calloc(1, sizeof *f->files);
  return f->files ? kva_safetensors_open(f->path, diag, &f->files[0]) : KVA_NO_MEMORY;
}

/* The shard with these places. */
static int64_t shard_at(const kva_shards *f, int64_t part, int64_t stage, int64_t slice) {
  return (part * f->stages + stage) * f->tensor + slice;
}

/* The file that has all tensors of a stage, and of these what is whole. */
static kva_safetensors *first_file(const kva_shards *f, int64_t stage) {
  return f->files[f->in_folder ? shard_at(f, 0, stage, 0) : 0];
}

static kva_status describe(kva_shards *f, int64_t stage, int64_t at, kva_diag *diag, tensor *out) {
  kva_tensor t;
  kva_state_desc *d = &out->d;
  const char *name = kva_safetensors_at(first_file(f, stage), at, &t);
  *out = (tensor){.stage = stage, .at = at};
  *d = (kva_state_desc){.name = name, .dtype = (int32_t)t.dtype, .rank = t.rank};
  memcpy(d->dims, t.dims, sizeof d->dims);
  const char *division = division_of(f, name);
  return !division || parse_division(f, division, d)
             ? KVA_OK
             : damaged(f->path, diag, "its index does not say how the processes divided ", name);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const tensor *)a)->d.name, ((const tensor *)b)->d.name);
}

/* The tensors of all stages. */
static kva_status list_tensors(kva_shards *f, kva_diag *diag) {
  int64_t n = 0;
  for (int64_t k = 0; k < f->stages; k++) n += kva_safetensors_count(first_file(f, k));
  f->tensors = calloc((size_t)n + 1, sizeof *f->tensors);
  if (!f->tensors) return KVA_NO_MEMORY;
  for (int64_t k = 0; k < f->stages; k++)
    for (int64_t i = 0; i < kva_safetensors_count(first_file(f, k)); i++)
      KVA_TRY(describe(f, k, i, diag, &f->tensors[f->n++]));
  qsort(f->tensors, (size_t)f->n, sizeof *f->tensors, by_name);
  for (int64_t i = 1; i < f->n; i++)
    if (!by_name(&f->tensors[i - 1], &f->tensors[i]))
      return damaged(f->path, diag, "several stages have ", f->tensors[i].d.name);
  return KVA_OK;
}

static kva_status open_all(kva_shards *f, kva_diag *diag) {
  f->stages = 1;
  f->in_folder = kva_is_folder(f->path);
  KVA_TRY(f->in_folder ? open_folder(f, diag) : open_single(f, diag));
  for (int64_t k = 1; k < f->stages; k++) KVA_TRY(need(f, shard_at(f, 0, k, 0), diag));
  return list_tensors(f, diag);
}

kva_status kva_shards_open(const char *path, kva_diag *diag, kva_shards **out_shards) {
  kva_shards *f = *out_shards = calloc(1, sizeof *f);
  kva_status status = f && (f->path = strdup(path)) ? open_all(f, diag) : KVA_NO_MEMORY;
  if (status == KVA_NO_MEMORY) status = kva_fail(diag, status, NULL, "no memory for the tables of a checkpoint");
  if (status == KVA_OK) return KVA_OK;
  kva_shards_close(f);
  *out_shards = NULL;
  return status;
}

void kva_shards_close(kva_shards *f) {
  if (!f) return;
  for (int64_t i = 0; f->files && i < (f->in_folder ? kva_shards_number(f) : 1); i++)
    kva_safetensors_close(f->files[i]);
  for (int64_t i = 0; f->tensors && i < f->n; i++) free((void *)(uintptr_t)f->tensors[i].d.data);
  kva_safetensors_close(f->index);
  free(f->files);
  free(f->tensors);
  free(f->path);
  free(f);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

int64_t kva_shards_count(const kva_shards *f) {
  return f->n;
}

const char *kva_shards_at(const kva_shards *f, int64_t i, kva_tensor *out_tensor) {
  kva_state_whole(&f->tensors[i].d, out_tensor);
  return f->tensors[i].d.name;
}

int64_t kva_shards_find(const kva_shards *f, const char *name) {
  const tensor key = {.d.name = name};
  const tensor *found = f->n ? bsearch(&key, f->tensors, (size_t)f->n, sizeof key, by_name) : NULL;
  return found ? found - f->tensors : -1;
}

/* What a shard has of a divided tensor. */
static kva_status find_piece(kva_shards *f, const tensor *x, int64_t part, int64_t slice, kva_diag *diag,
                             const char **out) {
  kva_tensor t;
  const kva_state_desc *d = &x->d;
  int64_t shard = shard_at(f, part, x->stage, slice);
  KVA_TRY(need(f, shard, diag));
  kva_state_share share = kva_state_share_at(d, slice, part);
  bool found = kva_safetensors_find(f->files[shard], d->name, &t) && t.dtype == (kva_dtype)d->dtype;
  if (found && kva_tensor_bytes(&t) == share.n * (kva_dtype_bits(t.dtype) / 8)) {
    *out = t.data;
    return KVA_OK;
  }
  char *path = kva_shards_path(f->path, shard, kva_shards_number(f));
  kva_status status = path ? damaged(path, diag, "it lacks its elements of ", d->name) : KVA_NO_MEMORY;
  free(path);
  return status;
}

/* Where element `place` of a divided tensor is, and how many from there on lie together. */
static kva_status find_elements(kva_shards *f, const tensor *x, int64_t place, kva_diag *diag, const char **out,
                                int64_t *out_n) {
  const char *piece = NULL;
  const kva_state_desc *d = &x->d;
  int64_t slice, part = 0, i = kva_state_find(d, place, &slice, out_n);
  if (d->parts) {
    part = i / d->dims[0];
    i %= d->dims[0];
    if (*out_n > d->dims[0] - i) *out_n = d->dims[0] - i;
  }
  KVA_TRY(find_piece(f, x, part, slice, diag, &piece));
  *out = piece + i * (kva_dtype_bits((kva_dtype)d->dtype) / 8);
  return KVA_OK;
}

kva_status kva_shards_copy(kva_shards *f, int64_t i, int64_t first, int64_t n, void *to, kva_diag *diag) {
  const tensor *x = &f->tensors[i];
  const kva_state_desc *d = &x->d;
  int64_t width = kva_dtype_bits((kva_dtype)d->dtype) / 8, run = n;
  kva_tensor t;
  (void)kva_safetensors_at(first_file(f, x->stage), x->at, &t);
  for (int64_t at = 0; at < n; at += run) {
    const char *from = (const char *)t.data + (first + at) * width;
    if (kva_state_is_divided(d)) KVA_TRY(find_elements(f, x, first + at, diag, &from, &run));
    if (run > n - at) run = n - at;
    if (to) memcpy((char *)to + at * width, from, (size_t)(run * width));
  }
  return KVA_OK;
}

kva_status kva_shards_whole(kva_shards *f, int64_t i, kva_diag *diag, kva_tensor *out_tensor) {
  kva_state_desc *d = &f->tensors[i].d;
  if (!kva_state_is_divided(d)) {
    (void)kva_safetensors_at(first_file(f, f->tensors[i].stage), f->tensors[i].at, out_tensor);
    return KVA_OK;
  }
  kva_state_whole(d, out_tensor);
  void *data = d->data ? (void *)(uintptr_t)d->data : malloc((size_t)kva_tensor_bytes(out_tensor) + 1);
  bool known = d->data;
  d->data = out_tensor->data = data;
  if (!data) return kva_fail(diag, KVA_NO_MEMORY, &(kva_loc){.file = f->path}, "no memory for tensor '%s'", d->name);
  return known ? KVA_OK : kva_shards_copy(f, i, 0, kva_state_elements(d), data, diag);
}

void kva_shards_release(kva_shards *f, int64_t i) {
  const tensor *x = &f->tensors[i];
  if (kva_state_is_divided(&x->d)) return; /* put together in memory of its own */
  kva_safetensors_release(first_file(f, x->stage), x->at);
}

/* ---- what belongs together --------------------------------------------------------------------------------------- */

static uint64_t sum_of(const kva_safetensors *file) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < kva_safetensors_count(file); i++) {
    kva_tensor t;
    const char *name = kva_safetensors_at(file, i, &t);
    sum = kva_sum_tensor(sum, name, &t);
  }
  return sum;
}

/* The sums are numbers of 16 digits with blanks between. */
static bool has_sum(const kva_shards *f, int64_t shard, uint64_t sum) {
  enum { WIDTH = 17 };
  char text[WIDTH];
  const char *sums = kva_safetensors_metadata(f->index, KVA_SHARDS_SUMS);
  snprintf(text, sizeof text, "%016" PRIx64, sum);
  return sums && strlen(sums) == (size_t)(kva_shards_number(f) * WIDTH - 1) &&
         !memcmp(sums + shard * WIDTH, text, WIDTH - 1);
}

static kva_status differs(const char *path, const char *key, const char *found, const char *expected, kva_diag *diag) {
  return kva_fail(diag, KVA_DAMAGED, &(kva_loc){.file = path},
                  "is a shard of another checkpoint: its %s is %.40s, and the index's is %.40s", key,
                  found ? found : "missing", expected ? expected : "missing");
}

static kva_status check_file(const kva_shards *f, int64_t shard, const char *path, kva_diag *diag) {
  static const char *const same[] = {KVA_FORMAT_KEY, KVA_MODEL_KEY, KVA_STEP_KEY};
  char place[48];
  const kva_safetensors *file = f->files[shard];
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
    const char *found = kva_safetensors_metadata(file, same[i]),
               *expected = kva_safetensors_metadata(f->index, same[i]);
    if (!found || !expected || strcmp(found, expected) != 0) return differs(path, same[i], found, expected, diag);
  }
  snprintf(place, sizeof place, "%" PRId64 " of %" PRId64, shard, kva_shards_number(f));
  const char *found = kva_safetensors_metadata(file, KVA_SHARD_PLACE);
  if (!found || strcmp(found, place) != 0) return differs(path, KVA_SHARD_PLACE, found, place, diag);
  if (has_sum(f, shard, sum_of(file))) return KVA_OK;
  return kva_fail(diag, KVA_DAMAGED, &(kva_loc){.file = path},
                  "damaged checkpoint: the sum of this file is not the one that the index has");
}

kva_status kva_shards_check(kva_shards *f, int64_t shard, kva_diag *diag) {
  KVA_TRY(need(f, shard, diag));
  char *path = kva_shards_path(f->path, shard, kva_shards_number(f));
  kva_status status = path ? check_file(f, shard, path, diag) : KVA_NO_MEMORY;
  free(path);
  return status;
}

kva_status kva_shards_check_all(kva_shards *f, kva_diag *diag) {
  for (int64_t i = 0; i < kva_shards_number(f); i++) KVA_TRY(kva_shards_check(f, i, diag));
  return KVA_OK;
}
