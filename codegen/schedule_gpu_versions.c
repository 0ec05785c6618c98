/* Rows of unknown length C. What is not known to be a multiple of 16 bytes is accessed in single elements, or behind a
 * head, and what is not known to be short is read again by every loop. So a nest over such rows is written several
 * times, for
 *
 *   C = w c, c <= 512 / w      a warp for each row          C = w c, c <= 8192 / w    a block for each row
 *   C <= 8192, or 2048 where single elements are accessed   a block                     all other C
 *
 * where 16 bytes hold w elements, and the bounds are what a team's registers keep. A version is a nest like any other,
 * in which w min(floor(C / w), bound) stands for C, and which has no rows where it does not apply: its outer extent is
 * multiplied by 0 or 1. So the grid, which has the blocks of all nests, has those of one version. */
#include "codegen/schedule_gpu.h"

enum { ACCESS_BYTES = 16, MAX_WIDTH = 8, BLOCK = 256, MAX_ROUNDS = 8, MAX_KEPT = 32, SHORT_ROW = 512 };

typedef struct version {
  const kva_expr *applies, *length; /* 0 or 1; what stands for C */
} version;

/* The shape symbol that is the length of a loop along rows. */
static const kva_expr *unknown_length(kva_kernel *k, const kva_kregion *row) {
  for (const kva_kinstr *i = row->first; i; i = i->next) {
    const kva_expr *n = i->op == KVA_K_LOOP ? i->loop->extent : NULL;
    bool symbol = n && n->kind == KVA_EXPR_SYMBOL && !kva_k_symbol_region(k, n);
    if (symbol && kva_sched_at_unit_stride(k, i->loop)) return n;
  }
  return NULL;
}

static const kva_expr *negate(kva_expr_ctx *c, const kva_expr *test) {
  return kva_expr_sub(c, kva_expr_const(c, 1), test);
}

/* n <= most */
static const kva_expr *at_most(kva_expr_ctx *c, const kva_expr *n, int64_t most) {
  return negate(c, kva_expr_min(c, kva_expr_const(c, 1), kva_expr_div(c, n, kva_expr_const(c, most + 1))));
}

static const kva_expr *is_multiple(kva_expr_ctx *c, const kva_expr *n, int64_t of) {
  return negate(c, kva_expr_min(c, kva_expr_const(c, 1), kva_expr_mod(c, n, kva_expr_const(c, of))));
}

/* n, where that is a multiple of `of` and at most `most`. */
static const kva_expr *bounded(kva_expr_ctx *c, const kva_expr *n, int64_t of, int64_t most) {
  const kva_expr *count = kva_expr_div(c, n, kva_expr_const(c, of));
  return kva_expr_muli(c, kva_expr_min(c, count, kva_expr_const(c, most / of)), of);
}

/* Elements of a row that a block keeps, `width` at a time. */
static int64_t kept_by_block(int64_t width) {
  int64_t rounds = MAX_KEPT / width;
  return BLOCK * width * (rounds < MAX_ROUNDS ? rounds : MAX_ROUNDS);
}

/* Can a head align the lanes of all loops along rows of length n? */
static bool suit_head(kva_kernel *k, const kva_kregion *row, const kva_expr *n) {
  const kva_expr *head;
  for (const kva_kinstr *i = row->first; i; i = i->next)
    if (i->op == KVA_K_LOOP && i->loop->extent == n && kva_sched_width_behind(k, i->loop, &head) == 1) return false;
  return true;
}

/* The last one is the general version. */
static void list_versions(kva_expr_ctx *c, const kva_expr *n, int64_t width, bool heads, version *v) {
  int64_t most = kept_by_block(width), most_odd = kept_by_block(heads ? width : 1);
  const kva_expr *even = is_multiple(c, n, width), *is_short = at_most(c, n, SHORT_ROW);
  const kva_expr *is_long = kva_expr_sub(c, at_most(c, n, most), is_short);
  v[0] = (version){kva_expr_mul(c, even, is_short), bounded(c, n, width, SHORT_ROW)};
  v[1] = (version){kva_expr_mul(c, even, is_long), bounded(c, n, width, most)};
  v[2] = (version){kva_expr_mul(c, negate(c, even), at_most(c, n, most_odd)), bounded(c, n, 1, most_odd)};
  v[3] = (version){kva_expr_const(c, 1), n};
  for (uint32_t i = 0; i < 3; i++) v[3].applies = kva_expr_sub(c, v[3].applies, v[i].applies);
}

uint32_t kva_sched_versions(kva_kernel *k, kva_kloop *nest, kva_kinstr **copies) {
  kva_kloop *leaf = nest;
  while (kva_sched_inner(leaf)) leaf = kva_sched_inner(leaf);
  const kva_expr *n = unknown_length(k, leaf->body);
  if (!n) return 0;
  int bytes = kva_sched_widest_element(leaf->body);
  version v[KVA_MAX_VERSIONS + 1];
  int64_t width = ACCESS_BYTES / bytes < MAX_WIDTH ? ACCESS_BYTES / bytes : MAX_WIDTH;
  list_versions(k->exprs, n, width, suit_head(k, leaf->body, n), v);
  for (uint32_t i = 0; i < KVA_MAX_VERSIONS; i++) {
    copies[i] = kva_k_copy(k, nest->instr, 1, &n, &v[i].length);
    copies[i]->loop->extent = kva_expr_mul(k->exprs, copies[i]->loop->extent, v[i].applies);
  }
  nest->extent = kva_expr_mul(k->exprs, nest->extent, v[KVA_MAX_VERSIONS].applies);
  return KVA_MAX_VERSIONS;
}
