/* Makes an artefact's tables from memory plans: lowers and schedules every step and adds it to the module of kernels;
 * sizes and grids become formulas over one list of shape symbols that all programs share, so that programs share
 * kernels. Kernels get the symbols that they read; steps on a CPU share a kernel if these differ in their names. */
#include "codegen/codegen.h"
#include "ops/exchange.h"
#include "ops/ids.h"
#include "ops/matmul.h"

#include <stdlib.h>

typedef struct symbol_list {
  int32_t n;
  const int32_t *numbers;
} symbol_list;

typedef struct map_list {
  int32_t n;
  const kva_tensor_map_desc *maps;
} map_list;

typedef struct writer {
  kva_codegen *cg;
  kva_arena *arena;
  kva_module *m;
  kva_kernel_set *kernels;
  KVA_VEC(const kva_expr *) symbols;
  KVA_VEC(symbol_list) kernel_symbols; /* GPU: by kernel */
  KVA_VEC(map_list) kernel_maps;       /* GPU: by kernel */
  KVA_VEC(kva_memory_plan *) plans;    /* of programs: those of functions, then those that steps run */
  bool failed;
} writer;

/* ---- formulas ---------------------------------------------------------------------------------------------------- */

typedef KVA_VEC(kva_formula_word) words;

static int64_t symbol_number(const writer *w, const kva_expr *symbol) {
  for (uint32_t i = 0; i < w->symbols.len; i++) {
    if (w->symbols.data[i] == symbol) return i;
  }
  KVA_ASSERT(!"a size depends on something that is no shape symbol");
  return -1;
}

static void push(writer *w, words *out, kva_formula_op op, int64_t arg) {
  kva_formula_word word = {op, arg};
  KVA_PUSH(w->arena, out, word);
}

static void write_expr(writer *w, words *out, const kva_expr *e);

static void write_term(writer *w, words *out, const kva_expr_term *t) {
  KVA_ASSERT(t->n_factors);
  write_expr(w, out, t->factors[0]);
  for (uint32_t f = 1; f < t->n_factors; f++) {
    write_expr(w, out, t->factors[f]);
    push(w, out, KVA_FORMULA_MUL, 0);
  }
  if (t->coefficient == 1) return;
  push(w, out, KVA_FORMULA_CONST, t->coefficient);
  push(w, out, KVA_FORMULA_MUL, 0);
}

static void write_sum(writer *w, words *out, const kva_expr *e) {
  bool any = e->constant || !e->n_terms;
  if (any) push(w, out, KVA_FORMULA_CONST, e->constant);
  for (uint32_t i = 0; i < e->n_terms; i++) {
    write_term(w, out, &e->terms[i]);
    if (any) push(w, out, KVA_FORMULA_ADD, 0);
    any = true;
  }
}

static void write_expr(writer *w, words *out, const kva_expr *e) {
  static const kva_formula_op ops[] = {[KVA_EXPR_DIV] = KVA_FORMULA_DIV,
                                       [KVA_EXPR_MOD] = KVA_FORMULA_MOD,
                                       [KVA_EXPR_MIN] = KVA_FORMULA_MIN,
                                       [KVA_EXPR_MAX] = KVA_FORMULA_MAX};
  switch (e->kind) {
  case KVA_EXPR_SUM: write_sum(w, out, e); return;
  case KVA_EXPR_SYMBOL: push(w, out, KVA_FORMULA_SYMBOL, symbol_number(w, e)); return;
  case KVA_EXPR_OVERFLOW: KVA_ASSERT(!"overflowed size"); return;
  default:
    write_expr(w, out, e->a);
    write_expr(w, out, e->b);
    push(w, out, ops[e->kind], 0);
  }
}

static kva_formula formula(writer *w, const kva_expr *e) {
  words out = {0};
  write_expr(w, &out, e);
  return (kva_formula){out.data, out.len};
}

static const kva_expr *bytes_of(writer *w, const kva_type *t) {
  kva_dim n = kva_type_elements(w->m, t);
  int bits = kva_dtype_bits(t->dtype);
  if (bits >= 8) return kva_expr_muli(w->m->exprs, n, bits / 8);
  return kva_expr_ceildiv(w->m->exprs, n, kva_expr_const(w->m->exprs, 8 / bits));
}

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

static void note_symbol(void *user, const kva_expr *symbol) {
  writer *w = user;
  if (symbol->extent) return; /* a loop variable */
  for (uint32_t i = 0; i < w->symbols.len; i++) {
    if (w->symbols.data[i] == symbol) return;
  }
  KVA_PUSH(w->arena, &w->symbols, symbol);
}

static void note_type(writer *w, const kva_type *t) {
  for (uint32_t d = 0; d < t->rank; d++) kva_expr_each_symbol(t->dims[d], note_symbol, w);
}

static void note_plan(writer *w, const kva_memory_plan *p) {
  for (uint32_t b = 0; b < p->buffers.len; b++) note_type(w, p->buffers.data[b].type);
  for (uint32_t i = 0; i < p->steps.len; i++) {
    const kva_plan_step *s = &p->steps.data[i];
    kva_dims binds = s->node ? kva_node_binds(s->node) : (kva_dims){0};
    for (uint32_t k = 0; k < binds.n; k++) note_symbol(w, binds.v[k]);
    for (int k = 0; k < 2 && s->programs[k]; k++) note_plan(w, s->programs[k]);
  }
}

/* Symbols of the inputs come first, in the order of the signature. */
static void collect_symbols(writer *w, uint32_t n_plans, kva_memory_plan *const *plans) {
  for (uint32_t p = 0; p < n_plans; p++) {
    for (uint32_t i = 0; i < plans[p]->inputs.len; i++)
      note_type(w, plans[p]->buffers.data[plans[p]->inputs.data[i]].type);
  }
  for (uint32_t p = 0; p < n_plans; p++) note_plan(w, plans[p]);
}

static const char *const *symbol_names(writer *w) {
  const char **names = KVA_NEW_ARRAY(w->arena, const char *, w->symbols.len + 1);
  for (uint32_t i = 0; i < w->symbols.len; i++) names[i] = w->symbols.data[i]->name;
  return names;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static kva_state_init init_of(const kva_state *s) {
  switch (s->init) {
  case KVA_INIT_ZEROS:
  case KVA_INIT_CONSTANT: return KVA_STATE_INIT_CONSTANT;
  case KVA_INIT_NORMAL: return KVA_STATE_INIT_NORMAL;
  case KVA_INIT_UNIFORM: return KVA_STATE_INIT_UNIFORM;
  case KVA_INIT_DATA: return KVA_STATE_INIT_DATA;
  case KVA_INIT_ONE_MINUS: return KVA_STATE_INIT_ONE_MINUS;
  case KVA_INIT_COPY: return KVA_STATE_INIT_COPY;
  }
  return KVA_STATE_INIT_CONSTANT;
}

static const int32_t state_roles[] = {[KVA_STATE_PARAM] = KVA_ROLE_PARAMETER,
                                      [KVA_STATE_MOMENT] = KVA_ROLE_MOMENT,
                                      [KVA_STATE_BUFFER] = KVA_ROLE_BUFFER,
                                      [KVA_STATE_CACHE] = KVA_ROLE_CACHE};

static void write_state(writer *w, const kva_state *s, kva_state_desc *out) {
  *out = (kva_state_desc){.name = s->name,
                          .role = state_roles[s->kind],
                          .dtype = (int32_t)s->type->dtype,
                          .rank = (int32_t)s->type->rank,
                          .init = init_of(s),
                          .of = s->of ? (int32_t)s->of->id : -1,
                          .init_a = s->init == KVA_INIT_ZEROS ? 0 : s->init_a,
                          .init_b = s->init_b,
                          .data = s->data ? s->data->data : NULL};
  bool is_static = kva_expr_is_const(bytes_of(w, s->type), &out->bytes);
  for (uint32_t d = 0; d < s->type->rank; d++) is_static &= kva_expr_is_const(s->type->dims[d], &out->dims[d]);
  const kva_type *all = s->full ? s->full : s->whole;
  out->parts = s->whole ? (int32_t)s->parts : 0;
  out->stages = s->stages;
  out->slices = s->full ? (int32_t)s->slices : 0;
  out->split_axis = s->full ? (int32_t)s->split_axis : 0;
  out->whole_rank = all ? (int32_t)all->rank : 0;
  for (uint32_t d = 0; all && d < all->rank; d++) is_static &= kva_expr_is_const(all->dims[d], &out->whole[d]);
  if (is_static) return;
  w->failed = true;
  kva_error(w->m->diag, &s->loc, "state %s: its shape depends on the inputs; states need constant shapes", s->name);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static void write_buffer(writer *w, const kva_plan_buffer *b, kva_buffer_desc *out) {
  static const kva_buffer_kind kinds[] = {[KVA_PLACE_INPUT] = KVA_BUFFER_INPUT,
                                          [KVA_PLACE_OUTPUT] = KVA_BUFFER_OUTPUT,
                                          [KVA_PLACE_STATE] = KVA_BUFFER_STATE,
                                          [KVA_PLACE_CONST] = KVA_BUFFER_CONST,
                                          [KVA_PLACE_TEMP] = KVA_BUFFER_TEMP};
  *out = (kva_buffer_desc){.name = b->name,
                           .kind = kinds[b->place],
                           .dtype = (int32_t)b->type->dtype,
                           .rank = (int32_t)b->type->rank,
                           .state = b->state ? (int32_t)b->state->id : -1,
                           .first_step = b->first_step,
                           .last_step = b->last_step,
                           .bytes = formula(w, bytes_of(w, b->type)),
                           .data = b->data ? b->data->data : NULL};
  for (uint32_t d = 0; d < b->type->rank; d++) out->dims[d] = formula(w, b->type->dims[d]);
}

static const char *origin_of(writer *w, const kva_node *n) {
  const char *what = n->op->name, *result = n->n_results ? n->results[0].name : NULL;
  if (kva_is(n, KVA_OP_kernel)) {
    const char *name = ((const kva_kernel_attrs *)n->attrs)->name;
    what = name ? name : "kernel";
  } else if (n->loc.node) {
    result = n->loc.node;
  }
  return kva_arena_printf(w->arena, "%s%s%s", what, result ? " " : "", result ? result : "");
}

/* A kernel that needs a shape symbol which no buffer's shape contains could never run. */
typedef struct symbol_check {
  writer *w;
  const kva_kernel *k;
  const kva_expr *unbound;
} symbol_check;

static void check_symbol(void *user, const kva_expr *symbol) {
  symbol_check *c = user;
  if (kva_k_symbol_region(c->k, symbol)) return;
  for (uint32_t i = 0; i < c->w->symbols.len; i++) {
    if (c->w->symbols.data[i] == symbol) return;
  }
  c->unbound = symbol;
}

static void check_index(void *user, const kva_expr **e) {
  kva_expr_each_symbol(*e, check_symbol, user);
}

static void check_instr(void *user, kva_kinstr *i) {
  kva_k_each_index(i, check_index, user);
}

static kva_status check_symbols(writer *w, const kva_kernel *k, const kva_node *n) {
  symbol_check c = {w, k, NULL};
  kva_k_each_instr(k, check_instr, &c);
  if (!c.unbound) return KVA_OK;
  return kva_error(w->m->diag, &n->loc, "kv.%s: its size depends on %s, which no input's shape determines", n->op->name,
                   c.unbound->name);
}

static symbol_list number_symbols(writer *w, uint32_t n, const kva_expr *const *symbols) {
  int32_t *numbers = KVA_NEW_ARRAY(w->arena, int32_t, n + 1);
  for (uint32_t i = 0; i < n; i++) numbers[i] = (int32_t)symbol_number(w, symbols[i]);
  return (symbol_list){(int32_t)n, numbers};
}

/* A kernel's first buffers are its parameters, in the order of the step's arguments. */
static kva_tensor_map_desc describe_map(writer *w, const kva_ktensor_map *m) {
  KVA_ASSERT(m->buf->space == KVA_K_PARAM);
  kva_tensor_map_desc desc = {.argument = (int32_t)m->buf->id,
                              .dtype = (int32_t)m->buf->dtype,
                              .rank = (int32_t)m->rank,
                              .swizzle = m->swizzle};
  for (uint32_t d = 0; d < m->rank; d++) {
    desc.dims[d] = formula(w, m->dims[d]);
    if (d) desc.strides[d] = formula(w, m->strides[d]);
    desc.box[d] = m->box[d];
  }
  return desc;
}

static map_list describe_maps(writer *w, const kva_kernel *k) {
  kva_tensor_map_desc *maps = KVA_NEW_ARRAY(w->arena, kva_tensor_map_desc, k->maps.len + 1);
  for (uint32_t i = 0; i < k->maps.len; i++) maps[i] = describe_map(w, &k->maps.data[i]);
  return (map_list){(int32_t)k->maps.len, maps};
}

static kva_status add_gpu_kernel(writer *w, const kva_kernel *k, int32_t *out_kernel) {
  const kva_expr *const *symbols;
  uint32_t n = kva_codegen_symbols(k, w->arena, &symbols);
  KVA_TRY(kva_codegen_add(w->cg, k, n, symbols, out_kernel));
  if (*out_kernel < (int32_t)w->kernel_symbols.len) return KVA_OK;
  KVA_ASSERT(*out_kernel == (int32_t)w->kernel_symbols.len); /* numbers grow with each new kernel */
  KVA_PUSH(w->arena, &w->kernel_symbols, number_symbols(w, n, symbols));
  KVA_PUSH(w->arena, &w->kernel_maps, describe_maps(w, k));
  return KVA_OK;
}

static kva_status lower(writer *w, const kva_node *n, const kva_kernel **out_kernel) {
  KVA_TRY(kva_kernel_set_get(w->kernels, n, out_kernel));
  return check_symbols(w, *out_kernel, n);
}

static kva_status add_cpu_kernel(writer *w, const kva_kernel *k, kva_step_desc *out) {
  const kva_expr *const *symbols;
  uint32_t n = kva_codegen_symbols(k, w->arena, &symbols);
  if (n > KVA_ABI_STEP_SYMBOLS) return kva_codegen_add(w->cg, k, w->symbols.len, w->symbols.data, &out->kernel);
  symbol_list list = number_symbols(w, n, symbols);
  out->n_symbols = list.n, out->symbols = list.numbers;
  return kva_codegen_add(w->cg, k, n, symbols, &out->kernel);
}

static kva_status write_kernel(writer *w, const kva_kernel *k, kva_step_desc *out) {
  out->grid = formula(w, kva_codegen_grid(k));
  bool is_gpu = kva_codegen_target(w->cg)->kind == KVA_TARGET_GPU;
  return is_gpu ? add_gpu_kernel(w, k, &out->kernel) : add_cpu_kernel(w, k, out);
}

bool kva_codegen_is_call(const kva_target *target, const kva_node *node) {
  return node->op->lower_kind == KVA_LOWER_CALL || kva_matmul_is_for_library(target, node);
}

/* A matrix product that the device's library computes: arguments a, b, d. */
static void write_gemm(writer *w, const kva_plan_step *s, kva_step_desc *out) {
  bool square = s->node->operands[0].value == s->node->operands[1].value;
  kva_matmul_plain p;
  kva_gemm_desc *g = KVA_NEW(w->arena, kva_gemm_desc);
  bool is_plain = kva_matmul_get_plain(w->m, s->node, &p);
  KVA_ASSERT(is_plain);
  *g = (kva_gemm_desc){.batch = formula(w, p.batch),
                       .m = formula(w, p.m),
                       .n = formula(w, p.n),
                       .k = formula(w, p.k),
                       .step_a = formula(w, p.step_a),
                       .step_b = formula(w, p.step_b),
                       .step_d = formula(w, p.step_d),
                       .transpose_a = p.transpose_a,
                       .transpose_b = p.transpose_b,
                       .dtype = (int32_t)kva_operand_type(s->node, 0)->dtype,
                       .dtype_d = (int32_t)s->node->results[0].type->dtype};
  const int32_t args[] = {s->args[0], s->args[square ? 0 : 1], s->args[s->n_args - 1]};
  out->kind = KVA_STEP_CALL;
  out->call = KVA_CALL_GEMM;
  out->n_args = 3;
  out->args = kva_arena_memdup(w->arena, args, sizeof args);
  out->desc = g;
}

static kva_call_id call_named(const char *name) {
  static const char *const names[] = {
#define KVA_CALL(id, call, desc, fields) #call,
#include "runtime/calls.def"
  };
  int32_t i = 0;
  while (i < KVA_CALL_COUNT && strcmp(names[i], name) != 0) i++;
  KVA_ASSERT(i < KVA_CALL_COUNT);
  return (kva_call_id)i;
}

static kva_check_indices_desc *check_indices_desc(writer *w, const kva_node *n) {
  const kva_check_indices_attrs *a = n->attrs;
  kva_check_indices_desc *d = KVA_NEW(w->arena, kva_check_indices_desc);
  *d = (kva_check_indices_desc){.user = a->user ? a->user : "", .axis = (int32_t)a->axis, .ignores = a->ignores};
  return d;
}

static kva_external_desc *external_desc(writer *w, const kva_node *n) {
  const kva_external_attrs *a = n->attrs;
  kva_external_desc *d = KVA_NEW(w->arena, kva_external_desc);
  *d = (kva_external_desc){.name = a->name, .text = a->text ? a->text : "", .number = (int32_t)a->number};
  return d;
}

static kva_exchange_desc *exchange_desc(writer *w, const kva_node *n) {
  kva_exchange_desc *d = KVA_NEW(w->arena, kva_exchange_desc);
  d->parts = (int32_t)kva_exchange_parts(n);
  d->stride = (int32_t)kva_exchange_stride(n);
  d->next = kva_is(n, KVA_OP_neighbour) && ((const kva_neighbour_attrs *)n->attrs)->next;
  d->stacks = kva_is(n, KVA_OP_all_gather) && ((const kva_all_gather_attrs *)n->attrs)->stacks;
  return d;
}

/* An operator that is a call. */
static void write_call(writer *w, const kva_plan_step *s, kva_step_desc *out) {
  out->kind = KVA_STEP_CALL;
  out->call = call_named(s->node->op->name);
  if (kva_exchange_parts(s->node)) out->desc = exchange_desc(w, s->node);
  if (out->call == KVA_CALL_CHECK_INDICES) out->desc = check_indices_desc(w, s->node);
  if (out->call == KVA_CALL_EXTERNAL) out->desc = external_desc(w, s->node);
  KVA_ASSERT(out->desc || !*kva_step_fields(out));
}

/* ---- steps that depend on data ----------------------------------------------------------------------------------- */

/* The number that the program of a sub-plan gets. */
static int32_t add_plan(writer *w, kva_memory_plan *p) {
  KVA_PUSH(w->arena, &w->plans, p);
  return (int32_t)w->plans.len - 1;
}

/* Which extents of results an if binds, in order of results and axes. */
static void write_branch(writer *w, const kva_plan_step *s, kva_step_desc *out) {
  kva_dims binds = kva_node_binds(s->node);
  int32_t *numbers = KVA_NEW_ARRAY(w->arena, int32_t, KVA_BRANCH_BIND * binds.n + 1), n = 0;
  for (uint32_t r = 0; r < s->node->n_results; r++) {
    const kva_type *t = s->node->results[r].type;
    for (uint32_t d = 0; d < t->rank; d++) {
      uint32_t next = (uint32_t)n / KVA_BRANCH_BIND;
      if (next == binds.n || t->dims[d] != binds.v[next]) continue;
      numbers[n++] = (int32_t)symbol_number(w, binds.v[next]);
      numbers[n++] = (int32_t)r;
      numbers[n++] = (int32_t)d;
    }
  }
  KVA_ASSERT((uint32_t)n == KVA_BRANCH_BIND * binds.n);
  kva_branch_desc *b = KVA_NEW(w->arena, kva_branch_desc);
  *b = (kva_branch_desc){.then = add_plan(w, s->programs[0]), .n_binds = n, .binds = numbers};
  b->orelse = add_plan(w, s->programs[1]);
  out->desc = b;
}

static void write_loop(writer *w, const kva_plan_step *s, kva_step_desc *out) {
  const kva_node *n = s->node;
  kva_dims binds = kva_node_binds(n);
  kva_loop_desc *l = KVA_NEW(w->arena, kva_loop_desc);
  *l = (kva_loop_desc){.body = add_plan(w, s->programs[0]),
                       .n_carried = (int32_t)((const kva_loop_attrs *)n->attrs)->carried,
                       .has_count = kva_operand(n, 0) != NULL,
                       .has_cond = kva_operand(n, 1) != NULL,
                       .symbol = binds.n ? (int32_t)symbol_number(w, binds.v[0]) : -1};
  out->desc = l;
}

static void write_bind(writer *w, const kva_plan_step *s, kva_step_desc *out) {
  const kva_bind_attrs *a = s->node->attrs;
  kva_bind_desc *b = KVA_NEW(w->arena, kva_bind_desc);
  *b = (kva_bind_desc){.symbol = (int32_t)symbol_number(w, a->symbol.v[0])};
  if (a->bound) b->bound = formula(w, a->bound);
  out->desc = b;
}

/* Which step it waits for is known when all are written. */
static void write_wait(writer *w, const kva_plan_step *s, kva_step_desc *out) {
  out->n_results = (int32_t)s->started->n_results;
  out->origin = kva_arena_printf(w->arena, "wait for %s", origin_of(w, s->started));
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void write_other(writer *w, const kva_plan_step *s, kva_step_desc *out) {
  switch (s->kind) {
  case KVA_PLAN_BRANCH: write_branch(w, s, out); break;
  case KVA_PLAN_LOOP: write_loop(w, s, out); break;
  case KVA_PLAN_BIND: write_bind(w, s, out); break;
  case KVA_PLAN_COPY: break;
  case KVA_PLAN_WAIT: write_wait(w, s, out); break;
  case KVA_PLAN_KERNEL:
    if (s->node->op->lower_kind == KVA_LOWER_CALL)
      write_call(w, s, out);
    else
      write_gemm(w, s, out);
    break;
  }
}

/* Settling a step may insert a copy after it. */
static kva_status write_step(writer *w, kva_memory_plan *p, uint32_t index, kva_step_desc *out) {
  static const kva_step_kind kinds[] = {
      [KVA_PLAN_COPY] = KVA_STEP_COPY, [KVA_PLAN_KERNEL] = KVA_STEP_KERNEL, [KVA_PLAN_BRANCH] = KVA_STEP_BRANCH,
      [KVA_PLAN_LOOP] = KVA_STEP_LOOP, [KVA_PLAN_BIND] = KVA_STEP_BIND,     [KVA_PLAN_WAIT] = KVA_STEP_WAIT};
  const kva_node *node = p->steps.data[index].node;
  bool is_kernel = p->steps.data[index].kind == KVA_PLAN_KERNEL;
  const kva_kernel *k = NULL;
  if (is_kernel && !kva_codegen_is_call(kva_codegen_target(w->cg), node)) KVA_TRY(lower(w, node, &k));
  if (node) kva_codegen_settle_step(w->arena, p, index, k);
  const kva_plan_step *s = &p->steps.data[index];
  *out = (kva_step_desc){.kind = kinds[s->kind],
                         .kernel = -1,
                         .n_args = (int32_t)s->n_args,
                         .n_results = node ? (int32_t)node->n_results : 0,
                         .args = kva_arena_memdup(w->arena, s->args, sizeof *s->args * s->n_args),
                         .origin = node ? origin_of(w, node) : "copy"};
  if (k) return write_kernel(w, k, out);
  write_other(w, s, out);
  return KVA_OK;
}

/* An exchange and the step that waits for it know each other by number. */
static void join_waits(writer *w, const kva_memory_plan *p, kva_step_desc *steps) {
  for (uint32_t i = 0; i < p->steps.len; i++) {
    if (p->steps.data[i].kind != KVA_PLAN_WAIT) continue;
    kva_wait_desc *d = KVA_NEW(w->arena, kva_wait_desc);
    *d = (kva_wait_desc){.start = kva_plan_start(p, i)};
    steps[i].desc = d;
    steps[d->start].wait = (int32_t)i;
  }
}

/* ---- conditions -------------------------------------------------------------------------------------------------- */

typedef struct condition_list {
  KVA_VEC(kva_condition) v;
  KVA_VEC(const kva_expr *) pairs; /* left and right of each */
} condition_list;

static bool is_listed(const condition_list *c, const kva_expr *left, const kva_expr *right) {
  for (uint32_t i = 0; i < c->pairs.len; i += 2)
    if (c->pairs.data[i] == left && c->pairs.data[i + 1] == right) return true;
  return false;
}

/* Every pair is listed once, with the first node that needs it. */
static void add_condition(writer *w, const kva_node *n, uint32_t axis, condition_list *out) {
  const kva_assume_attrs *a = n->attrs;
  const kva_expr *left = kva_operand_type(n, 0)->dims[axis], *right = a->shape.v[axis];
  if (left == right || is_listed(out, left, right)) return;
  const char *at = n->loc.node ? kva_arena_printf(w->arena, " at node '%s'", n->loc.node) : "";
  kva_condition c = {formula(w, left), formula(w, right), NULL};
  c.what = kva_arena_printf(w->arena, "extent %u of %s%s", axis, a->user ? a->user : "a tensor", at);
  KVA_PUSH(w->arena, &out->v, c);
  KVA_PUSH(w->arena, &out->pairs, left);
  KVA_PUSH(w->arena, &out->pairs, right);
}

/* Those of the nodes of g that assume something, also inside of kernels. */
static void find_conditions(writer *w, const kva_graph *g, condition_list *out) {
  for (const kva_node *n = g->first; n; n = n->next) {
    if (kva_is(n, KVA_OP_kernel)) find_conditions(w, n->graphs[0], out);
    for (uint32_t k = 0; kva_is(n, KVA_OP_assume) && k < n->results[0].type->rank; k++) add_condition(w, n, k, out);
  }
}

static const int32_t *output_roles(writer *w, const kva_memory_plan *p) {
  static const int32_t roles[] = {[KVA_RESULT_VALUE] = KVA_OUTPUT_VALUE,
                                  [KVA_RESULT_LOSS] = KVA_OUTPUT_LOSS,
                                  [KVA_RESULT_GRAD_NORM] = KVA_OUTPUT_GRAD_NORM,
                                  [KVA_RESULT_METRIC] = KVA_OUTPUT_METRIC};
  int32_t *list = KVA_NEW_ARRAY(w->arena, int32_t, p->outputs.len + 1);
  for (uint32_t i = 0; i < p->outputs.len; i++) list[i] = roles[p->buffers.data[p->outputs.data[i]].role];
  return list;
}

static kva_status write_program(writer *w, kva_memory_plan *p, kva_program *out) {
  KVA_VEC(kva_step_desc) steps = {0};
  kva_status status = KVA_OK;
  for (uint32_t i = 0; i < p->steps.len; i++) { /* visits all steps, so that one run reports everything unsupported */
    kva_step_desc step = {0};
    const kva_node *node = p->steps.data[i].node;
    kva_task task = {.what = "step", .name = node ? node->op->name : "copy or wait", .loc = node ? &node->loc : NULL};
    kva_task_begin(&task);
    kva_status s = write_step(w, p, i, &step);
    kva_task_end(&task);
    KVA_PUSH(w->arena, &steps, step);
    if (status == KVA_OK) status = s;
  }
  join_waits(w, p, steps.data);
  kva_buffer_desc *buffers = KVA_NEW_ARRAY(w->arena, kva_buffer_desc, p->buffers.len + 1);
  for (uint32_t i = 0; i < p->buffers.len; i++) write_buffer(w, &p->buffers.data[i], &buffers[i]);
  condition_list conditions = {0};
  find_conditions(w, p->graph, &conditions);
  *out = (kva_program){.name = p->name,
                       .is_internal = p->is_internal,
                       .n_symbols = (int32_t)w->symbols.len,
                       .n_buffers = (int32_t)p->buffers.len,
                       .n_steps = (int32_t)p->steps.len,
                       .n_inputs = (int32_t)p->inputs.len,
                       .n_outputs = (int32_t)p->outputs.len,
                       .symbols = symbol_names(w),
                       .buffers = buffers,
                       .steps = steps.data,
                       .inputs = kva_arena_memdup(w->arena, p->inputs.data, sizeof(int32_t) * p->inputs.len),
                       .outputs = kva_arena_memdup(w->arena, p->outputs.data, sizeof(int32_t) * p->outputs.len),
                       .output_roles = output_roles(w, p),
                       .conditions = conditions.v.data,
                       .n_conditions = (int32_t)conditions.v.len};
  return status;
}

static const kva_kernel_desc *kernel_table(writer *w) {
  int32_t n = kva_codegen_kernel_count(w->cg);
  kva_kernel_desc *kernels = KVA_NEW_ARRAY(w->arena, kva_kernel_desc, n + 1);
  bool is_gpu = kva_codegen_target(w->cg)->kind == KVA_TARGET_GPU;
  for (int32_t i = 0; i < n; i++) {
    kernels[i].name = kva_codegen_kernel_name(w->cg, i);
    if (!is_gpu) continue;
    kva_launch launch = kva_codegen_launch(w->cg, i);
    kernels[i].threads = launch.threads;
    kernels[i].shared_bytes = launch.shared_bytes;
    kernels[i].dynamic_bytes = launch.dynamic_bytes;
    kernels[i].cooperating = launch.cooperating;
    kernels[i].maps = w->kernel_maps.data[i].maps;
    kernels[i].n_maps = w->kernel_maps.data[i].n;
    kernels[i].symbols = w->kernel_symbols.data[i].numbers;
    kernels[i].n_symbols = w->kernel_symbols.data[i].n;
  }
  return kernels;
}

/* Functions, or for a GPU the text of the module. */
static kva_status generate(writer *w, kva_artifact *a) {
  const kva_target *target = kva_codegen_target(w->cg);
  kva_code *code = KVA_NEW(w->arena, kva_code);
  *code = (kva_code){.format = KVA_CODE_FUNCTIONS, .needs = kva_codegen_needs(w->cg)};
  a->codes = code;
  a->n_codes = 1;
  if (target->kind != KVA_TARGET_GPU) return KVA_OK;
  char *text;
  size_t size;
  KVA_TRY(kva_codegen_emit(w->cg, "ptx", &text, &size));
  *code = (kva_code){.format = KVA_CODE_PTX,
                     .arch = target->arch,
                     .data = kva_arena_strndup(w->arena, text, size),
                     .bytes = (int64_t)size};
  free(text);
  return KVA_OK;
}

typedef KVA_VEC(kva_program) program_list;

static kva_status write_programs(writer *w, program_list *out) {
  kva_status status = KVA_OK;
  w->kernels = kva_kernel_set_create(kva_codegen_target(w->cg), kva_codegen_control(w->cg));
  for (uint32_t i = 0; i < w->plans.len; i++) { /* steps add more */
    kva_program program = {0};
    kva_status s = write_program(w, w->plans.data[i], &program);
    KVA_PUSH(w->arena, out, program);
    if (status == KVA_OK) status = s;
  }
  kva_kernel_set_destroy(w->kernels);
  return status;
}

kva_status kva_codegen_tables(kva_codegen *cg, kva_arena *arena, kva_module *m, uint32_t n_plans,
                              kva_memory_plan *const *plans, kva_artifact **out_artifact) {
  writer w = {.cg = cg, .arena = arena, .m = m};
  collect_symbols(&w, n_plans, plans);
  kva_state_desc *states = KVA_NEW_ARRAY(arena, kva_state_desc, m->states.len + 1);
  for (uint32_t i = 0; i < m->states.len; i++) write_state(&w, m->states.data[i], &states[i]);
  for (uint32_t i = 0; i < n_plans; i++) (void)add_plan(&w, plans[i]);
  program_list programs = {0};
  kva_status status = write_programs(&w, &programs);
  KVA_TRY(w.failed ? KVA_INVALID : status);
  kva_artifact *a = KVA_NEW(arena, kva_artifact);
  *a = (kva_artifact){.magic = KVA_ABI_MAGIC,
                      .abi_version = KVA_ABI_VERSION,
                      .n_states = (int32_t)m->states.len,
                      .n_kernels = kva_codegen_kernel_count(cg),
                      .n_programs = (int32_t)programs.len,
                      .model = m->name,
                      .target = kva_codegen_target(cg)->description,
                      .mesh_data = (int32_t)m->mesh.data,
                      .mesh_pipeline = (int32_t)m->mesh.pipeline,
                      .mesh_sequence = (int32_t)m->mesh.sequence,
                      .mesh_tensor = (int32_t)m->mesh.tensor,
                      .states = states,
                      .programs = programs.data};
  KVA_TRY(generate(&w, a));
  a->kernels = kernel_table(&w);
  *out_artifact = a;
  return KVA_OK;
}

kva_status kva_codegen_artifact(kva_codegen *cg, kva_arena *arena, kva_module *m, uint32_t n_plans,
                                kva_memory_plan *const *plans, const kva_artifact **out_artifact) {
  kva_artifact *a;
  KVA_TRY(kva_codegen_tables(cg, arena, m, n_plans, plans, &a));
  *out_artifact = a;
  if (kva_codegen_target(cg)->kind == KVA_TARGET_GPU) return KVA_OK;
  KVA_TRY(kva_codegen_jit(cg));
  kva_kernel_desc *kernels = kva_arena_memdup(arena, a->kernels, sizeof *kernels * (size_t)a->n_kernels);
  for (int32_t i = 0; i < a->n_kernels; i++) kernels[i].fn = kva_codegen_function(cg, i);
  a->kernels = kernels;
  return KVA_OK;
}
