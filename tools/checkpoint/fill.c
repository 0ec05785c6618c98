/* Parameters from tensors, and back. A tensor is rows of blocks. Panels of rows are decoded one after the other on each
 * thread, and stored where the parameter has them. */
#include "passes/tune.h"
#include "tools/checkpoint/checkpoint.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

/* ---- names ------------------------------------------------------------------------------------------------------- */

enum { MAX_STARS = 8 };

typedef struct capture {
  const char *at[MAX_STARS];
  int length[MAX_STARS], n;
} capture;

/* '*' stands for digits. */
static bool match(const char *pattern, const char *name, capture *c) {
  c->n = 0;
  for (; *pattern; pattern++) {
    if (*pattern != '*') {
      if (*pattern != *name++) return false;
      continue;
    }
    if (!isdigit((unsigned char)*name) || c->n == MAX_STARS) return false;
    c->at[c->n] = name;
    while (isdigit((unsigned char)*name)) name++;
    c->length[c->n] = (int)(name - c->at[c->n]);
    c->n++;
  }
  return !*name;
}

static const char *substitute(const char *pattern, const capture *c, kva_arena *arena) {
  kva_text text = {0};
  for (int star = 0; *pattern; pattern++) {
    if (*pattern == '*' && star < c->n) {
      kva_text_add(&text, "%.*s", c->length[star], c->at[star]);
      star++;
    } else {
      kva_text_add_bytes(&text, pattern, 1);
    }
  }
  const char *copy = kva_arena_strdup(arena, text.data ? text.data : "");
  kva_text_free(&text);
  return copy;
}

const char *kva_names_tensor(const kva_names *names, const char *param, kva_arena *arena, const kva_naming **out_row) {
  for (uint32_t i = 0; i < names->rows.len; i++) {
    const kva_naming *row = &names->rows.data[i];
    capture c;
    if (row->kind < KVA_NAMING_TENSOR || !match(row->own, param, &c)) continue;
    *out_row = row;
    return substitute(row->names[0], &c, arena);
  }
  return NULL;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A vector is a single row, but for one whose elements are exchanged. */
static kva_matrix matrix_of(int32_t rank, const int64_t *dims, const kva_naming *row) {
  kva_matrix m = {1, 1};
  for (int32_t d = 0; d < rank; d++) {
    bool outer = d + 1 < rank || (rank == 1 && row->pairs);
    *(outer ? &m.rows : &m.columns) *= dims[d];
  }
  return m;
}

void kva_forget_tensor(const kva_filling *f) {
  const kva_packing *p = f->tensor->packing;
  kva_pages_release(f->tensor->data, (size_t)(f->matrix.rows * f->matrix.columns / p->elements * p->bytes));
}

int64_t kva_tensor_row(const kva_naming *row, int64_t own) {
  int64_t p = row->pairs;
  if (!p) return own;
  int64_t i = own % p;
  return own - i + (i < p / 2 ? 2 * i : 2 * (i - p / 2) + 1);
}

static int64_t own_row(const kva_naming *row, int64_t of_tensor) {
  int64_t p = row->pairs;
  if (!p) return of_tensor;
  int64_t i = of_tensor % p;
  return of_tensor - i + i / 2 + (i % 2 ? p / 2 : 0);
}

void kva_foreign_rows(const kva_naming *row, const kva_tensor_data *values, int64_t first, int64_t n, float *out) {
  bool transposed = row->kind == KVA_NAMING_TRANSPOSED;
  kva_matrix m = matrix_of((int32_t)values->rank, values->dims, row);
  if (transposed) m = (kva_matrix){m.columns, m.rows};
  for (int64_t k = 0; k < n; k++) {
    int64_t own = own_row(row, first + k);
    for (int64_t c = 0; c < m.columns; c++)
      *out++ = (float)kva_load_f64(values->dtype, values->data, transposed ? c * m.rows + own : own * m.columns + c);
  }
}

/* ---- filling ----------------------------------------------------------------------------------------------------- */

enum { PANEL = 64 }; /* rows */

typedef struct filling {
  const kva_filling *from;
  kva_dtype dtype;
  void *out;
  bool failed; /* a thread had no memory */
} filling;

static void decode_row(const filling *f, int64_t own, float *out) {
  const kva_packing *p = f->from->tensor->packing;
  int64_t blocks = f->from->matrix.columns / p->elements;
  p->decode(f->from->tensor->data + kva_tensor_row(f->from->row, own) * blocks * p->bytes, blocks, out);
}

static void put(const filling *f, int64_t at, float v) {
  if (f->dtype == KVA_F32)
    ((float *)f->out)[at] = v;
  else
    kva_store_f64(f->dtype, f->out, at, v);
}

static void put_rows(const filling *f, int64_t first, int64_t n, const float *panel) {
  for (int64_t k = 0; k < n * f->from->matrix.columns; k++) put(f, first * f->from->matrix.columns + k, panel[k]);
}

static void put_transposed(const filling *f, int64_t first, int64_t n, const float *panel) {
  for (int64_t c = 0; c < f->from->matrix.columns; c++)
    for (int64_t k = 0; k < n; k++)
      put(f, c * f->from->matrix.rows + first + k, panel[k * f->from->matrix.columns + c]);
}

static void put_norms(const filling *f, int64_t first, int64_t n, const float *panel) {
  for (int64_t k = 0; k < n; k++) {
    double sum = 0;
    for (int64_t c = 0; c < f->from->matrix.columns; c++)
      sum += (double)panel[k * f->from->matrix.columns + c] * panel[k * f->from->matrix.columns + c];
    put(f, first + k, (float)sqrt(sum));
  }
}

/* The same of elements that are not converted. */
static void copy_rows(const filling *f, int64_t first, int64_t n) {
  kva_matrix m = f->from->matrix;
  size_t size = (size_t)f->from->tensor->packing->bytes, row = (size_t)m.columns * size;
  bool transposed = f->from->row->kind == KVA_NAMING_TRANSPOSED;
  char *out = f->out;
  const unsigned char *rows[PANEL];
  for (int64_t k = 0; k < n; k++)
    rows[k] = f->from->tensor->data + (size_t)kva_tensor_row(f->from->row, first + k) * row;
  for (int64_t k = 0; !transposed && k < n; k++) memcpy(out + (size_t)(first + k) * row, rows[k], row);
  for (int64_t c = 0; transposed && c < m.columns; c++)
    for (int64_t k = 0; k < n; k++)
      memcpy(out + (size_t)(c * m.rows + first + k) * size, rows[k] + (size_t)c * size, size);
}

static void copy_panels(void *user, int64_t begin, int64_t end) {
  const filling *f = user;
  int64_t rows = f->from->matrix.rows;
  for (int64_t first = begin * PANEL; first < end * PANEL && first < rows; first += PANEL)
    copy_rows(f, first, rows - first < PANEL ? rows - first : PANEL);
}

static void fill_panels(void *user, int64_t begin, int64_t end) {
  filling *f = user;
  float *panel = malloc((size_t)(PANEL * f->from->matrix.columns + 1) * sizeof *panel);
  if (!panel) {
    f->failed = true;
    return;
  }
  for (int64_t first = begin * PANEL; first < end * PANEL && first < f->from->matrix.rows; first += PANEL) {
    int64_t n = f->from->matrix.rows - first < PANEL ? f->from->matrix.rows - first : PANEL;
    for (int64_t k = 0; k < n; k++) decode_row(f, first + k, panel + k * f->from->matrix.columns);
    switch (f->from->row->kind) {
    case KVA_NAMING_TRANSPOSED: put_transposed(f, first, n, panel); break;
    case KVA_NAMING_ROW_NORMS: put_norms(f, first, n, panel); break;
    default: put_rows(f, first, n, panel);
    }
  }
  free(panel);
}

static kva_status fill_state(kva_module *m, const kva_filling *from, kva_pool *pool, kva_diag *diag) {
  kva_state *s = from->state;
  kva_tensor_data *data = KVA_NEW(m->arena, kva_tensor_data);
  int64_t *dims = KVA_NEW_ARRAY(m->arena, int64_t, s->type->rank + 1), elements = 1;
  for (uint32_t d = 0; d < s->type->rank; d++) {
    KVA_ASSERT(kva_expr_is_const(s->type->dims[d], &dims[d]));
    elements *= dims[d];
  }
  *data = (kva_tensor_data){.dtype = from->constant ? from->tensor->packing->dtype : s->type->dtype,
                            .rank = s->type->rank,
                            .dims = dims,
                            .spare = from->constant};
  if (!kva_dtype_bytes(data->dtype, elements, &data->bytes))
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "parameter '%s' is too large to address", s->name);
  filling f = {from, data->dtype, kva_arena_alloc(m->arena, (size_t)data->bytes + 1), false};
  kva_pool_run(pool, (from->matrix.rows + PANEL - 1) / PANEL, from->constant ? copy_panels : fill_panels, &f);
  kva_forget_tensor(from);
  if (f.failed) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory to read parameter '%s'", s->name);
  data->data = f.out;
  if (from->constant) return kva_set_constant(m, s, data);
  s->init = KVA_INIT_DATA;
  s->data = data;
  s->of = NULL;
  return KVA_OK;
}

/* ---- what fits --------------------------------------------------------------------------------------------------- */

typedef struct plan {
  kva_module *m;
  const kva_foreign *f;
  const kva_names *names;
  kva_diag *diag;
  kva_arena *scratch;
  kva_map *used;
  bool packed;
  KVA_VEC(kva_filling) fillings;
  size_t errors_before;
} plan;

static bool is_dim(const kva_state *s, uint32_t d, int64_t v) {
  return d < s->type->rank && kva_expr_is(s->type->dims[d], v);
}

static bool fits(const kva_state *s, const kva_foreign_tensor *t, const kva_naming *row) {
  if (row->kind == KVA_NAMING_ROW_NORMS) return s->type->rank == 1 && t->rank == 2 && is_dim(s, 0, t->dims[0]);
  bool transposed = row->kind == KVA_NAMING_TRANSPOSED;
  if ((int32_t)s->type->rank != t->rank || (transposed && t->rank != 2)) return false;
  for (int32_t d = 0; d < t->rank; d++)
    if (!is_dim(s, (uint32_t)d, t->dims[transposed ? 1 - d : d])) return false;
  kva_matrix m = matrix_of(t->rank, t->dims, row);
  return (!row->pairs || m.rows % row->pairs == 0) && m.columns % t->packing->elements == 0;
}

static void report_shape(const plan *p, const kva_state *s, const kva_foreign_tensor *t, const kva_naming *row) {
  kva_text own = {0}, has = {0};
  kva_type_print(s->type, &own);
  kva_text_add(&has, "%s[", t->packing->name);
  for (int32_t d = 0; d < t->rank; d++) kva_text_add(&has, "%s%lld", d ? ", " : "", (long long)t->dims[d]);
  kva_error(p->diag, &(kva_loc){.file = p->f->path}, "tensor '%.200s' is %s], which as %s is no %s of parameter '%s'",
            t->name, has.data, kva_naming_word(row->kind), own.data, s->name);
  kva_text_free(&own);
  kva_text_free(&has);
}

static void plan_state(plan *p, kva_state *s) {
  const kva_naming *row;
  const char *name = kva_names_tensor(p->names, s->name, p->scratch, &row);
  kva_loc loc = {.file = p->f->path};
  if (!name) {
    kva_error(p->diag, &p->names->loc, "no row is for parameter '%s'", s->name);
    return;
  }
  const kva_foreign_tensor *t = kva_foreign_resolve(p->f, p->names, name);
  if (!t) {
    kva_error(p->diag, &loc, "there is no tensor '%s', parameter '%s'", name, s->name);
    return;
  }
  kva_map_set_str(p->used, t->name, s);
  if (!t->packing) {
    kva_error(p->diag, &loc, "tensor '%.200s' is of type %s; those of parameters are F32, F16 or BF16", t->name,
              kva_dtype_name(t->dtype));
    return;
  }
  if (!fits(s, t, row)) {
    report_shape(p, s, t, row);
    return;
  }
  kva_filling found = {s, t, row, matrix_of(t->rank, t->dims, row), false, false};
  found.packed = p->packed && kva_fills_packed(p->m, &found);
  found.constant = p->packed && kva_fills_constant(p->m, &found);
  KVA_PUSH(p->scratch, &p->fillings, found);
}

bool kva_names_is_buffer(const kva_names *names, const char *tensor) {
  for (uint32_t i = 0; i < names->buffers.len; i++)
    if (kva_name_matches(names->buffers.data[i], tensor)) return true;
  return false;
}

static void report_surplus(const plan *p) {
  for (uint32_t i = 0; i < p->f->tensors.len; i++) {
    const char *name = p->f->tensors.data[i].name;
    if (kva_map_get_str(p->used, name) || kva_names_is_buffer(p->names, name)) continue;
    kva_error(p->diag, &(kva_loc){.file = p->f->path}, "no parameter of '%s' is tensor '%.200s'", p->m->name, name);
  }
}

static kva_status fill(plan *p) {
  for (uint32_t i = 0; i < p->m->states.len; i++)
    if (p->m->states.data[i]->kind == KVA_STATE_PARAM) plan_state(p, p->m->states.data[i]);
  report_surplus(p);
  if (kva_diag_errors(p->diag) != p->errors_before) return KVA_INVALID;
  kva_pool *pool = kva_pool_create(0);
  kva_status status = kva_set_packed(p->m, p->fillings.len, p->fillings.data, pool);
  for (uint32_t i = 0; i < p->fillings.len && status == KVA_OK; i++)
    if (!p->fillings.data[i].packed) status = fill_state(p->m, &p->fillings.data[i], pool, p->diag);
  if (pool) kva_pool_destroy(pool);
  return status;
}

kva_status kva_foreign_fill(kva_module *m, const kva_foreign *f, const kva_names *names, bool packed, kva_diag *diag) {
  plan p = {.m = m, .f = f, .names = names, .diag = diag, .packed = packed, .scratch = kva_arena_create()};
  p.used = kva_map_create(p.scratch);
  p.errors_before = kva_diag_errors(diag);
  kva_status status = fill(&p);
  kva_arena_destroy(p.scratch);
  return status;
}
