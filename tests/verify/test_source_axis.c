/* What rows of operators say about axes (kva_op_info.source_axis) holds for all their cases, by the reference: where a
 * result steps along axes of operands, rows of these that move move the result's rows, and other rows do not matter. */
#include "ops/incremental.h"
#include "tools/verify/verify.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MAX_RESULTS = 4 };

typedef struct claim {
  const kva_case_built *built;
  uint32_t axis;                 /* of the results */
  int source[KVA_CASE_OPERANDS]; /* by input; KVA_SAME_FOR_ALL: none */
} claim;

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Element (outer, row, inner) of w. */
static int64_t place(const kva_ref_tensor *w, uint32_t axis, int64_t row, int64_t i) {
  int64_t inner = 1;
  for (uint32_t d = axis + 1; d < w->rank; d++) inner *= w->dims[d];
  return (i / inner * w->dims[axis] + row) * inner + i % inner;
}

static int64_t elements_of_row(const kva_ref_tensor *w, uint32_t axis) {
  return w->dims[axis] ? w->n / w->dims[axis] : 0;
}

static void copy_row(const kva_ref_tensor *from, int64_t from_row, kva_ref_tensor *to, int64_t to_row, uint32_t axis) {
  for (int64_t i = 0; i < elements_of_row(to, axis); i++) {
    if (to->f)
      to->f[place(to, axis, to_row, i)] = from->f[place(from, axis, from_row, i)];
    else
      to->i[place(to, axis, to_row, i)] = from->i[place(from, axis, from_row, i)];
  }
}

static bool same_row(const kva_ref_tensor *a, int64_t a_row, const kva_ref_tensor *b, int64_t b_row, uint32_t axis) {
  for (int64_t i = 0; i < elements_of_row(a, axis); i++) {
    double x = kva_ref_tensor_get(a, place(a, axis, a_row, i)), y = kva_ref_tensor_get(b, place(b, axis, b_row, i));
    if (x != y && !(x != x && y != y)) return false;
  }
  return true;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool evaluate(const claim *c, kva_ref_tensor *const *inputs, kva_ref_tensor **out) {
  const kva_case_built *b = c->built;
  return kva_run_reference(NULL, b->m, b->f, (const kva_ref_tensor *const *)inputs, out, b->diag) == KVA_OK;
}

/* Inputs whose row `row` is row (row + shift) of the originals; `spread`: all their rows are row 0. */
static void move_inputs(const claim *c, int64_t shift, bool spread, kva_ref_tensor **moved) {
  for (uint32_t i = 0; i < c->built->n_inputs; i++) {
    const kva_ref_tensor *w = c->built->inputs[i];
    moved[i] = kva_ref_tensor_create(w->dtype, w->rank, w->dims);
    if (c->source[i] < 0) {
      if (w->rank == 0 || w->n)
        memcpy(w->f ? (void *)moved[i]->f : (void *)moved[i]->i, w->f ? (void *)w->f : (void *)w->i,
               (size_t)w->n * sizeof(int64_t));
      continue;
    }
    uint32_t axis = (uint32_t)c->source[i];
    for (int64_t row = 0; row < w->dims[axis]; row++)
      copy_row(w, spread ? 0 : (row + shift) % w->dims[axis], moved[i], row, axis);
  }
}

static bool results_move(const claim *c, kva_ref_tensor *const *expected, int64_t shift, bool spread) {
  kva_ref_tensor *moved[KVA_CASE_OPERANDS] = {0}, *found[MAX_RESULTS] = {0};
  move_inputs(c, shift, spread, moved);
  bool ok = evaluate(c, moved, found);
  int64_t rows = expected[0]->dims[c->axis];
  for (uint32_t r = 0; ok && r < c->built->n_outputs; r++) {
    if (expected[r]->rank <= c->axis || expected[r]->dims[c->axis] != rows) continue;
    for (int64_t row = 0; ok && row < rows; row++)
      ok = same_row(expected[r], spread ? 0 : (row + shift) % rows, found[r], row, c->axis);
  }
  for (uint32_t i = 0; i < c->built->n_inputs; i++) kva_ref_tensor_free(moved[i]);
  for (uint32_t r = 0; r < c->built->n_outputs; r++) kva_ref_tensor_free(found[r]);
  return ok;
}

/* Makes the claim of result axis c->axis; false: there is none, or an operand has an axis of the same extent besides,
 * so that the pass would make none. */
static bool make_claim(claim *c) {
  const kva_node *n = c->built->node;
  kva_dim extent = n->results[0].type->dims[c->axis];
  bool any = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (!v) continue;
    if (v->def) return false;
    int source = kva_source_axis(n, i, c->axis);
    if (source == KVA_MIXED) return false;
    c->source[v->index] = source;
    any |= source >= 0;
    for (uint32_t d = 0; d < v->type->rank; d++)
      if (v->type->dims[d] == extent && (int)d != source && !kva_expr_is(extent, 1)) return false;
    if (source >= 0 && v->type->dims[source] != extent) return false;
  }
  return any;
}

/* Whether there were others, as the positions of maxima, which facts may depend on. */
static bool keep_first_result(kva_case_built *b) {
  static const bool others[MAX_RESULTS] = {false, true, true, true};
  if (b->n_outputs < 2 || b->n_outputs > MAX_RESULTS) return false;
  kva_graph_drop_outputs(b->f->graph, others, 0);
  b->n_outputs = 1;
  return true;
}

static uint32_t check_results(const kva_case *c, bool first) {
  kva_case_built built;
  uint32_t checks = 0;
  if (kva_case_build(c, KVA_DTYPE_NONE, &built) != KVA_OK) fail_msg("a case of kv.%s", kva_ops.ops[c->op]->name);
  if (first && !keep_first_result(&built)) {
    kva_case_free(&built);
    return 0;
  }
  const kva_type *result = built.node->results[0].type;
  kva_ref_tensor *expected[MAX_RESULTS] = {0};
  claim k = {.built = &built};
  bool usable = built.n_outputs <= MAX_RESULTS && evaluate(&k, built.inputs, expected);
  for (k.axis = 0; usable && k.axis < result->rank; k.axis++) {
    if (!make_claim(&k) || expected[0]->dims[k.axis] < 2) continue;
    kva_text text = {0};
    kva_case_describe(c, KVA_DTYPE_NONE, &text);
    if (!results_move(&k, expected, 1, false)) fail_msg("%s: rows of axis %u depend on their place", text.data, k.axis);
    if (!results_move(&k, expected, 0, true)) fail_msg("%s: rows of axis %u depend on others", text.data, k.axis);
    kva_text_free(&text);
    checks++;
  }
  for (uint32_t r = 0; r < MAX_RESULTS; r++) kva_ref_tensor_free(expected[r]);
  kva_case_free(&built);
  return checks;
}

static uint32_t check_case(const kva_case *c) {
  return check_results(c, false) + check_results(c, true);
}

static uint32_t check_operator(kva_op_id op) {
  const kva_case_table *tables[] = {&kva_cases_core, &kva_cases_nn};
  kva_arena *arena = kva_arena_create();
  kva_case c;
  uint32_t checks = 0;
  for (int t = 0; t < 2; t++)
    for (uint32_t i = 0; i < tables[t]->n; i++)
      if (tables[t]->cases[i].op == op) checks += check_case(&tables[t]->cases[i]);
  for (uint32_t i = 0; i < 40; i++)
    if (kva_dtype_in(kva_case_op_dtypes(op), KVA_F32) && kva_case_random(arena, op, KVA_F32, i, &c))
      checks += check_case(&c);
  kva_arena_destroy(arena);
  return checks;
}

/* Every row with the fact is checked by some case, except for dropout's, which claims nothing. */
static void facts_hold(void **state) {
  (void)state;
  for (uint32_t op = 0; op < kva_ops.n; op++) {
    const kva_op_info *info = kva_ops.ops[op];
    if (!info->source_axis && !(info->traits & KVA_ELEMENTWISE)) continue;
    if (info->traits & KVA_UPDATES) continue;
    uint32_t checks = check_operator((kva_op_id)op);
    if (!checks && info->source_axis && strcmp(info->name, "dropout")) fail_msg("no case checks kv.%s", info->name);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(facts_hold)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
