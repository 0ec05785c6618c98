/* kvasir diff: a model's main function, piece by piece. */
#include "tools/diff/diff.h"
#include "runtime/npy.h"

#include <stdlib.h>
#include <unistd.h>

enum { MAX_PRINTED = 10, MAX_PATH = 4096, REDUCE_SECONDS = 60 };

typedef struct run {
  kva_diff_values *v;
  const kva_diff_options *o;
  kva_diag *diag;
  kva_diff_report *report;
  kva_arena *arena;   /* of the piece */
  uint32_t *position; /* of nodes, by id */
  bool *beyond;       /* of values, by id */
  bool *tainted;      /* of values, by id: computed in the same piece from one that is beyond the tolerance */
  bool reduced;
  KVA_VEC(kva_node *) piece;
} run;

/* ---- parts of a piece -------------------------------------------------------------------------------------------- */

static bool is_read_later(const run *r, const kva_value *v, uint32_t end) {
  for (const kva_use *u = v->uses; u; u = u->next)
    if (r->position[u->user->id] > end) return true;
  return false;
}

static uint32_t end_of(const run *r) {
  return r->position[r->piece.data[r->piece.len - 1]->id];
}

/* The piece with all results of its nodes as outputs, or with those alone that nodes behind it read. */
static kva_diff_part part_of(const run *r, bool all) {
  kva_diff_part part = {.keep = KVA_NEW_ARRAY(r->arena, bool, r->v->m->next_node_id)};
  KVA_VEC(const kva_value *) outputs = {0};
  for (uint32_t k = 0; k < r->piece.len; k++) {
    kva_node *n = r->piece.data[k];
    part.keep[n->id] = true;
    for (uint32_t i = 0; i < n->n_results; i++)
      if (all || is_read_later(r, &n->results[i], end_of(r))) KVA_PUSH(r->arena, &outputs, &n->results[i]);
  }
  part.n_outputs = outputs.len;
  part.outputs = outputs.data;
  return part;
}

static kva_ref_tensor **tensors(const run *r, const kva_diff_part *part) {
  return KVA_NEW_ARRAY(r->arena, kva_ref_tensor *, part->n_outputs + 1);
}

/* ---- expected values --------------------------------------------------------------------------------------------- */

/* Another runtime's value in the place of the reference's, if there is a file. */
static kva_status expected_from_file(run *r, const kva_value *v, kva_ref_tensor **w) {
  char path[MAX_PATH];
  kva_tensor t;
  if (!r->o->against || !v->name) return KVA_OK;
  if (snprintf(path, sizeof path, "%s/%s", r->o->against, v->name) >= (int)sizeof path - 8) return KVA_OK;
  for (char *c = path + strlen(r->o->against) + 1; *c; c++)
    if (*c == '/') *c = '_';
  strcat(path, ".npy");
  if (access(path, R_OK) != 0) return KVA_OK;
  KVA_TRY(kva_npy_read(path, v->type->dtype, r->diag, &t));
  kva_ref_tensor_free(*w);
  *w = kva_ref_tensor_from_data(t.dtype, (uint32_t)t.rank, t.dims, t.data);
  kva_npy_free(&t);
  r->report->files++;
  return KVA_OK;
}

static kva_status expect(run *r, const kva_diff_part *part) {
  kva_ref_tensor **w = tensors(r, part);
  kva_status status = kva_diff_reference(r->v, part, w, r->diag);
  for (uint32_t i = 0; i < part->n_outputs; i++) {
    if (status == KVA_OK) status = expected_from_file(r, part->outputs[i], &w[i]);
    if (status == KVA_OK)
      status = kva_diff_learn(r->v, part->outputs[i], w[i]);
    else
      kva_ref_tensor_free(w[i]);
  }
  for (uint32_t i = 0; i < r->piece.len; i++) kva_diff_learn_bind(r->v, r->piece.data[i]);
  return status;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static void write_smallest(run *r, const kva_diff_part *part, const kva_value *v) {
  const kva_diff_check check = {r->o->target, r->o->tolerance, REDUCE_SECONDS, false};
  kva_diff_part smallest = {kva_arena_memdup(r->arena, part->keep, r->v->m->next_node_id), 1,
                            kva_arena_memdup(r->arena, &v, sizeof v)};
  char why[256];
  if (kva_diff_fails(r->v, &smallest, &check, why, sizeof why) != KVA_DIFF_DIFFERS) smallest = *part;
  kva_diff_reduce(r->v, &check, KVA_DIFF_DIFFERS, &smallest);
  kva_diff_describe(r->v, &smallest);
  if (r->o->output_dir && kva_diff_write(r->v, &smallest, &check, r->o->output_dir, r->diag))
    kva_diag_print(r->diag, stderr);
  kva_diag_clear(r->diag);
}

static void report_beyond(run *r, const kva_diff_part *part, const kva_value *v, bool all, const char *why) {
  r->beyond[v->id] = true;
  if (r->report->beyond++ < MAX_PRINTED || r->o->verbose) {
    kva_error(r->diag, &v->def->loc, "value '%s' of kv.%s%s: %s", v->name ? v->name : "unnamed", v->def->op->name,
              all ? "" : ", as a part of its piece", why);
    fflush(stdout);
    kva_diag_print(r->diag, stderr);
    kva_diag_clear(r->diag);
  }
  if (!r->reduced) write_smallest(r, part, v);
  r->reduced = true;
}

/* Whether v is to be right, if its node's code is. */
static bool is_judged(run *r, const kva_value *v) {
  for (uint32_t i = 0; i < v->def->n_operands; i++) {
    const kva_value *operand = kva_operand(v->def, i);
    if (operand) r->tainted[v->id] |= r->tainted[operand->id] || r->beyond[operand->id];
  }
  return !r->tainted[v->id] && !r->beyond[v->id];
}

/* all: every value is a result. Else code is fused as in a whole model, and values that no later node reads are not
 * seen. */
static kva_status compare(run *r, bool all) {
  kva_diff_part part = part_of(r, all);
  kva_ref_tensor **found = tensors(r, &part);
  if (!part.n_outputs) return KVA_OK;
  kva_status status = kva_diff_compiled(r->v, &part, r->o->target, found, r->diag);
  for (uint32_t i = 0; i < part.n_outputs; i++) {
    const kva_value *v = part.outputs[i];
    kva_text why = {0};
    if (status == KVA_OK && is_judged(r, v) &&
        !kva_diff_agree(r->v, v, r->v->of[v->id], found[i], r->o->tolerance, &why))
      report_beyond(r, &part, v, all, why.data);
    kva_text_free(&why);
    kva_ref_tensor_free(found[i]);
  }
  if (status == KVA_OK && all) r->report->compared += part.n_outputs;
  return status;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static void forget(run *r, const kva_graph *g) {
  uint32_t end = end_of(r);
  for (uint32_t i = 0; i < g->inputs.len; i++)
    if (!is_read_later(r, g->inputs.data[i], end)) kva_diff_forget(r->v, g->inputs.data[i]);
  for (const kva_node *n = g->first; n && r->position[n->id] <= end; n = n->next)
    for (uint32_t i = 0; i < n->n_results; i++)
      if (!is_read_later(r, &n->results[i], end)) kva_diff_forget(r->v, &n->results[i]);
}

static kva_status run_piece(run *r, const kva_graph *g) {
  if (!r->piece.len) return KVA_OK;
  r->arena = kva_arena_create();
  kva_diff_part all = part_of(r, true);
  kva_status status = all.n_outputs ? expect(r, &all) : KVA_OK;
  if (status == KVA_OK) status = compare(r, true);
  if (status == KVA_OK) status = compare(r, false);
  if (r->o->verbose)
    printf("%u values compared up to %s\n", r->report->compared, r->piece.data[r->piece.len - 1]->op->name);
  forget(r, g);
  memset(r->tainted, 0, r->v->m->next_value_id);
  memset(r->beyond, 0, r->v->m->next_value_id);
  kva_arena_destroy(r->arena);
  r->piece.len = 0;
  return status;
}

kva_status kva_diff_run(kva_diff_values *v, const kva_diff_options *o, kva_diag *diag, kva_diff_report *out_report) {
  const kva_graph *g = v->m->functions.data[0]->graph;
  run r = {.v = v, .o = o, .diag = diag, .report = out_report};
  *out_report = (kva_diff_report){0};
  r.position = KVA_NEW_ARRAY(v->arena, uint32_t, v->m->next_node_id);
  r.beyond = KVA_NEW_ARRAY(v->arena, bool, v->m->next_value_id);
  r.tainted = KVA_NEW_ARRAY(v->arena, bool, v->m->next_value_id);
  uint32_t position = 0;
  for (const kva_node *n = g->first; n; n = n->next) r.position[n->id] = ++position;
  for (kva_node *n = g->first; n; n = n->next) {
    if (!kva_diff_is_step(n)) continue;
    KVA_PUSH(v->arena, &r.piece, n);
    if (r.piece.len == o->piece) KVA_TRY(run_piece(&r, g));
  }
  return run_piece(&r, g);
}
