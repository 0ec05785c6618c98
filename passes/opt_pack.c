/* Constant weights in the order in which a CPU's products read them.
 *
 * What: matmul(x, dequantize(q, ...)) with constant q becomes a product whose second operand is [K, N], in panels of
 * PANEL columns that lie one after the other (kv.join_panels): a product of few rows then reads memory in order. Codes
 * of 4 and 2 bits are packed along K, in words that kv.unpack reads: a vector of words holds 8 (16) rows of its
 * columns, which shifts separate. Where x is bytes in blocks (opt_bytes.c), so are codes of 8 bits, all unsigned.
 * Values do not change, sizes neither, but for the last panel and for zero points, which become bytes. Constant
 * matrices of floats whose memory can be given back go into panels, too, if a product with them has few rows, or an
 * unknown number. Else matmul<transpose_b>(x, w) with constant w of floats becomes a product with w transposed.
 * Products of few rows read w along the depth as well as along its columns: if there are no others, a transposed w
 * stays, unless it is small. Matrices of bytes whose products take words of four steps
 * (codegen/kernels/any/contract/words.c) are such words, in panels; others are transposed like floats. A CPU with AMX
 * gets those for many rows in panels whose words are four bytes of a column (codegen/kernels/cpu/contract/amx.c copies
 * them). Filters of bytes get four channels side by side, the factor of one step, and channels of zeros where their
 * number is no multiple of four: the image then has such channels, too.
 *
 * Algorithm: one sweep over dequantize nodes and constants whose users are products alone, all of one orientation;
 * codes whose rows are looked up, too (embeddings that are the output layer), stay for that as they are, beside the new
 * ones. Constants of several functions that share their data share the new data, too. Memory that is spare, or a
 * file's, is given back as soon as it has been read: the model is in memory once. Requires: folding of constants
 * before, none behind, which would undo it. Breaks: nothing. */
#include "ir/dialect_amx.h"
#include "ops/codes.h"
#include "ops/matmul.h"
#include "passes/panels.h"
#include "passes/passes_internal.h"
#include "runtime/base/platform.h"

enum { WORD_BITS = 32, PANEL = 64, WORD = KVA_CODES_PER_WORD };

typedef struct packing {
  kva_module *m;
  const kva_target *target;
  char *room; /* for panels */
  size_t room_left, next_room;
  kva_map *done; /* data, type and orientation -> kva_tensor_data * */
  kva_map *rows; /* data of operands of products -> of how many rows these are, see rows_read */
  kva_map *read; /* data of constants -> a number for how they are read, see reading_of */
} packing;

/* ---- constants --------------------------------------------------------------------------------------------------- */

typedef struct done_key {
  const void *data;
  uint64_t form, dtype;
  int64_t rows, columns;
} done_key;

/* Tensors of a file may share bytes that mean different numbers. */
static done_key key_of(const kva_tensor_data *t, uint64_t form) {
  return (done_key){t->data, form, t->dtype, t->dims[0], t->dims[1]};
}

/* A matrix as the result stores it. */
typedef struct panels {
  kva_tensor_data *to;
  kva_panels form;
  bool known; /* made already */
} panels;

enum { LINE = 64, FIRST_ROOM = 4 << 20, LARGEST_ROOM = 64 << 20 };

/* Zeroed memory from the start of a cache line on: pieces of large rooms, so that nearly all of it is in huge pages. Of
 * those a matrix fills few alone. */
static void *memory_for(packing *p, size_t bytes) {
  size_t wanted = (bytes + LINE - 1) / LINE * LINE;
  if (wanted > p->room_left) {
    p->room_left = wanted > p->next_room ? wanted : p->next_room;
    char *room = kva_arena_alloc(p->m->arena, p->room_left + LINE);
    kva_pages_enlarge(room, p->room_left + LINE);
    p->room = room + (LINE - (uintptr_t)room % LINE);
    if (p->next_room < LARGEST_ROOM) p->next_room *= 2;
  }
  void *data = p->room;
  p->room += wanted;
  p->room_left -= wanted;
  return data;
}

/* Room for a matrix in panels that is made of constant `from`; zero. */
static panels room_for(packing *p, const kva_tensor_data *from, uint64_t form, kva_dtype t, kva_panels matrix) {
  done_key key = key_of(from, form);
  panels out = {.to = kva_map_get(p->done, &key, sizeof key), .form = matrix};
  out.known = out.to != NULL;
  if (out.known) return out;
  int64_t dims[] = {(matrix.columns + matrix.width - 1) / matrix.width, matrix.rows, matrix.width};
  kva_tensor_data *to = out.to = KVA_NEW(p->m->arena, kva_tensor_data);
  *to = (kva_tensor_data){.dtype = t, .rank = 3, .dims = kva_arena_memdup(p->m->arena, dims, sizeof dims)};
  bool fits = kva_dtype_bytes(t, dims[0] * dims[1] * dims[2], &to->bytes);
  KVA_ASSERT(fits);
  to->data = memory_for(p, (size_t)to->bytes + 1);
  kva_map_set(p->done, &key, sizeof key, to);
  return out;
}

enum {
  FORM_WORDS = 2, /* with 1: transposed */
  FORM_BYTES = 4,
  FORM_PLAIN = 8,
  FORM_FLOATS = 32,
  FORM_COLUMNS = 64,
  FORM_UNSIGNED = 128 /* with words: see to_unsigned_words */
};

/* Numbers for how data are read: forms from 1 on, or in several ways. */
enum { READ_DIFFERENTLY = INT32_MAX };

static uintptr_t reading(const packing *p, const kva_tensor_data *t) {
  return (uintptr_t)kva_map_get(p->read, &t->data, sizeof t->data);
}

/* The numbers of rows of the products with a constant. */
enum { FEW_ROWS = 1, MANY_ROWS = 2, UNKNOWN_ROWS = 4 };

static uintptr_t rows_read(const packing *p, const kva_tensor_data *t) {
  return (uintptr_t)kva_map_get(p->rows, &t->data, sizeof t->data);
}

/* Columns of a panel that the widest tile reads where it lies (codegen/kernels/cpu/contract/tiles.c). */
static int64_t width_of_tile(const packing *p) {
  return p->target ? kva_panel_vectors(p->target) * kva_target_lanes(p->target, KVA_F32) : PANEL;
}

/* Products of few rows read long rows of panels fastest. */
static int64_t width_of_floats(const packing *p, const kva_tensor_data *t) {
  return rows_read(p, t) & FEW_ROWS ? PANEL : width_of_tile(p);
}

/* The new data have been made of t, for all of its readers. Pages of a file come back for others. */
static void release(const packing *p, const kva_tensor_data *t) {
  bool spare = t->spare && reading(p, t) != READ_DIFFERENTLY;
  if (spare || t->mapped) kva_pages_release(t->data, (size_t)t->bytes);
}

/* Codes of fewer than 8 bits as words along K. */
static const kva_tensor_data *to_words(packing *p, const kva_tensor_data *q, bool transposed) {
  int64_t depth = q->dims[transposed], columns = q->dims[!transposed], bits = kva_dtype_bits(q->dtype);
  int64_t per = WORD_BITS / bits, step_k = transposed ? 1 : columns, step_n = transposed ? depth : 1;
  kva_panels matrix = {(depth + per - 1) / per, columns, PANEL};
  panels out = room_for(p, q, FORM_WORDS | transposed, KVA_U32, matrix);
  if (out.known) return out.to;
  const uint8_t *from = q->data;
  uint32_t *words = (uint32_t *)(uintptr_t)out.to->data, mask = (1u << bits) - 1;
  for (int64_t w = 0; w < out.form.rows; w++)
    for (int64_t n = 0; n < columns; n++) {
      uint32_t word = 0;
      for (int64_t u = 0; u < per && w * per + u < depth; u++) {
        int64_t bit = ((w * per + u) * step_k + n * step_n) * bits;
        word |= (from[bit / 8] >> bit % 8 & mask) << u * bits;
      }
      words[kva_panels_place(&out.form, w, n)] = word;
    }
  release(p, q);
  return out.to;
}

/* A matrix of bytes as words along K, which fill them. */
static const kva_tensor_data *to_byte_words(packing *p, const kva_tensor_data *t, bool transposed) {
  int64_t depth = t->dims[transposed], columns = t->dims[!transposed], step_k = transposed ? 1 : columns,
          step_n = transposed ? depth : 1;
  kva_panels matrix = {depth / WORD, columns, width_of_tile(p)};
  panels out = room_for(p, t, FORM_WORDS | transposed, KVA_U32, matrix);
  if (out.known) return out.to;
  uint32_t *words = (uint32_t *)(uintptr_t)out.to->data;
  for (int64_t n0 = 0; n0 < columns; n0 += matrix.width)
    for (int64_t w = 0; w < matrix.rows; w++) {
      const uint8_t *from = (const uint8_t *)t->data + w * WORD * step_k + n0 * step_n;
      uint32_t *to = words + kva_panels_place(&matrix, w, n0);
      int64_t here = columns - n0 < matrix.width ? columns - n0 : matrix.width;
      for (int64_t n = 0; n < here; n++, from += step_n)
        to[n] =
            from[0] | (uint32_t)from[step_k] << 8 | (uint32_t)from[2 * step_k] << 16 | (uint32_t)from[3 * step_k] << 24;
    }
  release(p, t);
  return out.to;
}

static int64_t code_at(const kva_tensor_data *q, int64_t i) {
  int64_t bits = kva_dtype_bits(q->dtype), bit = i * bits;
  return ((const uint8_t *)q->data)[bit / 8] >> bit % 8 & ((1 << bits) - 1);
}

/* By how much codes are larger once they are unsigned. */
static int64_t raised_by(kva_dtype codes) {
  return kva_dtype_is_unsigned(codes) ? 0 : INT64_C(1) << (kva_dtype_bits(codes) - 1);
}

/* Codes of 8 or 4 bits as words along K, which products of bytes take: those of 4 bits by bytes (kv.unpack), those with
 * a sign larger by half of their range. The depth is a multiple of a word. */
static const kva_tensor_data *to_unsigned_words(packing *p, const kva_tensor_data *q, bool transposed) {
  int64_t depth = q->dims[transposed], columns = q->dims[!transposed], bits = kva_dtype_bits(q->dtype);
  int64_t per = WORD_BITS / bits, step_k = transposed ? 1 : columns, step_n = transposed ? depth : 1;
  int64_t sign = raised_by(q->dtype);
  panels out = room_for(p, q, FORM_UNSIGNED | transposed, KVA_U32, (kva_panels){depth / per, columns, PANEL});
  if (out.known) return out.to;
  uint32_t *words = (uint32_t *)(uintptr_t)out.to->data;
  for (int64_t w = 0; w < out.form.rows; w++)
    for (int64_t n = 0; n < columns; n++) {
      uint32_t word = 0;
      for (int64_t u = 0; u < per; u++)
        word |= (uint32_t)(code_at(q, (w * per + u) * step_k + n * step_n) ^ sign) << (u % WORD * 8 + u / WORD * bits);
      words[kva_panels_place(&out.form, w, n)] = word;
    }
  release(p, q);
  return out.to;
}

/* A matrix of elements of whole bytes; integers of fewer bits become bytes. */
static const kva_tensor_data *to_bytes(packing *p, const kva_tensor_data *t, bool transposed) {
  kva_dtype type = kva_dtype_bits(t->dtype) >= 8 ? t->dtype : kva_dtype_is_unsigned(t->dtype) ? KVA_U8 : KVA_I8;
  int64_t rows = t->dims[transposed], columns = t->dims[!transposed];
  panels out = room_for(p, t, FORM_BYTES | transposed, type, (kva_panels){rows, columns, PANEL});
  void *data = (void *)(uintptr_t)out.to->data;
  for (int64_t i = 0; !out.known && i < rows * columns; i++) {
    int64_t from = transposed ? i % columns * rows + i / columns : i;
    int64_t to = kva_panels_place(&out.form, i / columns, i % columns);
    if (kva_dtype_is_float(type))
      kva_store_f64(type, data, to, kva_load_f64(t->dtype, t->data, from));
    else
      kva_store_i64(type, data, to, kva_load_i64(t->dtype, t->data, from));
  }
  if (!out.known) release(p, t);
  return out.to;
}

/* A matrix of bytes [K, N] as [N / PANEL, K / WORD, PANEL, WORD]. */
static const kva_tensor_data *to_columns(packing *p, const kva_tensor_data *t, bool transposed) {
  int64_t depth = t->dims[transposed], columns = t->dims[!transposed];
  panels out = room_for(p, t, FORM_COLUMNS | transposed, t->dtype, (kva_panels){depth, columns, PANEL});
  if (out.known) return out.to;
  int64_t dims[] = {columns / PANEL, depth / WORD, PANEL, WORD}, step_k = transposed ? 1 : columns,
          step_n = transposed ? depth : 1;
  out.to->rank = 4, out.to->dims = kva_arena_memdup(p->m->arena, dims, sizeof dims);
  const char *from = t->data;
  char *to = (char *)(uintptr_t)out.to->data;
  for (int64_t word = 0; word < columns * depth / WORD; word++) {
    int64_t k = word / PANEL % dims[1] * WORD, n = word / (PANEL * dims[1]) * PANEL + word % PANEL;
    for (int64_t i = 0; i < WORD; i++) to[word * WORD + i] = from[(k + i) * step_k + n * step_n];
  }
  release(p, t);
  return out.to;
}

/* A matrix of floats. */
static const kva_tensor_data *to_floats(packing *p, const kva_tensor_data *t, bool transposed) {
  kva_panels matrix = {t->dims[transposed], t->dims[!transposed], width_of_floats(p, t)};
  panels out = room_for(p, t, FORM_FLOATS | transposed, t->dtype, matrix);
  size_t size = (size_t)kva_dtype_bits(t->dtype) / 8;
  if (out.known) return out.to;
  kva_panels_fill(&out.form, (void *)(uintptr_t)out.to->data, t->data, size, transposed);
  release(p, t);
  return out.to;
}

/* Square by square, so that cache lines of both sides are used whole. */
static void transpose_bytes(char *to, const char *from, int64_t rows, int64_t columns, size_t size) {
  enum { SQUARE = 16 };
  for (int64_t r0 = 0; r0 < rows; r0 += SQUARE)
    for (int64_t c0 = 0; c0 < columns; c0 += SQUARE)
      for (int64_t r = r0; r < rows && r < r0 + SQUARE; r++)
        for (int64_t c = c0; c < columns && c < c0 + SQUARE; c++) {
          char *at = to + (size_t)(c * rows + r) * size;
          const char *x = from + (size_t)(r * columns + c) * size;
          if (size == sizeof(float))
            memcpy(at, x, sizeof(float));
          else
            memcpy(at, x, size);
        }
}

static const kva_tensor_data *to_transposed(packing *p, const kva_tensor_data *t) {
  done_key key = key_of(t, FORM_PLAIN | 1);
  kva_tensor_data *to = kva_map_get(p->done, &key, sizeof key);
  if (to) return to;
  to = KVA_NEW(p->m->arena, kva_tensor_data);
  *to = (kva_tensor_data){.dtype = t->dtype, .rank = 2, .bytes = t->bytes};
  to->dims = kva_arena_memdup(p->m->arena, (int64_t[]){t->dims[1], t->dims[0]}, 2 * sizeof *t->dims);
  void *data = kva_arena_alloc(p->m->arena, (size_t)t->bytes + 1);
  transpose_bytes(data, t->data, t->dims[0], t->dims[1], (size_t)kva_dtype_bits(t->dtype) / 8);
  to->data = data;
  kva_map_set(p->done, &key, sizeof key, to);
  return to;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

/* Users are products with v as second operand, all transposed or none, and with `lookups` perhaps such of rows. */
static bool are_products(const kva_value *v, bool lookups, bool *out_transposed) {
  bool any = false;
  for (const kva_use *u = v->uses; u; u = u->next) {
    if (lookups && kva_takes_rows(u)) continue;
    if (!kva_is(u->user, KVA_OP_matmul) || u->index != 1) return false;
    bool here = ((const kva_matmul_attrs *)u->user->attrs)->transpose_b;
    if (any && here != *out_transposed) return false;
    *out_transposed = here;
    any = true;
  }
  return any;
}

static bool read_by_products(const kva_value *v, bool *out_transposed) {
  return are_products(v, false, out_transposed);
}

static bool is_matrix(const kva_value *v) {
  return v && kva_constant_of(v) && v->type->rank == 2;
}

/* Scales are one for all or a matrix; not one for each column, which has no panels. */
bool kva_packs_codes(const kva_node *n, bool *out_transposed) {
  if (!kva_is(n, KVA_OP_dequantize) || !is_matrix(kva_operand(n, 0))) return false;
  const kva_type *q = kva_operand_type(n, 0), *scale = kva_operand_type(n, 1);
  if (!kva_dtype_is_int(q->dtype) || !are_products(&n->results[0], true, out_transposed)) return false;
  return !scale->rank || (is_matrix(kva_operand(n, 1)) && (!kva_operand(n, 2) || is_matrix(kva_operand(n, 2))));
}

/* The constant matrix of floats that products alone read as second operand v, itself or widened; NULL: there is none.
 */
static const kva_tensor_data *floats_of(const kva_value *v, bool *out_transposed) {
  const kva_node *def = v->def;
  if (def && kva_is(def, KVA_OP_cast) && kva_stays_narrow(def)) v = kva_operand(def, 0);
  const kva_tensor_data *t = is_matrix(v) ? kva_constant_of(v) : NULL;
  bool floats = t && kva_dtype_is_float(t->dtype) && kva_dtype_bits(t->dtype) <= 32;
  return floats && def && read_by_products(&def->results[0], out_transposed) ? t : NULL;
}

static bool is_bytes(const kva_tensor_data *t) {
  return t->dtype == KVA_I8 || t->dtype == KVA_U8;
}

/* The constant matrix of bytes that products, and they alone, read; NULL: n is none. */
static const kva_tensor_data *bytes_of(const kva_node *n, bool *out_transposed) {
  const kva_tensor_data *t = kva_is(n, KVA_OP_constant) ? kva_constant_of(&n->results[0]) : NULL;
  return t && t->rank == 2 && is_bytes(t) && read_by_products(&n->results[0], out_transposed) ? t : NULL;
}

/* Products of bytes of one sign and the other take words of four steps (codegen/kernels/any/contract/words.c). */
static bool are_by_words(const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next)
    if (!kva_are_of_both_signs(kva_operand_type(u->user, 0)->dtype, v->type->dtype)) return false;
  return true;
}

/* All products take bytes, so that they sum up blocks in integers (ops/matmul.h). */
static bool take_bytes(const kva_node *w) {
  kva_dtype q = kva_operand_type(w, 0)->dtype;
  for (const kva_use *u = w->results[0].uses; u; u = u->next)
    if (!kva_takes_rows(u) && !kva_matmul_takes_bytes(u->user)) return false;
  return kva_dtype_bits(q) >= 4 && (!kva_operand(w, 2) || kva_dtype_is_unsigned(q));
}

enum { READ_AS_FLOATS = 16, READ_AS_WORDS = 32, READ_AS_BYTES = 64 }; /* with 1: transposed */

/* How a user reads a constant: as which operand of a candidate, in which orientation. Lookups read the order that there
 * is. */
static uintptr_t reading_of(const kva_use *u) {
  bool transposed = false, ignored;
  if (kva_packs_codes(u->user, &transposed)) {
    bool products = read_by_products(&u->user->results[0], &ignored);
    uintptr_t form = take_bytes(u->user) ? READ_AS_BYTES : 0;
    return products ? (form | (2 * (uintptr_t)u->index + transposed)) + 1 : READ_DIFFERENTLY;
  }
  const kva_node *n = u->user;
  const kva_value *v = kva_is(n, KVA_OP_cast) ? &n->results[0] : kva_operand(n, u->index);
  if (floats_of(v, &transposed)) return READ_AS_FLOATS | transposed;
  return v->def && bytes_of(v->def, &transposed) && are_by_words(v) ? READ_AS_WORDS | transposed : READ_DIFFERENTLY;
}

static void note_readings(packing *p, kva_graph *g) {
  for (kva_node *n = g->first; n; n = n->next) {
    const kva_tensor_data *t = n->n_results == 1 ? kva_constant_of(&n->results[0]) : NULL;
    for (const kva_use *u = t ? n->results[0].uses : NULL; u; u = u->next) {
      uintptr_t now = reading_of(u), before = reading(p, t);
      if (before && before != now) now = READ_DIFFERENTLY;
      kva_map_set(p->read, &t->data, sizeof t->data, (void *)now);
    }
  }
}

static kva_value *joined(kva_builder *b, const kva_tensor_data *t, int64_t columns) {
  kva_join_panels_attrs attrs = {.columns = kva_expr_const(b->m->exprs, columns)};
  kva_value *x = kva_const_tensor(b, t);
  return kva_build(b, KVA_OP_join_panels, 1, &x, &attrs);
}

/* Words of a matrix [K, N] as its elements. */
static kva_value *unpacked(kva_builder *b, const kva_tensor_data *words, const kva_tensor_data *q, bool transposed) {
  kva_unpack_attrs attrs = {.extent = kva_expr_const(b->m->exprs, q->dims[transposed]), .to = q->dtype};
  kva_value *x = joined(b, words, q->dims[!transposed]);
  return kva_build(b, KVA_OP_unpack, 1, &x, &attrs);
}

static kva_value *codes(packing *p, kva_builder *b, const kva_node *n, bool transposed) {
  const kva_tensor_data *q = kva_constant_of(kva_operand(n, 0));
  if (kva_dtype_bits(q->dtype) >= 8) return joined(b, to_bytes(p, q, transposed), q->dims[!transposed]);
  return unpacked(b, to_words(p, q, transposed), q, transposed);
}

/* A scale or zero point; scalars stay. */
static kva_value *of_blocks(packing *p, kva_builder *b, kva_value *v, bool transposed) {
  if (!v || v->type->rank != 2) return v;
  const kva_tensor_data *t = kva_constant_of(v);
  return joined(b, to_bytes(p, t, transposed), t->dims[!transposed]);
}

/* What codes without a zero point have as one when they are unsigned. */
static kva_value *zero_of(kva_builder *b, const kva_value *codes) {
  return kva_const_scalar(b, KVA_U8, (double)raised_by(codes->type->dtype));
}

static kva_value *unsigned_codes(packing *p, kva_builder *b, const kva_node *n, bool transposed) {
  const kva_tensor_data *q = kva_constant_of(kva_operand(n, 0));
  kva_unpack_attrs attrs = {.extent = kva_expr_const(b->m->exprs, q->dims[transposed]),
                            .to = kva_dtype_bits(q->dtype) == 4 ? KVA_U4 : KVA_U8,
                            .by_bytes = true};
  kva_value *words = joined(b, to_unsigned_words(p, q, transposed), q->dims[!transposed]);
  return kva_build(b, KVA_OP_unpack, 1, &words, &attrs);
}

/* Products with `from` get `to`, which is not transposed. */
static void turn_products(kva_module *m, kva_value *from, kva_value *to) {
  for (kva_use *u = from->uses, *next; u; u = next) {
    next = u->next;
    kva_node *n = u->user;
    if (!kva_is(n, KVA_OP_matmul)) continue;
    kva_matmul_attrs attrs = *(const kva_matmul_attrs *)n->attrs;
    attrs.transpose_b = false;
    kva_builder b = kva_builder_before(m, n);
    kva_value *y = kva_build(&b, KVA_OP_matmul, 2, (kva_value *[]){kva_operand(n, 0), to}, &attrs);
    y->name = n->results[0].name;
    kva_value_replace_all_uses(&n->results[0], y);
    kva_node_remove(n);
  }
}

static void pack_node(packing *p, kva_node *n, bool transposed) {
  kva_builder b = kva_builder_before(p->m, n);
  kva_dequantize_attrs attrs = *(const kva_dequantize_attrs *)n->attrs;
  if (transposed) attrs.axis = 1 - (attrs.axis < 0 ? attrs.axis + 2 : attrs.axis);
  bool bytes = take_bytes(n);
  kva_value *q = bytes ? unsigned_codes(p, &b, n, transposed) : codes(p, &b, n, transposed);
  kva_value *scale = of_blocks(p, &b, kva_operand(n, 1), transposed),
            *zero = of_blocks(p, &b, kva_operand(n, 2), transposed);
  if (bytes && !zero) zero = zero_of(&b, kva_operand(n, 0));
  kva_value *y = kva_build(&b, KVA_OP_dequantize, zero ? 3 : 2, (kva_value *[]){q, scale, zero}, &attrs);
  y->name = n->results[0].name;
  turn_products(p->m, &n->results[0], y);
  if (!n->results[0].uses) kva_node_remove(n);
}

/* ---- filters of bytes -------------------------------------------------------------------------------------------- */

enum { FORM_FILTER = 16 };

static int64_t taps_of(const kva_tensor_data *t) {
  int64_t taps = 1;
  for (uint32_t d = 2; d < t->rank; d++) taps *= t->dims[d];
  return taps;
}

/* [M, C, taps..] as [M, C / 4, taps.., 4]; C rounded up, with zeros. */
static const kva_tensor_data *to_filter_words(packing *p, const kva_tensor_data *w) {
  done_key key = key_of(w, FORM_FILTER);
  kva_tensor_data *to = kva_map_get(p->done, &key, sizeof key);
  if (to) return to;
  int64_t channels = w->dims[1], words = (channels + WORD - 1) / WORD, taps = taps_of(w), dims[KVA_MAX_RANK];
  memcpy(dims, w->dims, w->rank * sizeof *dims);
  dims[1] = words, dims[w->rank] = WORD;
  to = KVA_NEW(p->m->arena, kva_tensor_data);
  *to = (kva_tensor_data){.dtype = w->dtype, .rank = w->rank + 1, .bytes = dims[0] * words * taps * WORD};
  to->dims = kva_arena_memdup(p->m->arena, dims, to->rank * sizeof *dims);
  uint8_t *data = kva_arena_alloc(p->m->arena, (size_t)to->bytes + 1);
  const uint8_t *from = w->data;
  memset(data, 0, (size_t)to->bytes);
  for (int64_t m = 0; m < dims[0]; m++)
    for (int64_t c = 0; c < channels; c++)
      for (int64_t t = 0; t < taps; t++)
        data[((m * words + c / WORD) * taps + t) * WORD + c % WORD] = from[(m * channels + c) * taps + t];
  to->data = data;
  kva_map_set(p->done, &key, sizeof key, to);
  return to;
}

/* The constant filters of a convolution of bytes that another order suits better; NULL: none. */
static const kva_tensor_data *filters_of(const kva_node *n) {
  const kva_tensor_data *w = kva_is(n, KVA_OP_conv) ? kva_constant_of(kva_operand(n, 1)) : NULL;
  if (!w || !is_bytes(w) || w->rank >= KVA_MAX_RANK || w->dims[1] < 1) return NULL;
  if (w->dims[1] % WORD) return ((const kva_conv_attrs *)n->attrs)->group == 1 ? w : NULL;
  return taps_of(w) > 1 ? w : NULL;
}

static void pack_filters(packing *p, kva_node *n, const kva_tensor_data *w) {
  kva_builder b = kva_builder_before(p->m, n);
  const kva_type *type = kva_operand_type(n, 1);
  uint32_t rank = type->rank;
  int64_t perm[KVA_MAX_RANK] = {0, 1, rank}, channels = (w->dims[1] + WORD - 1) / WORD * WORD;
  kva_dim dims[KVA_MAX_RANK];
  memcpy(dims, type->dims, rank * sizeof *dims);
  dims[1] = kva_expr_const(p->m->exprs, channels);
  for (uint32_t d = 2; d < rank; d++) perm[d + 1] = d;
  kva_value *v = kva_transpose(&b, kva_const_tensor(&b, to_filter_words(p, w)), perm);
  kva_node_set_operand(n, 1, kva_reshape(&b, v, rank, dims));
  if (channels > w->dims[1]) kva_node_set_operand(n, 0, kva_pad_channels(&b, kva_operand(n, 0), channels - w->dims[1]));
}

/* ---- transposed constants of floats or bytes --------------------------------------------------------------------- */

/* The constant matrix that products, and they alone, read transposed; NULL: n is none. */
static const kva_tensor_data *transposed_weights(const kva_node *n) {
  bool transposed = false;
  const kva_tensor_data *t = kva_is(n, KVA_OP_constant) ? kva_constant_of(&n->results[0]) : NULL;
  if (!t || t->rank != 2 || kva_dtype_bits(t->dtype) < 8 || !(kva_dtype_is_float(t->dtype) || is_bytes(t))) return NULL;
  return read_by_products(&n->results[0], &transposed) && transposed ? t : NULL;
}

static uintptr_t rows_of(kva_module *m, const kva_node *product) {
  int64_t results, columns;
  const kva_type *t = product->results[0].type;
  if (!kva_expr_is_const(kva_type_elements(m, t), &results) || !kva_expr_is_const(t->dims[t->rank - 1], &columns))
    return UNKNOWN_ROWS;
  return results <= KVA_FEW_ROWS * columns ? FEW_ROWS : MANY_ROWS;
}

static void note_rows(packing *p, const kva_node *n) {
  bool transposed;
  const kva_tensor_data *t = n->n_results == 1 ? floats_of(&n->results[0], &transposed) : NULL;
  if (!t) t = transposed_weights(n);
  if (!t) t = bytes_of(n, &transposed);
  for (const kva_use *u = t ? n->results[0].uses : NULL; u; u = u->next)
    kva_map_set(p->rows, &t->data, sizeof t->data, (void *)(rows_read(p, t) | rows_of(p->m, u->user)));
}

/* Sums along a short depth end with one over lanes, which panels do not need, and a copy is soon made. */
static bool is_small(const kva_tensor_data *t) {
  enum { MOST_BYTES = 1 << 20 };
  return t->dtype == KVA_F32 && t->bytes <= MOST_BYTES;
}

/* Products of a few rows, or of an unknown number, read panels, if AMX does not copy the elements anyway. Data that
 * cannot be given back would be in memory twice; pages of a file can, but few rows are not worth reading all of a large
 * one. */
static bool are_read_in_panels(const packing *p, const kva_tensor_data *t) {
  uintptr_t rows = rows_read(p, t);
  bool copied = p->target && p->target->bf16x3_gemm;
  bool unknown = rows & UNKNOWN_ROWS && t->dtype == KVA_F32 && !copied;
  bool few = rows & FEW_ROWS && (t->spare || (t->mapped && is_small(t)));
  return few || (unknown && (t->spare || t->mapped));
}

/* Panels of few columns would consist mostly of padding. */
static bool fills_panels(int64_t columns, int64_t width) {
  return columns >= 4 * width || (columns > 0 && columns % width == 0);
}

static bool wants_panels(const packing *p, const kva_node *n, bool *out_transposed) {
  const kva_tensor_data *t = n->n_results == 1 ? floats_of(&n->results[0], out_transposed) : NULL;
  if (!t || !are_read_in_panels(p, t)) return false;
  if (!fills_panels(t->dims[!*out_transposed], width_of_floats(p, t))) return false;
  return !*out_transposed || rows_read(p, t) != FEW_ROWS || is_small(t);
}

static bool wants_transposition(const packing *p, const kva_node *n) {
  const kva_tensor_data *t = transposed_weights(n);
  return t && rows_read(p, t) != FEW_ROWS;
}

static bool wants_columns(const packing *p, const kva_node *n, bool *out_transposed) {
  enum { STEP = KVA_AMX_WORDS * WORD };
  const kva_tensor_data *t = bytes_of(n, out_transposed);
  if (!t || !p->target || !kva_target_has(p->target, KVA_TARGET_AMX)) return false;
  if (rows_read(p, t) & FEW_ROWS) return false;
  int64_t depth = t->dims[*out_transposed], columns = t->dims[!*out_transposed];
  return depth > 0 && depth % STEP == 0 && columns > 0 && columns % PANEL == 0;
}

/* Kernels that multiply words by one instruction read them where they lie: without it words are taken apart, which pays
 * for a few rows. AMX takes more of them in an order of its own. Steps past the depth are no part of the last word. */
static bool wants_words(const packing *p, const kva_node *n, bool *out_transposed) {
  const kva_tensor_data *t = bytes_of(n, out_transposed);
  if (!t || !(t->spare || t->mapped) || !are_by_words(&n->results[0])) return false;
  bool many = p->target && rows_read(p, t) != FEW_ROWS;
  if (many && (!kva_target_sums_bytes(p->target) || kva_target_has(p->target, KVA_TARGET_AMX))) return false;
  int64_t depth = t->dims[*out_transposed];
  return depth > 0 && depth % WORD == 0 && fills_panels(t->dims[!*out_transposed], width_of_tile(p));
}

/* Products read y, which is not transposed, instead of n's result. */
static void replace_matrix(packing *p, kva_node *n, kva_value *y, bool transposed) {
  y->name = n->results[0].name;
  if (transposed)
    turn_products(p->m, &n->results[0], y);
  else
    kva_value_replace_all_uses(&n->results[0], y);
  kva_node_remove(n);
}

static void pack_columns(packing *p, kva_node *n, bool transposed) {
  kva_builder b = kva_builder_before(p->m, n);
  const kva_tensor_data *t = kva_constant_of(&n->results[0]);
  replace_matrix(p, n, joined(&b, to_columns(p, t, transposed), t->dims[!transposed]), transposed);
}

static void pack_words(packing *p, kva_node *n, bool transposed) {
  kva_builder b = kva_builder_before(p->m, n);
  const kva_tensor_data *t = kva_constant_of(&n->results[0]);
  replace_matrix(p, n, unpacked(&b, to_byte_words(p, t, transposed), t, transposed), transposed);
}

static void transpose_constant(packing *p, kva_node *n) {
  kva_builder b = kva_builder_before(p->m, n);
  replace_matrix(p, n, kva_const_tensor(&b, to_transposed(p, kva_constant_of(&n->results[0]))), true);
}

static void pack_floats(packing *p, kva_node *n, bool transposed) {
  kva_builder b = kva_builder_before(p->m, n);
  bool ignored;
  const kva_value *from = &n->results[0];
  const kva_tensor_data *t = floats_of(from, &ignored);
  kva_value *y = joined(&b, to_floats(p, t, transposed), t->dims[!transposed]);
  replace_matrix(p, n, kva_cast(&b, y, from->type->dtype), transposed);
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

static bool change_node(packing *p, kva_node *n) {
  bool transposed = false;
  const kva_tensor_data *filters = filters_of(n);
  if (filters)
    pack_filters(p, n, filters);
  else if (wants_panels(p, n, &transposed))
    pack_floats(p, n, transposed);
  else if (wants_columns(p, n, &transposed))
    pack_columns(p, n, transposed);
  else if (wants_words(p, n, &transposed))
    pack_words(p, n, transposed);
  else if (wants_transposition(p, n))
    transpose_constant(p, n);
  else if (kva_packs_codes(n, &transposed))
    pack_node(p, n, transposed);
  else
    return false;
  return true;
}

/* The first node after n that a change of n does not remove. */
static kva_node *successor(const kva_node *n) {
  kva_node *next = n->next;
  while (next && kva_is(next, KVA_OP_matmul) && kva_operand(next, 1)->def == n) next = next->next;
  return next;
}

kva_status kva_opt_pack(kva_module *m, const kva_pass_options *options, bool *changed) {
  if (kva_for_gpu(options)) return KVA_OK;
  kva_arena *scratch = kva_arena_create();
  packing p = {.m = m,
               .target = options->target,
               .next_room = FIRST_ROOM,
               .done = kva_map_create(scratch),
               .rows = kva_map_create(scratch),
               .read = kva_map_create(scratch)};
  kva_graphs graphs = kva_program_graphs(m, scratch);
  for (uint32_t g = 0; g < graphs.len; g++) note_readings(&p, graphs.data[g]);
  for (uint32_t g = 0; g < graphs.len; g++)
    for (const kva_node *n = graphs.data[g]->first; n; n = n->next) note_rows(&p, n);
  for (uint32_t g = 0; g < graphs.len; g++)
    for (kva_node *n = graphs.data[g]->first, *next; n; n = next) {
      next = successor(n);
      *changed |= change_node(&p, n);
    }
  kva_arena_destroy(scratch);
  return KVA_OK;
}
