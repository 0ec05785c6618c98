/* TensorProto to kva_tensor_data, for every data type. Elements come from raw_data (used in place if it is mapped and
 * aligned), from the typed field of the data type, or from a file below the model's folder. Every size is
 * checked against the declared shape before allocation. */
#include "frontend/onnx_proto.h"
#include "runtime/base/platform.h"

#include <stdlib.h>

typedef struct reading {
  kva_pb_tensor_reader *r;
  const kva_pb_tensor *t;
  const kva_loc *loc;
  kva_tensor_data data;
  int64_t elements;
} reading;

static const char *tensor_name(const kva_pb_tensor *t) {
  return t->name && *t->name ? t->name : "(unnamed)";
}

static kva_status read_header(reading *x) {
  const kva_pb_tensor *t = x->t;
  kva_diag *diag = x->r->diag;
  kva_dtype dtype = (kva_dtype)t->data_type;
  if (t->data_type <= 0 || t->data_type >= KVA_DTYPE_COUNT)
    return kva_error(diag, x->loc, "tensor '%s': unknown data type %d", tensor_name(t), t->data_type);
  if (dtype == KVA_C64 || dtype == KVA_C128)
    return kva_fail(diag, KVA_UNSUPPORTED, x->loc, "tensor '%s': %s tensors are not supported", tensor_name(t),
                    kva_dtype_name(dtype));
  if (t->n_dims > KVA_MAX_RANK)
    return kva_fail(diag, KVA_UNSUPPORTED, x->loc, "tensor '%s': rank %zu is more than the supported %d",
                    tensor_name(t), t->n_dims, KVA_MAX_RANK);
  x->elements = 1;
  bool ok = true;
  for (size_t i = 0; i < t->n_dims; i++) {
    if (t->dims[i] < 0)
      return kva_error(diag, x->loc, "tensor '%s': dimension %zu is negative (%lld)", tensor_name(t), i,
                       (long long)t->dims[i]);
    ok = ok && kva_mul_size(x->elements, t->dims[i], &x->elements);
  }
  x->data = (kva_tensor_data){.dtype = dtype, .rank = (uint32_t)t->n_dims};
  if (!ok || !kva_dtype_bytes(dtype, x->elements, &x->data.bytes))
    return kva_error(diag, x->loc, "tensor '%s': its shape holds more elements than a 64-bit size", tensor_name(t));
  x->data.dims = kva_arena_memdup(x->r->arena, t->n_dims ? t->dims : &x->elements, t->n_dims * sizeof *t->dims);
  return KVA_OK;
}

/* ---- external data ----------------------------------------------------------------------------------------------- */

static const char *external_entry(const kva_pb_tensor *t, const char *key) {
  for (size_t i = 0; i < t->n_external_data; i++)
    if (!strcmp(kva_pb_str(t->external_data[i]->key), key)) return kva_pb_str(t->external_data[i]->value);
  return NULL;
}

static bool parse_size(const char *s, int64_t *out) {
  if (!s || *s < '0' || *s > '9') return false;
  int64_t v = 0;
  for (; *s >= '0' && *s <= '9'; s++)
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *s - '0', &v)) return false;
  *out = v;
  return !*s;
}

static kva_status map_file(reading *x, const char *location, kva_file *out) {
  kva_diag *quiet = kva_diag_create();
  kva_status status = kva_file_map_below(x->r->folder, location, quiet, out);
  if (status)
    (void)kva_fail(x->r->diag, status, x->loc, "data of tensor '%s' are in '%s': %s", tensor_name(x->t), location,
                   kva_diag_count(quiet) ? kva_diag_message(quiet, 0, NULL, NULL) : kva_status_name(status));
  kva_diag_destroy(quiet);
  return status;
}

/* Mapped once per file, until the module is destroyed, whose constants refer to it. */
static kva_status map_external(reading *x, const char *location, kva_file **out) {
  kva_pb_tensor_reader *r = x->r;
  if (!r->folder)
    return kva_error(r->diag, x->loc, "tensor '%s': external data needs a model file beside it", tensor_name(x->t));
  if (!r->files) r->files = kva_map_create(r->arena);
  *out = kva_map_get_str(r->files, location);
  if (*out) return KVA_OK;
  if (!r->missing) r->missing = kva_map_create(r->arena);
  if (kva_map_get_str(r->missing, location)) return KVA_IO;
  kva_file *file = KVA_NEW(r->arena, kva_file);
  kva_status status = map_file(x, location, file);
  if (status) {
    kva_map_set_str(r->missing, location, file);
    return status;
  }
  kva_map_set_str(r->files, location, file);
  *out = file;
  return KVA_OK;
}

static kva_status read_external(reading *x, const void **out) {
  kva_diag *diag = x->r->diag;
  const char *location = external_entry(x->t, "location"), *offset_text = external_entry(x->t, "offset");
  const char *length_text = external_entry(x->t, "length");
  if (!location || !*location)
    return kva_error(diag, x->loc, "tensor '%s': external data without 'location'", tensor_name(x->t));
  int64_t offset = 0, length = x->data.bytes;
  if ((offset_text && !parse_size(offset_text, &offset)) || (length_text && !parse_size(length_text, &length)))
    return kva_error(diag, x->loc, "tensor '%s': offset and length of external data must be plain numbers",
                     tensor_name(x->t));
  if (length != x->data.bytes)
    return kva_error(diag, x->loc, "tensor '%s': external data of %lld bytes, expected %lld from its shape",
                     tensor_name(x->t), (long long)length, (long long)x->data.bytes);
  kva_file *file = NULL;
  KVA_TRY(map_external(x, location, &file));
  if (offset > (int64_t)file->size || length > (int64_t)file->size - offset)
    return kva_error(diag, x->loc, "tensor '%s': %lld bytes from byte %lld lie outside '%s', which has %zu",
                     tensor_name(x->t), (long long)length, (long long)offset, location, file->size);
  *out = (const char *)file->data + offset;
  return KVA_OK;
}

/* ---- typed fields ------------------------------------------------------------------------------------------------ */

static kva_status count_error(reading *x, size_t found, int64_t expected) {
  return kva_error(x->r->diag, x->loc, "tensor '%s': %zu values, expected %lld from its shape", tensor_name(x->t),
                   found, (long long)expected);
}

static kva_status copy_typed(reading *x, size_t n, const void *values, void **out) {
  if ((int64_t)n != x->elements) return count_error(x, n, x->elements);
  *out = kva_arena_memdup(x->r->arena, n ? values : "", (size_t)x->data.bytes + !n);
  return KVA_OK;
}

/* The numbers that a unit of int32_data may be: an integer's own, bits of a float, of a byte of packed elements. */
static void unit_range(kva_dtype t, int64_t *out_low, int64_t *out_high) {
  int bits = kva_dtype_bits(t) < 8 ? 8 : kva_dtype_bits(t);
  bool is_signed = kva_dtype_is_int(t) && !kva_dtype_is_unsigned(t);
  *out_low = is_signed ? -(INT64_C(1) << (bits - 1)) : 0;
  *out_high = t == KVA_BOOL ? 1 : (INT64_C(1) << (is_signed && kva_dtype_bits(t) >= 8 ? bits - 1 : bits)) - 1;
}

static kva_status check_units(reading *x, int64_t n) {
  int64_t low, high;
  unit_range(x->data.dtype, &low, &high);
  for (int64_t i = 0; i < n; i++) {
    int64_t v = x->t->int32_data[i];
    if (v < low || v > high)
      return kva_error(x->r->diag, x->loc, "tensor '%s': value %lld (element %lld) is no %s: expected %lld to %lld",
                       tensor_name(x->t), (long long)v, (long long)i, kva_dtype_name(x->data.dtype), (long long)low,
                       (long long)high);
  }
  return KVA_OK;
}

/* Each int32_data entry holds one unit: the bits of an element of 8 bits or more, else a packed byte. */
static kva_status convert_int32_data(reading *x, void **out) {
  const kva_pb_tensor *t = x->t;
  int bits = kva_dtype_bits(x->data.dtype);
  int64_t expected = bits < 8 ? x->data.bytes : x->elements;
  if ((int64_t)t->n_int32_data != expected) return count_error(x, t->n_int32_data, expected);
  KVA_TRY(check_units(x, expected));
  char *to = *out = kva_arena_alloc(x->r->arena, (size_t)x->data.bytes + 1);
  size_t unit = bits < 8 ? 1 : (size_t)bits / 8;
  for (int64_t i = 0; i < expected; i++) memcpy(to + (size_t)i * unit, &t->int32_data[i], unit); /* little-endian */
  return KVA_OK;
}

static kva_status convert_uint64_data(reading *x, void **out) {
  const kva_pb_tensor *t = x->t;
  if (x->data.dtype == KVA_U64) return copy_typed(x, t->n_uint64_data, t->uint64_data, out);
  if ((int64_t)t->n_uint64_data != x->elements) return count_error(x, t->n_uint64_data, x->elements);
  *out = kva_arena_alloc(x->r->arena, (size_t)x->data.bytes + 1);
  for (int64_t i = 0; i < x->elements; i++) {
    if (t->uint64_data[i] > UINT32_MAX)
      return kva_error(x->r->diag, x->loc, "tensor '%s': value %llu (element %lld) is no uint32", tensor_name(t),
                       (unsigned long long)t->uint64_data[i], (long long)i);
    kva_store_i64(KVA_U32, *out, i, (int64_t)t->uint64_data[i]);
  }
  return KVA_OK;
}

/* Strings are addresses of texts of the arena. */
static kva_status copy_strings(reading *x, void **out) {
  const kva_pb_tensor *t = x->t;
  if ((int64_t)t->n_string_data != x->elements) return count_error(x, t->n_string_data, x->elements);
  const char **texts = KVA_NEW_ARRAY(x->r->arena, const char *, t->n_string_data + 1);
  for (size_t i = 0; i < t->n_string_data; i++) {
    const char *bytes = t->string_data[i].len ? (const char *)t->string_data[i].data : "";
    if (memchr(bytes, 0, t->string_data[i].len))
      return kva_fail(x->r->diag, KVA_UNSUPPORTED, x->loc, "tensor '%s': string %zu has a NUL in it", tensor_name(t),
                      i);
    texts[i] = kva_arena_strndup(x->r->arena, bytes, t->string_data[i].len);
  }
  *out = texts;
  return KVA_OK;
}

static kva_status read_typed(reading *x, void **out) {
  const kva_pb_tensor *t = x->t;
  switch (x->data.dtype) {
  case KVA_STRING: return copy_strings(x, out);
  case KVA_F32: return copy_typed(x, t->n_float_data, t->float_data, out);
  case KVA_F64: return copy_typed(x, t->n_double_data, t->double_data, out);
  case KVA_I64: return copy_typed(x, t->n_int64_data, t->int64_data, out);
  case KVA_U32:
  case KVA_U64: return convert_uint64_data(x, out);
  default: return convert_int32_data(x, out);
  }
}

/* ---- raw data ---------------------------------------------------------------------------------------------------- */

/* Gives pages of the file back as it goes: a tensor is in memory once. */
static void copy_mapped(char *to, const char *from, size_t n) {
  enum { PIECE = 1 << 20 };
  for (size_t i = 0; i < n; i += PIECE) {
    memcpy(to + i, from + i, n - i < PIECE ? n - i : PIECE);
    kva_pages_release(from, n - i < PIECE ? n : i + PIECE);
  }
}

/* Kernels load whole elements, so borrowed memory must be aligned to them. */
static const void *borrow_or_copy(reading *x, const void *bytes, bool mapped) {
  size_t align = (size_t)kva_dtype_bits(x->data.dtype) / 8, n = (size_t)x->data.bytes;
  if (!n) return "";
  x->data.mapped = mapped && (align <= 1 || (uintptr_t)bytes % align == 0);
  if (x->data.mapped) return bytes;
  x->data.spare = true;
  if (!mapped) return kva_arena_memdup(x->r->arena, bytes, n);
  void *copy = kva_arena_alloc(x->r->arena, n);
  copy_mapped(copy, bytes, n);
  return copy;
}

static kva_status read_raw(reading *x, const kva_pb_raw *raw, const void **out) {
  if ((int64_t)raw->size != x->data.bytes)
    return kva_error(x->r->diag, x->loc, "tensor '%s': raw data of %zu bytes, expected %lld from its shape",
                     tensor_name(x->t), raw->size, (long long)x->data.bytes);
  *out = borrow_or_copy(x, raw->data, raw->mapped);
  return KVA_OK;
}

static kva_status read_elements(reading *x, const kva_pb_raw *raw) {
  const kva_pb_tensor *t = x->t;
  if (t->segment)
    return kva_fail(x->r->diag, KVA_UNSUPPORTED, x->loc, "tensor '%s': stored in segments", tensor_name(t));
  bool external = t->has_data_location && t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
  if (external && x->data.dtype == KVA_STRING)
    return kva_error(x->r->diag, x->loc, "tensor '%s': strings are never external data", tensor_name(t));
  if (external) {
    KVA_TRY(read_external(x, &x->data.data));
    x->data.data = borrow_or_copy(x, x->data.data, true);
    return KVA_OK;
  }
  if (raw && raw->data && x->data.dtype != KVA_STRING) return read_raw(x, raw, &x->data.data);
  if (t->has_raw_data && x->data.dtype != KVA_STRING)
    return read_raw(x, &(kva_pb_raw){.data = t->raw_data.data, .size = t->raw_data.len}, &x->data.data);
  void *typed = NULL;
  KVA_TRY(read_typed(x, &typed));
  x->data.data = typed;
  return KVA_OK;
}

/* Checks that bool elements are bytes 0 and 1; later stages rely on it. */
static kva_status check_bools(reading *x) {
  if (x->data.dtype != KVA_BOOL) return KVA_OK;
  for (int64_t i = 0; i < x->elements; i++)
    if (((const uint8_t *)x->data.data)[i] > 1)
      return kva_error(x->r->diag, x->loc, "tensor '%s': element %lld of a bool tensor is neither 0 nor 1",
                       tensor_name(x->t), (long long)i);
  return KVA_OK;
}

kva_status kva_pb_read_tensor(kva_pb_tensor_reader *r, const kva_pb_tensor *t, const kva_pb_raw *raw,
                              const kva_loc *loc, const kva_tensor_data **out) {
  reading x = {.r = r, .t = t, .loc = loc};
  *out = NULL;
  KVA_TRY(read_header(&x));
  KVA_TRY(read_elements(&x, raw));
  KVA_TRY(check_bools(&x));
  *out = kva_arena_memdup(r->arena, &x.data, sizeof x.data);
  return KVA_OK;
}

/* ---- files of values --------------------------------------------------------------------------------------------- */

/* Strings stay in the arena, which the value keeps. */
static kva_status read_item(const kva_pb_tensor *t, kva_arena *arena, const kva_loc *loc, kva_diag *diag,
                            kva_ref_tensor **out) {
  kva_pb_tensor_reader reader = {.arena = arena, .diag = diag};
  const kva_tensor_data *data = NULL;
  kva_status status = kva_pb_read_tensor(&reader, t, NULL, loc, &data);
  if (!status) {
    *out = kva_ref_tensor_from_data(data->dtype, data->rank, data->dims, data->data);
    if (!*out) status = kva_fail(diag, KVA_NO_MEMORY, loc, "not enough memory for its elements");
  }
  return status;
}

static kva_status read_items(size_t n, kva_pb_tensor *const *tensors, const kva_loc *loc, kva_diag *diag,
                             kva_list_value *out) {
  out->items = calloc(n + 1, sizeof *out->items);
  if (!out->items) return kva_fail(diag, KVA_NO_MEMORY, loc, "not enough memory for %zu tensors", n);
  for (; out->n < n; out->n++) KVA_TRY(read_item(tensors[out->n], out->strings, loc, diag, &out->items[out->n]));
  return KVA_OK;
}

static kva_status read_sequence(const Onnx__SequenceProto *s, const kva_loc *loc, kva_diag *diag, kva_list_value *out) {
  bool tensors = s->elem_type <= ONNX__SEQUENCE_PROTO__DATA_TYPE__TENSOR;
  if (!tensors) return kva_fail(diag, KVA_UNSUPPORTED, loc, "a sequence of other elements than tensors");
  return read_items(s->n_tensor_values, s->tensor_values, loc, diag, out);
}

static kva_status read_optional(const Onnx__OptionalProto *o, const kva_loc *loc, kva_diag *diag, kva_list_value *out) {
  if (o->sequence_value) return read_sequence(o->sequence_value, loc, diag, out);
  if (o->elem_type > ONNX__OPTIONAL_PROTO__DATA_TYPE__TENSOR &&
      o->elem_type != ONNX__OPTIONAL_PROTO__DATA_TYPE__SEQUENCE)
    return kva_fail(diag, KVA_UNSUPPORTED, loc, "an optional of another value than a tensor or sequence");
  out->absent = !o->tensor_value;
  return read_items(o->tensor_value != NULL, &o->tensor_value, loc, diag, out);
}

static kva_status read_value(const ProtobufCMessage *m, kva_value_kind kind, const kva_loc *loc, kva_diag *diag,
                             kva_list_value *out) {
  if (kind == KVA_VALUE_SEQUENCE) return read_sequence((const Onnx__SequenceProto *)m, loc, diag, out);
  if (kind != KVA_VALUE_TENSOR) return read_optional((const Onnx__OptionalProto *)m, loc, diag, out);
  kva_pb_tensor *t = (kva_pb_tensor *)(uintptr_t)m;
  return read_items(1, &t, loc, diag, out);
}

kva_status kva_read_value_proto(const char *path, kva_value_kind kind, kva_diag *diag, kva_list_value *out) {
  static const ProtobufCMessageDescriptor *const types[] = {
      &onnx__tensor_proto__descriptor, &onnx__sequence_proto__descriptor, &onnx__optional_proto__descriptor,
      &onnx__optional_proto__descriptor};
  static const char *const names[] = {"tensor", "sequence", "optional", "optional"};
  *out = (kva_list_value){0};
  kva_file file;
  KVA_TRY(kva_file_map(path, diag, &file));
  out->strings = kva_arena_create();
  kva_loc loc = {.file = path};
  ProtobufCMessage *message = NULL;
  kva_status status = kva_pb_unpack(types[kind], file.data, file.size, names[kind], &loc, diag, &message);
  if (!status) status = read_value(message, kind, &loc, diag, out);
  if (status) kva_list_value_free(out);
  if (message) protobuf_c_message_free_unpacked(message, NULL);
  kva_file_unmap(&file);
  return status;
}

void kva_list_value_free(kva_list_value *v) {
  for (uint32_t i = 0; i < v->n; i++) kva_ref_tensor_free(v->items[i]);
  free(v->items);
  if (v->strings) kva_arena_destroy(v->strings);
  *v = (kva_list_value){0};
}

kva_status kva_read_tensor_proto(const char *path, kva_diag *diag, kva_ref_tensor **out_tensor) {
  kva_list_value v;
  *out_tensor = NULL;
  KVA_TRY(kva_read_value_proto(path, KVA_VALUE_TENSOR, diag, &v));
  bool strings = v.items[0]->dtype == KVA_STRING;
  if (!strings) *out_tensor = v.items[0], v.n = 0;
  kva_list_value_free(&v);
  return strings ? kva_fail(diag, KVA_UNSUPPORTED, &(kva_loc){.file = path}, "a tensor of strings") : KVA_OK;
}

/* The strings of t, of which there are t->bytes / sizeof(char *). */
static bool add_strings(const kva_tensor_data *t, kva_pb_tensor *p) {
  size_t n = (size_t)t->bytes / sizeof(char *);
  const char *const *texts = t->data;
  p->string_data = calloc(n + 1, sizeof *p->string_data);
  if (!p->string_data) return false;
  for (; p->n_string_data < n; p->n_string_data++) {
    const char *s = texts[p->n_string_data];
    p->string_data[p->n_string_data] = (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)(uintptr_t)s};
  }
  return true;
}

kva_status kva_write_tensor_proto(const char *path, const char *name, const kva_tensor_data *t, kva_diag *diag) {
  kva_pb_tensor p = ONNX__TENSOR_PROTO__INIT;
  kva_loc loc = {.file = path};
  p.n_dims = t->rank;
  p.dims = (int64_t *)(uintptr_t)t->dims;
  p.has_data_type = true, p.data_type = (int32_t)t->dtype;
  p.name = (char *)(uintptr_t)name;
  p.has_raw_data = t->dtype != KVA_STRING;
  if (p.has_raw_data)
    p.raw_data = (ProtobufCBinaryData){.len = (size_t)t->bytes, .data = (uint8_t *)(uintptr_t)t->data};
  bool enough = p.has_raw_data || add_strings(t, &p);
  size_t size = onnx__tensor_proto__get_packed_size(&p);
  uint8_t *bytes = enough && size <= INT32_MAX ? malloc(size + 1) : NULL;
  kva_status status = KVA_OK;
  if (size > INT32_MAX)
    status = kva_fail(diag, KVA_UNSUPPORTED, &loc, "the tensor has %zu bytes; protobuf files end at 2 GB", size);
  else if (!bytes)
    status = kva_fail(diag, KVA_NO_MEMORY, &loc, "not enough memory for a file of %zu bytes", size);
  else
    status = kva_file_write(path, bytes, onnx__tensor_proto__pack(&p, bytes), diag);
  free(bytes);
  free(p.string_data);
  return status;
}
