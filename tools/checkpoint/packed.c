/* Matrices that stay in a file's blocks of codes: kv.dequantize in the place of parameters that only products read,
 * along the blocks, and lookups of rows. Nothing is rounded, since codes and scales are the file's own. */
#include "passes/quantize.h"
#include "passes/tune.h"
#include "tools/checkpoint/checkpoint.h"

#include <stdlib.h>

enum { LONGEST_BLOCK = 32 };

static bool is_transposed(const kva_filling *f) {
  return f->row->kind == KVA_NAMING_TRANSPOSED;
}

static int64_t blocks_of_row(const kva_filling *f) {
  return f->matrix.columns / f->tensor->packing->elements;
}

/* Blocks lie along the rows of the tensor: along axis 0 of a parameter that it is the transpose of. */
bool kva_fills_packed(const kva_module *m, const kva_filling *f) {
  uint32_t axis = 0;
  if (!f->tensor->packing->codes || f->tensor->rank != 2 || f->row->kind == KVA_NAMING_ROW_NORMS) return false;
  return kva_readers_of_state(m, f->state, &axis) && axis == (is_transposed(f) ? 0 : 1);
}

/* Products read constants in the order that suits them. They and lookups widen elements of 16 bits as they read them;
 * what both read stays as it is, since products want another order of it. */
bool kva_fills_constant(const kva_module *m, const kva_filling *f) {
  uint32_t axis;
  kva_dtype t = f->tensor->packing->dtype;
  bool narrow = t == KVA_F16 || t == KVA_BF16;
  if (!(narrow || t == KVA_F32) || f->state->type->dtype != KVA_F32 || f->row->kind == KVA_NAMING_ROW_NORMS)
    return false;
  kva_readers readers = kva_readers_of_state(m, f->state, &axis);
  return readers == KVA_READ_BY_PRODUCTS || (narrow && readers == KVA_READ_BY_ROWS);
}

/* ---- one matrix -------------------------------------------------------------------------------------------------- */

/* In the order of the parameter's elements: codes of 8 bits or, two in a byte, of 4; halves. */
typedef struct matrix {
  const kva_filling *f;
  uint8_t *codes;
  uint16_t *scales;
} matrix;

static void put_code(const matrix *x, int64_t at, int8_t code) {
  if (x->f->tensor->packing->bits == 8)
    x->codes[at] = (uint8_t)code;
  else
    x->codes[at / 2] |= (uint8_t)((code & 15) << at % 2 * 4);
}

/* Block b of the parameter's row `own`, or column if it is transposed. */
static void put_block(const matrix *x, int64_t own, int64_t b) {
  const kva_filling *f = x->f;
  const kva_packing *p = f->tensor->packing;
  const unsigned char *block = f->tensor->data + (kva_tensor_row(f->row, own) * blocks_of_row(f) + b) * p->bytes;
  int8_t codes[LONGEST_BLOCK];
  KVA_ASSERT(p->elements <= LONGEST_BLOCK);
  p->codes(block, codes);
  for (int64_t i = 0, k = b * p->elements; i < p->elements; i++, k++)
    put_code(x, is_transposed(f) ? k * f->matrix.rows + own : own * f->matrix.columns + k, codes[i]);
  memcpy(&x->scales[is_transposed(f) ? b * f->matrix.rows + own : own * blocks_of_row(f) + b], block,
         sizeof *x->scales);
}

/* Rows of the parameter that one block is in, or one row of it: either has whole bytes, as a block has evenly many
 * codes. */
static void put_columns(void *user, int64_t begin, int64_t end) {
  const matrix *x = user;
  for (int64_t b = begin; b < end; b++)
    for (int64_t own = 0; own < x->f->matrix.rows; own++) put_block(x, own, b);
}

static void put_rows(void *user, int64_t begin, int64_t end) {
  const matrix *x = user;
  for (int64_t own = begin; own < end; own++)
    for (int64_t b = 0; b < blocks_of_row(x->f); b++) put_block(x, own, b);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

typedef struct source {
  kva_map *fillings; /* by names of parameters and of their scales */
  kva_pool *pool;
  const kva_filling *last; /* whose tensors these are; their data are the source's */
  kva_tensor_data codes, scale;
  int64_t codes_dims[2], scale_dims[2];
  bool failed;
} source;

static void drop_last(source *s) {
  free((void *)(uintptr_t)s->codes.data);
  free((void *)(uintptr_t)s->scale.data);
  s->codes.data = s->scale.data = NULL;
  s->last = NULL;
}

/* As kva_build_quantized takes them: codes of 4 bits are a vector of bytes. */
static void describe(source *s, const kva_filling *f) {
  bool whole = f->tensor->packing->bits == 8, transposed = is_transposed(f);
  int64_t rows = f->matrix.rows, columns = f->matrix.columns, blocks = blocks_of_row(f);
  int64_t bytes = rows * columns * f->tensor->packing->bits / 8;
  s->codes_dims[0] = !whole ? bytes : transposed ? columns : rows;
  s->codes_dims[1] = transposed ? rows : columns;
  s->scale_dims[0] = transposed ? blocks : rows;
  s->scale_dims[1] = transposed ? rows : blocks;
  s->codes =
      (kva_tensor_data){.dtype = whole ? KVA_I8 : KVA_U8, .rank = whole ? 2 : 1, .dims = s->codes_dims, .bytes = bytes};
  s->scale = (kva_tensor_data){
      .dtype = KVA_F16, .rank = 2, .dims = s->scale_dims, .bytes = rows * blocks * (int64_t)sizeof(uint16_t)};
}

static bool unpack(source *s, const kva_filling *f) {
  drop_last(s);
  describe(s, f);
  matrix x = {f, calloc(1, (size_t)s->codes.bytes + 1), malloc((size_t)s->scale.bytes + 1)};
  s->codes.data = x.codes;
  s->scale.data = x.scales;
  if (!x.codes || !x.scales) return false;
  kva_pool_run(s->pool, is_transposed(f) ? blocks_of_row(f) : f->matrix.rows, is_transposed(f) ? put_columns : put_rows,
               &x);
  kva_forget_tensor(f);
  s->last = f;
  return true;
}

static const kva_tensor_data *find(void *user, const char *name) {
  source *s = user;
  const kva_filling *f = kva_map_get_str(s->fillings, name);
  if (!f || s->failed) return NULL;
  s->failed = f != s->last && !unpack(s, f);
  if (s->failed) return NULL;
  return strcmp(name, f->state->name) ? &s->scale : &s->codes;
}

kva_status kva_set_packed(kva_module *m, uint32_t n, const kva_filling *fillings, kva_pool *pool) {
  int64_t used;
  kva_arena *scratch = kva_arena_create();
  source s = {.fillings = kva_map_create(scratch), .pool = pool};
  for (uint32_t i = 0; i < n; i++) {
    kva_filling *f = kva_arena_memdup(scratch, &fillings[i], sizeof *f);
    if (!f->packed) continue;
    kva_map_set_str(s.fillings, f->state->name, f);
    kva_map_set_str(s.fillings, kva_arena_printf(scratch, "%s" KVA_QUANTIZED_SCALE, f->state->name), f);
  }
  kva_status status = kva_map_len(s.fillings) ? kva_set_weights(m, find, &s, &used) : KVA_OK;
  if (s.failed) status = kva_fail(m->diag, KVA_NO_MEMORY, NULL, "no memory to read a matrix of packed weights");
  drop_last(&s);
  kva_arena_destroy(scratch);
  return status;
}
