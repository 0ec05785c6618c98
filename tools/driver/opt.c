/* Runs passes by name. */
#include "tools/driver/opt.h"

const kva_pass_level *kva_pass_level_at(uint32_t i) {
  static const kva_pass_level *const levels[] = {&kva_graph_level, &kva_kernel_level};
  return i < sizeof levels / sizeof *levels ? levels[i] : NULL;
}

bool kva_pass_exists(const char *name) {
  for (uint32_t i = 0; kva_pass_level_at(i); i++)
    if (kva_pass_find(kva_pass_level_at(i), name)) return true;
  return false;
}

/* ---- printing the table ------------------------------------------------------------------------------------------ */

static void list_pass(const kva_pass_level *level, const kva_pass *p, bool json, kva_text *out) {
  const char *required = p->flags & KVA_PASS_REQUIRED ? "true" : "false";
  if (json) {
    kva_text_add(out,
                 "  {\"name\": \"%s\", \"level\": \"%s\", \"required\": %s, \"needs\": \"%s\", \"options\": \"%s\", "
                 "\"help\": \"%s\"}",
                 p->name, level->name, required, p->needs, p->options, p->help);
    return;
  }
  kva_text_add(out, "  %-12s %s\n", p->name, p->help);
  if (*p->needs) kva_text_add(out, "  %-12s requires %s\n", "", p->needs);
  if (*p->options) kva_text_add(out, "  %-12s reads %s\n", "", p->options);
}

static void list_pipelines(kva_text *out) {
  kva_text_add(out, "pipelines\n");
  for (uint32_t i = 0; kva_graph_pipeline_at(i); i++)
    kva_text_add(out, "  %-12s %s\n", kva_graph_pipeline_at(i)->name, kva_graph_pipeline_at(i)->help);
  kva_text_add(out, "  %-12s %s\n", "schedule", "behind lower: the passes over kernels that the target needs");
}

void kva_opt_list(bool json, kva_text *out) {
  if (json) kva_text_add(out, "[\n");
  for (uint32_t l = 0; kva_pass_level_at(l); l++) {
    const kva_pass_level *level = kva_pass_level_at(l);
    if (!json) kva_text_add(out, "passes over a %s\n", level->name);
    for (uint32_t i = 0; i < level->n_passes; i++) {
      if (json && (l || i)) kva_text_add(out, ",\n");
      list_pass(level, &level->passes[i], json, out);
    }
  }
  if (json)
    kva_text_add(out, "\n]\n");
  else
    list_pipelines(out);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct opt {
  kva_module *m;
  kva_pass_options options;
  kva_target target;
  const kva_pass *last; /* the last pass that ran; NULL: none, or a pipeline */
  bool changed;
} opt;

static const kva_graph_pipeline *find_pipeline(const char *name) {
  const kva_graph_pipeline *p;
  for (uint32_t i = 0; (p = kva_graph_pipeline_at(i)); i++)
    if (!strcmp(p->name, name)) return p;
  return NULL;
}

static kva_status run_named(opt *o, const char *name) {
  const kva_graph_pipeline *pipeline = find_pipeline(name);
  o->last = kva_pass_find(&kva_graph_level, name);
  if (o->last) return kva_run_pass(o->m, (kva_graph_pass)(o->last - kva_graph_level.passes), &o->options, &o->changed);
  if (pipeline) return pipeline->run(o->m, &o->options);
  if (!kva_pass_find(&kva_kernel_level, name))
    return kva_error(o->m->diag, NULL, "no pass is called '%s'; kvasir opt --list names them", name);
  return kva_error(o->m->diag, NULL, "pass '%s' works on kernels: it stands behind plan and lower", name);
}

/* The next name of a list, and the rest; NULL: that was all. */
static const char *next_name(kva_arena *arena, const char **rest) {
  size_t len = strcspn(*rest, ",");
  if (!**rest) return NULL;
  const char *name = kva_arena_strndup(arena, *rest, len);
  *rest += len + ((*rest)[len] == ',');
  return name;
}

/* Up to pass lower, which works on kernels with all that follow it; *rest: from there on. */
static kva_status run_graph_passes(opt *o, const char **rest) {
  const char *name, *here = *rest;
  while ((name = next_name(o->m->arena, rest))) {
    if (!strcmp(name, "lower")) {
      *rest = here;
      return KVA_OK;
    }
    KVA_TRY(run_named(o, name));
    here = *rest;
  }
  return KVA_OK;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Kernels that were written with a schedule skip what is for those without. */
static bool is_for_others(kva_kernel_job *job, const kva_pass *pass, bool arrived) {
  const kva_pass_unit unit = {&kva_kernel_level, job, "", job->diag};
  const kva_pass_property *missing = arrived ? kva_pass_missing(pass, &unit) : NULL;
  return missing && !strcmp(missing->name, "unscheduled");
}

static kva_status run_on_kernel(kva_kernel_job *job, const char *names) {
  const char *name;
  bool arrived = false; /* with a schedule of its own */
  while ((name = next_name(job->arena, &names))) {
    const kva_pass *pass = kva_pass_find(&kva_kernel_level, name);
    if (!strcmp(name, "schedule"))
      KVA_TRY(kva_schedule_job(job));
    else if (pass && !is_for_others(job, pass, arrived))
      KVA_TRY(kva_run_kernel_pass(job, pass));
    else if (pass)
      continue;
    else
      return kva_error(job->diag, NULL, "no pass over kernels is called '%s'; kvasir opt --list names them", name);
    if (!strcmp(name, "lower")) arrived = kva_codegen_is_scheduled(job->kernel);
  }
  return KVA_OK;
}

static kva_status lower_plan(opt *o, const kva_memory_plan *plan, const char *names, kva_text *out) {
  for (uint32_t i = 0; i < plan->steps.len; i++) {
    const kva_plan_step *s = &plan->steps.data[i];
    for (int k = 0; k < 2 && s->programs[k]; k++) KVA_TRY(lower_plan(o, s->programs[k], names, out));
    if (s->kind != KVA_PLAN_KERNEL || kva_codegen_is_call(&o->target, s->node)) continue;
    kva_kernel_job job = {
        .arena = o->m->arena, .node = s->node, .target = &o->target, .control = o->options.control, .diag = o->m->diag};
    kva_status status = run_on_kernel(&job, names);
    if (status != KVA_OK && status != KVA_STOPPED) return status;
    if (status == KVA_STOPPED) continue; /* printed already */
    kva_text_add(out, "// %s step %u\n", plan->name, i);
    kva_kernel_print(job.kernel, out);
    kva_text_add(out, "\n");
  }
  return KVA_OK;
}

static kva_status lower_functions(opt *o, const char *names, kva_text *out) {
  for (uint32_t i = 0; i < o->m->functions.len; i++) {
    const kva_function *f = o->m->functions.data[i];
    if (!f->plan)
      return kva_error(o->m->diag, NULL, "pass 'lower' works on the steps of a plan: pass plan comes before it");
    KVA_TRY(lower_plan(o, f->plan, names, out));
  }
  return KVA_OK;
}

/* ---- entry ------------------------------------------------------------------------------------------------------- */

static kva_status choose(opt *o, const kva_opt_choice *c) {
  kva_diag *diag = o->m->diag;
  kva_target_options target = kva_target_named(c->target);
  KVA_TRY(kva_gemm_named(c->gemm, diag, &target));
  KVA_TRY(kva_math_named(c->math, diag, &target));
  if (!c->passes) return kva_error(diag, NULL, "passes are missing: --passes=A,B,...");
  KVA_TRY(kva_codegen_describe(&target, diag, &o->target));
  o->options.target = &o->target;
  KVA_TRY(kva_mesh_named(c->mesh, o->m->diag, &o->options.mesh));
  KVA_TRY(kva_precision_named(c->caches, diag, &o->options.caches));
  return kva_precision_named(c->precision, diag, &o->options.compute);
}

/* Replaces proposed plans by those that the target's kernels confirm. */
static kva_status settle(opt *o) {
  for (uint32_t i = 0; i < o->m->functions.len; i++)
    KVA_TRY(kva_codegen_settle(o->m->arena, o->m->functions.data[i]->plan, &o->target));
  return KVA_OK;
}

kva_status kva_opt(kva_module *m, const kva_opt_choice *choice, const kva_pass_options *options, bool *changed,
                   kva_text *out) {
  kva_pass_control none = {0};
  opt o = {.m = m, .options = *options};
  if (!o.options.control) o.options.control = &none;
  o.options.control->by_name = true;
  KVA_TRY(choose(&o, choice));
  const char *rest = choice->passes;
  KVA_TRY(run_graph_passes(&o, &rest));
  *changed |= o.changed;
  if (*rest) return lower_functions(&o, rest, out);
  if (o.last == &kva_graph_level.passes[KVA_PASS_plan]) KVA_TRY(settle(&o));
  kva_graph_level.print(m, o.last, out);
  return KVA_OK;
}
