/* kvasir ops: prints the operator table, and with --verify checks every row. */
#include "tools/cli.h"
#include "tools/verify/verify.h"

#include <math.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_ops = {
    "ops", "[options]", "list the operators with what each supports, or verify them",
    "Columns: operands, results, element types (f float, i integer, b bool), gradient (rule; zero: none "
    "by\n"
    "mathematics; none: no rule), lowering (element: fuses freely; kernel: whole kernel; structure), tolerance of\n"
    "compiled against reference in units of the type's epsilon.\n\n"
    "--verify runs every operator, compiled for this machine, in every element type it supports against the "
    "reference,\n"
    "on listed and random shapes, every gradient rule against central differences in double (relative error <= 1e-6),\n"
    "and every gradient compiled in float. With --device ptxsim the compiled code is a GPU's, run on the simulator; a\n"
    "case without code fails, and a gradient that exchanges values between processes is skipped. Columns: compiled\n"
    "cases passed/all and the worst error in units of the tolerance; gradient rules passed/all and the worst relative\n"
    "error; compiled gradients as compiled cases; types. Exit code 1: something failed.\n\n"
    "Examples:\n  kvasir ops --json\n  kvasir ops --verify --op softmax\n"
    "  kvasir ops --verify --device ptxsim --target sm_90a --op matmul",
    run};

static const char *vjp_name(const kva_op_info *op) {
  static const char *const names[] = {"rule", "zero", "none", "graph"};
  return names[op->vjp_kind];
}
static const char *lower_name(const kva_op_info *op) {
  static const char *const names[] = {"element", "kernel", "structure", "call"};
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
  uint32_t vjp[4] = {0}, lower[4] = {0};
  for (uint32_t i = 0; i < kva_ops.n; i++) {
    vjp[kva_ops.ops[i]->vjp_kind]++;
    lower[kva_ops.ops[i]->lower_kind]++;
  }
  printf("\n%u operators. Gradients: %u rules, %u zero, %u none, %u through sub-graphs. Lowering: %u element, %u "
         "kernel, %u call, %u structure.\n",
         kva_ops.n, vjp[0], vjp[1], vjp[2], vjp[3], lower[0], lower[1], lower[3], lower[2]);
}

/* ---- verification ------------------------------------------------------------------------------------------------ */

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

/* Formats "12/12 0.31", or "-" if there was nothing to check. */
static const char *score(uint32_t passed, uint32_t all, const char *format, double error, char out[48]) {
  int n = snprintf(out, 48, all ? "%u/%u " : "-", passed, all);
  if (all) snprintf(out + n, 48 - (size_t)n, format, error);
  return out;
}

/* Each case runs on this device only: one without code fails. */
static void print_device(const kva_verify_report *report, const char *arch) {
  if (arch)
    printf("%llu kernels ran on ptxsim (%s); %u cases had no code, 0 nodes ran on the CPU instead\n",
           (unsigned long long)report->launches, arch, report->unsupported);
}

static void print_verified(const kva_verify_report *report, const char *arch) {
  printf("%-24s %-18s %-20s %-20s %s\n", "operator", "compiled, error", "gradient, error", "compiled gradient",
         "types");
  for (uint32_t i = 0; i < report->n; i++) {
    const kva_verify_row *row = &report->rows[i];
    kva_text types = {0};
    char compiled[48], gradient[48], backward[48];
    add_dtypes(row->dtypes, &types);
    printf("%-24s %-18s %-20s %-20s %s\n", row->op->name,
           score(row->compiled_passed, row->compiled, "%.2g", row->error, compiled),
           score(row->gradients_passed, row->gradients, "%.1e", row->gradient_error, gradient),
           score(row->backward_passed, row->backward, "%.2g", row->backward_error, backward),
           types.len                   ? types.data
           : !kva_op_has_code(row->op) ? "(no code of its own)"
                                       : "-");
    kva_text_free(&types);
  }
  printf("\n%u passed, %u failed, %u skipped\n", report->passed, report->failed, report->skipped);
  print_device(report, arch);
}

/* JSON cannot represent infinity. */
static double number(double error) {
  return isfinite(error) ? error : 1e308;
}

static void print_verified_json(const kva_verify_report *report, const char *arch) {
  printf("{\"target\": \"%s\", \"operators\": [", arch ? arch : "host");
  for (uint32_t i = 0; i < report->n; i++) {
    const kva_verify_row *row = &report->rows[i];
    kva_text types = {0};
    add_dtypes(row->dtypes, &types);
    printf("%s\n  {\"name\": \"%s\", \"types\": \"%s\", \"compiled\": %u, \"compiled_passed\": %u, \"compiled_error\": "
           "%g, \"gradients\": %u, \"gradients_passed\": %u, \"gradient_error\": %g, \"compiled_gradients\": %u, "
           "\"compiled_gradients_passed\": %u, \"compiled_gradient_error\": %g}",
           i ? "," : "", row->op->name, types.len ? types.data : "", row->compiled, row->compiled_passed,
           number(row->error), row->gradients, row->gradients_passed, number(row->gradient_error), row->backward,
           row->backward_passed, number(row->backward_error));
    kva_text_free(&types);
  }
  printf("\n], \"passed\": %u, \"failed\": %u, \"skipped\": %u, \"unsupported\": %u, \"launches\": %llu}\n",
         report->passed, report->failed, report->skipped, report->unsupported, (unsigned long long)report->launches);
}

/* Architecture of the simulated GPU, or NULL for this machine. */
static kva_status choose_target(const kva_device_choice *choice, kva_diag *diag, const char **out_arch) {
  kva_target_options target = {0};
  if (choice->device && !strcmp(choice->device, "cuda"))
    return kva_error(diag, NULL, "ops --verify takes device cpu or ptxsim; tools/gpu-check verifies a GPU");
  KVA_TRY(kva_cli_target(choice, diag, &target));
  *out_arch = target.arch;
  if (!target.arch || (choice->device && !strcmp(choice->device, "ptxsim"))) return KVA_OK;
  return kva_error(diag, NULL, "--target %s is for --device ptxsim", target.arch);
}

static int verify(kva_verify_options *options, const kva_device_choice *choice, bool json) {
  kva_verify_report report;
  kva_diag *diag = kva_diag_create();
  kva_status status = choose_target(choice, diag, &options->arch);
  if (status == KVA_OK) status = kva_verify(options, diag, &report);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  kva_diag_destroy(diag);
  if (status != KVA_OK) return EXIT_USAGE;
  if (report.messages.len) fputs(report.messages.data, stderr);
  if (json)
    print_verified_json(&report, options->arch);
  else
    print_verified(&report, options->arch);
  int code = report.failed ? EXIT_NO : EXIT_DONE;
  kva_verify_free(&report);
  return code;
}

/* ---- the verb ---------------------------------------------------------------------------------------------------- */

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
  kva_device_choice device = {0};
  const kva_option options[] = {
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &json, "print JSON"},
      {"--verify", NULL, NULL, KVA_OPTION_FLAG, &check, "check every operator and print a table with counts"},
      {"--op", NULL, "NAME", KVA_OPTION_STRING, &op, "verify this operator alone"},
      {"--random", NULL, "N", KVA_OPTION_INT, &n_random, "random cases for each operator and type (4)"},
      {"--threads", NULL, "N", KVA_OPTION_INT, &threads, "threads that verify (all)"},
      KVA_PLACE_OPTIONS(&device),
  };
  int n_positional;
  int code =
      kva_cli_parse(&kva_verb_ops, argc, argv, options, sizeof options / sizeof *options, NULL, 0, &n_positional);
  if (code >= 0) return code;
  if (!check && (op || device.device || device.target)) {
    fprintf(stderr, "kvasir ops: --op, --device and --target are for --verify\n");
    return EXIT_USAGE;
  }
  if (!check) return print_table(json);
  if (threads < 0 || threads > 1024 || n_random < 0 || n_random > 1000) {
    fprintf(stderr, "kvasir ops: --threads takes 0 to 1024, --random 0 to 1000\n");
    return EXIT_USAGE;
  }
  kva_verify_options verified = {.op = op, .threads = (int)threads, .n_random = (uint32_t)n_random};
  return verify(&verified, &device, json);
}
