/* kvasir ops: the operator table as the user sees it, and with --verify what a check of every row found. */
#include "tools/cli.h"
#include "tools/verify/verify.h"

#include <math.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_ops = {
    "ops", "[options]", "list the operators with what each supports, or verify them",
    "Columns: operands, results, element types of operand 0 (f float, i integer, b bool), gradient (rule; zero: none "
    "by\n"
    "mathematics; none: no rule), lowering (element: fuses freely; kernel: whole kernel; structure), tolerance of\n"
    "compiled against reference in units of the type's epsilon.\n\n"
    "--verify runs every operator, compiled for this machine, in every element type it supports against the "
    "reference,\n"
    "on listed and random shapes, and every gradient rule against central differences in double (relative error <=\n"
    "1e-6). Columns: compiled cases passed/all and the worst error in units of the tolerance; gradient cases "
    "passed/all\n"
    "and the worst relative error; types. Exit code 1: something failed.\n\n"
    "Examples:\n  kvasir ops --json\n  kvasir ops --verify --op softmax",
    run};

static const char *vjp_name(const kva_op_info *op) {
  static const char *const names[] = {"rule", "zero", "none"};
  return names[op->vjp_kind];
}
static const char *lower_name(const kva_op_info *op) {
  static const char *const names[] = {"element", "kernel", "structure"};
  return names[op->lower_kind];
}

static void dtype_classes(const kva_op_info *op, char out[4]) {
  size_t n = 0;
  if (op->traits & KVA_FLOAT) out[n++] = 'f';
  if (op->traits & KVA_INT) out[n++] = 'i';
  if (op->traits & KVA_BOOLEAN) out[n++] = 'b';
  if (!n) out[n++] = '-';
  out[n] = 0;
}

static void print_row(const kva_op_info *op) {
  char classes[4], operands[24];
  dtype_classes(op, classes);
  if (op->max_operands < 0)
    snprintf(operands, sizeof operands, "%d+", op->min_operands);
  else if (op->min_operands == op->max_operands)
    snprintf(operands, sizeof operands, "%d", op->min_operands);
  else
    snprintf(operands, sizeof operands, "%d-%d", op->min_operands, op->max_operands);
  printf("%-24s %8s %7d  %-5s  %-8s  %-9s  %g\n", op->name, operands, op->n_results, classes, vjp_name(op),
         lower_name(op), op->tolerance);
}

static void print_json(void) {
  printf("[");
  for (uint32_t i = 0; i < kva_ops.n; i++) {
    const kva_op_info *op = kva_ops.ops[i];
    char classes[4];
    dtype_classes(op, classes);
    printf("%s\n  {\"name\": \"%s\", \"min_operands\": %d, \"max_operands\": %d, \"results\": %d, \"types\": \"%s\", "
           "\"gradient\": \"%s\", \"lowering\": \"%s\", \"tolerance\": %g}",
           i ? "," : "", op->name, op->min_operands, op->max_operands, op->n_results, classes, vjp_name(op),
           lower_name(op), op->tolerance);
  }
  printf("\n]\n");
}

static void print_counts(void) {
  uint32_t vjp[3] = {0}, lower[3] = {0};
  for (uint32_t i = 0; i < kva_ops.n; i++) {
    vjp[kva_ops.ops[i]->vjp_kind]++;
    lower[kva_ops.ops[i]->lower_kind]++;
  }
  printf("\n%u operators. Gradients: %u rules, %u zero, %u none. Lowering: %u element, %u kernel, %u structure.\n",
         kva_ops.n, vjp[0], vjp[1], vjp[2], lower[0], lower[1], lower[2]);
}

/* ---- verification -------------------------------------------------------------------------------------------------
 */

static void add_dtypes(kva_dtype_set set, kva_text *text) {
  static const struct {
    kva_dtype t;
    const char *name;
  } names[] = {{KVA_F32, "f32"}, {KVA_F64, "f64"}, {KVA_F16, "f16"},  {KVA_BF16, "bf16"}, {KVA_I8, "i8"},
               {KVA_I16, "i16"}, {KVA_I32, "i32"}, {KVA_I64, "i64"},  {KVA_U8, "u8"},     {KVA_U16, "u16"},
               {KVA_U32, "u32"}, {KVA_U64, "u64"}, {KVA_BOOL, "bool"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (kva_dtype_in(set, names[i].t)) kva_text_add(text, "%s%s", text->len ? " " : "", names[i].name);
}

/* "12/12 0.31", "-" when there was nothing to check. */
static const char *score(uint32_t passed, uint32_t all, const char *format, double error, char out[48]) {
  int n = snprintf(out, 48, all ? "%u/%u " : "-", passed, all);
  if (all) snprintf(out + n, 48 - (size_t)n, format, error);
  return out;
}

static void print_verified(const kva_verify_report *report) {
  printf("%-24s %-18s %-20s %s\n", "operator", "compiled, error", "gradient, error", "types");
  for (uint32_t i = 0; i < report->n; i++) {
    const kva_verify_row *row = &report->rows[i];
    kva_text types = {0};
    char compiled[48], gradient[48];
    add_dtypes(row->dtypes, &types);
    printf("%-24s %-18s %-20s %s\n", row->op->name,
           score(row->compiled_passed, row->compiled, "%.2g", row->error, compiled),
           score(row->gradients_passed, row->gradients, "%.1e", row->gradient_error, gradient),
           types.len                               ? types.data
           : row->op->lower_kind == KVA_LOWER_NONE ? "(no code of its own)"
                                                   : "-");
    kva_text_free(&types);
  }
  printf("\n%u passed, %u failed, %u skipped\n", report->passed, report->failed, report->skipped);
}

static void print_verified_json(const kva_verify_report *report) {
  printf("{\"operators\": [");
  for (uint32_t i = 0; i < report->n; i++) {
    const kva_verify_row *row = &report->rows[i];
    kva_text types = {0};
    add_dtypes(row->dtypes, &types);
    printf("%s\n  {\"name\": \"%s\", \"types\": \"%s\", \"compiled\": %u, \"compiled_passed\": %u, \"compiled_error\": "
           "%g, "
           "\"gradients\": %u, \"gradients_passed\": %u, \"gradient_error\": %g}",
           i ? "," : "", row->op->name, types.len ? types.data : "", row->compiled, row->compiled_passed,
           isfinite(row->error) ? row->error : 1e308, row->gradients, row->gradients_passed,
           isfinite(row->gradient_error) ? row->gradient_error : 1e308);
    kva_text_free(&types);
  }
  printf("\n], \"passed\": %u, \"failed\": %u, \"skipped\": %u}\n", report->passed, report->failed, report->skipped);
}

static int verify(const char *op, int64_t threads, int64_t n_random, bool json) {
  kva_verify_options options = {.op = op, .threads = (int)threads, .n_random = (uint32_t)n_random};
  kva_verify_report report;
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_verify(&options, diag, &report);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  kva_diag_destroy(diag);
  if (status != KVA_OK) return EXIT_USAGE;
  if (report.messages.len) fputs(report.messages.data, stderr);
  if (json)
    print_verified_json(&report);
  else
    print_verified(&report);
  int code = report.failed ? EXIT_NO : EXIT_DONE;
  kva_verify_free(&report);
  return code;
}

/* ---- the verb -----------------------------------------------------------------------------------------------------
 */

static int print_table(bool json) {
  if (json) {
    print_json();
    return EXIT_DONE;
  }
  printf("%-24s %8s %7s  %-5s  %-8s  %-9s  %s\n", "operator", "operands", "results", "types", "gradient", "lowering",
         "eps");
  for (uint32_t i = 0; i < kva_ops.n; i++) print_row(kva_ops.ops[i]);
  print_counts();
  printf("kvasir ops --verify checks them all.\n");
  return EXIT_DONE;
}

static int run(int argc, char **argv) {
  bool json = false, check = false;
  int64_t threads = 0, n_random = 4;
  const char *op = NULL;
  const kva_option options[] = {
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &json, "print JSON"},
      {"--verify", NULL, NULL, KVA_OPTION_FLAG, &check, "check every operator and print a table with counts"},
      {"--op", NULL, "NAME", KVA_OPTION_STRING, &op, "verify this operator alone"},
      {"--random", NULL, "N", KVA_OPTION_INT, &n_random, "random cases for each operator and type (4)"},
      {"--threads", NULL, "N", KVA_OPTION_INT, &threads, "threads that verify (all)"},
  };
  int n_positional, code = kva_cli_parse(&kva_verb_ops, argc, argv, options, 5, NULL, 0, &n_positional);
  if (code >= 0) return code;
  if (op && !check) {
    fprintf(stderr, "kvasir ops: --op is for --verify\n");
    return EXIT_USAGE;
  }
  if (!check) return print_table(json);
  if (threads >= 0 && threads <= 1024 && n_random >= 0 && n_random <= 1000) return verify(op, threads, n_random, json);
  fprintf(stderr, "kvasir ops: --threads takes 0 to 1024, --random 0 to 1000\n");
  return EXIT_USAGE;
}
