/* The best mesh for a cluster.
 *
 * A mesh is a group, of `tensor` times `sequence` GPUs in one node, as often as the cluster has it, with a stage of
 * zero. Each group is planned once, for one row: that gives, or refuses, what its processes compute, hold and exchange
 * among themselves. What the axis data adds is arithmetic: parts of states, and sums and gatherings of all gradients
 * and parameters. By that the meshes are put in order, and those that come first are planned in full. */
#include "tools/planner/planner.h"

#include <stdlib.h>

enum {
  PLANNED = 12, /* meshes that are planned in full, at most */
  TAKEN = 5,
  STAGES = 4, /* of zero, with none */
};

typedef struct search {
  const kva_planner *planner;
  kva_arena *arena;
  kva_diag *diag;
  KVA_VEC(kva_candidate) all;
} search;

/* The first error, without advice, which the diag then has no more. */
static const char *take_reason(search *s) {
  kva_severity severity = KVA_NOTE;
  const char *text = NULL;
  for (size_t i = 0; i < kva_diag_count(s->diag) && severity != KVA_ERROR; i++)
    text = kva_diag_message(s->diag, i, &severity, NULL);
  text = text ? kva_arena_strndup(s->arena, text, strcspn(text, ";")) : "it cannot be planned";
  kva_diag_clear(s->diag);
  return text;
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

enum { GROUP_PASSES = 2 }; /* a group is planned with several micro-batches, whose programs are apart */

/* Bytes of a process: states, and what `rows` rows take if all values are kept. */
typedef struct demand {
  int64_t states, temporaries;
} demand;

static demand demand_of(const kva_paper *group, const kva_mesh *mesh, int64_t rows) {
  int64_t n = kva_mesh_extent(mesh->data);
  int64_t params = group->params / (mesh->zero > 2 ? n : 1), gradients = group->gradients / (mesh->zero > 1 ? n : 1);
  int64_t copies = mesh->zero > 2 ? 0 : group->copies, moments = group->moments / (mesh->zero > 0 ? n : 1);
  return (demand){params + copies + moments + gradients + kva_paper_other(group),
                  rows / group->rows * kva_paper_temporaries(group)};
}

/* Seconds that exchanges of `bytes` bytes take over the axis data, in so many rounds (kva_exchanged). */
static double data_seconds(const search *s, const kva_mesh *mesh, int rounds, int64_t count, int64_t bytes) {
  kva_exchange_cost e = {.parts = kva_mesh_extent(mesh->data), .stride = kva_mesh_group(mesh)};
  const kva_exchanged x = {.summed = bytes, .each = rounds * (bytes - bytes / e.parts), .rounds = rounds};
  if (e.parts > 1) kva_exchange_add(&s->planner->cluster, &x, count, &e);
  return e.seconds;
}

static double data_exchange(const search *s, const kva_paper *group, const kva_mesh *mesh, int64_t passes) {
  int64_t gradients = group->gradients, params = group->params;
  if (!mesh->zero) return data_seconds(s, mesh, 2, 1, gradients);
  double sums = data_seconds(s, mesh, 1, mesh->zero > 1 ? passes : 1, gradients);
  return sums + data_seconds(s, mesh, 1, mesh->zero > 2 ? 2 * passes : 1, params);
}

/* Seconds of a step in `passes` micro-batches of `rows` rows. Where these do not fit, the forward pass is computed
 * twice: a third more. */
static double estimate(const search *s, const kva_paper *group, const kva_mesh *mesh, int64_t rows, int64_t passes) {
  const kva_program_cost *gradients = &group->programs[0], *update = &group->programs[1];
  demand d = demand_of(group, mesh, rows);
  bool again = d.states + d.temporaries > s->planner->memory;
  double all = (double)(rows * passes) / (double)(group->rows * GROUP_PASSES);
  double compute = all * gradients->compute * (again ? 4.0 / 3 : 1) +
                   update->compute / (double)(mesh->zero ? kva_mesh_extent(mesh->data) : 1);
  return compute + all * kva_paper_exchange(group) + data_exchange(s, group, mesh, passes);
}

/* The rows of a micro-batch that fit, or what the user says. 1: perhaps none. */
static int64_t rows_of(const search *s, const kva_paper *group, const kva_mesh *mesh, int64_t each) {
  if (s->planner->rows) return s->planner->rows;
  demand d = demand_of(group, mesh, 1);
  return kva_planner_divisor(each, (s->planner->memory - d.states) / (d.temporaries + 1));
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

static void add_candidate(search *s, const kva_paper *group, const kva_mesh *mesh) {
  kva_candidate c = {.mesh = *mesh};
  int64_t each, rows;
  if (kva_planner_rows(s->planner, mesh, s->diag, &each) != KVA_OK) {
    c.reason = take_reason(s);
  } else if (demand_of(group, mesh, 0).states >= s->planner->memory) {
    c.reason = "states alone take more than a process may";
  } else {
    rows = rows_of(s, group, mesh, each);
    c.estimate = estimate(s, group, mesh, rows, each / rows);
  }
  KVA_PUSH(s->arena, &s->all, c);
}

/* The group, as often as the cluster has it, with every stage. */
static void add_group(search *s, const kva_mesh *group) {
  kva_paper paper;
  kva_mesh mesh = *group;
  mesh.data = kva_cluster_gpus(&s->planner->cluster) / kva_mesh_group(group);
  int64_t rows = s->planner->rows ? s->planner->rows : 1;
  if (kva_planner_plan(s->planner, group, rows, GROUP_PASSES, 0, s->diag, &paper) != KVA_OK) {
    kva_candidate c = {.mesh = mesh, .reason = take_reason(s)};
    KVA_PUSH(s->arena, &s->all, c);
    return;
  }
  for (mesh.zero = 0; mesh.zero < (mesh.data > 1 ? STAGES : 1); mesh.zero++) add_candidate(s, &paper, &mesh);
}

static void add_groups(search *s) {
  int64_t node = s->planner->cluster.per_node;
  for (int64_t tensor = 1; tensor <= node; tensor++)
    for (int64_t sequence = 1; tensor * sequence <= node; sequence++)
      if (node % (tensor * sequence) == 0) add_group(s, &(kva_mesh){.tensor = tensor, .sequence = sequence});
}

/* ---- choice ------------------------------------------------------------------------------------------------------ */

static int by_estimate(const void *a, const void *b) {
  const kva_candidate *x = a, *y = b;
  if (!x->reason != !y->reason) return x->reason ? 1 : -1;
  return (x->estimate > y->estimate) - (x->estimate < y->estimate);
}

static int by_time(const void *a, const void *b) {
  const kva_candidate *x = a, *y = b;
  if (x->reason || y->reason) return by_estimate(a, b);
  double s = kva_paper_seconds(&x->paper), t = kva_paper_seconds(&y->paper);
  return (s > t) - (s < t);
}

/* With one micro-batch, gradients are in parts with either stage. */
static const char *check_plan(const kva_paper *p) {
  return p->mesh.zero == 2 && p->passes == 1 ? "one micro-batch, so zero=1 is the same" : NULL;
}

/* Plans the first ones in full. */
static void plan_first(search *s) {
  uint32_t planned = 0;
  for (uint32_t i = 0; i < s->all.len; i++) {
    kva_candidate *c = &s->all.data[i];
    if (c->reason) continue;
    if (++planned > PLANNED)
      c->reason = "slower, by arithmetic, than those that were planned";
    else if (kva_planner_fit(s->planner, &c->mesh, s->diag, &c->paper) == KVA_OK)
      c->reason = check_plan(&c->paper);
    else
      c->reason = take_reason(s);
  }
}

kva_status kva_planner_search(const kva_planner *planner, kva_arena *arena, kva_diag *diag, kva_search *out) {
  search s = {.planner = planner, .arena = arena, .diag = diag};
  add_groups(&s);
  qsort(s.all.data, s.all.len, sizeof *s.all.data, by_estimate);
  plan_first(&s);
  qsort(s.all.data, s.all.len, sizeof *s.all.data, by_time);
  *out = (kva_search){.n = s.all.len, .all = s.all.data};
  for (uint32_t i = 0; i < s.all.len && !s.all.data[i].reason; i++) {
    if (i < TAKEN)
      out->n_taken++;
    else
      s.all.data[i].reason = "slower than the best five";
  }
  return KVA_OK;
}
