#include "tools/driver/ranges.h"

#include "ops/index.h"

/* The range of the first use of v as an index that has constant bounds. */
static kva_data_range range_of(const kva_module *m, const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next) {
    kva_indexing x = {0};
    kva_dim low, high;
    kva_data_range r = {.known = true};
    if (!u->user->op->indexing) continue;
    u->user->op->indexing(u->user, &x);
    if (kva_operand(u->user, x.operand) != v || x.n != 1) continue;
    kva_index_range(m->exprs, &x, 0, &low, &high);
    r.has_ignored = x.has_ignored, r.ignored = x.ignored;
    if (kva_expr_is_const(low, &r.low) && kva_expr_is_const(high, &r.high)) return r;
  }
  return (kva_data_range){.known = false};
}

const kva_data_range *kva_input_ranges(const kva_module *m, const kva_function *f, kva_arena *arena) {
  kva_data_range *ranges = KVA_NEW_ARRAY(arena, kva_data_range, f->graph->inputs.len + 1);
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) ranges[i] = range_of(m, f->graph->inputs.data[i]);
  return ranges;
}
