/* Shrinks a part that fails: ever smaller runs of nodes are taken away (delta debugging), and what is left reads the
 * known values in their place. A result that a node taken away has read is an output from then on, so that a failure is
 * found where it begins. */
#include "tools/diff/diff.h"
#include "tools/driver/isolate.h"

#include <stdlib.h>

typedef struct reduction {
  const kva_diff_values *v;
  const kva_diff_check *check;
  kva_diff_failure failure;
  char why[256];
  kva_diff_part *part;
  uint32_t trials;
} reduction;

/* ---- one trial --------------------------------------------------------------------------------------------------- */

typedef struct trial {
  const kva_diff_values *v;
  const kva_diff_part *part;
  const kva_diff_check *check;
} trial;

static kva_status only_compile(const trial *t, kva_diag *diag) {
  kvasir_program *p = NULL;
  kva_module *m = kva_diff_module(t->v, t->part);
  m->diag = diag;
  return kva_program_compile(m, &(kva_compile_options){.target = t->check->target->options}, t->check->target->device,
                             diag, &p);
}

/* In a process that ends afterwards: nothing is freed. */
static int work(void *user, kva_text *why) {
  const trial *t = user;
  kva_diag *diag = kva_diag_create();
  kva_ref_tensor **found = calloc(t->part->n_outputs + 1, sizeof *found);
  kva_status status = !found                   ? KVA_NO_MEMORY
                      : t->check->only_compile ? only_compile(t, diag)
                                               : kva_diff_compiled(t->v, t->part, t->check->target, found, diag);
  if (status) {
    kva_text_add(why, "%s", kva_diag_count(diag) ? kva_diag_message(diag, 0, NULL, NULL) : kva_status_name(status));
    return KVA_DIFF_REFUSED;
  }
  for (uint32_t i = 0; i < t->part->n_outputs && !t->check->only_compile; i++) {
    const kva_value *v = t->part->outputs[i];
    if (!kva_diff_agree(t->v, v, t->v->of[v->id], found[i], t->check->tolerance, why)) return KVA_DIFF_DIFFERS;
  }
  return KVA_DIFF_AGREES;
}

kva_diff_failure kva_diff_fails(const kva_diff_values *v, const kva_diff_part *part, const kva_diff_check *check,
                                char *why, size_t size) {
  trial t = {v, part, check};
  const kva_isolated job = {.work = work, .user = &t, .seconds = check->seconds};
  int code = kva_isolate(&job, why, size);
  return code < 0 ? KVA_DIFF_ENDED : (kva_diff_failure)code;
}

/* Texts up to the first number or name, which may be others for another part. */
static bool same_reason(const char *a, const char *b) {
  size_t n = strcspn(a, "0123456789'\""), m = strcspn(b, "0123456789'\"");
  return n == m && !strncmp(a, b, n);
}

/* Leaves out nodes that no output depends on. */
static void drop_dead(const kva_diff_values *v, kva_diff_part *part) {
  bool *alive = KVA_NEW_ARRAY(v->arena, bool, v->m->next_node_id);
  for (uint32_t i = 0; i < part->n_outputs; i++) alive[part->outputs[i]->def->id] = true;
  for (const kva_node *n = v->m->functions.data[0]->graph->last; n; n = n->prev) {
    part->keep[n->id] &= alive[n->id] || kva_node_binds(n).n > 0;
    for (uint32_t i = 0; part->keep[n->id] && i < n->n_operands; i++)
      if (kva_operand(n, i) && kva_operand(n, i)->def) alive[kva_operand(n, i)->def->id] = true;
  }
}

static bool try(reduction *r, kva_diff_part *part) {
  char why[sizeof r->why];
  if (!part->n_outputs) return false;
  drop_dead(r->v, part);
  r->trials++;
  if (kva_diff_fails(r->v, part, r->check, why, sizeof why) != r->failure) return false;
  if (r->failure == KVA_DIFF_REFUSED && !same_reason(why, r->why)) return false;
  *r->part = *part;
  return true;
}

/* ---- what is taken away ------------------------------------------------------------------------------------------ */

static bool was_output(const kva_diff_part *part, const kva_value *v) {
  for (uint32_t i = 0; i < part->n_outputs; i++)
    if (part->outputs[i] == v) return true;
  return false;
}

static bool is_read_outside(const kva_diff_part *from, const bool *keep, const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next)
    if (from->keep[u->user->id] && !keep[u->user->id]) return true;
  return false;
}

/* The part without `n` of its nodes. */
static kva_diff_part without(const reduction *r, uint32_t n, kva_node *const *nodes) {
  const kva_diff_part *from = r->part;
  kva_diff_part part = {.keep = kva_arena_memdup(r->v->arena, from->keep, r->v->m->next_node_id)};
  KVA_VEC(const kva_value *) outputs = {0};
  for (uint32_t i = 0; i < n; i++) part.keep[nodes[i]->id] = false;
  for (kva_node *k = r->v->m->functions.data[0]->graph->first; k; k = k->next)
    for (uint32_t i = 0; part.keep[k->id] && i < k->n_results; i++)
      if (was_output(from, &k->results[i]) || is_read_outside(from, part.keep, &k->results[i]))
        KVA_PUSH(r->v->arena, &outputs, &k->results[i]);
  part.n_outputs = outputs.len;
  part.outputs = outputs.data;
  return part;
}

typedef KVA_VEC(kva_node *) node_list;

static node_list nodes_of(const kva_diff_values *v, const kva_diff_part *part) {
  node_list nodes = {0};
  for (kva_node *n = v->m->functions.data[0]->graph->first; n; n = n->next)
    if (part->keep[n->id]) KVA_PUSH(v->arena, &nodes, n);
  return nodes;
}

static bool take_nodes(reduction *r) {
  bool changed = false;
  node_list nodes = nodes_of(r->v, r->part);
  for (uint32_t size = (nodes.len + 1) / 2; nodes.len > 1 && size; size /= 2)
    for (uint32_t i = 0; i < nodes.len && nodes.len > 1;) {
      uint32_t n = size < nodes.len - i ? size : nodes.len - i;
      kva_diff_part part = without(r, n, nodes.data + i);
      bool taken = try(r, &part);
      changed |= taken;
      if (taken)
        nodes = nodes_of(r->v, r->part);
      else
        i += n;
    }
  return changed;
}

static bool take_outputs(reduction *r) {
  const kva_diff_part from = *r->part;
  for (uint32_t i = 0; from.n_outputs > 1 && i < from.n_outputs; i++) {
    kva_diff_part part = {kva_arena_memdup(r->v->arena, from.keep, r->v->m->next_node_id), 1, &from.outputs[i]};
    if (try(r, &part)) return true;
  }
  return false;
}

uint32_t kva_diff_reduce(const kva_diff_values *v, const kva_diff_check *check, kva_diff_failure failure,
                         kva_diff_part *part) {
  reduction r = {.v = v, .check = check, .failure = failure, .part = part};
  kva_diff_fails(v, part, check, r.why, sizeof r.why);
  bool changed = take_outputs(&r);
  while (take_nodes(&r) || changed) changed = take_outputs(&r);
  return r.trials;
}

kva_diff_part kva_diff_whole(const kva_diff_values *v) {
  kva_graph *g = v->m->functions.data[0]->graph;
  kva_diff_part part = {.keep = KVA_NEW_ARRAY(v->arena, bool, v->m->next_node_id)};
  KVA_VEC(const kva_value *) outputs = {0};
  for (const kva_node *n = g->first; n; n = n->next) part.keep[n->id] = kva_diff_is_step(n);
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++) {
    const kva_value *output = kva_graph_output(g, i);
    if (output->def && part.keep[output->def->id] && !was_output(&part, output)) KVA_PUSH(v->arena, &outputs, output);
    part.n_outputs = outputs.len;
    part.outputs = outputs.data;
  }
  return part;
}

void kva_diff_describe(const kva_diff_values *v, const kva_diff_part *part) {
  node_list nodes = nodes_of(v, part);
  printf("smallest part that shows it: %u node%s:", nodes.len, nodes.len == 1 ? "" : "s");
  for (uint32_t i = 0; i < nodes.len; i++) printf("%s kv.%s", i ? "," : "", nodes.data[i]->op->name);
  printf("\n");
}
