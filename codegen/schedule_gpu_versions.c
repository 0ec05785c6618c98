/* Rows of unknown length C. Unless C is known to be a multiple of 16 bytes, accesses are single elements or follow a
 * peel (kva_kloop.peel). Unless C is known to be short, every loop reads the row again. So a nest over such rows is
 * written in several versions. With w elements in 16 bytes and S = KVA_WARP_ROW:
 *
 *   C = w c, C <= S           a warp for each row        C = w c, C <= 8192        a block for each row
 *   other C <= S              a warp, single elements    other C <= 8192           a block, after a peel
 *   all other C
 *
 * or, if no peel suits all loops,
 *
 *   other C <= 2048           a block, single elements
 *
 * The bounds are what a subgroup's registers hold. A version is an ordinary nest in which an expression with the
 * version's bounds replaces C. Its outer extent is multiplied by 0 or 1, so that it has no rows where it does not
 * apply. The grid has the blocks of all nests, and so those of exactly one version. */
#include "codegen/schedule_gpu.h"

enum { ACCESS_BYTES = 16, MAX_WIDTH = 8, BLOCK = 256, MAX_ROUNDS = 8, MAX_KEPT = 32 };

typedef struct version {
  const kva_expr *applies, *length; /* 0 or 1; the expression that replaces C */
} version;

/* The shape symbol that is the extent of a unit-stride loop of the row. */
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

/* 1 if n <= most, else 0. */
static const kva_expr *at_most(kva_expr_ctx *c, const kva_expr *n, int64_t most) {
  return negate(c, kva_expr_min(c, kva_expr_const(c, 1), kva_expr_div(c, n, kva_expr_const(c, most + 1))));
}

static const kva_expr *is_multiple(kva_expr_ctx *c, const kva_expr *n, int64_t of) {
  return negate(c, kva_expr_min(c, kva_expr_const(c, 1), kva_expr_mod(c, n, kva_expr_const(c, of))));
}

/* An expression equal to n if n is a multiple of `of` and at most `most`, bounded by that. */
static const kva_expr *bounded(kva_expr_ctx *c, const kva_expr *n, int64_t of, int64_t most) {
  const kva_expr *count = kva_expr_div(c, n, kva_expr_const(c, of));
  return kva_expr_muli(c, kva_expr_min(c, count, kva_expr_const(c, most / of)), of);
}

/* Elements of a row that a block's registers keep, `width` at a time. */
static int64_t kept_by_block(int64_t width) {
  int64_t rounds = MAX_KEPT / width;
  return BLOCK * width * (rounds < MAX_ROUNDS ? rounds : MAX_ROUNDS);
}

/* One peel can align the lanes of all loops along rows of length n. */
static bool suits_peel(kva_kernel *k, const kva_kregion *row, const kva_expr *n) {
  const kva_expr *peel;
  for (const kva_kinstr *i = row->first; i; i = i->next)
    if (i->op == KVA_K_LOOP && i->loop->extent == n && kva_sched_width_behind(k, i->loop, &peel) == 1) return false;
  return true;
}

/* An expression equal to n if n > least, bounded by that. */
static const kva_expr *above(kva_expr_ctx *c, const kva_expr *n, int64_t least) {
  return kva_expr_max(c, n, kva_expr_const(c, least + 1));
}

/* Lists the versions, the general one last; returns their number. */
static uint32_t list_versions(kva_expr_ctx *c, const kva_expr *n, int64_t width, bool peels, version *v) {
  int64_t most = kept_by_block(width), most_odd = peels ? most : kept_by_block(1);
  const kva_expr *even = is_multiple(c, n, width), *odd = negate(c, even), *is_short = at_most(c, n, KVA_WARP_ROW);
  const kva_expr *is_long = kva_expr_sub(c, at_most(c, n, most), is_short);
  uint32_t count = 0;
  v[count++] = (version){kva_expr_mul(c, even, is_short), bounded(c, n, width, KVA_WARP_ROW)};
  v[count++] = (version){kva_expr_mul(c, even, is_long), bounded(c, n, width, most)};
  if (peels) {
    v[count++] = (version){kva_expr_mul(c, odd, is_short), bounded(c, n, 1, KVA_WARP_ROW)};
    v[count++] = (version){kva_expr_mul(c, odd, is_long), above(c, bounded(c, n, 1, most), KVA_WARP_ROW)};
  } else {
    v[count++] = (version){kva_expr_mul(c, odd, at_most(c, n, most_odd)), bounded(c, n, 1, most_odd)};
  }
  v[count] = (version){kva_expr_const(c, 1), above(c, n, most_odd)};
  for (uint32_t i = 0; i < count; i++) v[count].applies = kva_expr_sub(c, v[count].applies, v[i].applies);
  KVA_ASSERT(count < KVA_MAX_VERSIONS);
  return count + 1;
}

uint32_t kva_sched_versions(kva_kernel *k, kva_kloop *nest, kva_kinstr **versions) {
  kva_kloop *leaf = nest;
  while (kva_sched_inner(leaf)) leaf = kva_sched_inner(leaf);
  const kva_expr *n = unknown_length(k, leaf->body);
  if (!n) return 0;
  int bytes = kva_sched_widest_element(leaf->body);
  int64_t width = ACCESS_BYTES / bytes < MAX_WIDTH ? ACCESS_BYTES / bytes : MAX_WIDTH;
  version v[KVA_MAX_VERSIONS];
  uint32_t count = list_versions(k->exprs, n, width, suits_peel(k, leaf->body, n), v);
  for (uint32_t i = 0; i < count; i++) {
    versions[i] = kva_k_copy(k, nest->instr, 1, &n, &v[i].length);
    versions[i]->loop->extent = kva_expr_mul(k->exprs, versions[i]->loop->extent, v[i].applies);
  }
  return count;
}
