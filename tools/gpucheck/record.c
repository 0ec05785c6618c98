#include "tools/gpucheck/check.h"

const char *gpu_verdict_name(gpu_verdict v) {
  static const char *const names[GPU_VERDICTS] = {"agrees", "WRONG", "FAILED", "HANGS", "DIED"};
  return names[v];
}

const char *gpu_kind_name(int kind) {
  static const char *const names[GPU_KINDS] = {"operator", "kernel", "shape", "training", "time", "steps"};
  return names[kind];
}

const char *gpu_case_compiler(const gpu_case *c) {
  return gpu_case_is_cpu(c) ? "Kvasir" : c->machine ? "ptxas" : "driver";
}

const char *gpu_case_code(const gpu_case *c) {
  return gpu_case_is_cpu(c) ? "object" : c->machine ? "cubin" : "ptx";
}

/* `what, name, code for, code`, the cells that identify a case. */
static void case_cells(const gpu_case *c, bool refused, kva_text *out) {
  kva_text_add(out, "| %s | %s | %s | %s ", gpu_kind_name(c->kind), c->name, c->target,
               refused ? "driver (machine code refused)" : gpu_case_compiler(c));
}

void gpu_case_members(const gpu_case *c, int64_t id, kva_text *out) {
  kva_text_add(out,
               "\"id\": %lld, \"phase\": \"%c\", \"kind\": \"%s\", \"target\": \"%s\", \"code\": \"%s\", \"name\": ",
               (long long)id, c->phase, gpu_kind_name(c->kind), c->target, gpu_case_code(c));
  kva_text_add_quoted(out, c->name);
}

void gpu_outcome_free(gpu_outcome *o) {
  kva_text_free(&o->kernels);
  kva_text_free(&o->profile);
  kva_text_free(&o->table);
}

static void add_difference(kva_text *out, double d) {
  if (d < 0)
    kva_text_add(out, "| - ");
  else
    kva_text_add(out, "| %.3g ", d);
}

static void add_rate(kva_text *out, const gpu_case *c, double seconds) {
  if (c->flops > 0)
    kva_text_add(out, "| %.1f TFLOP/s |", c->flops / seconds * 1e-12);
  else if (c->bytes > 0)
    kva_text_add(out, "| %.2f TB/s |", c->bytes / seconds * 1e-12);
  else
    kva_text_add(out, "| - |");
}

void gpu_outcome_row(const gpu_case *c, const gpu_outcome *o, kva_text *out) {
  if (c->kind == GPU_OPERATOR && o->verdict == GPU_AGREES) return;
  case_cells(c, o->refused, out);
  kva_text_add(out, "| %s ", gpu_verdict_name(o->verdict));
  add_difference(out, o->device);
  add_difference(out, o->simulator);
  if (o->seconds > 0) {
    kva_text_add(out, "| %.4f ", o->seconds * 1e3);
    add_rate(out, c, o->seconds);
  } else {
    kva_text_add(out, "| - | - |");
  }
}

static void add_number(kva_text *out, const char *name, double v) {
  if (v >= 0 && v < 1e300) kva_text_add(out, ", \"%s\": %.9g", name, v);
}

static void add_list(kva_text *out, const char *name, const kva_text *items) {
  if (items->len) kva_text_add(out, ", \"%s\": [%s]", name, items->data);
}

void gpu_outcome_members(const gpu_case *c, const gpu_outcome *o, kva_text *out) {
  kva_text_add(out, ", \"result\": \"%s\"", gpu_verdict_name(o->verdict));
  if (o->refused) kva_text_add(out, ", \"refused\": true");
  add_number(out, "difference", o->device);
  add_number(out, "simulator", o->simulator);
  if (o->samples) add_number(out, "samples", (double)o->samples);
  if (o->seconds > 0) {
    add_number(out, "ms", o->seconds * 1e3);
    add_number(out, "spread", o->spread);
    if (c->flops > 0) add_number(out, "tflops", c->flops / o->seconds * 1e-12);
    if (c->bytes > 0) add_number(out, "tbytes", c->bytes / o->seconds * 1e-12);
  }
  add_list(out, "kernels", &o->kernels);
  add_list(out, "profile", &o->profile);
  if (!o->message[0]) return;
  kva_text_add(out, ", \"message\": ");
  kva_text_add_quoted(out, o->message);
}
