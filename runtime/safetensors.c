/* Reader of safetensors files. The header is JSON of a fixed depth: an object of objects of strings, whole numbers and
 * lists of them, and one object of strings. Anything else is an error, so the parser needs no recursion. Decoded
 * strings lie in one block as long as the header, which they cannot outgrow. */
#include "runtime/safetensors.h"

#include "runtime/base/platform.h"

#include <stdlib.h>

typedef struct entry {
  const char *name;
  kva_tensor tensor;
  int64_t begin, end; /* offsets in the data section */
  void *copy;         /* aligned copy of data that are not aligned to their elements */
} entry;

struct kva_safetensors {
  kva_file file; /* the mapped file; unused for memory of the caller */
  char *strings;
  entry *entries; /* sorted by name once parsed */
  int64_t n, capacity;
  kva_metadata *metadata;
  int64_t n_metadata, metadata_capacity;
};

enum { LENGTH_SIZE = 8 };

typedef struct parser {
  kva_safetensors *f;
  const char *begin, *at, *end;
  char *next_string;
  kva_loc loc;
  kva_diag *diag;
} parser;

/* ---- characters and strings -------------------------------------------------------------------------------------- */

static kva_status malformed(const parser *p, const char *expected) {
  return kva_error(p->diag, &p->loc, "malformed safetensors header at byte %lld: expected %s",
                   (long long)(p->at - p->begin) + LENGTH_SIZE, expected);
}

static void skip_blanks(parser *p) {
  while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r')) p->at++;
}

static bool accept(parser *p, char c) {
  skip_blanks(p);
  if (p->at == p->end || *p->at != c) return false;
  p->at++;
  return true;
}

static bool parse_hex4(parser *p, uint32_t *out) {
  if (p->end - p->at < 4) return false;
  *out = 0;
  for (int i = 0; i < 4; i++) {
    char c = *p->at++;
    uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
    if (digit > 15) return false;
    *out = *out << 4 | digit;
  }
  return true;
}

static bool is_high_surrogate(uint32_t c) {
  return c >= 0xd800 && c < 0xdc00;
}
static bool is_low_surrogate(uint32_t c) {
  return c >= 0xdc00 && c < 0xe000;
}

/* The part of an escape after \u. A character beyond 16 bits is a pair of surrogates (RFC 8259). Lone surrogates and
 * NUL are errors. */
static bool parse_unicode(parser *p) {
  uint32_t c, low;
  if (!parse_hex4(p, &c) || c == 0 || is_low_surrogate(c)) return false;
  if (is_high_surrogate(c)) {
    if (p->end - p->at < 2 || p->at[0] != '\\' || p->at[1] != 'u') return false;
    p->at += 2;
    if (!parse_hex4(p, &low) || !is_low_surrogate(low)) return false;
    c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
  }
  char *s = p->next_string;
  if (c < 0x80) {
    *s++ = (char)c;
  } else if (c < 0x800) {
    *s++ = (char)(0xc0 | c >> 6);
  } else if (c < 0x10000) {
    *s++ = (char)(0xe0 | c >> 12);
    *s++ = (char)(0x80 | (c >> 6 & 63));
  } else {
    *s++ = (char)(0xf0 | c >> 18);
    *s++ = (char)(0x80 | (c >> 12 & 63));
    *s++ = (char)(0x80 | (c >> 6 & 63));
  }
  if (c >= 0x80) *s++ = (char)(0x80 | (c & 63));
  p->next_string = s;
  return true;
}

static bool parse_escape(parser *p) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  if (p->at == p->end) return false;
  char c = *p->at++;
  if (c == 'u') return parse_unicode(p);
  const char *found = c ? strchr(from, c) : NULL;
  if (!found) return false;
  *p->next_string++ = to[found - from];
  return true;
}

/* Length in bytes of a well-formed UTF-8 character (Unicode 16, table 3-7); 0 if there is none. */
static int utf8_length(const unsigned char *s, int64_t size) {
  if (s[0] < 0x80) return 1;
  int n = s[0] >= 0xc2 && s[0] <= 0xdf ? 2 : s[0] >= 0xe0 && s[0] <= 0xef ? 3 : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
  if (!n || n > size) return 0;
  unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
  unsigned high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
  if (s[1] < low || s[1] > high) return 0;
  for (int i = 2; i < n; i++)
    if ((s[i] & 0xc0) != 0x80) return 0;
  return n;
}

static kva_status parse_string(parser *p, const char **out) {
  if (!accept(p, '"')) return malformed(p, "a string");
  *out = p->next_string;
  while (p->at < p->end && *p->at != '"') {
    if (*p->at == '\\') {
      p->at++;
      if (!parse_escape(p)) return malformed(p, "an escape sequence of JSON");
      continue;
    }
    int n = utf8_length((const unsigned char *)p->at, p->end - p->at);
    if (!n || (unsigned char)*p->at < 0x20) return malformed(p, "UTF-8 without control characters");
    memcpy(p->next_string, p->at, (size_t)n);
    p->next_string += n;
    p->at += n;
  }
  if (!accept(p, '"')) return malformed(p, "'\"' at the end of a string");
  *p->next_string++ = 0;
  return KVA_OK;
}

static kva_status parse_size(parser *p, int64_t *out) {
  skip_blanks(p);
  const char *first = p->at;
  *out = 0;
  for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
    if (!kva_mul_size(*out, 10, out) || !kva_add_size(*out, *p->at - '0', out))
      return malformed(p, "a number below 2^63");
  bool leading_zero = p->at - first > 1 && *first == '0';
  return p->at == first || leading_zero ? malformed(p, "a whole number that is not negative") : KVA_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static kva_status no_memory(const parser *p) {
  return kva_fail(p->diag, KVA_NO_MEMORY, &p->loc, "no memory for its header");
}

/* Grows *items so that one more item than n fits. */
static bool reserve(void **items, int64_t n, int64_t *capacity, size_t size) {
  if (n < *capacity) return true;
  int64_t more = *capacity ? 2 * *capacity : 16;
  void *grown = realloc(*items, (size_t)more * size);
  if (!grown) return false;
  *items = grown;
  *capacity = more;
  return true;
}

static kva_status parse_dtype(parser *p, kva_tensor *t) {
  const char *name = "";
  KVA_TRY(parse_string(p, &name));
  t->dtype = kva_safetensors_dtype(name, strlen(name));
  if (t->dtype != KVA_DTYPE_NONE) return KVA_OK;
  return kva_fail(p->diag, KVA_UNSUPPORTED, &p->loc, "a tensor has type '%.40s', which is unknown here", name);
}

static kva_status parse_shape(parser *p, kva_tensor *t) {
  if (!accept(p, '[')) return malformed(p, "'[' after \"shape\"");
  for (bool more = !accept(p, ']'); more;) {
    if (t->rank == KVA_ABI_MAX_RANK)
      return kva_fail(p->diag, KVA_UNSUPPORTED, &p->loc, "a tensor has more than %d dimensions", KVA_ABI_MAX_RANK);
    KVA_TRY(parse_size(p, &t->dims[t->rank++]));
    more = accept(p, ',');
    if (!more && !accept(p, ']')) return malformed(p, "',' or ']' in \"shape\"");
  }
  return KVA_OK;
}

static kva_status parse_offsets(parser *p, entry *e) {
  if (!accept(p, '[')) return malformed(p, "'[' after \"data_offsets\"");
  KVA_TRY(parse_size(p, &e->begin));
  if (!accept(p, ',')) return malformed(p, "',' in \"data_offsets\"");
  KVA_TRY(parse_size(p, &e->end));
  return accept(p, ']') ? KVA_OK : malformed(p, "']' after two \"data_offsets\"");
}

static kva_status parse_field(parser *p, entry *e, unsigned *seen) {
  static const char *const keys[] = {"dtype", "shape", "data_offsets"};
  const char *key = "";
  unsigned k = 0;
  KVA_TRY(parse_string(p, &key));
  while (k < 3 && strcmp(key, keys[k])) k++;
  if (k == 3 || *seen & 1u << k) return malformed(p, "each of \"dtype\", \"shape\" and \"data_offsets\" once");
  *seen |= 1u << k;
  if (!accept(p, ':')) return malformed(p, "':'");
  return k == 0 ? parse_dtype(p, &e->tensor) : k == 1 ? parse_shape(p, &e->tensor) : parse_offsets(p, e);
}

static kva_status parse_entry(parser *p, const char *name) {
  kva_safetensors *f = p->f;
  if (!reserve((void **)&f->entries, f->n, &f->capacity, sizeof *f->entries)) return no_memory(p);
  entry *e = &f->entries[f->n];
  *e = (entry){.name = name};
  unsigned seen = 0;
  if (!accept(p, '{')) return malformed(p, "'{' after a tensor's name");
  for (bool more = !accept(p, '}'); more;) {
    KVA_TRY(parse_field(p, e, &seen));
    more = accept(p, ',');
    if (!more && !accept(p, '}')) return malformed(p, "',' or '}'");
  }
  if (seen != 7) return malformed(p, "\"dtype\", \"shape\" and \"data_offsets\" of every tensor");
  f->n++;
  int64_t bytes = kva_tensor_bytes(&e->tensor);
  if (bytes >= 0 && e->end >= e->begin && e->end - e->begin == bytes) return KVA_OK;
  return kva_error(p->diag, &p->loc, "tensor '%.80s' has bytes %lld to %lld, which is not what its shape needs", name,
                   (long long)e->begin, (long long)e->end);
}

static kva_status parse_metadata(parser *p) {
  kva_safetensors *f = p->f;
  if (f->metadata) return malformed(p, "\"__metadata__\" once");
  if (!accept(p, '{')) return malformed(p, "'{' after \"__metadata__\"");
  for (bool more = !accept(p, '}'); more;) {
    if (!reserve((void **)&f->metadata, f->n_metadata, &f->metadata_capacity, sizeof *f->metadata)) return no_memory(p);
    kva_metadata *m = &f->metadata[f->n_metadata];
    KVA_TRY(parse_string(p, &m->key));
    if (!accept(p, ':')) return malformed(p, "':'");
    KVA_TRY(parse_string(p, &m->value));
    f->n_metadata++;
    more = accept(p, ',');
    if (!more && !accept(p, '}')) return malformed(p, "',' or '}'");
  }
  return KVA_OK;
}

static kva_status parse_header(parser *p) {
  if (p->at == p->end || *p->at != '{') return malformed(p, "'{'");
  p->at++;
  for (bool more = !accept(p, '}'); more;) {
    const char *name = "";
    KVA_TRY(parse_string(p, &name));
    if (!accept(p, ':')) return malformed(p, "':'");
    KVA_TRY(!strcmp(name, "__metadata__") ? parse_metadata(p) : parse_entry(p, name));
    more = accept(p, ',');
    if (!more && !accept(p, '}')) return malformed(p, "',' or '}'");
  }
  skip_blanks(p);
  return p->at == p->end ? KVA_OK : malformed(p, "nothing but spaces after the last '}'");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b) {
  const entry *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

/* Tensors must cover the data section without gaps or overlaps. */
static kva_status check_offsets(const parser *p, int64_t data_size) {
  kva_safetensors *f = p->f;
  int64_t top = 0;
  if (f->n) qsort(f->entries, (size_t)f->n, sizeof *f->entries, by_offset);
  for (int64_t i = 0; i < f->n; i++) {
    const entry *e = &f->entries[i];
    if (e->end > data_size)
      return kva_error(p->diag, &p->loc,
                       "tensor '%.80s' ends at byte %lld of the data, of which there are %lld: the "
                       "file is cut off or damaged",
                       e->name, (long long)e->end, (long long)data_size);
    if (e->begin != top)
      return kva_error(p->diag, &p->loc,
                       "tensor '%.80s' begins at byte %lld of the data, expected %lld: tensors must "
                       "neither overlap nor leave gaps",
                       e->name, (long long)e->begin, (long long)top);
    top = e->end;
  }
  if (top == data_size) return KVA_OK;
  return kva_error(p->diag, &p->loc, "%lld bytes of data belong to no tensor", (long long)(data_size - top));
}

static kva_status sort_by_name(const parser *p) {
  kva_safetensors *f = p->f;
  if (f->n) qsort(f->entries, (size_t)f->n, sizeof *f->entries, by_name);
  for (int64_t i = 1; i < f->n; i++)
    if (!strcmp(f->entries[i - 1].name, f->entries[i].name))
      return kva_error(p->diag, &p->loc, "there are two tensors '%.80s'", f->entries[i].name);
  return KVA_OK;
}

/* Alignment of an element; of a complex number, that of its parts. */
static uintptr_t alignment(kva_dtype t) {
  int bits = kva_dtype_bits(t);
  return bits <= 8 ? 1 : t == KVA_C64 ? 4 : (uintptr_t)bits / 8;
}

static kva_status lend_data(const parser *p, const char *data) {
  for (int64_t i = 0; i < p->f->n; i++) {
    entry *e = &p->f->entries[i];
    const char *at = data + e->begin;
    size_t size = (size_t)(e->end - e->begin);
    e->tensor.data = (void *)(uintptr_t)at;
    if ((uintptr_t)at % alignment(e->tensor.dtype) == 0 || !size) continue;
    e->tensor.data = e->copy = malloc(size);
    if (!e->copy) return kva_fail(p->diag, KVA_NO_MEMORY, &p->loc, "no memory for tensor '%.80s'", e->name);
    memcpy(e->copy, at, size);
  }
  return KVA_OK;
}

static kva_status parse(parser *p, const unsigned char *bytes, size_t size) {
  if (size < LENGTH_SIZE)
    return kva_error(p->diag, &p->loc, "is no safetensors file: it has %zu bytes, fewer than a header's length", size);
  uint64_t length = 0;
  for (int i = LENGTH_SIZE - 1; i >= 0; i--) length = length << 8 | bytes[i];
  if (length > KVA_SAFETENSORS_MAX_HEADER)
    return kva_error(p->diag, &p->loc,
                     "is no safetensors file: its first 8 bytes say that the header has %llu bytes, "
                     "and %d are allowed",
                     (unsigned long long)length, KVA_SAFETENSORS_MAX_HEADER);
  if (length > size - LENGTH_SIZE)
    return kva_error(p->diag, &p->loc,
                     "the header should have %llu bytes, and the file ends after %zu: it is cut off "
                     "or no safetensors file",
                     (unsigned long long)length, size - LENGTH_SIZE);
  p->begin = p->at = (const char *)bytes + LENGTH_SIZE;
  p->end = p->begin + length;
  p->next_string = p->f->strings = malloc((size_t)length + 1);
  if (!p->next_string) return no_memory(p);
  KVA_TRY(parse_header(p));
  KVA_TRY(check_offsets(p, (int64_t)(size - LENGTH_SIZE - length)));
  KVA_TRY(sort_by_name(p));
  return lend_data(p, p->end);
}

kva_status kva_safetensors_parse(const char *path, const void *data, size_t size, kva_diag *diag,
                                 kva_safetensors **out_file) {
  *out_file = NULL;
  kva_safetensors *f = calloc(1, sizeof *f);
  if (!f) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the table of a safetensors file");
  parser p = {.f = f, .loc = {.file = path}, .diag = diag};
  kva_status status = parse(&p, data, size);
  if (status) {
    kva_safetensors_close(f);
    return status;
  }
  *out_file = f;
  return KVA_OK;
}

kva_status kva_safetensors_open(const char *path, kva_diag *diag, kva_safetensors **out_file) {
  kva_file file;
  *out_file = NULL;
  KVA_TRY(kva_file_map(path, diag, &file));
  kva_status status = kva_safetensors_parse(path, file.data, file.size, diag, out_file);
  if (status)
    kva_file_unmap(&file);
  else
    (*out_file)->file = file;
  return status;
}

void kva_safetensors_close(kva_safetensors *file) {
  if (!file) return;
  for (int64_t i = 0; i < file->n; i++) free(file->entries[i].copy);
  kva_file_unmap(&file->file);
  free(file->entries);
  free(file->metadata);
  free(file->strings);
  free(file);
}

int64_t kva_safetensors_count(const kva_safetensors *file) {
  return file->n;
}

const char *kva_safetensors_at(const kva_safetensors *file, int64_t i, kva_tensor *out_tensor) {
  if (out_tensor) *out_tensor = file->entries[i].tensor;
  return file->entries[i].name;
}

/* A copy is no page of the file: without it, its values were gone. */
void kva_safetensors_release(const kva_safetensors *file, int64_t i) {
  const entry *e = &file->entries[i];
  if (!e->copy) kva_pages_release(e->tensor.data, (size_t)(e->end - e->begin));
}

int64_t kva_safetensors_offset(const kva_safetensors *file, int64_t i) {
  return file->entries[i].begin;
}

bool kva_safetensors_find(const kva_safetensors *file, const char *name, kva_tensor *out_tensor) {
  const entry key = {.name = name};
  const entry *found = file->n ? bsearch(&key, file->entries, (size_t)file->n, sizeof key, by_name) : NULL;
  if (found) *out_tensor = found->tensor;
  return found;
}

const char *kva_safetensors_metadata(const kva_safetensors *file, const char *key) {
  for (int64_t i = 0; i < file->n_metadata; i++)
    if (!strcmp(file->metadata[i].key, key)) return file->metadata[i].value;
  return NULL;
}
