/* Loops. Iterations take turns with `copies` accumulators (per lane). A small body is emitted as consecutive segments:
 * one of rounds with a body for each accumulator, and one of single steps; a large one as the latter alone, so that
 * deep nests do not multiply. For vector loops a masked remainder follows. A fixed tree combines the accumulators where
 * they then are. The order of additions depends only on the extent, with a peel also on where the row starts: never on
 * thread scheduling, and not on what else the body computes. */
#include "codegen/llvm_internal.h"

enum {
  MAX_COPIES = 4,
  SMALL_BODY = 40,   /* instructions; larger bodies are not copied for several accumulators */
  HALVED_BODY = 12,  /* larger bodies are not copied for halves of vectors */
  COPIED_BODY = 400, /* the same, with the copies of the loops inside: each of a deep nest makes five of its body */
  KEPT_BODY = 100,   /* instructions of a round, in loops that reuse another loop's loads */
  MAX_UNROLLED = 8,  /* vectors of a loop of constant extent that are unrolled, single steps that may be */
  LARGE_BODY = 200,  /* instructions; loops of larger bodies stay loops: their vectors have nothing in common */
  ROUND_BYTES = 16,  /* bytes per thread and round on a GPU, if another loop reads the same elements */
  GROUP = 4          /* rounds under one branch: enough loads in flight; with all of them ptxas runs out of registers */
};

typedef struct carry_state {
  const kva_kcarry *c;
  LLVMTypeRef type;
  LLVMValueRef acc[MAX_COPIES];
} carry_state;

typedef struct loop_state {
  kva_emit *e;
  const kva_kloop *l;
  unsigned lanes;  /* of this loop's own variable */
  unsigned copies; /* accumulators in use */
  uint32_t n;      /* carries */
  carry_state *carries;
} loop_state;

static const kva_lanes single = {1, NULL, NULL, false}; /* no vector loop */

/* ---- body of one iteration --------------------------------------------------------------------------------------- */

static void set_carry(void *user, kva_kinstr *i) {
  loop_state *s = user;
  if (i->op != KVA_K_CARRY || i->loop != s->l) return;
  s->e->values[i->id] = s->carries[i->carry].acc[0];
}

static LLVMValueRef contribution(loop_state *s, const carry_state *c) {
  KVA_ASSERT(c->c->yield->dtype == c->c->dtype);
  kva_emit *e = s->e;
  bool wide = LLVMGetTypeKind(c->type) == LLVMVectorTypeKind;
  LLVMValueRef v = kva_ll_use(e, c->c->yield);
  if (wide) v = kva_ll_splat(e, v, e->lanes.n);
  bool own_lanes = s->lanes > 1 && e->lanes.mask;
  if (!own_lanes) return v;
  LLVMValueRef neutral = kva_ll_splat(e, kva_ll_neutral(e, c->c->combine, c->c->dtype), e->lanes.n);
  return LLVMBuildSelect(e->b, e->lanes.mask, v, neutral, "");
}

/* Emits the body for the iterations from `at`, which add to the first accumulators. */
static void emit_body(loop_state *s, LLVMValueRef at) {
  kva_emit *e = s->e;
  kva_ll_bind(e, s->l->var, at);
  if (s->n) kva_k_each_instr_in(s->l->body, set_carry, s);
  kva_ll_region(e, s->l->body);
  LLVMValueRef *next = KVA_NEW_ARRAY(e->scratch, LLVMValueRef, s->n + 1);
  for (uint32_t i = 0; i < s->n; i++) {
    const carry_state *c = &s->carries[i];
    LLVMValueRef v = contribution(s, c);
    bool sequential = c->c->combine == KVA_COMBINE_NONE;
    next[i] = sequential ? v : kva_ll_combine(e, c->c->combine, c->c->dtype, c->acc[0], v);
  }
  for (uint32_t i = 0; i < s->n; i++) s->carries[i].acc[0] = next[i];
}

/* The next accumulators become the first. */
static void take_turns(loop_state *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    LLVMValueRef *acc = s->carries[i].acc, first = acc[0];
    for (unsigned u = 1; u < s->copies; u++) acc[u - 1] = acc[u];
    acc[s->copies - 1] = first;
  }
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static LLVMValueRef *save(loop_state *s) {
  LLVMValueRef *all = KVA_NEW_ARRAY(s->e->scratch, LLVMValueRef, s->n * MAX_COPIES + 1);
  for (uint32_t i = 0; i < s->n; i++) memcpy(all + i * MAX_COPIES, s->carries[i].acc, sizeof s->carries[i].acc);
  return all;
}

/* Joins two blocks: a phi for every accumulator. */
static void join(loop_state *s, LLVMValueRef *one, LLVMBasicBlockRef from_one, LLVMValueRef *two,
                 LLVMBasicBlockRef from_two) {
  LLVMBasicBlockRef from[] = {from_one, from_two};
  for (uint32_t i = 0; i < s->n; i++) {
    for (unsigned u = 0; u < s->copies; u++) {
      LLVMValueRef values[] = {one[i * MAX_COPIES + u], two[i * MAX_COPIES + u]};
      LLVMValueRef phi = LLVMBuildPhi(s->e->b, s->carries[i].type, "");
      LLVMAddIncoming(phi, values, from, 2);
      s->carries[i].acc[u] = phi;
    }
  }
}

/* Phis at the top of the body; the latch's values follow in close_phis. */
static LLVMValueRef *open_phis(loop_state *s, LLVMBasicBlockRef from) {
  LLVMValueRef *phis = KVA_NEW_ARRAY(s->e->scratch, LLVMValueRef, s->n * MAX_COPIES + 1);
  for (uint32_t i = 0; i < s->n; i++) {
    for (unsigned u = 0; u < s->copies; u++) {
      LLVMValueRef phi = LLVMBuildPhi(s->e->b, s->carries[i].type, "");
      LLVMAddIncoming(phi, &s->carries[i].acc[u], &from, 1);
      phis[i * MAX_COPIES + u] = s->carries[i].acc[u] = phi;
    }
  }
  return phis;
}

static void close_phis(loop_state *s, LLVMValueRef *phis, LLVMBasicBlockRef latch) {
  for (uint32_t i = 0; i < s->n; i++) {
    for (unsigned u = 0; u < s->copies; u++) {
      LLVMAddIncoming(phis[i * MAX_COPIES + u], &s->carries[i].acc[u], &latch, 1);
    }
  }
}

/* for (at = start; at < end; at += step * bodies) bodies at `at`, at + step, ...; end - start is a multiple of that. */
static void emit_stretch(loop_state *s, LLVMValueRef start, LLVMValueRef end, int64_t step, unsigned bodies) {
  kva_emit *e = s->e;
  LLVMBasicBlockRef entry = LLVMGetInsertBlock(e->b), body = kva_ll_block(e, s->l->var->name),
                    exit = kva_ll_block(e, "done");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, start, end, ""), body, exit);
  LLVMPositionBuilderAtEnd(e->b, body);
  LLVMValueRef before = LLVMBuildPhi(e->b, LLVMInt64TypeInContext(e->ctx), s->l->var->name);
  LLVMAddIncoming(before, &start, &entry, 1);
  LLVMValueRef *skipped = save(s), *phis = open_phis(s, entry);
  for (unsigned u = 0; u < bodies; u++) {
    LLVMValueRef at = u ? LLVMBuildNSWAdd(e->b, before, kva_ll_i64(e, (int64_t)u * step), "") : before;
    emit_body(s, at);
    take_turns(s);
  }
  LLVMBasicBlockRef latch = LLVMGetInsertBlock(e->b);
  LLVMValueRef next = LLVMBuildNSWAdd(e->b, before, kva_ll_i64(e, step * bodies), "");
  LLVMAddIncoming(before, &next, &latch, 1);
  close_phis(s, phis, latch);
  LLVMValueRef *last = save(s);
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, next, end, ""), body, exit);
  LLVMPositionBuilderAtEnd(e->b, exit);
  join(s, skipped, entry, last, latch);
}

/* ((a0 + a1) + (a2 + a3)) into accumulator 0. */
static void merge_copies(loop_state *s) {
  for (unsigned width = 1; width < s->copies; width *= 2) {
    for (unsigned u = 0; u + width < s->copies; u += 2 * width) {
      for (uint32_t i = 0; i < s->n; i++) {
        carry_state *c = &s->carries[i];
        c->acc[u] = kva_ll_combine(s->e, c->c->combine, c->c->dtype, c->acc[u], c->acc[u + width]);
      }
    }
  }
  s->copies = 1;
}

/* Accumulators 1.. start neutral. */
static void split_copies(loop_state *s, unsigned copies) {
  KVA_ASSERT(s->copies == 1 && copies <= MAX_COPIES && !(copies & (copies - 1)));
  for (uint32_t i = 0; i < s->n; i++) {
    carry_state *c = &s->carries[i];
    LLVMValueRef neutral = kva_ll_neutral(s->e, c->c->combine, c->c->dtype);
    if (LLVMGetTypeKind(c->type) == LLVMVectorTypeKind) {
      neutral = kva_ll_splat(s->e, neutral, LLVMGetVectorSize(c->type));
    }
    for (unsigned u = 1; u < copies; u++) c->acc[u] = neutral;
  }
  s->copies = copies;
}

/* start + the largest multiple of `step` that fits before end. */
static LLVMValueRef round_down(kva_emit *e, LLVMValueRef start, LLVMValueRef end, int64_t step) {
  KVA_ASSERT(step > 0 && !(step & (step - 1))); /* a mask rounds */
  if (step == 1) return end;
  LLVMValueRef zero = kva_ll_i64(e, 0), args[] = {LLVMBuildNSWSub(e->b, end, start, ""), zero};
  LLVMValueRef n = kva_ll_intrinsic1(e, "llvm.smax", 2, args);
  return LLVMBuildNSWAdd(e->b, start, LLVMBuildAnd(e->b, n, kva_ll_i64(e, -step), ""), "");
}

/* ---- number of accumulators -------------------------------------------------------------------------------------- */

typedef struct body_facts {
  uint32_t instrs;
  bool effects;
} body_facts;

static void look(void *user, kva_kinstr *i) {
  body_facts *f = user;
  f->instrs++;
  f->effects |= i->op == KVA_K_STORE || i->op == KVA_K_BARRIER || i->op == KVA_K_CARRY || i->op == KVA_K_INTRINSIC;
}

static unsigned copies_of(const kva_kloop *l, int64_t step);
static bool is_copied(const kva_kregion *body);

/* Instructions of a region as they are emitted: a loop with several accumulators has one body more, for single steps.
 */
static uint32_t emitted(const kva_kregion *r) {
  uint32_t n = 0;
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    n += 1 + emitted(i->then) + emitted(i->orelse);
    if (i->op != KVA_K_LOOP) continue;
    unsigned copies = copies_of(i->loop, 1), bodies = copies > 1 && is_copied(i->loop->body) ? copies + 1 : 1;
    n += bodies * emitted(i->loop->body);
  }
  return n;
}

static bool adds_in_any_order(const kva_kloop *l) {
  if (!l->carries.len || l->strict_order) return false;
  for (uint32_t c = 0; c < l->carries.len; c++)
    if (l->carries.data[c].combine == KVA_COMBINE_NONE) return false;
  return true;
}

/* Whether each accumulator gets a copy of the body. */
static bool is_copied(const kva_kregion *body) {
  body_facts f = {0};
  kva_k_each_instr_in(body, look, &f);
  return !f.effects && f.instrs <= SMALL_BODY && emitted(body) <= COPIED_BODY;
}

/* Steps of a loop that may become straight code, of constant extent, and few; else -1. */
static int64_t few_steps(const kva_kloop *l, int64_t step) {
  int64_t extent;
  return kva_expr_is_const(l->extent, &extent) && extent <= MAX_UNROLLED * step ? extent / step : -1;
}

/* By the extent alone, since a sum shares its body with whatever is computed together. Single steps of a short loop
 * have one accumulator, as if unrolled. */
static unsigned copies_of(const kva_kloop *l, int64_t step) {
  int64_t n = few_steps(l, step);
  if (!adds_in_any_order(l)) return 1;
  if (n < 0) return MAX_COPIES;
  if (step == 1 || n < 2) return 1;
  return n < MAX_COPIES ? 2 : MAX_COPIES;
}

/* ---- carries in and out ------------------------------------------------------------------------------------------ */

static loop_state open_loop(kva_emit *e, const kva_kloop *l, unsigned own_lanes) {
  loop_state s = {.e = e, .l = l, .lanes = own_lanes, .copies = 1, .n = l->carries.len};
  s.carries = KVA_NEW_ARRAY(e->scratch, carry_state, s.n + 1);
  for (uint32_t i = 0; i < s.n; i++) {
    const kva_kcarry *c = &l->carries.data[i];
    bool wide = own_lanes > 1 || (e->lanes.n > 1 && kva_ll_carry_varying(e, c));
    unsigned lanes = wide ? e->lanes.n : 1;
    LLVMValueRef init = own_lanes > 1 ? kva_ll_neutral(e, c->combine, c->dtype) : kva_ll_use(e, c->init);
    s.carries[i].c = c;
    s.carries[i].type = kva_ll_widen(kva_ll_type(e, c->dtype), lanes);
    s.carries[i].acc[0] = kva_ll_splat(e, init, lanes);
  }
  return s;
}

/* Adds up lanes by halves. */
static LLVMValueRef across_lanes(kva_emit *e, const kva_kcarry *c, LLVMValueRef v) {
  KVA_ASSERT(kva_ll_is_vector(v) && LLVMGetVectorSize(LLVMTypeOf(v)) <= 128);
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  for (unsigned n = LLVMGetVectorSize(LLVMTypeOf(v)); n > 1; n /= 2) {
    LLVMValueRef low[64], high[64];
    for (unsigned i = 0; i < n / 2; i++) {
      low[i] = LLVMConstInt(i32, i, false);
      high[i] = LLVMConstInt(i32, i + n / 2, false);
    }
    LLVMValueRef none = LLVMGetPoison(LLVMTypeOf(v));
    LLVMValueRef a = LLVMBuildShuffleVector(e->b, v, none, LLVMConstVector(low, n / 2), "");
    LLVMValueRef b = LLVMBuildShuffleVector(e->b, v, none, LLVMConstVector(high, n / 2), "");
    v = kva_ll_combine(e, c->combine, c->dtype, a, b);
  }
  return LLVMBuildExtractElement(e->b, v, kva_ll_i64(e, 0), "");
}

static void set_results(kva_emit *e, const kva_kloop *l, LLVMValueRef *results) {
  for (kva_kinstr *i = l->instr->region->first; i; i = i->next) {
    if (i->op == KVA_K_REDUCE && i->loop == l) e->values[i->id] = results[i->carry];
  }
}

static void close_loop(loop_state *s) {
  kva_emit *e = s->e;
  LLVMValueRef *results = KVA_NEW_ARRAY(e->scratch, LLVMValueRef, s->n + 1);
  for (uint32_t i = 0; i < s->n; i++) {
    const kva_kcarry *c = s->carries[i].c;
    results[i] = s->carries[i].acc[0];
    if (s->lanes > 1) {
      LLVMValueRef sum = across_lanes(e, c, results[i]);
      results[i] = kva_ll_combine(e, c->combine, c->dtype, kva_ll_use(e, c->init), sum);
    }
  }
  set_results(e, s->l, results);
}

/* ---- loop kinds -------------------------------------------------------------------------------------------------- */

static void emit_unrolled(kva_emit *e, const kva_kloop *l, int64_t extent) {
  KVA_ASSERT(kva_expr_is(l->extent, extent));
  loop_state s = open_loop(e, l, 1);
  uint32_t outside = e->columns.len;
  kva_ll_load_blocks(e, l);
  for (int64_t i = 0; i < extent; i++) emit_body(&s, kva_ll_i64(e, i));
  e->columns.len = outside;
  close_loop(&s);
}

/* All steps from start to end, which are whole. */
static void emit_steps(loop_state *s, LLVMValueRef start, LLVMValueRef end, int64_t step) {
  unsigned copies = copies_of(s->l, step);
  split_copies(s, copies);
  if (copies > 1 && few_steps(s->l, step) < 0 && is_copied(s->l->body)) {
    LLVMValueRef middle = round_down(s->e, start, end, step * copies);
    emit_stretch(s, start, middle, step, copies);
    start = middle;
  }
  emit_stretch(s, start, end, step, 1);
  merge_copies(s);
}

static void emit_range(kva_emit *e, const kva_kloop *l, LLVMValueRef start, LLVMValueRef end) {
  loop_state s = open_loop(e, l, 1);
  emit_steps(&s, start, end, 1);
  close_loop(&s);
}

static void emit_serial(kva_emit *e, const kva_kloop *l) {
  int64_t extent;
  if (kva_expr_is_const(l->extent, &extent) && extent <= 1)
    emit_unrolled(e, l, extent);
  else
    emit_range(e, l, kva_ll_i64(e, 0), kva_ll_expr(e, l->extent));
}

static LLVMValueRef rest_mask(kva_emit *e, LLVMValueRef rest) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMValueRef limit = kva_ll_splat(e, LLVMBuildTrunc(e->b, rest, i32, ""), e->lanes.n);
  return LLVMBuildICmp(e->b, LLVMIntULT, kva_ll_iota(e, i32, e->lanes.n), limit, "");
}

/* n bodies at start, start + step, ... */
static void emit_bodies(loop_state *s, LLVMValueRef start, int64_t step, int64_t n) {
  KVA_ASSERT(n > 0 && s->copies == 1);
  kva_emit *e = s->e;
  for (int64_t i = 0; i < n; i++, e->share.round++)
    emit_body(s, i ? LLVMBuildNSWAdd(e->b, start, kva_ll_i64(e, i * step), "") : start);
}

/* The same if the last of them has an iteration. masked: a single vector with its active lanes; else whole vectors. */
static void emit_bodies_if(loop_state *s, LLVMValueRef start, LLVMValueRef end, int64_t step, int64_t n, bool masked) {
  kva_emit *e = s->e;
  LLVMValueRef *skipped = save(s), last_at = LLVMBuildNSWAdd(e->b, start, kva_ll_i64(e, (n - 1) * step), "");
  LLVMBasicBlockRef entry = LLVMGetInsertBlock(e->b), body = kva_ll_block(e, "rest"), exit = kva_ll_block(e, "done");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, last_at, end, ""), body, exit);
  LLVMPositionBuilderAtEnd(e->b, body);
  if (masked) e->lanes.mask = rest_mask(e, LLVMBuildSub(e->b, end, start, ""));
  emit_bodies(s, start, step, n);
  if (masked) e->lanes.mask = NULL;
  LLVMValueRef *last = save(s);
  LLVMBasicBlockRef latch = LLVMGetInsertBlock(e->b);
  LLVMBuildBr(e->b, exit);
  LLVMPositionBuilderAtEnd(e->b, exit);
  join(s, skipped, entry, last, latch);
  kva_ll_end_round(e, entry, latch);
}

/* The machine stores some lanes of a vector only lane by lane, or slowly (AVX2 of AMD). Accumulators have all lanes,
 * and each part is a copy of the body. */
static bool ends_in_halves(const loop_state *s) {
  enum { AVX512 = 64 }; /* bytes */
  const kva_emit *e = s->e;
  return !s->n && e->cg->target.vector_bytes < AVX512 && emitted(s->l->body) <= HALVED_BODY;
}

static void emit_lanes_at(loop_state *s, LLVMValueRef at, unsigned lanes) {
  kva_emit *e = s->e;
  e->lanes.n = s->lanes = lanes;
  kva_ll_mark_varying(e, s->l);
  emit_body(s, at);
}

/* The last `rest` iterations, fewer than there are lanes, in vectors of half as many lanes, a quarter, ..., one. */
static void emit_halves(loop_state *s, LLVMValueRef start, LLVMValueRef rest) {
  kva_emit *e = s->e;
  for (unsigned n = s->lanes / 2; n; n /= 2) {
    LLVMValueRef has = LLVMBuildAnd(e->b, rest, kva_ll_i64(e, n), ""), zero = kva_ll_i64(e, 0);
    LLVMValueRef at = LLVMBuildNSWAdd(e->b, start, LLVMBuildAnd(e->b, rest, kva_ll_i64(e, -2 * (int64_t)n), ""), "");
    if (LLVMIsConstant(has) && LLVMIsNull(has)) continue;
    if (LLVMIsConstant(has)) {
      emit_lanes_at(s, at, n);
      continue;
    }
    LLVMBasicBlockRef body = kva_ll_block(e, "part"), exit = kva_ll_block(e, "done");
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntNE, has, zero, ""), body, exit);
    LLVMPositionBuilderAtEnd(e->b, body);
    emit_lanes_at(s, at, n);
    LLVMBuildBr(e->b, exit);
    LLVMPositionBuilderAtEnd(e->b, exit);
  }
}

/* Short loops of constant extent: straight-line code, so that LOCAL tiles become registers. */
static void emit_vector_expanded(loop_state *s, int64_t extent) {
  kva_emit *e = s->e;
  int64_t lanes = s->lanes, whole = extent / lanes;
  split_copies(s, copies_of(s->l, lanes));
  for (int64_t i = 0; i < whole; i++) {
    emit_body(s, kva_ll_i64(e, i * lanes));
    take_turns(s);
  }
  merge_copies(s);
  if (extent % lanes == 0) return;
  if (ends_in_halves(s)) {
    emit_halves(s, kva_ll_i64(e, whole * lanes), kva_ll_i64(e, extent % lanes));
    return;
  }
  e->lanes.mask = rest_mask(e, kva_ll_i64(e, extent % lanes));
  emit_body(s, kva_ll_i64(e, whole * lanes));
  e->lanes.mask = NULL;
}

static void emit_vector_loop(loop_state *s, LLVMValueRef end) {
  kva_emit *e = s->e;
  int64_t lanes = s->lanes;
  LLVMValueRef start = kva_ll_i64(e, 0), whole = round_down(e, start, end, lanes);
  emit_steps(s, start, whole, lanes);
  if (kva_ll_expr_multiple(e, s->l->extent) % lanes == 0) return;
  if (!ends_in_halves(s)) {
    emit_bodies_if(s, whole, end, 0, 1, true);
    return;
  }
  LLVMValueRef rest[] = {LLVMBuildNSWSub(e->b, end, whole, ""), kva_ll_i64(e, 0)};
  emit_halves(s, whole, kva_ll_intrinsic1(e, "llvm.smax", 2, rest));
}

static void emit_vector(kva_emit *e, const kva_kloop *l) {
  kva_lanes outer = e->lanes;
  int64_t extent;
  bool is_const = kva_expr_is_const(l->extent, &extent);
  if (outer.n == 1 && (!is_const || extent > 1)) e->lanes = (kva_lanes){kva_ll_lane_count(e, l), l->var, NULL, false};
  if (outer.n > 1 || e->lanes.n == 1 || !kva_ll_vectorizable(e, l)) {
    e->lanes = outer;
    if (outer.n == 1) kva_ll_mark_varying(e, l);
    emit_serial(e, l);
    return;
  }
  LLVMValueRef end = kva_ll_expr(e, l->extent);
  loop_state s = open_loop(e, l, e->lanes.n);
  bool one = is_const && extent <= s.lanes;
  if (one || (few_steps(l, s.lanes) >= 0 && emitted(l->body) <= LARGE_BODY))
    emit_vector_expanded(&s, extent);
  else
    emit_vector_loop(&s, end);
  e->lanes = outer;
  close_loop(&s);
}

/* ---- threads of a GPU -------------------------------------------------------------------------------------------- */

/* A sibling loop deals out the same elements, or l runs for several rows: its loads may be kept. */
static bool is_reused(const kva_kloop *l) {
  const kva_kinstr *owner = l->instr->region->owner;
  if (owner && owner->op == KVA_K_LOOP && owner->loop->kind != KVA_K_GRID) return true;
  for (const kva_kinstr *i = l->instr->region->first; i; i = i->next) {
    bool alike = i->op == KVA_K_LOOP && i->loop != l && i->loop->kind == KVA_K_THREAD;
    if (alike && i->loop->extent == l->extent && i->loop->width == l->width) return true;
  }
  return false;
}

/* Some load of e->share's loop may be kept. */
static bool may_keep_any(kva_emit *e) {
  for (const kva_kinstr *i = e->share.loop->body->first; i; i = i->next)
    if (kva_ll_may_keep(e, i)) return true;
  return false;
}

/* Whether to unroll e->share, a thread's share of a loop. exact: all threads have an iteration in every round. */
static bool is_straight(kva_emit *e, bool exact) {
  const kva_kloop *l = e->share.loop;
  int64_t n = e->share.rounds;
  body_facts f = {0};
  if (n <= 1) return n;
  int64_t most = kva_ll_kept_bytes(e) / ROUND_BYTES;
  bool again = n <= most && is_reused(l) && may_keep_any(e);
  if (n > MAX_UNROLLED && !again) return false;
  kva_k_each_instr_in(l->body, look, &f);
  return (exact || again) && n * f.instrs <= (again ? KEPT_BODY * most : SMALL_BODY * MAX_COPIES);
}

/* Emits iterations start, start + step, ... below end: this thread's share of a part of the loop that has `least` to
 * `most` iterations (0: unknown). */
static void emit_share(loop_state *s, kva_part part, LLVMValueRef start, LLVMValueRef end, int64_t step, int64_t least,
                       int64_t most) {
  kva_emit *e = s->e;
  int64_t n = most ? (most + step - 1) / step : 0, certain = least / step; /* rounds that all threads have */
  e->share = (kva_share){s->l, step, 0, n, part};
  if (!is_straight(e, certain >= n)) {
    e->share.loop = NULL;
    emit_stretch(s, start, end, step, 1);
    return;
  }
  for (int64_t i = 0; i < n;) {
    int64_t group = i + GROUP <= certain ? GROUP : 1;
    LLVMValueRef at = LLVMBuildNSWAdd(e->b, start, kva_ll_i64(e, i * step), "");
    e->share = (kva_share){s->l, step, i, n, part};
    if (certain >= n) {
      emit_bodies(s, at, step, group);
      kva_ll_end_round(e, NULL, NULL);
    } else {
      emit_bodies_if(s, at, end, step, group, false);
    }
    i += group;
  }
  e->share.loop = NULL;
}

/* Emits the row-invariant loads of l for the round at `at`. */
static void load_round_ahead(kva_emit *e, const kva_kloop *rows, const kva_kloop *l, LLVMValueRef at) {
  kva_ll_bind(e, l->var, at);
  for (const kva_kinstr *i = l->body->first; i; i = i->next) {
    if (!kva_ll_is_row_invariant(e, i, l, rows) || !kva_ll_may_keep(e, i)) continue;
    if (!kva_ll_kept(e, i)) kva_ll_keep(e, i, kva_ll_raw_load(e, i));
  }
}

static void load_round_if(kva_emit *e, const kva_kloop *rows, const kva_kloop *l, LLVMValueRef at) {
  LLVMValueRef end = kva_ll_expr(e, l->extent);
  LLVMBasicBlockRef entry = LLVMGetInsertBlock(e->b), load = kva_ll_block(e, "ahead"), exit = kva_ll_block(e, "done");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, at, end, ""), load, exit);
  LLVMPositionBuilderAtEnd(e->b, load);
  load_round_ahead(e, rows, l, at);
  LLVMBasicBlockRef latch = LLVMGetInsertBlock(e->b);
  LLVMBuildBr(e->b, exit);
  LLVMPositionBuilderAtEnd(e->b, exit);
  kva_ll_end_round(e, entry, latch);
}

/* Hoists the row-invariant loads of loop l, which `around` threads share, before the loop over rows. */
static void load_ahead(kva_emit *e, const kva_kloop *rows, const kva_kloop *l, unsigned around) {
  int64_t extent, lanes = l->width > 1 ? l->width : 1, step = (int64_t)around * lanes;
  bool loads = false;
  for (const kva_kinstr *i = l->body->first; i; i = i->next) loads |= kva_ll_is_row_invariant(e, i, l, rows);
  if (!loads || !kva_expr_is_const(l->extent, &extent) || extent % lanes || l->peel) return;
  e->lanes = (kva_lanes){(unsigned)lanes, l->var, NULL, false};
  int64_t n = (extent + step - 1) / step;
  int64_t certain = extent / step;
  e->share = (kva_share){l, step, 0, n, KVA_PART_LANES};
  if (!kva_ll_vectorizable(e, l) || !is_straight(e, certain >= n)) n = 0;
  LLVMValueRef first = n ? LLVMBuildMul(e->b, kva_ll_subgroup_number(e, around, 1), kva_ll_i64(e, lanes), "") : NULL;
  for (int64_t i = 0; i < n; i++) {
    LLVMValueRef at = LLVMBuildNSWAdd(e->b, first, kva_ll_i64(e, i * step), "");
    e->share = (kva_share){l, step, i, n, KVA_PART_LANES};
    if (i < certain) {
      load_round_ahead(e, rows, l, at);
      kva_ll_end_round(e, NULL, NULL);
    } else {
      load_round_if(e, rows, l, at);
    }
  }
  e->share.loop = NULL;
  e->lanes = single;
}

/* rows: a loop whose body a subgroup of `around` > 1 threads runs. */
static void load_rows_ahead(kva_emit *e, const kva_kloop *rows, unsigned around) {
  for (const kva_kinstr *i = rows->body->first; i; i = i->next) {
    bool shared = i->op == KVA_K_LOOP && i->loop->kind == KVA_K_THREAD && i->loop->subgroup <= 1;
    if (shared) load_ahead(e, rows, i->loop, around);
  }
}

/* Combines the lanes of each accumulator. */
static void leave_lanes(loop_state *s) {
  KVA_ASSERT(s->lanes > 1 && s->copies == 1);
  kva_emit *e = s->e;
  for (uint32_t i = 0; i < s->n; i++) {
    carry_state *c = &s->carries[i];
    c->acc[0] = across_lanes(e, c->c, c->acc[0]);
    c->type = kva_ll_type(e, c->c->dtype);
  }
  s->lanes = 1;
  e->lanes = single;
  kva_ll_mark_varying(e, s->l);
}

/* Whole vectors, then single iterations for the remainder. */
static void emit_vector_share(loop_state *s, LLVMValueRef subgroup, LLVMValueRef end, int64_t n, int64_t least,
                              int64_t most) {
  kva_emit *e = s->e;
  int64_t lanes = s->lanes;
  LLVMValueRef whole = LLVMBuildAnd(e->b, end, kva_ll_i64(e, -lanes), "");
  emit_share(s, KVA_PART_LANES, LLVMBuildNSWMul(e->b, subgroup, kva_ll_i64(e, lanes), ""), whole, n * lanes,
             least / lanes * lanes, most);
  leave_lanes(s);
  if (kva_ll_expr_multiple(e, s->l->extent) % lanes)
    emit_share(s, KVA_PART_TAIL, LLVMBuildNSWAdd(e->b, whole, subgroup, ""), end, n, 0, lanes - 1);
}

/* Vectors from the peel to the last whole sector; then the single elements before and after them. */
static void emit_share_after_peel(loop_state *s, LLVMValueRef subgroup, LLVMValueRef end, int64_t n, int64_t least,
                                  int64_t most) {
  enum { SINGLE = KVA_K_PEEL - 1 }; /* upper bound of elements before, and after, the lanes */
  kva_emit *e = s->e;
  int64_t lanes = s->lanes, whole_least = least > 2 * SINGLE ? least - 2 * SINGLE : 0;
  LLVMValueRef args[] = {kva_ll_expr(e, s->l->peel), end}, peel = kva_ll_intrinsic1(e, "llvm.smin", 2, args);
  LLVMValueRef whole = LLVMBuildAnd(e->b, LLVMBuildSub(e->b, end, peel, ""), kva_ll_i64(e, -KVA_K_PEEL), "");
  whole = LLVMBuildNSWAdd(e->b, peel, whole, "");
  LLVMValueRef first = LLVMBuildNSWMul(e->b, subgroup, kva_ll_i64(e, lanes), "");
  e->lanes.behind_peel = true;
  emit_share(s, KVA_PART_LANES, LLVMBuildNSWAdd(e->b, peel, first, ""), whole, n * lanes, whole_least, most);
  leave_lanes(s);
  emit_share(s, KVA_PART_PEEL, subgroup, peel, n, 0, SINGLE);
  emit_share(s, KVA_PART_TAIL, LLVMBuildNSWAdd(e->b, whole, subgroup, ""), end, n, 0, SINGLE);
}

static void combine_subgroups(loop_state *s) {
  kva_emit *e = s->e;
  if (!s->n) return;
  LLVMValueRef *results = KVA_NEW_ARRAY(e->scratch, LLVMValueRef, s->n);
  for (uint32_t i = 0; i < s->n; i++) results[i] = s->carries[i].acc[0];
  kva_ll_combine_threads(e, s->l, results);
  for (uint32_t i = 0; i < s->n; i++) {
    const kva_kcarry *c = s->carries[i].c;
    results[i] = kva_ll_combine(e, c->combine, c->dtype, kva_ll_use(e, c->init), results[i]);
  }
  if (s->l->blocks > 1) kva_ll_combine_blocks(e, s->l, results);
  set_results(e, s->l, results);
}

static void start_neutral(loop_state *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    carry_state *c = &s->carries[i];
    c->acc[0] = kva_ll_splat(s->e, kva_ll_neutral(s->e, c->c->combine, c->c->dtype), s->lanes);
  }
}

static void emit_threads(kva_emit *e, const kva_kloop *l) {
  KVA_ASSERT(e->subgroup && e->lanes.n == 1);
  unsigned around = e->subgroup, subgroup = l->subgroup > 1 ? l->subgroup : 1;
  KVA_ASSERT(subgroup <= around && around % subgroup == 0);
  int64_t n = around / subgroup, least, most;
  if (!kva_expr_upper_bound(l->extent, &most)) most = 0;
  if (!kva_expr_is_const(l->extent, &least)) least = 0;
  LLVMValueRef number = kva_ll_subgroup_number(e, around, subgroup), end = kva_ll_expr(e, l->extent);
  e->subgroup = subgroup;
  if (subgroup > 1) load_rows_ahead(e, l, subgroup);
  e->lanes = (kva_lanes){l->width > 1 ? l->width : 1, l->var, NULL, false};
  if (!kva_ll_vectorizable(e, l)) e->lanes = single;
  loop_state s = open_loop(e, l, e->lanes.n);
  start_neutral(&s);
  if (s.lanes > 1)
    (l->peel ? emit_share_after_peel : emit_vector_share)(&s, number, end, n, least, most);
  else
    emit_share(&s, KVA_PART_LANES, number, end, n, least, most);
  e->lanes = single;
  e->subgroup = around;
  combine_subgroups(&s);
}

void kva_ll_loop(kva_emit *e, const kva_kloop *l) {
  int64_t extent;
  switch (l->kind) {
  case KVA_K_GRID:
    if (kva_ll_is_gpu(e))
      kva_ll_grid(e, l);
    else
      emit_range(e, l, e->begin, e->end);
    return;
  case KVA_K_VECTOR:
    if (kva_ll_is_gpu(e)) break; /* on a GPU, lanes are a thread's consecutive elements */
    emit_vector(e, l);
    return;
  case KVA_K_UNROLL:
    if (kva_expr_is_const(l->extent, &extent)) {
      emit_unrolled(e, l, extent);
      return;
    }
    break;
  case KVA_K_PARALLEL:
  case KVA_K_SERIAL: break;
  case KVA_K_THREAD:
    if (!kva_ll_is_gpu(e)) break;
    emit_threads(e, l);
    return;
  }
  if (kva_ll_is_gpu(e) && e->subgroup > 1) load_rows_ahead(e, l, e->subgroup);
  emit_serial(e, l);
}
