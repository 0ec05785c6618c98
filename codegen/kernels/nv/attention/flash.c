/* See flash.h. */
#include "codegen/kernels/nv/attention/flash.h"
#include "ir/dialect_nv.h"

#include <math.h>

enum { WARP = 32, CHUNK_BYTES = 16, SWIZZLE = 8 /* chunks in 128 bytes */, FLOAT_WIDEST = 128 };

static const kva_expr *num(const kva_flash *f, int64_t v) {
  return kva_expr_const(f->s.kb->exprs, v);
}
static const kva_expr *plus(const kva_flash *f, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(f->s.kb->exprs, a, b);
}
static const kva_expr *times(const kva_flash *f, const kva_expr *a, int64_t v) {
  return kva_expr_muli(f->s.kb->exprs, a, v);
}
static const kva_expr *over(const kva_flash *f, const kva_expr *a, int64_t v) {
  return kva_expr_div(f->s.kb->exprs, a, num(f, v));
}
static const kva_expr *modulo(const kva_flash *f, const kva_expr *a, int64_t v) {
  return kva_expr_mod(f->s.kb->exprs, a, num(f, v));
}

/* ---- the block --------------------------------------------------------------------------------------------------- */

static int64_t chunk_of(kva_dtype t) {
  return CHUNK_BYTES * 8 / kva_dtype_bits(t);
}

const char *kva_flash_refuses(const kva_node *n) {
  const kva_type *q = kva_operand_type(n, KVA_ATTENTION_Q);
  int64_t d = 0, d_v = 0;
  bool is_float = q->dtype == KVA_F32;
  if (q->dtype != KVA_BF16 && q->dtype != KVA_F16 && !is_float) return "type";
  bool known = kva_expr_is_const(q->dims[3], &d) && kva_expr_is_const(kva_operand_type(n, 2)->dims[3], &d_v);
  if (!known || d != d_v) return "heads of two sizes";
  bool fits = d > 0 && d <= (is_float ? FLOAT_WIDEST : 256) && d % chunk_of(q->dtype) == 0;
  return fits ? NULL : "size of heads";
}

static void set_scores(kva_flash *f) {
  const kva_attention *a = &f->s.a;
  bool operands = kva_operand(a->n, KVA_ATTENTION_MASK) || kva_operand(a->n, KVA_ATTENTION_SLOPES);
  f->general = operands || a->attrs.softcap > 0 || a->attrs.scale <= 0;
  f->factor = (f->general ? 1 : a->attrs.scale) / log(2.0);
  f->added = kva_operand(a->n, KVA_ATTENTION_MASK) && kva_operand_type(a->n, KVA_ATTENTION_MASK)->dtype != KVA_BOOL;
}

/* Rows of a warp's probabilities start 16 bytes apart modulo 128. */
static int64_t pitch_of(const kva_flash *f) {
  return f->far + 4;
}

void kva_flash_begin_block(kva_flash *f, kva_lower *l, const kva_node *n, const kva_flash_block *block,
                           const kva_expr **out_part) {
  kva_expr_ctx *c = l->kb->exprs;
  bool kv_heads = block->kv_heads;
  *f = (kva_flash){.s = {.l = l, .kb = l->kb, .a = kva_attention_get(n, c), .t = KVA_F32}, .far = block->far};
  kva_query_tile *s = &f->s;
  f->type = kva_operand_type(n, 0)->dtype;
  f->chunk = chunk_of(f->type);
  int64_t line = SWIZZLE * f->chunk;
  f->width = (s->a.D + line - 1) / line * line;
  f->depth16 = (s->a.D + 15) / 16;
  s->extent = kv_heads ? s->a.S : s->a.T;
  s->far_extent = kv_heads ? s->a.T : s->a.S;
  set_scores(f);
  kva_dim heads = kv_heads ? s->a.H_kv : s->a.H, query_tiles = kva_expr_ceildiv(c, s->extent, num(f, block->rows));
  const kva_expr *items = kva_expr_mul(c, kva_expr_mul(c, query_tiles, heads), s->a.B);
  f->grid = kva_k_loop_begin(l->kb, KVA_K_GRID, times(f, items, block->parts), "item");
  if (out_part) *out_part = modulo(f, f->grid->var, block->parts);
  const kva_expr *item = over(f, f->grid->var, block->parts), *query_tile = kva_expr_mod(c, item, query_tiles);
  /* Causal: late queries see many keys, early keys are seen by many queries. */
  if (!kv_heads && s->a.attrs.causal) query_tile = kva_expr_addi(c, kva_expr_sub(c, query_tiles, query_tile), -1);
  const kva_expr *rest = kva_expr_div(c, item, query_tiles), *head = kva_expr_mod(c, rest, heads);
  s->first = times(f, query_tile, block->rows);
  s->b = kva_expr_div(c, rest, heads);
  s->h = kv_heads ? NULL : head;
  s->h_kv = kv_heads ? head : kva_expr_div(c, head, s->a.group);
  l->kb->kernel->threads = (uint32_t)block->threads;
  l->kb->kernel->blocks = block->blocks;
  f->threads = kva_k_loop_begin(l->kb, KVA_K_THREAD, num(f, block->threads), "thread");
  f->thread = f->threads->var;
  f->lane = modulo(f, f->thread, WARP);
  f->warp = over(f, f->thread, WARP);
  if (f->type == KVA_F32) f->turned = kva_k_shared(l->kb, "turned", KVA_F32, KVA_FLASH_ROWS * pitch_of(f));
}

void kva_flash_begin(kva_flash *f, kva_lower *l, const kva_node *n, bool kv_heads, int64_t far, int64_t parts,
                     const kva_expr **out_part) {
  kva_flash_block block = {kv_heads, far, parts, KVA_FLASH_ROWS, WARP * KVA_FLASH_WARPS, 2};
  kva_flash_begin_block(f, l, n, &block, out_part);
}

void kva_flash_end(kva_flash *f) {
  kva_k_loop_end(f->s.kb, f->threads);
  kva_k_loop_end(f->s.kb, f->grid);
}

static void intrinsic(const kva_flash *f, const kva_kintrinsic *m) {
  kva_k_intrinsic(f->s.kb, m, NULL);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

kva_kbuf *kva_flash_tile(const kva_flash *f, const char *name, int64_t rows) {
  return kva_k_shared(f->s.kb, name, f->type, rows * f->width);
}

static const kva_expr *chunk_at(const kva_flash *f, const kva_expr *row, const kva_expr *chunk) {
  const kva_expr *group = times(f, over(f, chunk, SWIZZLE), SWIZZLE);
  const kva_expr *rotated = plus(f, group, modulo(f, plus(f, chunk, row), SWIZZLE));
  return plus(f, times(f, row, f->width), times(f, rotated, f->chunk));
}

static kva_kval element(const kva_flash *f, const kva_flash_copy *c, const kva_expr *position, const kva_expr *d) {
  return f->s.l->operand(f->s.l, f->s.a.n, c->operand, (const kva_expr *[]){f->s.b, c->head, position, d});
}

/* The place of a chunk that is stored as 16 aligned, consecutive bytes; false if code or a transposition computes
 * it. */
static bool chunk_in_memory(const kva_flash *f, const kva_flash_copy *c, const kva_expr *position, const kva_expr *d,
                            kva_kplace *out) {
  kva_expr_ctx *e = f->s.kb->exprs;
  kva_kval v = element(f, c, position, d), next = element(f, c, position, kva_expr_addi(e, d, 1));
  if (v->op != KVA_K_LOAD || next->op != KVA_K_LOAD || v->buf != next->buf || v->args[0]) return false;
  if (v->buf->space != KVA_K_PARAM || v->buf->dtype != f->type) return false;
  *out = (kva_kplace){v->buf, v->index};
  return kva_expr_is(kva_expr_sub(e, next->index, v->index), 1) && kva_expr_is(modulo(f, v->index, f->chunk), 0);
}

static void store_computed(const kva_flash *f, const kva_flash_copy *c, const kva_expr *position, const kva_expr *d,
                           const kva_expr *to) {
  kva_kb *kb = f->s.kb;
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, num(f, f->chunk), "i");
  const kva_expr *channel = plus(f, d, i->var);
  kva_kval inside =
      kva_k_and(kb, kva_k_index_lt(kb, position, c->limit), kva_k_index_lt(kb, channel, num(f, f->s.a.D)));
  kva_kval outer = kva_k_guard_begin(kb, inside), v = element(f, c, position, channel);
  kva_k_guard_end(kb, outer);
  v = kva_k_select(kb, inside, kva_k_convert(kb, v, KVA_F32), kva_k_const_f(kb, KVA_F32, 0));
  kva_k_store(kb, c->tile, plus(f, to, i->var), v);
  kva_k_loop_end(kb, i);
}

/* Index expression: 16 inside, 0 outside. */
static const kva_expr *bytes_inside(const kva_flash *f, const kva_flash_copy *c, const kva_expr *position,
                                    const kva_expr *d) {
  kva_expr_ctx *e = f->s.kb->exprs;
  const kva_expr *rows = kva_expr_min(e, kva_expr_max(e, kva_expr_sub(e, c->limit, position), num(f, 0)), num(f, 1));
  const kva_expr *left = kva_expr_sub(e, num(f, f->s.a.D), d);
  const kva_expr *columns = kva_expr_min(e, kva_expr_max(e, left, num(f, 0)), num(f, 1));
  return times(f, f->width == f->s.a.D ? rows : kva_expr_mul(e, rows, columns), 16);
}

static void load_chunk(const kva_flash *f, const kva_flash_copy *c, const kva_expr *row, const kva_expr *chunk) {
  kva_expr_ctx *e = f->s.kb->exprs;
  const kva_expr *position = plus(f, c->first, row), *d = times(f, chunk, f->chunk);
  const kva_expr *to = chunk_at(f, plus(f, c->at, row), chunk);
  /* Addresses stay inside the operand even if nothing is read. */
  const kva_expr *last = kva_expr_max(e, kva_expr_addi(e, c->limit, -1), num(f, 0));
  const kva_expr *inside = kva_expr_min(e, chunk, num(f, f->s.a.D / f->chunk - 1));
  const kva_expr *d_inside = f->width == f->s.a.D ? d : times(f, inside, f->chunk);
  kva_kplace from;
  if (!chunk_in_memory(f, c, kva_expr_min(e, position, last), d_inside, &from)) {
    store_computed(f, c, position, d, to);
    return;
  }
  intrinsic(f, &(kva_kintrinsic){.op = KVA_NV_copy_async,
                                 .places = {{c->tile, to}, from},
                                 .indices = {bytes_inside(f, c, position, d)}});
}

void kva_flash_load(const kva_flash *f, const kva_flash_copy *c) {
  int64_t chunks = f->width / f->chunk, per_thread = c->rows * chunks / (WARP * KVA_FLASH_WARPS);
  KVA_ASSERT(per_thread * WARP * KVA_FLASH_WARPS == c->rows * chunks);
  kva_kloop *i = kva_k_loop_begin(f->s.kb, KVA_K_UNROLL, num(f, per_thread), "copy");
  const kva_expr *n = plus(f, times(f, i->var, WARP * KVA_FLASH_WARPS), f->thread);
  load_chunk(f, c, over(f, n, chunks), modulo(f, n, chunks));
  kva_k_loop_end(f->s.kb, i);
}

void kva_flash_commit(const kva_flash *f) {
  intrinsic(f, &(kva_kintrinsic){.op = KVA_NV_copy_commit});
}

void kva_flash_drain(const kva_flash *f) {
  intrinsic(f, &(kva_kintrinsic){.op = KVA_NV_copy_wait});
}

void kva_flash_wait(const kva_flash *f, int32_t groups) {
  intrinsic(f, &(kva_kintrinsic){.op = KVA_NV_copy_wait, .numbers = {groups}});
  intrinsic(f, &(kva_kintrinsic){.op = KVA_TILE_block_barrier});
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void load_matrices(const kva_flash *f, kva_kbuf *fragment, kva_kbuf *tile, const kva_expr *row,
                          const kva_expr *chunk, bool transposed) {
  intrinsic(f, &(kva_kintrinsic){.op = KVA_TILE_load_matrix,
                                 .places = {{fragment, num(f, 0)}, {tile, chunk_at(f, row, chunk)}},
                                 .numbers = {4, transposed}});
}

/* Two 16 x 8 parts of a result from one left fragment and the two halves of b. */
static void multiply_pair(const kva_flash *f, kva_kbuf *out, const kva_expr *n16, kva_kplace a, kva_kbuf *b) {
  for (int half = 0; half < 2; half++) {
    const kva_expr *to = plus(f, times(f, n16, 8), num(f, 4 * half));
    intrinsic(f, &(kva_kintrinsic){.op = KVA_TILE_mma, .places = {{out, to}, a, {b, num(f, 4 * half)}}});
  }
}

static void clear(const kva_flash *f, kva_kbuf *m, int64_t n) {
  kva_kloop *i = kva_k_loop_begin(f->s.kb, KVA_K_UNROLL, num(f, n), "i");
  kva_k_store(f->s.kb, m, i->var, kva_k_const_f(f->s.kb, KVA_F32, 0));
  kva_k_loop_end(f->s.kb, i);
}

static void tensor_scores(const kva_flash *f, kva_kbuf *out, kva_kbuf *rows, kva_kbuf *far_tile, const kva_expr *at) {
  kva_kb *kb = f->s.kb;
  kva_kbuf *a = kva_k_local(kb, "a", f->type, 8), *b = kva_k_local(kb, "b", f->type, 8);
  const kva_expr *lane = f->lane, *mine = plus(f, times(f, f->warp, 16), modulo(f, lane, 16));
  kva_kloop *k = kva_k_loop_begin(kb, KVA_K_UNROLL, num(f, f->depth16), "k");
  load_matrices(f, a, rows, mine, plus(f, times(f, k->var, 2), over(f, lane, 16)), false);
  kva_kloop *n = kva_k_loop_begin(kb, KVA_K_UNROLL, num(f, f->far / 16), "n");
  const kva_expr *in_pair = plus(f, modulo(f, lane, 8), times(f, over(f, lane, 16), 8));
  const kva_expr *row = plus(f, at, plus(f, times(f, n->var, 16), in_pair));
  load_matrices(f, b, far_tile, row, plus(f, times(f, k->var, 2), modulo(f, over(f, lane, 8), 2)), false);
  multiply_pair(f, out, n->var, (kva_kplace){a, num(f, 0)}, b);
  kva_k_loop_end(kb, n);
  kva_k_loop_end(kb, k);
}

static void tensor_multiply(const kva_flash *f, const kva_flash_product *p) {
  kva_kb *kb = f->s.kb;
  kva_kbuf *b = kva_k_local(kb, "b", f->type, 8);
  kva_kloop *k = kva_k_loop_begin(kb, KVA_K_UNROLL, num(f, f->far / 16), "k");
  kva_kloop *n = kva_k_loop_begin(kb, KVA_K_UNROLL, num(f, p->n16), "n");
  const kva_expr *row = plus(f, p->at, plus(f, times(f, k->var, 16), modulo(f, f->lane, 16)));
  const kva_expr *chunk = plus(f, times(f, plus(f, p->first16, n->var), 2), over(f, f->lane, 16));
  load_matrices(f, b, p->far_tile, row, chunk, true);
  multiply_pair(f, p->out, n->var, (kva_kplace){p->p, times(f, k->var, 8)}, b);
  kva_k_loop_end(kb, n);
  kva_k_loop_end(kb, k);
}

/* ---- products of floats --------------------------------------------------------------------------------------------
 *
 * By fused multiply-adds, in the same places: each thread makes its own elements of the result. Loops step over 128
 * bytes of a row, or 8 rows, so that the rotation of chunks repeats. */

/* to[0 .. n) = n consecutive elements of a shared buffer. */
static void load_run(const kva_flash *f, kva_kbuf *to, int64_t first, kva_kbuf *from, const kva_expr *at, int64_t n) {
  kva_kloop *j = kva_k_loop_begin(f->s.kb, KVA_K_UNROLL, num(f, n), "j");
  kva_k_store(f->s.kb, to, plus(f, num(f, first), j->var), kva_k_load(f->s.kb, from, plus(f, at, j->var)));
  kva_k_loop_end(f->s.kb, j);
}

static void add_product(const kva_flash *f, kva_kbuf *out, const kva_expr *at, kva_kval a, kva_kval b) {
  kva_k_store(f->s.kb, out, at, kva_k_op(f->s.kb, KVA_K_fma, a, b, kva_k_load(f->s.kb, out, at)));
}

static void float_scores(const kva_flash *f, kva_kbuf *out, kva_kbuf *rows, kva_kbuf *far_tile, const kva_expr *at) {
  kva_kb *kb = f->s.kb;
  kva_kbuf *a = kva_k_local(kb, "a", KVA_F32, 2 * f->chunk), *b = kva_k_local(kb, "b", KVA_F32, f->chunk);
  const kva_expr *mine = plus(f, times(f, f->warp, 16), over(f, f->lane, 4));
  kva_kloop *line = kva_k_loop_begin(kb, KVA_K_SERIAL, num(f, f->width / (SWIZZLE * f->chunk)), "line");
  kva_kloop *c = kva_k_loop_begin(kb, KVA_K_UNROLL, num(f, SWIZZLE), "chunk");
  const kva_expr *chunk = plus(f, times(f, line->var, SWIZZLE), c->var);
  for (int64_t r = 0; r < 2; r++)
    load_run(f, a, r * f->chunk, rows, chunk_at(f, plus(f, mine, num(f, 8 * r)), chunk), f->chunk);
  kva_kloop *n = kva_k_loop_begin(kb, KVA_K_UNROLL, num(f, f->far / 4), "n");
  const kva_expr *pair = plus(f, times(f, modulo(f, f->lane, 4), 2), modulo(f, n->var, 2));
  const kva_expr *column = plus(f, times(f, over(f, n->var, 2), 8), pair);
  load_run(f, b, 0, far_tile, chunk_at(f, plus(f, at, column), chunk), f->chunk);
  kva_kloop *j = kva_k_loop_begin(kb, KVA_K_UNROLL, num(f, f->chunk), "j");
  for (int64_t r = 0; r < 2; r++) {
    const kva_expr *to = plus(f, times(f, over(f, n->var, 2), 4), plus(f, num(f, 2 * r), modulo(f, n->var, 2)));
    kva_kval left = kva_k_load(kb, a, plus(f, num(f, r * f->chunk), j->var));
    add_product(f, out, to, left, kva_k_load(kb, b, j->var));
  }
  kva_k_loop_end(kb, j);
  kva_k_loop_end(kb, n);
  kva_k_loop_end(kb, c);
  kva_k_loop_end(kb, line);
}

static const kva_expr *turned_at(const kva_flash *f, const kva_expr *row, const kva_expr *column) {
  const kva_expr *in_warp = plus(f, over(f, f->lane, 4), times(f, row, 8));
  return plus(f, times(f, plus(f, times(f, f->warp, 16), in_warp), pitch_of(f)), column);
}

/* The four threads of a row exchange their probabilities; again: others may still be reading the previous ones. */
static void share_probabilities(const kva_flash *f, kva_kbuf *p, bool again) {
  if (again) intrinsic(f, &(kva_kintrinsic){.op = KVA_TILE_subgroup_barrier});
  kva_flash_element e = kva_flash_each(f, f->far / 2);
  kva_k_store(f->s.kb, f->turned, turned_at(f, e.row, e.column), kva_k_load(f->s.kb, p, e.i));
  kva_k_loop_end(f->s.kb, e.loop);
  intrinsic(f, &(kva_kintrinsic){.op = KVA_TILE_subgroup_barrier});
}

/* out[part] += p[2][row of the far tile] times the two columns of the part. */
static void add_row(const kva_flash *f, const kva_flash_product *m, kva_kbuf *p, const kva_expr *row, int64_t in_run) {
  kva_kb *kb = f->s.kb;
  kva_kloop *n = kva_k_loop_begin(kb, KVA_K_UNROLL, num(f, 2 * m->n16), "n");
  const kva_expr *in_part = times(f, modulo(f, f->lane, 4), 2);
  const kva_expr *part = plus(f, times(f, m->first16, 2), n->var);
  const kva_expr *chunk = plus(f, times(f, part, 8 / f->chunk), over(f, in_part, f->chunk));
  const kva_expr *from = plus(f, chunk_at(f, row, chunk), modulo(f, in_part, f->chunk));
  kva_kval v[2] = {kva_k_load(kb, m->far_tile, from), kva_k_load(kb, m->far_tile, plus(f, from, num(f, 1)))};
  for (int64_t i = 0; i < 4; i++) {
    kva_kval left = kva_k_load(kb, p, num(f, i / 2 * f->chunk + in_run));
    add_product(f, m->out, plus(f, times(f, n->var, 4), num(f, i)), left, v[i % 2]);
  }
  kva_k_loop_end(kb, n);
}

static void float_multiply(const kva_flash *f, const kva_flash_product *m) {
  kva_kb *kb = f->s.kb;
  kva_kbuf *p = kva_k_local(kb, "p4", KVA_F32, 2 * f->chunk);
  share_probabilities(f, m->p, m->again);
  kva_kloop *k8 = kva_k_loop_begin(kb, KVA_K_SERIAL, num(f, f->far / SWIZZLE), "k8");
  for (int64_t k = 0; k < SWIZZLE; k++) {
    const kva_expr *column = plus(f, times(f, k8->var, SWIZZLE), num(f, k));
    for (int64_t r = 0; r < 2 && k % f->chunk == 0; r++)
      load_run(f, p, r * f->chunk, f->turned, turned_at(f, num(f, r), column), f->chunk);
    add_row(f, m, p, plus(f, m->at, column), k % f->chunk);
  }
  kva_k_loop_end(kb, k8);
}

void kva_flash_scores(const kva_flash *f, kva_kbuf *out, kva_kbuf *rows, kva_kbuf *far_tile, const kva_expr *at) {
  clear(f, out, f->far / 2);
  (f->type == KVA_F32 ? float_scores : tensor_scores)(f, out, rows, far_tile, at);
}

void kva_flash_multiply(const kva_flash *f, const kva_flash_product *p) {
  (f->type == KVA_F32 ? float_multiply : tensor_multiply)(f, p);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

kva_flash_element kva_flash_each(const kva_flash *f, int64_t n) {
  kva_flash_element e = {.loop = kva_k_loop_begin(f->s.kb, KVA_K_UNROLL, num(f, n), "i")};
  e.i = e.loop->var;
  e.row = modulo(f, over(f, e.i, 2), 2);
  const kva_expr *pair = plus(f, times(f, modulo(f, f->lane, 4), 2), modulo(f, e.i, 2));
  e.column = plus(f, times(f, over(f, e.i, 4), 8), pair);
  return e;
}

const kva_expr *kva_flash_row(const kva_flash *f, const kva_expr *row) {
  const kva_expr *in_warp = plus(f, over(f, f->lane, 4), times(f, row, 8));
  return plus(f, f->s.first, plus(f, times(f, f->warp, 16), in_warp));
}

kva_kval kva_flash_score(const kva_flash *f, const kva_expr *q, const kva_expr *key, kva_kval dot, bool masked,
                         kva_kval *out_cap) {
  if (out_cap) *out_cap = NULL;
  if (f->general) {
    kva_kval scaled = kva_k2(f->s.kb, KVA_K_mul, dot, kva_query_tile_const(&f->s, f->s.a.attrs.scale));
    return kva_query_tile_score(&f->s, q, key, scaled, out_cap);
  }
  return masked ? kva_query_tile_score(&f->s, q, key, dot, NULL) : dot;
}

kva_kval kva_flash_exp2(const kva_flash *f, kva_kval x) {
  return kva_k_intrinsic(f->s.kb, &(kva_kintrinsic){.op = KVA_TILE_exp2}, x);
}

static kva_kval by_factor(const kva_flash *f, kva_kval x) {
  return kva_k2(f->s.kb, KVA_K_mul, x, kva_k_const_f(f->s.kb, KVA_F32, f->factor));
}

/* Of large scores the product with `factor` is rounded by more than 1, and an FMA would leave that in the exponent of a
 * row's largest score. So their difference is taken first, which is exact. */
kva_kval kva_flash_shift(const kva_flash *f, kva_kval max) {
  return f->added ? max : by_factor(f, max);
}

kva_kval kva_flash_probability(const kva_flash *f, kva_kval score, kva_kval shift) {
  kva_kb *kb = f->s.kb;
  if (f->added) return kva_flash_exp2(f, by_factor(f, kva_k2(kb, KVA_K_sub, score, shift)));
  kva_kval factor = kva_k_const_f(kb, KVA_F32, f->factor);
  return kva_flash_exp2(f, kva_k_op(kb, KVA_K_fma, score, factor, kva_k1(kb, KVA_K_neg, shift)));
}

kva_flash_query kva_flash_load_query(const kva_flash *f, const kva_expr *q) {
  kva_kb *kb = f->s.kb;
  kva_lower *l = f->s.l;
  const kva_expr *idx[3] = {f->s.b, f->s.h, q};
  kva_kval inside = kva_k_index_lt(kb, q, f->s.a.T), zero = kva_k_const_f(kb, KVA_F32, 0);
  kva_kval outer = kva_k_guard_begin(kb, inside);
  kva_kval lse = l->operand(l, f->s.a.n, KVA_ATTENTION_LSE, idx);
  kva_kval delta = l->operand(l, f->s.a.n, KVA_ATTENTION_DELTA, idx);
  kva_k_guard_end(kb, outer);
  kva_kval nothing = kva_k_const_f(kb, KVA_F32, -INFINITY);
  lse = kva_k_select(kb, inside, kva_k_convert(kb, lse, KVA_F32), nothing);
  lse = kva_k_select(kb, kva_k2(kb, KVA_K_eq, lse, nothing), kva_k_const_f(kb, KVA_F32, INFINITY), lse);
  kva_kval shift = f->added ? lse : kva_k2(kb, KVA_K_mul, lse, kva_k_const_f(kb, KVA_F32, 1 / log(2.0)));
  return (kva_flash_query){.lse = shift, .delta = kva_k_select(kb, inside, kva_k_convert(kb, delta, KVA_F32), zero)};
}

kva_kval kva_flash_combine_row(const kva_flash *f, kva_kop op, kva_kval v) {
  for (int32_t bit = 1; bit <= 2; bit *= 2) {
    kva_kval other = kva_k_intrinsic(f->s.kb, &(kva_kintrinsic){.op = KVA_TILE_shuffle_xor, .numbers = {bit}}, v);
    v = kva_k2(f->s.kb, op, v, other);
  }
  return v;
}

void kva_flash_store_rows(const kva_flash *f, const kva_flash_store *s) {
  kva_kb *kb = f->s.kb;
  kva_flash_element e = kva_flash_each(f, 8 * s->n16);
  const kva_expr *row = kva_flash_row(f, e.row), *d = plus(f, times(f, s->first16, 16), e.column);
  kva_kval v = kva_k2(kb, KVA_K_mul, kva_k_load(kb, s->m, e.i), kva_query_tile_const(&f->s, s->factor));
  if (s->scale) v = kva_k2(kb, KVA_K_mul, v, kva_k_load(kb, s->scale, e.row));
  kva_kval inside = kva_k_and(kb, kva_k_index_lt(kb, row, f->s.extent), kva_k_index_lt(kb, d, num(f, f->s.a.D)));
  kva_kval outer = kva_k_guard_begin(kb, inside);
  f->s.l->store(f->s.l, f->s.a.n, s->result, (const kva_expr *[]){f->s.b, s->head, row, d}, v);
  kva_k_guard_end(kb, outer);
  kva_k_loop_end(kb, e.loop);
}
