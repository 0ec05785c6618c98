/* Compares executor and reference: every result of a case, element by element, within the operator's tolerance. */
#include "tools/verify/check.h"

double kva_case_epsilon(kva_dtype t) {
  switch (t) {
  case KVA_F64: return 0x1p-52;
  case KVA_F32: return 0x1p-23;
  case KVA_F16: return 0x1p-10;
  case KVA_BF16: return 0x1p-7;
  case KVA_F8E4M3FN:
  case KVA_F8E4M3FNUZ: return 0x1p-3;
  case KVA_F8E5M2:
  case KVA_F8E5M2FNUZ: return 0x1p-2;
  default: return 1;
  }
}

double kva_case_tolerance(double units, kva_dtype result) {
  bool narrow = kva_dtype_is_float(result) && kva_dtype_bits(result) < 32;
  return kva_case_epsilon(result) * (narrow ? fmin(units, KVA_NARROW_UNITS) : units);
}

void kva_case_describe(const kva_case *c, kva_dtype dtype, kva_text *text) {
  kva_text_add(text, "kv.%s <%s>", kva_ops.ops[c->op]->name, c->attrs ? c->attrs : "");
  for (uint32_t i = 0; i < KVA_CASE_OPERANDS && c->in[i].shape; i++) {
    kva_dtype own = c->dtype ? c->dtype : KVA_F32;
    kva_dtype t = c->in[i].dtype ? c->in[i].dtype : dtype ? dtype : own;
    kva_text_add(text, " %s[%s]", kva_dtype_name(t), c->in[i].shape);
  }
}

bool kva_check_fail(kva_check *check, const kva_case *c, kva_dtype dtype, const char *what, const kva_diag *diag) {
  kva_case_describe(c, dtype, &check->message);
  kva_text_add(&check->message, ": %s\n", what);
  for (size_t i = 0; diag && i < kva_diag_count(diag); i++)
    kva_text_add(&check->message, "  %s\n", kva_diag_message(diag, i, NULL, NULL));
  return false;
}

double kva_check_largest(const kva_ref_tensor *w) {
  double m = 0;
  for (int64_t i = 0; w->f && i < w->n; i++)
    if (isfinite(w->f[i]) && fabs(w->f[i]) > m) m = fabs(w->f[i]);
  return m;
}

/* Error in units of the tolerance. */
static double element_error(const kva_ref_tensor *expected, const kva_ref_tensor *found, int64_t i, double tolerance) {
  if (!expected->f) return expected->i[i] == found->i[i] ? 0 : INFINITY;
  double a = expected->f[i], b = found->f[i];
  if (a == b || (isnan(a) && isnan(b))) return 0;
  double error = fabs(a - b) / tolerance;
  return isfinite(error) ? error : INFINITY;
}

static bool compare(const kva_check_run *r, const kva_ref_tensor *expected, const kva_ref_tensor *found, double scale,
                    kva_check *check) {
  if (expected->dtype != found->dtype || expected->n != found->n)
    return kva_check_fail(check, r->c, r->dtype, "wrong result type", NULL);
  double tolerance = kva_case_tolerance(r->tolerance, expected->dtype) * fmax(scale, kva_check_largest(expected));
  int64_t worst = -1;
  double largest_error = 0;
  for (int64_t i = 0; i < expected->n; i++) {
    double error = element_error(expected, found, i, tolerance);
    if (error <= largest_error) continue;
    largest_error = error;
    worst = i;
  }
  check->error = fmax(check->error, largest_error);
  if (largest_error <= 1) return true;
  char text[160];
  snprintf(text, sizeof text, "element %lld: expected %.17g, found %.17g, tolerance %.3g", (long long)worst,
           kva_ref_tensor_get(expected, worst), kva_ref_tensor_get(found, worst), expected->f ? tolerance : 0);
  return kva_check_fail(check, r->c, r->dtype, text, NULL);
}

static bool execute(const kva_check_run *r, kva_executor run, void *user, const char *what, kva_ref_tensor **out,
                    kva_check *check) {
  kva_status status = run(user, r->built->m, r->f, r->inputs, out, r->built->diag);
  check->unsupported = status == KVA_UNSUPPORTED;
  return status == KVA_OK || kva_check_fail(check, r->c, r->dtype, what, r->built->diag);
}

bool kva_check_function(const kva_check_run *r, kva_executor run, void *user, kva_check *check) {
  kva_ref_tensor *expected[KVA_CASE_OPERANDS] = {0}, *found[KVA_CASE_OPERANDS] = {0};
  uint32_t n = kva_graph_output_count(r->f->graph);
  bool ok = execute(r, kva_run_reference, NULL, "reference fails", expected, check) &&
            execute(r, run, user, "executor fails", found, check);
  double scale = 0;
  for (uint32_t i = 0; i < r->built->n_inputs; i++) scale = fmax(scale, kva_check_largest(r->built->inputs[i]));
  if (ok && n) check->dtype = expected[0]->dtype;
  for (uint32_t i = 0; ok && i < n; i++) ok = compare(r, expected[i], found[i], scale, check);
  for (uint32_t i = 0; i < n; i++) {
    kva_ref_tensor_free(expected[i]);
    kva_ref_tensor_free(found[i]);
  }
  return ok;
}

bool kva_case_check(const kva_case *c, kva_dtype dtype, kva_executor run, void *user, kva_check *check) {
  kva_case_built built;
  kva_check_run r = {.c = c, .dtype = dtype, .built = &built, .tolerance = kva_ops.ops[c->op]->tolerance};
  bool ok = kva_case_build(c, dtype, &built) == KVA_OK || kva_check_fail(check, c, dtype, "does not build", built.diag);
  r.f = built.f;
  r.inputs = (const kva_ref_tensor *const *)built.inputs;
  ok = ok && kva_check_function(&r, run, user, check);
  kva_case_free(&built);
  return ok;
}
