/* The data sources "npy" and "safetensors": rows of mapped arrays, one array per data input, shuffled together. Row r
 * of a batch is array[i], with the same i for all arrays. */
#include "runtime/data.h"

#include "runtime/npy.h"
#include "runtime/safetensors.h"

#include <stdlib.h>

typedef struct column {
  char *input, *path;
  kva_tensor array; /* all rows; its data lie in `file` and may be unaligned */
  kva_file file;
  kva_data_range range; /* of its values */
} column;

typedef struct tensor_data {
  kva_data_order order;
  int64_t rows;
  int n_columns;
  column *columns;           /* in order of the program's inputs */
  kva_safetensors *together; /* the file that holds all columns, or NULL */
} tensor_data;

static void destroy(void *self) {
  tensor_data *d = self;
  for (int i = 0; d->columns && i < d->n_columns; i++) {
    kva_file_unmap(&d->columns[i].file);
    free(d->columns[i].input);
    free(d->columns[i].path);
  }
  kva_safetensors_close(d->together);
  free(d->columns);
  free(d);
}

/* ---- filling tensors --------------------------------------------------------------------------------------------- */

static void add_shape(kva_text *text, int32_t rank, const int64_t *dims) {
  kva_text_add(text, "[");
  for (int32_t i = 0; i < rank; i++) kva_text_add(text, "%s%lld", i ? ", " : "", (long long)dims[i]);
  kva_text_add(text, "]");
}

static kva_status wrong_shape(const column *c, const kva_tensor *t, kva_diag *diag) {
  kva_loc loc = {.file = c->path};
  kva_text expected = {0}, found = {0};
  add_shape(&expected, t->rank - 1, t->dims + 1);
  add_shape(&found, c->array.rank - 1, c->array.dims + 1);
  kva_status status = kva_error(diag, &loc, "input '%s' takes rows of shape %s, the array has rows of shape %s",
                                c->input, kva_text_string(&expected), kva_text_string(&found));
  kva_text_free(&expected);
  kva_text_free(&found);
  return status;
}

static kva_status check_tensor(const column *c, const kva_tensor *t, const kva_tensor *first, kva_diag *diag) {
  kva_loc loc = {.file = c->path};
  if (t->rank < 1 || first->rank < 1 || t->dims[0] != first->dims[0])
    return kva_error(diag, &loc, "input '%s' must have the batch as its first dimension, as all data inputs", c->input);
  if (t->dtype != c->array.dtype)
    return kva_error(diag, &loc, "input '%s' is %s, the array is %s; convert it", c->input, kva_dtype_name(t->dtype),
                     kva_dtype_name(c->array.dtype));
  bool same = t->rank == c->array.rank;
  for (int32_t i = 1; same && i < t->rank; i++) same = t->dims[i] == c->array.dims[i];
  return same ? KVA_OK : wrong_shape(c, t, diag);
}

kva_status kva_data_check_values(const kva_data_range *r, const char *input, const kva_loc *loc, int64_t row,
                                 kva_dtype dtype, int64_t n, const void *values, kva_diag *diag) {
  kva_text ignored = {0};
  for (int64_t i = 0; r->known && i < n; i++) {
    int64_t v = kva_load_i64(dtype, values, i);
    if ((v >= r->low && v < r->high) || (r->has_ignored && v == r->ignored)) continue;
    if (r->has_ignored) kva_text_add(&ignored, " or %lld, which is ignored", (long long)r->ignored);
    kva_status status =
        kva_error(diag, loc, "row %lld: '%s' has the value %lld; the model takes %lld to %lld%s", (long long)row, input,
                  (long long)v, (long long)r->low, (long long)r->high - 1, kva_text_string(&ignored));
    kva_text_free(&ignored);
    return status;
  }
  return KVA_OK;
}

static kva_status fill(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                       kva_diag *diag) {
  const tensor_data *d = self;
  if (n != d->n_columns)
    return kva_error(diag, NULL, "data: %d arrays were opened, the program has %d data inputs", d->n_columns, n);
  for (int i = 0; i < n; i++) KVA_TRY(check_tensor(&d->columns[i], &tensors[i], &tensors[0], diag));
  int64_t batch = tensors[0].dims[0];
  for (int64_t r = 0; r < batch; r++) {
    int64_t row = kva_data_row(&d->order, d->rows, seed, step, evaluation, batch, r);
    if (row < 0) return kva_data_no_rows("data", &d->order, d->rows, evaluation, diag);
    for (int i = 0; i < n; i++) {
      size_t bytes = (size_t)(kva_tensor_bytes(&tensors[i]) / batch);
      const char *from = d->columns[i].array.data;
      char *to = (char *)tensors[i].data + (size_t)r * bytes;
      memcpy(to, from + (size_t)row * bytes, bytes);
      const column *c = &d->columns[i];
      KVA_TRY(kva_data_check_values(&c->range, c->input, &(kva_loc){.file = c->path}, row, tensors[i].dtype,
                                    (int64_t)bytes * 8 / kva_dtype_bits(tensors[i].dtype), to, diag));
    }
  }
  return KVA_OK;
}

/* ---- opening files ----------------------------------------------------------------------------------------------- */

static int input_index(const kva_data_options *o, const char *name) {
  for (int i = 0; i < o->n_inputs; i++)
    if (!strcmp(o->inputs[i], name)) return i;
  return -1;
}

static kva_status unknown_input(const kva_data_spec *spec, const kva_data_item *item, const kva_data_options *o,
                                kva_diag *diag) {
  kva_text known = {0};
  for (int i = 0; i < o->n_inputs; i++) kva_text_add(&known, "%s%s", i ? ", " : "", o->inputs[i]);
  const char *inputs = known.data ? known.data : "none";
  kva_status status = item->name
                          ? kva_error(diag, NULL, "data '%s': the program has no data input '%s'; it has: %s",
                                      spec->kind, item->name, inputs)
                          : kva_error(diag, NULL, "data '%s': expected INPUT=FILE, found '%s'; the inputs are: %s",
                                      spec->kind, item->value, inputs);
  kva_text_free(&known);
  return status;
}

static kva_status check_rows(tensor_data *d, const column *c, kva_diag *diag) {
  kva_loc loc = {.file = c->path};
  if (c->array.rank < 1 || kva_dtype_bits(c->array.dtype) < 8)
    return kva_error(diag, &loc, "the array of input '%s' has no first dimension to take rows from", c->input);
  if (d->rows < 0) d->rows = c->array.dims[0];
  if (d->rows == c->array.dims[0]) return KVA_OK;
  return kva_error(diag, &loc, "the array of input '%s' has %lld rows, that before it %lld", c->input,
                   (long long)c->array.dims[0], (long long)d->rows);
}

static kva_status name_column(column *c, const char *input, const char *path) {
  c->input = strdup(input);
  c->path = strdup(path);
  return c->input && c->path ? KVA_OK : KVA_NO_MEMORY;
}

static kva_status open_npy(tensor_data *d, const kva_data_spec *spec, const kva_data_item *item,
                           const kva_data_options *o, kva_diag *diag) {
  int i = item->name ? input_index(o, item->name) : -1;
  if (i < 0) return unknown_input(spec, item, o, diag);
  column *c = &d->columns[i];
  if (c->input) return kva_error(diag, NULL, "data '%s': input '%s' is given twice", spec->kind, item->name);
  KVA_TRY(name_column(c, item->name, item->value));
  KVA_TRY(kva_file_map(c->path, diag, &c->file));
  KVA_TRY(kva_npy_view(c->path, c->file.data, c->file.size, diag, &c->array));
  return check_rows(d, c, diag);
}

/* Tensors are looked up by the names of the inputs; others in the file are ignored. */
static kva_status open_safetensors(tensor_data *d, const kva_data_spec *spec, const kva_data_options *o,
                                   kva_diag *diag) {
  if (spec->n_items != 1 || spec->items[0].name)
    return kva_error(diag, NULL, "data 'safetensors' takes one file: safetensors:FILE");
  const char *path = spec->items[0].value;
  kva_loc loc = {.file = path};
  KVA_TRY(kva_safetensors_open(path, diag, &d->together));
  for (int i = 0; i < d->n_columns; i++) {
    column *c = &d->columns[i];
    KVA_TRY(name_column(c, o->inputs[i], path));
    if (!kva_safetensors_find(d->together, c->input, &c->array))
      return kva_error(diag, &loc, "holds no tensor '%s' for the data input of that name", c->input);
    KVA_TRY(check_rows(d, c, diag));
  }
  return KVA_OK;
}

static kva_status open_columns(tensor_data *d, const kva_data_spec *spec, const kva_data_options *o, kva_diag *diag) {
  d->columns = calloc((size_t)o->n_inputs + 1, sizeof *d->columns);
  if (!d->columns) return KVA_NO_MEMORY;
  d->n_columns = o->n_inputs;
  if (!strcmp(spec->kind, "safetensors")) return open_safetensors(d, spec, o, diag);
  for (int i = 0; i < spec->n_items; i++) KVA_TRY(open_npy(d, spec, &spec->items[i], o, diag));
  for (int i = 0; i < d->n_columns; i++)
    if (!d->columns[i].input)
      return kva_error(diag, NULL, "data '%s': no file is given for the data input '%s'; add %s=FILE", spec->kind,
                       o->inputs[i], o->inputs[i]);
  return KVA_OK;
}

/* Hashes names, sizes and the first bytes of each array: reading everything would take too long. */
static uint64_t identity(const tensor_data *d) {
  enum { PREFIX = 1 << 16 };
  uint64_t id = kva_hash(0, &d->order.eval, sizeof d->order.eval);
  for (int i = 0; i < d->n_columns; i++) {
    const column *c = &d->columns[i];
    id = kva_hash(id, c->input, strlen(c->input));
    size_t size = (size_t)kva_tensor_bytes(&c->array);
    id = kva_hash(id, &size, sizeof size);
    id = kva_hash(id, c->array.data, size < PREFIX ? size : PREFIX);
  }
  return id;
}

kva_status kva_data_open_tensors(const kva_data_spec *spec, const kva_data_options *options, kva_diag *diag,
                                 kva_data_source *out_source) {
  tensor_data *d = calloc(1, sizeof *d);
  if (!d) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a data source of tensors");
  d->order = kva_data_order_of(spec, options);
  d->rows = -1;
  kva_status status = open_columns(d, spec, options, diag);
  for (int i = 0; !status && options->ranges && i < d->n_columns; i++)
    if (kva_dtype_is_int(d->columns[i].array.dtype)) d->columns[i].range = options->ranges[i];
  if (status) {
    destroy(d);
    return status;
  }
  *out_source = (kva_data_source){.id = identity(d), .fill = fill, .destroy = destroy, .self = d};
  return KVA_OK;
}
