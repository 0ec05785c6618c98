/* kvasir ops: the operator table as the user sees it. */
#include "tools/cli.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_ops = {
    "ops", "[options]", "list the operators with what each supports",
    "Columns: operands, results, element types of operand 0 (f float, i integer, b bool), gradient (rule; zero: none by\n"
    "mathematics; none: no rule), lowering (element: fuses freely; kernel: whole kernel; structure), tolerance of compiled\n"
    "against reference in units of the type's epsilon.\n\n"
    "Example:\n  kvasir ops --json",
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
  if (op->max_operands < 0) snprintf(operands, sizeof operands, "%d+", op->min_operands);
  else if (op->min_operands == op->max_operands) snprintf(operands, sizeof operands, "%d", op->min_operands);
  else snprintf(operands, sizeof operands, "%d-%d", op->min_operands, op->max_operands);
  printf("%-24s %8s %7d  %-5s  %-8s  %-9s  %g\n", op->name, operands, op->n_results, classes, vjp_name(op), lower_name(op),
         op->tolerance);
}

static void print_json(void) {
  printf("[");
  for (uint32_t i = 0; i < kva_ops.n; i++) {
    const kva_op_info *op = kva_ops.ops[i];
    char classes[4];
    dtype_classes(op, classes);
    printf("%s\n  {\"name\": \"%s\", \"min_operands\": %d, \"max_operands\": %d, \"results\": %d, \"types\": \"%s\", "
           "\"gradient\": \"%s\", \"lowering\": \"%s\", \"tolerance\": %g}",
           i ? "," : "", op->name, op->min_operands, op->max_operands, op->n_results, classes, vjp_name(op), lower_name(op),
           op->tolerance);
  }
  printf("\n]\n");
}

static void print_counts(void) {
  uint32_t vjp[3] = {0}, lower[3] = {0};
  for (uint32_t i = 0; i < kva_ops.n; i++) {
    vjp[kva_ops.ops[i]->vjp_kind]++;
    lower[kva_ops.ops[i]->lower_kind]++;
  }
  printf("\n%u operators. Gradients: %u rules, %u zero, %u none. Lowering: %u element, %u kernel, %u structure.\n", kva_ops.n,
         vjp[0], vjp[1], vjp[2], lower[0], lower[1], lower[2]);
}

static int run(int argc, char **argv) {
  bool json = false;
  const kva_option options[] = {{"--json", NULL, NULL, KVA_OPTION_FLAG, &json, "print a JSON array"}};
  int n_positional, code = kva_cli_parse(&kva_verb_ops, argc, argv, options, 1, NULL, 0, &n_positional);
  if (code >= 0) return code;
  if (json) {
    print_json();
    return EXIT_DONE;
  }
  printf("%-24s %8s %7s  %-5s  %-8s  %-9s  %s\n", "operator", "operands", "results", "types", "gradient", "lowering", "eps");
  for (uint32_t i = 0; i < kva_ops.n; i++) print_row(kva_ops.ops[i]);
  print_counts();
  return EXIT_DONE;
}
