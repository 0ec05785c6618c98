/* Reader of GGUF files (version 2 and 3, little endian): counts, metadata, tensors' types and places, padding, data.
 * Nothing in the header is aligned. Every count and length is compared with the bytes that are left before anything is
 * allocated for it, so memory grows with the file only. */
#include "tools/checkpoint/checkpoint.h"

#include <math.h>

enum { MAX_RANK = 4, ALIGNMENT = 32, LEAST_PAIR = 8 + 4 + 1, LEAST_INFO = 8 + 4 + 4 + 8 };

typedef enum value_type { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, N_TYPES } value_type;
static const uint8_t value_bytes[N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8}; /* the least */

typedef struct reader {
  kva_foreign *f;
  const unsigned char *begin, *at, *end;
  kva_diag *diag;
  uint64_t alignment;
} reader;

static kva_status malformed(const reader *r, const char *expected) {
  return kva_error(r->diag, &(kva_loc){.file = r->f->path}, "malformed GGUF file at byte %lld: expected %s",
                   (long long)(r->at - r->begin), expected);
}

static uint64_t left(const reader *r) {
  return (uint64_t)(r->end - r->at);
}

/* ---- numbers and strings ----------------------------------------------------------------------------------------- */

/* `bytes` are there. */
static uint64_t take(reader *r, int bytes) {
  uint64_t v = 0;
  for (int i = 0; i < bytes; i++) v |= (uint64_t)r->at[i] << 8 * i;
  r->at += bytes;
  return v;
}

static kva_status take_number(reader *r, int bytes, const char *what, uint64_t *out) {
  if (left(r) < (uint64_t)bytes) return malformed(r, what);
  *out = take(r, bytes);
  return KVA_OK;
}

static kva_status take_string(reader *r, const char **out, size_t *out_size) {
  uint64_t size = 0;
  KVA_TRY(take_number(r, 8, "the length of a string", &size));
  if (size > left(r)) return malformed(r, "a string that ends in the file");
  *out = (const char *)r->at;
  *out_size = (size_t)size;
  r->at += size;
  return KVA_OK;
}

/* A name: no empty one, no zero bytes. */
static kva_status take_name(reader *r, const char **out) {
  const char *s = NULL;
  size_t size = 0;
  KVA_TRY(take_string(r, &s, &size));
  if (!size || memchr(s, 0, size)) return malformed(r, "a name");
  *out = kva_arena_strndup(r->f->arena, s, size);
  return KVA_OK;
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

static kva_status no_memory(const reader *r) {
  return kva_fail(r->diag, KVA_NO_MEMORY, &(kva_loc){.file = r->f->path}, "no memory for its metadata");
}

static json_t *number_of(value_type type, uint64_t bits) {
  float single;
  double v;
  uint32_t low = (uint32_t)bits;
  switch (type) {
  case BOOL: return json_boolean(bits != 0);
  case I8: return json_integer((int8_t)bits);
  case I16: return json_integer((int16_t)bits);
  case I32: return json_integer((int32_t)bits);
  case F32: memcpy(&single, &low, sizeof single), v = single; break;
  case F64: memcpy(&v, &bits, sizeof v); break;
  default: return json_integer((json_int_t)bits);
  }
  return isfinite(v) ? json_real(v) : json_null();
}

static kva_status take_scalar(reader *r, value_type type, json_t **out) {
  uint64_t bits = 0;
  const char *s = NULL;
  size_t size = 0;
  if (type == STRING) {
    KVA_TRY(take_string(r, &s, &size));
    *out = json_stringn_nocheck(s, size);
  } else {
    KVA_TRY(take_number(r, value_bytes[type], "a value", &bits));
    if (type == BOOL && bits > 1) return malformed(r, "a bool, 0 or 1");
    *out = number_of(type, bits);
  }
  return *out ? KVA_OK : no_memory(r);
}

static kva_status take_array(reader *r, json_t *list) {
  uint64_t type = 0, n = 0;
  KVA_TRY(take_number(r, 4, "the type of an array's elements", &type));
  KVA_TRY(take_number(r, 8, "the length of an array", &n));
  if (type >= N_TYPES || type == ARRAY) return malformed(r, "an array of numbers or strings");
  if (n > left(r) / value_bytes[type]) return malformed(r, "an array that ends in the file");
  for (uint64_t i = 0; i < n; i++) {
    json_t *item = NULL;
    KVA_TRY(take_scalar(r, (value_type)type, &item));
    if (json_array_append_new(list, item)) return no_memory(r);
  }
  return KVA_OK;
}

static kva_status take_value(reader *r, json_t **out) {
  uint64_t type = 0;
  KVA_TRY(take_number(r, 4, "the type of a value", &type));
  if (type >= N_TYPES) return malformed(r, "the type of a value, 0 to 12");
  if (type != ARRAY) return take_scalar(r, (value_type)type, out);
  *out = json_array();
  return *out ? take_array(r, *out) : no_memory(r);
}

static kva_status take_pair(reader *r) {
  const char *key = NULL;
  json_t *value = NULL;
  KVA_TRY(take_name(r, &key));
  kva_status status = json_object_get(r->f->config, key) ? malformed(r, "keys that differ") : take_value(r, &value);
  if (status == KVA_OK && json_object_set_new_nocheck(r->f->config, key, value)) return no_memory(r);
  if (status != KVA_OK) json_decref(value);
  return status;
}

static kva_status find_alignment(reader *r) {
  const json_t *v = json_object_get(r->f->config, "general.alignment");
  r->alignment = v ? (uint64_t)json_integer_value(v) : ALIGNMENT;
  bool power = r->alignment && !(r->alignment & (r->alignment - 1)) && r->alignment <= 1 << 20;
  return power ? KVA_OK : malformed(r, "general.alignment to be a power of two");
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Sizes are listed innermost first. */
static kva_status take_shape(reader *r, kva_foreign_tensor *t) {
  uint64_t rank = 0, size = 0;
  KVA_TRY(take_number(r, 4, "the rank of a tensor", &rank));
  if (rank > MAX_RANK) return malformed(r, "a tensor of at most 4 dimensions");
  t->rank = (int32_t)rank;
  for (int32_t d = t->rank; d-- > 0;) {
    KVA_TRY(take_number(r, 8, "the size of a tensor", &size));
    if (size > INT64_MAX) return malformed(r, "a size below 2^63");
    t->dims[d] = (int64_t)size;
  }
  return KVA_OK;
}

static kva_status take_info(reader *r, uint64_t *out_offset) {
  kva_foreign_tensor t = {0};
  uint64_t type = 0;
  KVA_TRY(take_name(r, &t.name));
  KVA_TRY(take_shape(r, &t));
  KVA_TRY(take_number(r, 4, "the type of a tensor", &type));
  KVA_TRY(take_number(r, 8, "the place of a tensor", out_offset));
  t.packing = kva_packing_of_ggml((uint32_t)type);
  if (!t.packing)
    return kva_fail(r->diag, KVA_UNSUPPORTED, &(kva_loc){.file = r->f->path},
                    "tensor '%.200s' is of type %llu of ggml; those read are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
                    "Q5_1 and Q2_K to Q6_K",
                    t.name, (unsigned long long)type);
  KVA_PUSH(r->f->arena, &r->f->tensors, t);
  return KVA_OK;
}

static kva_status place(reader *r, kva_foreign_tensor *t, uint64_t offset) {
  int64_t elements = kva_foreign_elements(t), bytes = 0, end = 0;
  int64_t row = t->rank ? t->dims[t->rank - 1] : 1;
  bool ok = elements >= 0 && row % t->packing->elements == 0 &&
            kva_mul_size(elements / t->packing->elements, t->packing->bytes, &bytes) && offset <= INT64_MAX &&
            kva_add_size((int64_t)offset, bytes, &end) && (uint64_t)end <= left(r) && offset % r->alignment == 0;
  if (!ok)
    return kva_error(r->diag, &(kva_loc){.file = r->f->path},
                     "tensor '%.200s' of type %s at byte %llu of the data does not lie in the file, or not at an "
                     "aligned place, or its rows are no whole blocks",
                     t->name, t->packing->name, (unsigned long long)offset);
  t->data = r->at + offset;
  return KVA_OK;
}

static kva_status take_tensors(reader *r, uint64_t n) {
  uint64_t *offsets = KVA_NEW_ARRAY(r->f->arena, uint64_t, n + 1);
  for (uint64_t i = 0; i < n; i++) KVA_TRY(take_info(r, &offsets[i]));
  uint64_t padding = -(uint64_t)(r->at - r->begin) & (r->alignment - 1);
  r->at += padding < left(r) ? padding : left(r);
  for (uint64_t i = 0; i < n; i++) KVA_TRY(place(r, &r->f->tensors.data[i], offsets[i]));
  return kva_foreign_index(r->f, r->diag);
}

kva_status kva_gguf_parse(kva_foreign *f, const void *data, size_t size, kva_diag *diag) {
  const unsigned char *bytes = data;
  reader r = {.f = f, .begin = bytes, .at = bytes, .end = bytes + size, .diag = diag};
  uint64_t magic = 0, version = 0, n_tensors = 0, n_pairs = 0;
  f->config = json_object();
  if (!f->config) return no_memory(&r);
  KVA_TRY(take_number(&r, 4, "'GGUF'", &magic));
  if (magic != 0x46554747) return malformed(&r, "'GGUF' at the beginning");
  KVA_TRY(take_number(&r, 4, "a version", &version));
  if (version != 2 && version != 3)
    return kva_fail(diag, KVA_UNSUPPORTED, &(kva_loc){.file = f->path}, "is GGUF of version %llu; 2 and 3 are read",
                    (unsigned long long)version);
  KVA_TRY(take_number(&r, 8, "the number of tensors", &n_tensors));
  KVA_TRY(take_number(&r, 8, "the number of keys", &n_pairs));
  if (n_pairs > left(&r) / LEAST_PAIR) return malformed(&r, "as many keys as the file can hold");
  for (uint64_t i = 0; i < n_pairs; i++) KVA_TRY(take_pair(&r));
  if (n_tensors > left(&r) / LEAST_INFO) return malformed(&r, "as many tensors as the file can hold");
  KVA_TRY(find_alignment(&r));
  return take_tensors(&r, n_tensors);
}
