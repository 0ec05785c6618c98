/* Recomputing: training within a number of bytes.
 *
 * What: a training step keeps values of the forward pass for the backward pass. Where its memory exceeds the budget,
 * steps are dropped: the backward pass runs them again, right before it needs their results, and their memory is free
 * in between. Bits do not change, since the same kernels compute the same values.
 *
 * Which: the plan says which temporaries are alive at the peak. Of the steps whose results lie idle there, the one goes
 * first that frees most bytes for the work of running it again: its FLOPs, and its bytes at FLOPS_PER_BYTE. What it
 * reads must be there then: an operand that is not either stays, if it is small, or is computed again, too. Then the
 * peak is looked for again, until the function fits.
 *
 * Requires: pass fuse, whose kernels are the steps. Breaks: nothing. It counts with
 * kva_assumed_extent where extents are not known; the result is right for any.
 *
 * Why not the layers of a model, as frameworks do it: what a layer is is not known here, and within one a norm or an
 * activation costs nothing beside a product. Why greedy: work per byte differs by orders of magnitude between kernels
 * and hardly between layers (Chen et al., arXiv 1604.06174, for whole layers; Korthikanti et al., arXiv 2205.05198, for
 * the choice within one). */
#include "passes/recompute.h"

/* What a byte of traffic costs in FLOPs: 20 on a CPU of two cores, 200 on a large GPU. The order of candidates depends
 * little on it. */
#define FLOPS_PER_BYTE 64

enum {
  MAX_CHAIN = 16, /* steps that one dropped step may need again */
  GAPS = 32,      /* one of so many bytes is left for the gaps between temporaries, which the runtime places */
};

typedef struct chooser {
  kva_drops drops;
  const kva_memory_plan *plan;
  uint32_t n_steps;
  int64_t *bytes; /* by buffer; 0: no temporary */
  double *work;   /* by step */
  bool *may_drop; /* by step */
  /* What `simulate` finds: */
  int32_t *again_at;             /* by step: before which step it runs again; -1: it does not */
  int32_t *last_use, *last_copy; /* by buffer: last step that reads what it is at first, and the copy; -1: none */
  int64_t *live;                 /* by step: bytes of temporaries */
} chooser;

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Bytes of temporaries, and the work of steps. */
static void measure(chooser *c, const kva_plan_bytes *b, const kva_sizes *sizes) {
  for (uint32_t i = 0; i < c->plan->buffers.len; i++)
    c->bytes[i] = c->plan->buffers.data[i].place == KVA_PLACE_TEMP ? b->of[i] : 0;
  for (uint32_t s = 0; s < c->n_steps; s++) {
    const kva_plan_step *step = &c->plan->steps.data[s];
    double traffic = 0;
    for (uint32_t k = 0; k < step->n_args; k++) traffic += (double)b->of[step->args[k]];
    c->work[s] = traffic * FLOPS_PER_BYTE + (step->node ? kva_node_flops(step->node, sizes) : 0);
  }
}

/* ---- what may run again ------------------------------------------------------------------------------------------ */

static uint32_t n_read(const kva_plan_step *s) {
  return s->node ? s->n_args - s->node->n_results : s->n_args;
}

/* Calls may be sums over processes or checks; control nodes hold programs. */
static bool may_run_twice(const kva_plan_step *s) {
  const uint32_t never = KVA_CONTROL | KVA_BINDS | KVA_UPDATES_PART | KVA_READS_STATE | KVA_WRITES_STATE;
  return s->kind == KVA_PLAN_KERNEL && s->node->op->lower_kind != KVA_LOWER_CALL && !(s->node->op->traits & never);
}

static void find_makers(chooser *c) {
  for (uint32_t b = 0; b < c->plan->buffers.len; b++) c->drops.made_by[b] = -1;
  for (uint32_t s = 0; s < c->n_steps; s++) {
    const kva_plan_step *step = &c->plan->steps.data[s];
    c->may_drop[s] = may_run_twice(step);
    for (uint32_t k = n_read(step); k < step->n_args; k++) {
      int32_t b = step->args[k];
      if (!c->bytes[b] || c->drops.made_by[b] >= 0) c->may_drop[s] = false;
      c->drops.made_by[b] = (int32_t)s;
    }
  }
  /* Copies at the end read what would be made only for them; what they write is no step's result alone. What is sent
   * stays where it is until that has ended. */
  for (uint32_t s = 0; s < c->n_steps; s++) {
    const kva_plan_step *step = &c->plan->steps.data[s];
    for (uint32_t k = 0; k < step->n_args && !step->node; k++)
      if (c->drops.made_by[step->args[k]] >= 0) c->may_drop[c->drops.made_by[step->args[k]]] = false;
  }
}

/* ---- simulation -------------------------------------------------------------------------------------------------- */

static void read_buffer(chooser *c, int32_t b, int32_t at) {
  if (!kva_reads_copy(&c->drops, b, at)) {
    if (c->last_use[b] < at) c->last_use[b] = at;
    return;
  }
  int32_t step = c->drops.made_by[b];
  c->last_copy[b] = at;
  if (c->again_at[step] >= 0) return;
  c->again_at[step] = at;
  const kva_plan_step *s = &c->plan->steps.data[step];
  for (uint32_t k = 0; k < n_read(s); k++) read_buffer(c, s->args[k], at);
}

static void add_lifetime(chooser *c, int32_t first, int32_t last, int64_t bytes) {
  c->live[first] += bytes;
  c->live[last + 1] -= bytes;
}

/* Fills what follows from drops; the peak is alive at the step that is returned. */
static int32_t simulate(chooser *c) {
  memset(c->again_at, -1, c->n_steps * sizeof *c->again_at);
  memset(c->last_use, -1, c->plan->buffers.len * sizeof *c->last_use);
  memset(c->last_copy, -1, c->plan->buffers.len * sizeof *c->last_copy);
  memset(c->live, 0, (c->n_steps + 1) * sizeof *c->live);
  for (uint32_t s = 0; s < c->n_steps; s++) {
    const kva_plan_step *step = &c->plan->steps.data[s];
    for (uint32_t k = 0; k < n_read(step); k++) read_buffer(c, step->args[k], (int32_t)s);
    for (uint32_t k = n_read(step); k < step->n_args; k++) c->last_use[step->args[k]] = (int32_t)s;
  }
  for (uint32_t b = 0; b < c->plan->buffers.len; b++) {
    int32_t step = c->drops.made_by[b], first = c->plan->buffers.data[b].first_step;
    if (!c->bytes[b]) continue;
    add_lifetime(c, first, c->last_use[b] < first ? first : c->last_use[b], c->bytes[b]);
    if (c->last_copy[b] >= 0) add_lifetime(c, c->again_at[step], c->last_copy[b], c->bytes[b]);
  }
  int32_t peak = 0;
  for (uint32_t s = 1; s < c->n_steps; s++) {
    c->live[s] += c->live[s - 1];
    if (c->live[s] > c->live[peak]) peak = (int32_t)s;
  }
  return peak;
}

/* ---- choice ------------------------------------------------------------------------------------------------------ */

/* Dropping a step and what it needs. */
typedef struct candidate {
  int32_t steps[MAX_CHAIN], n;
  int64_t freed;
  double work;
} candidate;

/* Bytes that the results of `step` take while step `at` runs, which does not touch them. */
static int64_t idle_bytes(const chooser *c, int32_t step, int32_t at) {
  const kva_plan_step *s = &c->plan->steps.data[step], *now = &c->plan->steps.data[at];
  int64_t total = 0;
  for (uint32_t k = n_read(s); k < s->n_args; k++) {
    for (uint32_t i = 0; i < now->n_args; i++)
      if (now->args[i] == s->args[k]) return 0;
    if (c->last_use[s->args[k]] > at) total += c->bytes[s->args[k]];
  }
  return total;
}

static bool is_in(const candidate *k, int32_t step) {
  for (int32_t i = 0; i < k->n; i++)
    if (k->steps[i] == step) return true;
  return false;
}

/* Adds `step`, dropped behind `at`, and what must be dropped with it. */
static bool add_step(const chooser *c, int32_t step, int32_t at, candidate *out) {
  if (!c->may_drop[step] || step >= at || out->n == MAX_CHAIN) return false;
  out->steps[out->n++] = step;
  out->work += c->work[step];
  const kva_plan_step *s = &c->plan->steps.data[step];
  for (uint32_t k = 0; k < n_read(s); k++) {
    int32_t b = s->args[k], maker = c->drops.made_by[b];
    if (!c->bytes[b] || maker < 0 || c->last_use[b] > at || is_in(out, maker)) continue;
    bool copied = c->drops.behind[maker] <= at;
    if (copied && c->again_at[maker] >= 0) continue;
    if (!copied && c->bytes[b] <= out->freed / 4)
      out->freed -= c->bytes[b];
    else if (!add_step(c, maker, at, out))
      return false;
  }
  return true;
}

/* The step, with what it needs, that frees most for its work. */
static bool find_best(const chooser *c, const bool *tried, int32_t at, candidate *out_best) {
  double best = 0;
  for (int32_t s = 0; s < at; s++) {
    if (!c->may_drop[s] || tried[s] || c->drops.behind[s] <= at) continue;
    candidate k = {.freed = idle_bytes(c, s, at)};
    if (!k.freed || !add_step(c, s, at, &k) || k.freed <= 0) continue;
    double worth = (double)k.freed / (k.work + 1);
    if (worth > best) best = worth, *out_best = k;
  }
  return best > 0;
}

/* True if it lowered what is alive at `at`, the peak, and nothing rose above that; else nothing changed. */
static bool drop(chooser *c, const candidate *k, int32_t at, int32_t *out_peak) {
  int32_t before[MAX_CHAIN];
  int64_t live = c->live[at];
  for (int32_t i = 0; i < k->n; i++) {
    int32_t *behind = &c->drops.behind[k->steps[i]];
    before[i] = *behind;
    if (*behind > at) *behind = at;
  }
  *out_peak = simulate(c);
  if (c->live[at] < live && c->live[*out_peak] <= live) return true;
  for (int32_t i = k->n; i-- > 0;) c->drops.behind[k->steps[i]] = before[i];
  *out_peak = simulate(c);
  return false;
}

/* Drops steps until temporaries take at most `budget`; what they take then. */
static int64_t choose(chooser *c, int64_t budget, kva_arena *scratch) {
  bool *tried = KVA_NEW_ARRAY(scratch, bool, c->n_steps + 1);
  int32_t peak = simulate(c);
  candidate k;
  while (c->live[peak] > budget && find_best(c, tried, peak, &k)) {
    int32_t at = peak;
    if (!drop(c, &k, at, &peak)) tried[k.steps[0]] = true;
  }
  return c->live[peak];
}

/* Bytes that lie idle at step `at` before anything is dropped, and which of them are dropped by now. */
static kva_recomputed compare(chooser *c, const int64_t *idle) {
  kva_recomputed r = {0};
  for (uint32_t s = 0; s < c->n_steps; s++) {
    *(c->drops.behind[s] == KVA_KEPT ? &r.kept_bytes : &r.again_bytes) += idle[s];
    r.steps += c->again_at[s] >= 0;
  }
  return r;
}

static int64_t *idle_at_peak(chooser *c, kva_arena *scratch) {
  int64_t *idle = KVA_NEW_ARRAY(scratch, int64_t, c->n_steps + 1);
  int32_t peak = simulate(c);
  for (int32_t s = 0; s < peak; s++) idle[s] = idle_bytes(c, s, peak);
  return idle;
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

static chooser chooser_for(const kva_memory_plan *plan, kva_arena *scratch) {
  uint32_t steps = plan->steps.len, buffers = plan->buffers.len;
  chooser c = {.plan = plan, .n_steps = steps};
  c.drops = (kva_drops){plan, KVA_NEW_ARRAY(scratch, int32_t, buffers + 1), KVA_NEW_ARRAY(scratch, int32_t, steps + 1)};
  for (uint32_t s = 0; s < steps; s++) c.drops.behind[s] = KVA_KEPT;
  c.bytes = KVA_NEW_ARRAY(scratch, int64_t, buffers + 1);
  c.last_use = KVA_NEW_ARRAY(scratch, int32_t, buffers + 1);
  c.last_copy = KVA_NEW_ARRAY(scratch, int32_t, buffers + 1);
  c.work = KVA_NEW_ARRAY(scratch, double, steps + 1);
  c.may_drop = KVA_NEW_ARRAY(scratch, bool, steps + 1);
  c.again_at = KVA_NEW_ARRAY(scratch, int32_t, steps + 1);
  c.live = KVA_NEW_ARRAY(scratch, int64_t, steps + 2);
  return c;
}

static kva_status fit(kva_module *m, kva_function *f, const kva_pass_options *o, kva_arena *scratch, bool *changed) {
  kva_memory_plan *plan;
  KVA_TRY(kva_plan(m, f, scratch, &plan));
  if (!plan->steps.len) return KVA_OK;
  chooser c = chooser_for(plan, scratch);
  const kva_sizes sizes = {m, kva_assumed_extent, m};
  kva_plan_bytes bytes;
  KVA_TRY(kva_plan_measure(m, plan, &sizes, scratch, &bytes));
  measure(&c, &bytes, &sizes);
  find_makers(&c);
  int64_t *idle = idle_at_peak(&c, scratch), room = o->memory - bytes.fixed;
  int64_t temporaries = choose(&c, room - room / GAPS, scratch);
  if (temporaries > room - room / GAPS)
    return kva_plan_too_large(m, plan, &bytes,
                              &(kva_excess){.status = KVA_INVALID,
                                            .fixed = bytes.fixed,
                                            .temporaries = temporaries,
                                            .limit = o->memory,
                                            .whose = "",
                                            .advice = "give more memory, a smaller batch or shorter sequences"});
  f->recomputed = compare(&c, idle);
  if (f->recomputed.steps) *changed = true;
  kva_insert_copies(m, &c.drops);
  return KVA_OK;
}

kva_status kva_recompute(kva_module *m, const kva_pass_options *o, bool *changed) {
  kva_status status = KVA_OK;
  for (uint32_t i = 0; i < m->functions.len && o->memory && !status; i++) {
    kva_arena *scratch = kva_arena_create();
    if (kva_writes_states(m->functions.data[i])) status = fit(m, m->functions.data[i], o, scratch, changed);
    kva_arena_destroy(scratch);
  }
  return status;
}
