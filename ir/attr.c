/* Operations on typed attributes, by their description. */
#include "ir/expr_internal.h"
#include "ir/ir_internal.h"

static void set_default(const kva_attr_field *f, void *attrs) {
  void *p = (unsigned char *)attrs + f->offset;
  switch (f->kind) {
  case KVA_ATTR_INT: *(int64_t *)p = (int64_t)f->default_value; break;
  case KVA_ATTR_FLOAT: *(double *)p = f->default_value; break;
  case KVA_ATTR_BOOL: *(bool *)p = f->default_value != 0; break;
  case KVA_ATTR_DTYPE: *(kva_dtype *)p = (kva_dtype)f->default_value; break;
  case KVA_ATTR_STR:
  case KVA_ATTR_INTS:
  case KVA_ATTR_DIM:
  case KVA_ATTR_DIMS:
  case KVA_ATTR_SYMBOLS:
  case KVA_ATTR_TENSOR:
  case KVA_ATTR_STATE: break; /* zeroed: absent, empty */
  }
}

void *kva_attrs_default(kva_arena *arena, const kva_attr_desc *desc) {
  void *attrs = kva_arena_alloc(arena, desc->size);
  for (uint32_t i = 0; i < desc->n_fields; i++) set_default(&desc->fields[i], attrs);
  return attrs;
}

const kva_attr_field *kva_attrs_find(const kva_attr_desc *desc, const char *name, size_t name_len) {
  for (uint32_t i = 0; desc && i < desc->n_fields; i++) {
    const char *own = desc->fields[i].name;
    if (strlen(own) == name_len && !memcmp(own, name, name_len)) return &desc->fields[i];
  }
  return NULL;
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static bool same_str(const char *a, const char *b) {
  return a == b || (a && b && !strcmp(a, b));
}

static bool same_array(uint32_t n, const void *a, uint32_t n_b, const void *b, size_t item_size) {
  return n == n_b && (!n || !memcmp(a, b, n * item_size));
}

bool kva_tensor_equal(const kva_tensor_data *a, const kva_tensor_data *b) {
  if (a == b) return true;
  if (!a || !b || a->dtype != b->dtype || a->bytes != b->bytes) return false;
  if (!same_array(a->rank, a->dims, b->rank, b->dims, sizeof *a->dims)) return false;
  return a->data == b->data || !a->bytes || !memcmp(a->data, b->data, (size_t)a->bytes);
}

static bool field_equal(const kva_attr_field *f, const void *a, const void *b) {
  switch (f->kind) {
  case KVA_ATTR_INT: return *(const int64_t *)a == *(const int64_t *)b;
  case KVA_ATTR_FLOAT: return !memcmp(a, b, sizeof(double)); /* -0 and NaNs keep their identity */
  case KVA_ATTR_BOOL: return *(const bool *)a == *(const bool *)b;
  case KVA_ATTR_STR: return same_str(*(const char *const *)a, *(const char *const *)b);
  case KVA_ATTR_INTS: {
    const kva_ints *x = a, *y = b;
    return same_array(x->n, x->v, y->n, y->v, sizeof *x->v);
  }
  case KVA_ATTR_DIM: return *(const kva_dim *)a == *(const kva_dim *)b;
  case KVA_ATTR_DIMS:
  case KVA_ATTR_SYMBOLS: {
    const kva_dims *x = a, *y = b;
    return same_array(x->n, x->v, y->n, y->v, sizeof *x->v);
  }
  case KVA_ATTR_DTYPE: return *(const kva_dtype *)a == *(const kva_dtype *)b;
  case KVA_ATTR_TENSOR: return kva_tensor_equal(*(const kva_tensor_data *const *)a, *(const kva_tensor_data *const *)b);
  case KVA_ATTR_STATE: return *(kva_state *const *)a == *(kva_state *const *)b;
  }
  return false;
}

bool kva_attrs_equal(const kva_attr_desc *desc, const void *a, const void *b) {
  if (a == b || !desc) return true;
  for (uint32_t i = 0; i < desc->n_fields; i++) {
    const kva_attr_field *f = &desc->fields[i];
    if (!field_equal(f, kva_attr_at(a, f), kva_attr_at(b, f))) return false;
  }
  return true;
}

bool kva_attr_is_default(const kva_attr_field *f, const void *attrs) {
  union {
    int64_t i;
    double d;
    bool b;
    kva_dtype t;
    kva_ints ints;
    kva_dims dims;
    const void *p;
  } fresh;
  memset(&fresh, 0, sizeof fresh);
  kva_attr_field at_start = *f;
  at_start.offset = 0;
  set_default(&at_start, &fresh);
  return field_equal(f, kva_attr_at(attrs, f), &fresh);
}

/* ---- hashing ----------------------------------------------------------------------------------------------------- */

static uint64_t hash_type(const kva_tensor_data *t, uint64_t seed) {
  int32_t head[2] = {(int32_t)t->dtype, (int32_t)t->rank};
  uint64_t h = kva_hash(seed, head, sizeof head);
  return t->rank ? kva_hash(h, t->dims, t->rank * sizeof *t->dims) : h;
}

uint64_t kva_tensor_hash(const kva_tensor_data *t, uint64_t seed) {
  uint64_t h = hash_type(t, seed);
  return t->bytes ? kva_hash(h, t->data, (size_t)t->bytes) : h;
}

/* By both ends alone: a look-up compares all elements of what it finds, and weights are gigabytes. */
static uint64_t hash_ends(const kva_tensor_data *t, uint64_t seed) {
  enum { END = 1024 };
  if (t->bytes <= 2 * END) return kva_tensor_hash(t, seed);
  uint64_t h = kva_hash(hash_type(t, seed), t->data, END);
  return kva_hash(h, (const char *)t->data + t->bytes - END, END);
}

static uint64_t hash_dims(uint64_t h, uint32_t n, const kva_dim *dims, const kva_attr_hasher *hasher) {
  h = kva_hash(h, &n, sizeof n);
  for (uint32_t i = 0; i < n; i++) {
    uint64_t v = dims[i] ? kva_expr_hash(dims[i], hasher->symbol, hasher->user) : 0;
    h = kva_hash(h, &v, sizeof v);
  }
  return h;
}

static uint64_t hash_field(const kva_attr_field *f, const void *p, uint64_t h, const kva_attr_hasher *hasher) {
  switch (f->kind) {
  case KVA_ATTR_INT: return kva_hash(h, p, sizeof(int64_t));
  case KVA_ATTR_FLOAT: return kva_hash(h, p, sizeof(double));
  case KVA_ATTR_BOOL: return kva_hash(h, p, sizeof(bool));
  case KVA_ATTR_DTYPE: return kva_hash(h, p, sizeof(kva_dtype));
  case KVA_ATTR_STR: {
    const char *s = *(const char *const *)p;
    return s ? kva_hash(h, s, strlen(s) + 1) : h;
  }
  case KVA_ATTR_INTS: {
    const kva_ints *x = p;
    h = kva_hash(h, &x->n, sizeof x->n);
    return x->n ? kva_hash(h, x->v, x->n * sizeof *x->v) : h;
  }
  case KVA_ATTR_DIM: return hash_dims(h, 1, p, hasher);
  case KVA_ATTR_DIMS:
  case KVA_ATTR_SYMBOLS: return hash_dims(h, ((const kva_dims *)p)->n, ((const kva_dims *)p)->v, hasher);
  case KVA_ATTR_TENSOR: {
    const kva_tensor_data *t = *(const kva_tensor_data *const *)p;
    return t ? hasher->tensor(t, h) : h;
  }
  case KVA_ATTR_STATE: {
    const kva_state *s = *(kva_state *const *)p;
    uint64_t v = s ? hasher->state(hasher->user, s) : 0;
    return kva_hash(h, &v, sizeof v);
  }
  }
  return h;
}

uint64_t kva_attrs_hash_with(const kva_attr_desc *desc, const void *attrs, uint64_t seed,
                             const kva_attr_hasher *hasher) {
  for (uint32_t i = 0; desc && i < desc->n_fields; i++) {
    const kva_attr_field *f = &desc->fields[i];
    /* The field's number distinguishes an absent string from an absent tensor in the next field. */
    seed = hash_field(f, kva_attr_at(attrs, f), kva_hash(seed, &i, sizeof i), hasher);
  }
  return seed;
}

static uint64_t symbol_name_hash(void *user, const kva_expr *symbol) {
  (void)user;
  return kva_hash(0, symbol->name, strlen(symbol->name));
}

static uint64_t state_name_hash(void *user, const kva_state *state) {
  (void)user;
  return kva_hash(0, state->name, strlen(state->name));
}

uint64_t kva_attrs_hash(const kva_attr_desc *desc, const void *a, uint64_t seed) {
  return kva_attrs_hash_with(desc, a, seed, &(kva_attr_hasher){symbol_name_hash, state_name_hash, hash_ends, NULL});
}
