/* Compiler stages as text: plans and kernels of every function. */
#include "ops/ids.h"
#include "tools/driver/summary.h"

static kva_status print_summary(kva_module *m, const kva_memory_plan *plan, bool json, FILE *out) {
  kva_summary s;
  KVA_TRY(kva_summarize(m, plan, &s));
  if (json)
    kva_summary_print_json(&s, out);
  else
    kva_summary_print(plan, &s, out);
  return KVA_OK;
}

/* The result of pass plan, as confirmed by its kernels. */
static kva_status settled_plan(const kva_codegen *cg, kva_function *f, kva_memory_plan **out) {
  *out = f->plan;
  return kva_codegen_settle(f->graph->module->arena, f->plan, kva_codegen_target(cg));
}

static void print_buffer(const kva_plan_buffer *b, uint32_t number, FILE *out) {
  static const char *const places[] = {[KVA_PLACE_INPUT] = "input",
                                       [KVA_PLACE_OUTPUT] = "output",
                                       [KVA_PLACE_STATE] = "state",
                                       [KVA_PLACE_CONST] = "const",
                                       [KVA_PLACE_TEMP] = "temp"};
  kva_text type = {0};
  kva_type_print(b->type, &type);
  fprintf(out, "  %4u  %-6s  %-28s %s", number, places[b->place], type.data, b->name ? b->name : "");
  if (b->place == KVA_PLACE_TEMP) fprintf(out, "  steps %d to %d", b->first_step, b->last_step);
  fputc('\n', out);
  kva_text_free(&type);
}

/* Prints a data-dependent step: " 12 if then main.12.then else main.12.else". */
static void print_decision(const kva_plan_step *s, FILE *out) {
  kva_dims binds = kva_node_binds(s->node);
  kva_text text = {0};
  if (s->kind == KVA_PLAN_BRANCH) kva_text_add(&text, "  then %s else %s", s->programs[0]->name, s->programs[1]->name);
  if (s->kind == KVA_PLAN_LOOP) kva_text_add(&text, "  runs %s", s->programs[0]->name);
  for (uint32_t i = 0; i < binds.n; i++) {
    kva_text_add(&text, i ? ", " : "  binds ");
    kva_expr_print(binds.v[i], &text);
  }
  if (s->kind == KVA_PLAN_BIND && ((const kva_bind_attrs *)s->node->attrs)->bound) {
    kva_text_add(&text, " <= ");
    kva_expr_print(((const kva_bind_attrs *)s->node->attrs)->bound, &text);
  }
  fputs(text.data ? text.data : "", out);
  kva_text_free(&text);
}

static void print_step(const kva_plan_step *s, uint32_t number, FILE *out) {
  fprintf(out, "  %4u  %-12s", number, s->node ? s->node->op->name : s->started ? "wait" : "copy");
  for (uint32_t k = 0; k < s->n_args; k++) fprintf(out, " %d", s->args[k]);
  if (s->kind > KVA_PLAN_KERNEL && s->node) print_decision(s, out);
  fputc('\n', out);
}

kva_status kva_print_plan(kva_module *m, const kva_memory_plan *plan, FILE *out) {
  KVA_TRY(print_summary(m, plan, false, out));
  fprintf(out, "buffers\n");
  for (uint32_t i = 0; i < plan->buffers.len; i++) print_buffer(&plan->buffers.data[i], i, out);
  fprintf(out, "steps\n");
  for (uint32_t i = 0; i < plan->steps.len; i++) print_step(&plan->steps.data[i], i, out);
  for (uint32_t i = 0; i < plan->steps.len; i++)
    for (int k = 0; k < 2 && plan->steps.data[i].programs[k]; k++)
      KVA_TRY(kva_print_plan(m, plan->steps.data[i].programs[k], out));
  return KVA_OK;
}

/* Prints the hand-written kernel that a step uses, and why earlier rows do not apply. */
static void print_choice(const kva_target *target, const kva_plan_step *s, uint32_t number, FILE *out) {
  const kva_node *operator;
  if (s->kind != KVA_PLAN_KERNEL || kva_codegen_is_call(target, s->node)) return;
  kva_kernel_choice choice = kva_codegen_choose(s->node, target, &operator);
  if (!operator) return;
  fprintf(out, "  %4u  %-18s %s", number, operator->op->name, choice.row ? choice.row->name : "none");
  for (uint32_t i = 0; i < choice.n_refused; i++)
    fprintf(out, "%s %s: %s", i ? ";" : ", not", choice.refused[i]->name, choice.reasons[i]);
  fputc('\n', out);
}

/* Who sends what a step exchanges: a neighbour's rows go one way. */
static const char *senders(const kva_node *n) {
  if (!kva_is(n, KVA_OP_neighbour)) return "each process";
  return ((const kva_neighbour_attrs *)n->attrs)->next ? "each process but the first" : "each process but the last";
}

static kva_status print_exchange(kva_module *m, const kva_node *n, uint32_t number, FILE *out) {
  kva_exchanged e;
  KVA_TRY(kva_exchanged_bytes(m, n, &e));
  if (!e.each) return KVA_OK;
  fprintf(out, "  %4u  %-18s %u tensors, %lld bytes; %s sends %lld\n", number, n->op->name, n->n_operands,
          (long long)(e.summed + e.gathered), senders(n), (long long)e.each);
  return KVA_OK;
}

/* Behind which step an exchange has ended. */
static void print_wait(const kva_memory_plan *plan, uint32_t number, FILE *out) {
  const kva_plan_step *s = &plan->steps.data[number];
  if (s->kind == KVA_PLAN_WAIT)
    fprintf(out, "  %4u  %-18s %s of step %d\n", number, "wait", s->started->op->name, kva_plan_start(plan, number));
}

/* Prints steps that exchange data, depend on data or have a hand-written kernel, and the plans that they run. */
static kva_status print_decisions(kva_module *m, const kva_target *target, const kva_memory_plan *plan, FILE *out) {
  KVA_TRY(print_summary(m, plan, false, out));
  for (uint32_t i = 0; i < plan->steps.len; i++) {
    print_choice(target, &plan->steps.data[i], i, out);
    KVA_TRY(print_exchange(m, plan->steps.data[i].node, i, out));
    print_wait(plan, i, out);
    if (plan->steps.data[i].kind > KVA_PLAN_KERNEL && plan->steps.data[i].node)
      print_step(&plan->steps.data[i], i, out);
  }
  for (uint32_t i = 0; i < plan->steps.len; i++)
    for (int k = 0; k < 2 && plan->steps.data[i].programs[k]; k++)
      KVA_TRY(print_decisions(m, target, plan->steps.data[i].programs[k], out));
  return KVA_OK;
}

kva_status kva_print_plans(const kva_codegen *cg, kva_module *m, FILE *out) {
  for (uint32_t i = 0; i < m->functions.len; i++) {
    kva_memory_plan *plan;
    KVA_TRY(settled_plan(cg, m->functions.data[i], &plan));
    KVA_TRY(print_decisions(m, kva_codegen_target(cg), plan, out));
  }
  return kva_print_stages(m, out);
}

kva_status kva_print_plans_json(const kva_codegen *cg, kva_module *m, FILE *out) {
  for (uint32_t i = 0; i < m->functions.len; i++) {
    kva_memory_plan *plan;
    kva_text name = {0};
    KVA_TRY(settled_plan(cg, m->functions.data[i], &plan));
    kva_text_add_quoted(&name, m->functions.data[i]->name);
    fprintf(out, "%s%s: ", i ? ",\n " : "{", name.data);
    kva_text_free(&name);
    KVA_TRY(print_summary(m, plan, true, out));
  }
  KVA_TRY(kva_print_stages_json(m, out));
  fprintf(out, "}\n");
  return KVA_OK;
}

typedef struct kernel_walk {
  kva_codegen *cg;
  kva_arena *arena;
  kva_text *text;          /* of kernels; NULL: they are added to cg */
  kva_kernel_set *kernels; /* which are added */
} kernel_walk;

/* A kernel of its own, whose parameters have the names of the step's values. */
static kva_status print_kernel(const kernel_walk *w, const kva_memory_plan *plan, uint32_t step) {
  kva_kernel *k;
  const kva_node *node = plan->steps.data[step].node;
  KVA_TRY(kva_codegen_kernel(w->arena, node, kva_codegen_target(w->cg), kva_codegen_control(w->cg), &k));
  kva_text_add(w->text, "// %s step %u\n", plan->name, step);
  kva_kernel_print(k, w->text);
  kva_text_add(w->text, "\n");
  return KVA_OK;
}

static kva_status add_step(const kernel_walk *w, const kva_node *node) {
  const kva_kernel *k;
  const kva_expr *const *symbols;
  int32_t number;
  KVA_TRY(kva_kernel_set_get(w->kernels, node, &k));
  uint32_t n = kva_codegen_symbols(k, w->arena, &symbols);
  return kva_codegen_add(w->cg, k, n, symbols, &number);
}

static kva_status take_step(const kernel_walk *w, const kva_memory_plan *plan, uint32_t step) {
  return w->text ? print_kernel(w, plan, step) : add_step(w, plan->steps.data[step].node);
}

/* Goes on behind KVA_STOPPED: all kernels stop after the same pass. */
static kva_status each_step(const kernel_walk *w, const kva_memory_plan *plan) {
  kva_status result = KVA_OK;
  for (uint32_t i = 0; i < plan->steps.len; i++) {
    const kva_plan_step *s = &plan->steps.data[i];
    bool kernel = s->kind == KVA_PLAN_KERNEL && !kva_codegen_is_call(kva_codegen_target(w->cg), s->node);
    kva_status status = kernel ? take_step(w, plan, i) : KVA_OK;
    for (int k = 0; k < 2 && s->programs[k] && status == KVA_OK; k++) status = each_step(w, s->programs[k]);
    if (status != KVA_OK && status != KVA_STOPPED) return status;
    if (status != KVA_OK) result = status;
  }
  return result;
}

static kva_status each_plan(const kernel_walk *w, const kva_module *m) {
  kva_status result = KVA_OK;
  for (uint32_t i = 0; i < m->functions.len; i++) {
    kva_memory_plan *plan;
    KVA_TRY(settled_plan(w->cg, m->functions.data[i], &plan));
    kva_status status = each_step(w, plan);
    if (status != KVA_OK && status != KVA_STOPPED) return status;
    if (status != KVA_OK) result = status;
  }
  return result;
}

kva_status kva_print_kernels(kva_codegen *cg, kva_arena *arena, kva_module *m, kva_text *out) {
  return each_plan(&(kernel_walk){.cg = cg, .arena = arena, .text = out}, m);
}

kva_status kva_add_kernels(kva_codegen *cg, kva_arena *arena, kva_module *m) {
  kva_kernel_set *kernels = kva_kernel_set_create(kva_codegen_target(cg), kva_codegen_control(cg));
  kva_status status = each_plan(&(kernel_walk){.cg = cg, .arena = arena, .kernels = kernels}, m);
  kva_kernel_set_destroy(kernels);
  return status;
}
