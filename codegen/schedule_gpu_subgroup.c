/* Distributes the code of a row over a subgroup. Loops that its threads can share become THREAD loops. All threads run
 * the rest redundantly; only the first performs its effects.
 *
 * Barriers separate accesses to buffers whose access order matters. A result lies over an operand only if the planner
 * proved that each element is read by the thread that overwrites it, so aliasing needs no barrier. */
#include "codegen/schedule_gpu.h"

/* ---- code of one thread ------------------------------------------------------------------------------------------ */

void kva_sched_serialize(kva_kregion *r) {
  for (kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    kva_sched_serialize(i->then);
    kva_sched_serialize(i->orelse);
    if (i->op != KVA_K_LOOP) continue;
    kva_sched_serialize(i->loop->body);
    if (i->loop->kind != KVA_K_UNROLL) i->loop->kind = kva_sched_sequential_kind(i->loop);
  }
}

/* Short rows gain little from a peel, and equal short rows must have equal sums. */
static bool is_worth_peeling(const kva_kloop *l) {
  int64_t least;
  return kva_expr_lower_bound(l->extent, &least) && least > KVA_WARP_ROW;
}

static void make_thread(kva_kernel *k, kva_kloop *l) {
  KVA_ASSERT(l->kind != KVA_K_THREAD && !l->subgroup);
  uint32_t width = kva_sched_width(k, l);
  if (width == 1 && is_worth_peeling(l)) width = kva_sched_width_behind(k, l, &l->peel);
  l->kind = KVA_K_THREAD;
  l->width = width > 1 ? width : 0;
  kva_sched_serialize(l->body);
}

static void insert_barrier(kva_kernel *k, kva_kinstr *before) {
  KVA_ASSERT(before->region);
  kva_k_insert(before->region, before, kva_k_instr_create(k, KVA_K_BARRIER, KVA_DTYPE_NONE));
}

static kva_kloop *single_thread(kva_kernel *k) {
  kva_kloop *l = kva_k_loop_create(k, KVA_K_THREAD, kva_expr_const(k->exprs, 1), "first");
  return l;
}

kva_kinstr *kva_sched_wrap(kva_kernel *k, kva_kinstr *i) {
  KVA_ASSERT(i->region && i->dtype == KVA_DTYPE_NONE); /* an effect: nothing outside uses it */
  kva_kloop *l = single_thread(k);
  kva_k_insert(i->region, i, l->instr);
  kva_k_unlink(i);
  kva_k_insert(l->body, NULL, i);
  kva_sched_serialize(l->body);
  return l->instr;
}

void kva_sched_wrap_all(kva_kernel *k) {
  kva_kloop *l = single_thread(k);
  kva_sched_move(k->body, l->body);
  kva_k_insert(k->body, NULL, l->instr);
  kva_sched_serialize(l->body);
}

/* ---- code of a subgroup ------------------------------------------------------------------------------------------ */

static void find_store(void *user, kva_kinstr *i) {
  *(bool *)user |= i->op == KVA_K_STORE || i->op == KVA_K_BARRIER;
}

static bool has_stores(const kva_kregion *r) {
  bool found = false;
  kva_k_each_instr_in(r, find_store, &found);
  return found;
}

static bool is_sequential(const kva_kloop *l) {
  for (uint32_t c = 0; c < l->carries.len; c++) {
    if (l->carries.data[c].combine == KVA_COMBINE_NONE) return true;
  }
  return l->strict_order;
}

static bool is_parallel(const kva_kloop *l) {
  if (is_sequential(l) || l->subgroup) return false;
  return l->kind == KVA_K_PARALLEL || (l->carries.len && !has_stores(l->body));
}

bool kva_sched_at_unit_stride(kva_kernel *k, const kva_kloop *l) {
  kva_strides s = kva_strides_of(k, l);
  return s.unit > 0 && s.near + s.strided == 0;
}

static bool better_inside(kva_kernel *k, const kva_kregion *r) {
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    if (better_inside(k, i->then) || better_inside(k, i->orelse)) return true;
    if (i->op != KVA_K_LOOP) continue;
    if (is_parallel(i->loop) && kva_sched_at_unit_stride(k, i->loop)) return true;
    if (better_inside(k, i->loop->body)) return true;
  }
  return false;
}

/* A subgroup should share l's iterations. */
static bool is_shared(kva_kernel *k, const kva_kloop *l) {
  return is_parallel(l) && (kva_sched_at_unit_stride(k, l) || !better_inside(k, l->body));
}

typedef struct subgroup_facts {
  bool ok;
  double longest; /* iterations that a subgroup would share */
} subgroup_facts;

/* A known upper bound counts as the extent. */
static double longest_extent(const kva_expr *extent) {
  int64_t most;
  return kva_expr_upper_bound(extent, &most) ? (double)most : kva_cost_extent(extent);
}

static bool has_shared_loop(kva_kernel *k, const kva_kregion *r) {
  for (const kva_kinstr *i = r->first; i; i = i->next)
    if (i->op == KVA_K_LOOP && is_shared(k, i->loop)) return true;
  return false;
}

/* around: iterations of the enclosing reductions that may merge with one in r. A store in every iteration runs in one
 * thread, which pays off only beside a loop that all threads share. */
static void look_for_subgroup(kva_kernel *k, const kva_kregion *r, bool repeated, double around, subgroup_facts *f) {
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    if (i->op == KVA_K_STORE && repeated && !has_shared_loop(k, r)) f->ok = false;
    look_for_subgroup(k, i->then, repeated, 1, f);
    look_for_subgroup(k, i->orelse, repeated, 1, f);
    if (i->op != KVA_K_LOOP) continue;
    double extent = longest_extent(i->loop->extent) * around;
    if (is_shared(k, i->loop)) {
      if (extent > f->longest) f->longest = extent;
    } else if (is_sequential(i->loop)) {
      f->ok = false;
    } else {
      look_for_subgroup(k, i->loop->body, true, i->loop->carries.len ? extent : 1, f);
    }
  }
}

static bool writes_locals(const kva_kernel *k) {
  for (uint32_t b = 0; b < k->bufs.len; b++) {
    if (k->bufs.data[b]->space == KVA_K_LOCAL && k->bufs.data[b]->written) return true;
  }
  return false;
}

double kva_sched_subgroup_extent(kva_kernel *k, const kva_kregion *r) {
  subgroup_facts f = {!writes_locals(k), 0};
  look_for_subgroup(k, r, false, 1, &f);
  return f.ok ? f.longest : 0;
}

kva_kbuf *kva_sched_shared(kva_kernel *k, const char *name, kva_dtype dtype, int64_t n) {
  kva_kbuf *buf = KVA_NEW(k->arena, kva_kbuf);
  *buf = (kva_kbuf){.space = KVA_K_SHARED, .dtype = dtype, .read = true, .written = true, .id = k->bufs.len};
  buf->extent = kva_expr_const(k->exprs, n);
  buf->name = kva_arena_printf(k->arena, "%s%u", name, buf->id);
  KVA_PUSH(k->arena, &k->bufs, buf);
  return buf;
}

typedef struct buffer_use {
  const kva_kernel *k;
  bool ordered;
} buffer_use;

static void find_ordered(void *user, kva_kinstr *i) {
  buffer_use *u = user;
  if (!u->ordered) u->ordered = kva_sched_is_ordered(u->k, i->buf);
}

static bool touches_ordered(const kva_kernel *k, kva_kloop *l) {
  buffer_use u = {.k = k};
  kva_k_each_instr_in(l->body, find_ordered, &u);
  return u.ordered;
}

typedef struct distribution {
  kva_kernel *k;
  bool touched; /* an earlier instruction may have accessed an ordered buffer */
} distribution;

/* i accesses an ordered buffer. */
static void order(distribution *d, kva_kinstr *i) {
  if (d->touched) insert_barrier(d->k, i);
  d->touched = true;
}

static void distribute(distribution *d, kva_kregion *r);

static void distribute_loop(distribution *d, kva_kloop *l) {
  kva_kernel *k = d->k;
  if (!l->subgroup) l = kva_sched_merge_reductions(k, l, true);
  bool ordered = touches_ordered(k, l);
  if (is_shared(k, l)) {
    make_thread(k, l);
    if (ordered) order(d, l->instr);
    return;
  }
  if (!l->subgroup) d->touched |= ordered; /* accessed in the previous iteration */
  distribute(d, l->body);
  l->kind = l->subgroup ? KVA_K_THREAD : kva_sched_sequential_kind(l);
}

static void distribute(distribution *d, kva_kregion *r) {
  for (kva_kinstr *i = r ? r->first : NULL, *next; i; i = next) {
    next = i->next;
    bool ordered = kva_sched_is_ordered(d->k, i->buf);
    if (i->op == KVA_K_LOOP) distribute_loop(d, i->loop);
    if (i->op == KVA_K_LOAD && ordered) order(d, i);
    if (i->op == KVA_K_STORE) {
      kva_kinstr *single = kva_sched_wrap(d->k, i);
      if (ordered) order(d, single);
    }
    distribute(d, i->then);
    distribute(d, i->orelse);
  }
}

typedef struct alike {
  const kva_kloop *l;
  uint32_t width;
  bool set;
} alike;

static void visit_alike(void *user, kva_kinstr *i) {
  alike *a = user;
  bool same = i->op == KVA_K_LOOP && i->loop->kind == KVA_K_THREAD && i->loop->extent == a->l->extent;
  if (same && a->set) i->loop->width = a->width;
  if (same && a->set && !a->width) i->loop->peel = NULL;
  if (same && i->loop->width < a->width) a->width = i->loop->width;
  if (same && i->loop->peel != a->l->peel) a->width = 0;
}

/* Loops of one length use the width of the narrowest, so that they deal the same elements to the same threads. Loops
 * whose peels differ have no lanes. */
static void even_widths(kva_kregion *r) {
  for (kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op != KVA_K_LOOP) continue;
    alike a = {i->loop, i->loop->width, false};
    if (i->loop->kind == KVA_K_THREAD) kva_k_each_instr_in(r, visit_alike, &a);
    a.set = true;
    if (i->loop->kind == KVA_K_THREAD) kva_k_each_instr_in(r, visit_alike, &a);
    even_widths(i->loop->body);
  }
}

void kva_sched_distribute(kva_kernel *k, kva_kregion *r) {
  distribution d = {.k = k};
  distribute(&d, r);
  even_widths(r);
}

kva_kloop *kva_sched_subgroups(const kva_kregion *r) {
  for (const kva_kinstr *i = r->first; i; i = i->next)
    if (i->op == KVA_K_LOOP && i->loop->subgroup > 1) return i->loop;
  return NULL;
}
