/* First factors of products with quantised weights in bytes.
 *
 * What: with --math int8, matmul(x, dequantize(w, ..)) whose weights have 8 or 4 bits and a scale for each block of
 * steps becomes matmul(dequantize(q, s), ..), where q has 8 bits and one scale for the same blocks of each row:
 *
 *   s = max |x| / 127,   q = round(x / s)
 *
 * so that a kernel sums up a block in integers, exact, by products of bytes (ops/matmul.h, kva_matmul_byte_block).
 * llama.cpp and ONNX Runtime (MatMulNBits, accuracy_level 4) compute so. A row has the same bits, whichever others
 * there are.
 *
 * Results: an element of x is off by s / 2 at most, 1/254 of the largest of its block. Rows with numbers that are not
 * finite have such results.
 *
 * Algorithm: one sweep; products that read the same x share its codes, but each has a dequantize of its own, which its
 * kernel takes. Requires: folding before. Breaks: nothing; pass pack, which follows, stores weights as unsigned words.
 * Only where the CPU is fast at sums of products of bytes: the option permits, it does not demand. */
#include "ops/matmul.h"
#include "passes/passes_internal.h"

#define LARGEST_CODE 127.0
#define LEAST        1e-30 /* scale; blocks of numbers that are smaller are 0 */

enum { MIN_COLUMNS = 64 }; /* for which rounding the rows pays */

typedef struct coded {
  kva_value *codes, *scale;
} coded;

/* Codes with a sign that need no zero point, or unsigned ones with one. */
static bool are_codes(kva_dtype q, const kva_value *zero) {
  return zero ? q == KVA_U8 || q == KVA_U4 : q == KVA_I8 || q == KVA_I4;
}

static int64_t block_of_codes(const kva_value *v) {
  return ((const kva_dequantize_attrs *)v->def->attrs)->block;
}

/* The steps that have a scale in common, if n is such a product; 0: it is not. */
static int64_t block_of(const kva_node *n) {
  const kva_node *w = kva_is(n, KVA_OP_matmul) ? kva_operand(n, 1)->def : NULL;
  bool transposed;
  int64_t depth, columns;
  if (!w || !kva_packs_codes(w, &transposed)) return 0;
  const kva_dequantize_attrs *a = w->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  kva_matmul_shape s = kva_matmul_get(n);
  bool floats = x->dtype == KVA_F32 && n->results[0].type->dtype == KVA_F32 && x->rank < KVA_MAX_RANK;
  if (!floats || s.transpose_a || !kva_expr_is_const(s.K, &depth) || !kva_expr_is_const(s.N, &columns)) return 0;
  bool along = (a->axis < 0 ? a->axis + 2 : a->axis) == transposed;
  if (!along || !are_codes(kva_operand_type(w, 0)->dtype, kva_operand(w, 2)) || columns < MIN_COLUMNS) return 0;
  if (kva_matmul_takes_bytes(n) && block_of_codes(kva_operand(n, 0)) == a->block) return 0; /* x is bytes already */
  return kva_matmul_sums_bytes(a->block, depth) ? a->block : 0;
}

/* x by blocks of its last axis: [.., K / block, block]. */
static kva_value *in_blocks(kva_builder *b, kva_value *x, int64_t block) {
  uint32_t rank = x->type->rank;
  kva_dim dims[KVA_MAX_RANK], steps = kva_expr_const(b->m->exprs, block);
  memcpy(dims, x->type->dims, rank * sizeof *dims);
  dims[rank - 1] = kva_expr_div(b->m->exprs, dims[rank - 1], steps);
  dims[rank] = steps;
  return kva_reshape(b, x, rank + 1, dims);
}

static coded code(kva_builder *b, kva_value *x, int64_t block) {
  kva_value *blocks = in_blocks(b, x, block);
  int64_t last = x->type->rank;
  kva_value *of_each = kva_mul(b, kva_build1(b, KVA_OP_abs, blocks), kva_scalar_like(b, blocks, 1 / LARGEST_CODE));
  of_each = kva_build2(b, KVA_OP_max, of_each, kva_scalar_like(b, blocks, LEAST));
  kva_value *scale = kva_reduce(b, KVA_OP_reduce_max, of_each, 1, &last, true);
  kva_value *codes = kva_cast(b, kva_build1(b, KVA_OP_round, kva_div(b, blocks, scale)), KVA_I8);
  return (coded){kva_reshape_like(b, codes, kva_type_with_dtype(b->m, x->type, KVA_I8)),
                 kva_reshape(b, scale, x->type->rank, scale->type->dims)};
}

typedef struct key {
  const kva_value *x;
  int64_t block;
} key;

/* The codes of n's first factor stand before n, and so before what reads them later in the graph. */
static coded codes_for(kva_module *m, kva_map *done, kva_node *n, int64_t block) {
  key k = {kva_operand(n, 0), block};
  coded *c = kva_map_get(done, &k, sizeof k);
  if (c) return *c;
  kva_builder b = kva_builder_before(m, n);
  c = KVA_NEW(m->arena, coded);
  *c = code(&b, kva_operand(n, 0), block);
  kva_map_set(done, &k, sizeof k, c);
  return *c;
}

static void round_factor(kva_module *m, kva_map *done, kva_node *n, int64_t block) {
  coded c = codes_for(m, done, n, block);
  kva_builder b = kva_builder_before(m, n);
  kva_dequantize_attrs attrs = {.axis = -1, .block = block};
  kva_node_set_operand(n, 0, kva_build(&b, KVA_OP_dequantize, 2, (kva_value *[]){c.codes, c.scale}, &attrs));
}

/* Whether the CPU sums products of bytes in fewer instructions than floats: vpmaddubsw of AVX2 does so of small codes
 * (codegen/llvm_dot.c), where unpacking these is not shared by many rows. */
static bool pays(const kva_target *t, const kva_node *n) {
  enum { AVX2 = 32 };
  if (kva_target_sums_bytes(t)) return true;
  const kva_node *w = kva_operand(n, 1)->def;
  int64_t rows = 0;
  bool small = kva_dtype_bits(kva_operand_type(w, 0)->dtype) < 8;
  if (kva_expr_is_const(kva_matmul_get(n).M, &rows) && rows > KVA_FEW_ROWS) return false;
  return small && kva_target_has(t, KVA_TARGET_PAIRS) && t->vector_bytes >= AVX2;
}

kva_status kva_opt_bytes(kva_module *m, const kva_pass_options *options, bool *changed) {
  const kva_target *t = options->target;
  if (kva_for_gpu(options) || !t || !t->byte_math) return KVA_OK;
  kva_arena *scratch = kva_arena_create();
  kva_graphs graphs = kva_program_graphs(m, scratch);
  for (uint32_t g = 0; g < graphs.len; g++) {
    kva_map *done = kva_map_create(scratch);
    for (kva_node *n = graphs.data[g]->first; n; n = n->next) {
      int64_t block = block_of(n);
      if (!block || !pays(t, n)) continue;
      round_factor(m, done, n, block);
      *changed = true;
    }
  }
  kva_arena_destroy(scratch);
  return KVA_OK;
}
