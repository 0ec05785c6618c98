/* .npy: magic, version, a header that is a Python dict literal with the keys descr, fortran_order and shape, then the
 * elements. The header parser checks every read against the end and rejects what the grammar does not allow. */
#include "runtime/npy.h"

#include "runtime/base/platform.h"

#include <stdlib.h>

static const char magic[] = "\x93NUMPY";
enum { MAGIC_SIZE = 6, HEADER_ALIGNMENT = 64 };

/* NumPy's type codes, without the byte order mark. V2 and f1 are what package ml_dtypes has. */
static const struct {
  kva_dtype dtype;
  const char *code;
} codes[] = {
    {KVA_F16, "f2"}, {KVA_F32, "f4"},   {KVA_F64, "f8"},  {KVA_I8, "i1"},     {KVA_I16, "i2"}, {KVA_I32, "i4"},
    {KVA_I64, "i8"}, {KVA_U8, "u1"},    {KVA_U16, "u2"},  {KVA_U32, "u4"},    {KVA_U64, "u8"}, {KVA_BOOL, "b1"},
    {KVA_C64, "c8"}, {KVA_C128, "c16"}, {KVA_BF16, "V2"}, {KVA_F8E5M2, "f1"},
};
enum { N_CODES = sizeof codes / sizeof *codes };
/* What ml_dtypes calls every type of 8 bits and less but float8e5m2: which one it is, the reader has to know. */
static const char opaque_code[] = "V1";

static bool is_opaque(kva_dtype t) {
  return kva_dtype_is_float(t) && kva_dtype_bits(t) == 8;
}

/* Several elements in a byte. */
static bool is_packed(kva_dtype t) {
  return (kva_dtype_is_float(t) || kva_dtype_is_int(t)) && kva_dtype_bits(t) < 8;
}

static const char *code_of(kva_dtype t) {
  if (is_opaque(t)) return opaque_code; /* NumPy does not read f1 */
  for (int i = 0; i < N_CODES; i++)
    if (codes[i].dtype == t) return codes[i].code;
  return NULL;
}

/* The type that t is written as; KVA_DTYPE_NONE: t cannot be written. */
static kva_dtype written_type(kva_dtype t) {
  if (code_of(t)) return t;
  if (kva_dtype_is_float(t)) return KVA_F32;
  if (kva_dtype_is_int(t)) return kva_dtype_is_unsigned(t) ? KVA_U8 : KVA_I8;
  return KVA_DTYPE_NONE;
}

static void convert(const kva_tensor *from, kva_dtype type, void *to, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (kva_dtype_is_float(type))
      kva_store_f64(type, to, i, kva_load_f64(from->dtype, from->data, i));
    else
      kva_store_i64(type, to, i, kva_load_i64(from->dtype, from->data, i));
}

static double number_at(const kva_tensor *t, int64_t i) {
  return kva_dtype_is_float(t->dtype) ? kva_load_f64(t->dtype, t->data, i) : (double)kva_load_i64(t->dtype, t->data, i);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct parser {
  const char *at, *end;
  kva_loc loc;
  kva_diag *diag;
  kva_tensor *t;
  kva_dtype wanted;
  bool has_descr, has_order, has_shape;
  bool big, fortran; /* bytes, elements in another order than that of a tensor */
  bool codes;        /* elements have the bits of a type of 4 or 2 bits, in a byte each */
} parser;

static void skip_blanks(parser *p) {
  while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t')) p->at++;
}

static bool accept(parser *p, char c) {
  skip_blanks(p);
  if (p->at == p->end || *p->at != c) return false;
  p->at++;
  return true;
}

static kva_status malformed(parser *p, const char *expected) {
  return kva_error(p->diag, &p->loc, "malformed .npy header: expected %s", expected);
}

/* 'text' or "text", without escapes: keys and type codes have none. */
static bool parse_string(parser *p, const char **out, size_t *out_size) {
  skip_blanks(p);
  if (p->at == p->end || (*p->at != '\'' && *p->at != '"')) return false;
  char quote = *p->at++;
  *out = p->at;
  while (p->at < p->end && *p->at != quote && *p->at != '\\') p->at++;
  if (p->at == p->end || *p->at != quote) return false;
  *out_size = (size_t)(p->at++ - *out);
  return true;
}

static bool equals(const char *s, size_t n, const char *word) {
  return n == strlen(word) && !memcmp(s, word, n);
}

static kva_status parse_descr(parser *p) {
  const char *s;
  size_t n;
  if (!parse_string(p, &s, &n)) return malformed(p, "a type such as '<f4' (structured types are not supported)");
  p->has_descr = true;
  bool big = n && *s == '>', marked = n && strchr("<>|=", *s);
  const char *code = marked ? s + 1 : s;
  size_t code_size = marked ? n - 1 : n;
  if (equals(code, code_size, opaque_code)) {
    p->codes = is_packed(p->wanted);
    if (!p->codes && !is_opaque(p->wanted))
      return kva_fail(p->diag, KVA_UNSUPPORTED, &p->loc,
                      "elements of type V1, which is any type of package ml_dtypes, where none is expected");
    p->t->dtype = p->codes ? KVA_U8 : p->wanted;
    return KVA_OK;
  }
  for (int i = 0; i < N_CODES; i++) {
    if (!equals(code, code_size, codes[i].code)) continue;
    p->big = big && *code != 'V' && kva_dtype_bits(codes[i].dtype) > 8; /* V are bytes without an order */
    p->t->dtype = codes[i].dtype;
    return KVA_OK;
  }
  return kva_fail(p->diag, KVA_UNSUPPORTED, &p->loc,
                  "elements of type '%.*s'; supported are bool, (u)int8 to 64, bfloat16, float8 to 64 and complex",
                  (int)n, s);
}

static bool accept_word(parser *p, const char *word) {
  size_t n = strlen(word);
  skip_blanks(p);
  if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n)) return false;
  p->at += n;
  return true;
}

static kva_status parse_order(parser *p) {
  p->has_order = true;
  p->fortran = accept_word(p, "True");
  return p->fortran || accept_word(p, "False") ? KVA_OK : malformed(p, "True or False after 'fortran_order'");
}

static bool parse_extent(parser *p, int64_t *out) {
  skip_blanks(p);
  if (p->at == p->end || *p->at < '0' || *p->at > '9') return false;
  for (*out = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
    if (!kva_mul_size(*out, 10, out) || !kva_add_size(*out, *p->at - '0', out)) return false;
  return true;
}

static kva_status parse_shape(parser *p) {
  p->has_shape = true;
  p->t->rank = 0;
  if (!accept(p, '(')) return malformed(p, "a tuple after 'shape'");
  while (!accept(p, ')')) {
    if (p->t->rank == KVA_ABI_MAX_RANK)
      return kva_fail(p->diag, KVA_UNSUPPORTED, &p->loc, "more than %d dimensions", KVA_ABI_MAX_RANK);
    if (!parse_extent(p, &p->t->dims[p->t->rank++])) return malformed(p, "an extent in 'shape'");
    if (accept(p, ',')) continue;
    if (!accept(p, ')')) return malformed(p, "',' or ')' in 'shape'");
    break;
  }
  return KVA_OK;
}

static kva_status parse_entry(parser *p) {
  const char *key;
  size_t n;
  if (!parse_string(p, &key, &n)) return malformed(p, "a key");
  if (!accept(p, ':')) return malformed(p, "':' after a key");
  if (equals(key, n, "descr")) return parse_descr(p);
  if (equals(key, n, "fortran_order")) return parse_order(p);
  if (equals(key, n, "shape")) return parse_shape(p);
  return malformed(p, "one of the keys 'descr', 'fortran_order' and 'shape'");
}

static kva_status parse_dict(parser *p) {
  if (!accept(p, '{')) return malformed(p, "'{'");
  while (!accept(p, '}')) {
    KVA_TRY(parse_entry(p));
    if (accept(p, ',')) continue;
    if (!accept(p, '}')) return malformed(p, "',' or '}'");
    break;
  }
  skip_blanks(p);
  if (p->at != p->end) return malformed(p, "the end of the header after '}'");
  if (!p->has_descr || !p->has_order || !p->has_shape)
    return malformed(p, "all of the keys 'descr', 'fortran_order' and 'shape'");
  p->fortran = p->fortran && p->t->rank > 1; /* up to rank 1 it equals C order */
  return KVA_OK;
}

/* Points the parser at the header; the elements follow the header. */
static kva_status find_header(parser *p, const char *file, size_t size) {
  if (size < MAGIC_SIZE + 4 || memcmp(file, magic, MAGIC_SIZE))
    return kva_error(p->diag, &p->loc, "is no .npy file: it does not begin with \\x93NUMPY");
  const unsigned char *u = (const unsigned char *)file;
  size_t begin = u[6] == 1 ? 10 : 12;
  if (u[6] < 1 || u[6] > 3)
    return kva_fail(p->diag, KVA_UNSUPPORTED, &p->loc, ".npy version %d.%d; known are 1.0 to 3.0", u[6], u[7]);
  if (size < begin) return kva_error(p->diag, &p->loc, "the file ends inside its header");
  uint64_t length = u[8] | (uint64_t)u[9] << 8;
  if (begin == 12) length |= (uint64_t)u[10] << 16 | (uint64_t)u[11] << 24;
  if (length > size - begin)
    return kva_error(p->diag, &p->loc, "the header is said to have %llu bytes, the file has only %zu more",
                     (unsigned long long)length, size - begin);
  p->at = file + begin;
  p->end = p->at + length;
  return KVA_OK;
}

/* The tensor of a parser, with elements in the file. */
static kva_status parse_file(parser *p, const void *data, size_t size) {
  KVA_TRY(find_header(p, data, size));
  const char *elements = p->end;
  KVA_TRY(parse_dict(p));
  int64_t bytes = kva_tensor_bytes(p->t), found = (int64_t)(size - (size_t)(elements - (const char *)data));
  if (bytes < 0) return kva_error(p->diag, &p->loc, "the shape is too large to address");
  if (bytes != found)
    return kva_error(p->diag, &p->loc, "the shape needs %lld bytes of elements, the file has %lld", (long long)bytes,
                     (long long)found);
  p->t->data = (void *)(uintptr_t)elements;
  return KVA_OK;
}

kva_status kva_npy_view(const char *path, const void *data, size_t size, kva_diag *diag, kva_tensor *out_tensor) {
  *out_tensor = (kva_tensor){0};
  kva_tensor t = {0};
  parser p = {.loc = {.file = path}, .diag = diag, .t = &t};
  KVA_TRY(parse_file(&p, data, size));
  if (p.big)
    return kva_fail(diag, KVA_UNSUPPORTED, &p.loc,
                    "big-endian data; save the array with astype(array.dtype.newbyteorder('<'))");
  if (p.fortran)
    return kva_fail(diag, KVA_UNSUPPORTED, &p.loc,
                    "elements are in Fortran order; save the array with numpy.ascontiguousarray");
  *out_tensor = t;
  return KVA_OK;
}

/* Elements of `size` bytes whose first index runs fastest, to those whose last one does. */
static void copy_fortran(const kva_tensor *t, size_t size, const char *from, char *to) {
  int64_t index[KVA_ABI_MAX_RANK] = {0}, step[KVA_ABI_MAX_RANK], at = 0, n = 1;
  for (int32_t d = 0; d < t->rank; d++) {
    step[d] = n;
    n *= t->dims[d];
  }
  for (int64_t i = 0; i < n; i++, to += size) {
    memcpy(to, from + (size_t)at * size, size);
    for (int32_t d = t->rank; d-- > 0;) {
      at += step[d];
      if (++index[d] < t->dims[d]) break;
      at -= step[d] * t->dims[d];
      index[d] = 0;
    }
  }
}

static void swap_bytes(char *data, size_t bytes, size_t word) {
  for (size_t i = 0; i < bytes; i += word)
    for (size_t a = i, b = i + word - 1; a < b; a++, b--) {
      char low = data[a];
      data[a] = data[b];
      data[b] = low;
    }
}

static kva_status allocate(size_t bytes, parser *p, void **out) {
  *out = aligned_alloc(64, (bytes / 64 + 1) * 64);
  return *out ? KVA_OK : kva_fail(p->diag, KVA_NO_MEMORY, &p->loc, "no memory for %zu bytes", bytes);
}

static kva_status read_elements(parser *p, size_t bytes) {
  kva_tensor *t = p->t;
  size_t element = (size_t)kva_dtype_bits(t->dtype) / 8;
  const void *elements = t->data;
  KVA_TRY(allocate(bytes, p, &t->data));
  if (p->fortran)
    copy_fortran(t, element, elements, t->data);
  else
    memcpy(t->data, elements, bytes);
  bool is_pair = t->dtype == KVA_C64 || t->dtype == KVA_C128;
  if (p->big) swap_bytes(t->data, bytes, is_pair ? element / 2 : element);
  return KVA_OK;
}

/* The lowest bits of each byte are an element. */
static void pack_codes(const uint8_t *bytes, int64_t n, kva_tensor *t) {
  kva_dtype type = kva_dtype_bits(t->dtype) == 4 ? KVA_U4 : KVA_U2;
  for (int64_t i = 0; i < n; i++) kva_store_i64(type, t->data, i, bytes[i] & (type == KVA_U4 ? 15 : 3));
}

static kva_status pack_numbers(const parser *p, const kva_tensor *wide, int64_t n, kva_tensor *t) {
  convert(wide, t->dtype, t->data, n);
  for (int64_t i = 0; i < n; i++)
    if (number_at(t, i) != number_at(wide, i))
      return kva_error(p->diag, &p->loc, "element %lld is %g, which is no %s", (long long)i, number_at(wide, i),
                       kva_dtype_name(t->dtype));
  return KVA_OK;
}

/* The tensor in the type that is expected, if it is in a wider one because files have no other. */
static kva_status narrow(parser *p, size_t bytes) {
  kva_tensor *wide = p->t, t = *wide;
  bool widened = p->wanted != wide->dtype && written_type(p->wanted) == wide->dtype;
  if (!p->codes && !widened) return KVA_OK;
  t.dtype = p->wanted;
  KVA_TRY(allocate((size_t)kva_tensor_bytes(&t), p, &t.data));
  memset(t.data, 0, (size_t)kva_tensor_bytes(&t));
  int64_t n = (int64_t)bytes * 8 / kva_dtype_bits(wide->dtype);
  kva_status status = KVA_OK;
  if (p->codes)
    pack_codes(wide->data, n, &t);
  else
    status = pack_numbers(p, wide, n, &t);
  free(status ? t.data : wide->data);
  if (!status) *wide = t;
  return status;
}

kva_status kva_npy_parse(const char *path, const void *data, size_t size, kva_dtype wanted, kva_diag *diag,
                         kva_tensor *out_tensor) {
  *out_tensor = (kva_tensor){0};
  kva_tensor t = {0};
  parser p = {.loc = {.file = path}, .diag = diag, .t = &t, .wanted = wanted};
  KVA_TRY(parse_file(&p, data, size));
  size_t bytes = (size_t)kva_tensor_bytes(&t);
  KVA_TRY(read_elements(&p, bytes));
  kva_status status = narrow(&p, bytes);
  if (status)
    free(t.data);
  else
    *out_tensor = t;
  return status;
}

kva_status kva_npy_read(const char *path, kva_dtype wanted, kva_diag *diag, kva_tensor *out_tensor) {
  *out_tensor = (kva_tensor){0};
  kva_file file;
  KVA_TRY(kva_file_map(path, diag, &file));
  kva_status status = kva_npy_parse(path, file.data, file.size, wanted, diag, out_tensor);
  kva_file_unmap(&file);
  return status;
}

void kva_npy_free(kva_tensor *tensor) {
  free(tensor->data);
  *tensor = (kva_tensor){0};
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void add_header(kva_text *text, const kva_tensor *t, kva_dtype type) {
  kva_text dict = {0};
  kva_text_add(&dict, "{'descr': '%s%s', 'fortran_order': False, 'shape': (", kva_dtype_bits(type) > 8 ? "<" : "|",
               code_of(type));
  for (int32_t i = 0; i < t->rank; i++)
    kva_text_add(&dict, "%lld%s", (long long)t->dims[i], t->rank == 1 ? "," : i + 1 < t->rank ? ", " : "");
  kva_text_add(&dict, "), }");
  size_t unpadded = MAGIC_SIZE + 4 + dict.len + 1;
  for (size_t n = (HEADER_ALIGNMENT - unpadded % HEADER_ALIGNMENT) % HEADER_ALIGNMENT; n; n--) kva_text_add(&dict, " ");
  kva_text_add(&dict, "\n");
  const char version_and_length[4] = {1, 0, (char)(dict.len & 255), (char)(dict.len >> 8)};
  kva_text_add_bytes(text, magic, MAGIC_SIZE);
  kva_text_add_bytes(text, version_and_length, 4);
  kva_text_add_bytes(text, dict.data, dict.len);
  text->cut = text->cut || dict.cut;
  kva_text_free(&dict);
}

kva_status kva_npy_write(const char *path, const kva_tensor *t, kva_diag *diag) {
  kva_loc loc = {.file = path};
  kva_dtype type = written_type(t->dtype);
  if (type == KVA_DTYPE_NONE)
    return kva_fail(diag, KVA_UNSUPPORTED, &loc, "a .npy file cannot hold elements of type %s",
                    kva_dtype_name(t->dtype));
  kva_tensor wide = *t;
  wide.dtype = type;
  int64_t bytes = kva_tensor_bytes(&wide);
  if (bytes < 0) return kva_error(diag, &loc, "the tensor is too large to address");
  kva_text text = {0};
  add_header(&text, t, type);
  size_t size = text.len + (size_t)bytes;
  char *file = text.cut ? NULL : malloc(size);
  if (!file) {
    kva_text_free(&text);
    return kva_fail(diag, KVA_NO_MEMORY, &loc, "no memory for %zu bytes", size);
  }
  memcpy(file, text.data, text.len);
  if (type != t->dtype)
    convert(t, type, file + text.len, bytes / (kva_dtype_bits(type) / 8));
  else if (bytes)
    memcpy(file + text.len, t->data, (size_t)bytes);
  kva_text_free(&text);
  kva_status status = kva_file_write(path, file, size, diag);
  free(file);
  return status;
}
