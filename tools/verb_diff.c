/* kvasir diff: compiled code against the reference, value by value. */
#include "tools/compared.h"

#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_diff = {
    "diff", "MODEL [options]", "compare every value of compiled code with the reference",
    "Runs the model in pieces, on inputs as of kvasir run. Each piece is compiled twice, with all its values as "
    "results "
    "and\n"
    "fused as in a whole model, and gets the reference's values of what it reads, so that an error shows where it is\n"
    "made. With --against, values of another runtime take the reference's place: DIR/<value>.npy, with _ for /, of "
    "any\n"
    "of the model's values. Prints values beyond the tolerance with their places in the model, and the smallest part\n"
    "that shows the first of them. At last the whole model's outputs are compared. Exit code 0: all agree.\n\n"
    "Examples:\n"
    "  kvasir diff model.onnx --input x=x.npy -o found/\n"
    "  kvasir diff models/lm.kv -D preset=small --pin B=1 --pin T=16\n"
    "  kvasir diff model.onnx --input x=x.npy --against values/",
    run};

typedef struct diff_options {
  kva_compared model;
  kva_diff_options diff;
} diff_options;

/* Outputs carry the errors of all nodes before them. */
static uint32_t compare_outputs(const kva_diff_values *v, kva_ref_tensor **found, const kva_diff_options *o) {
  const kva_graph *g = v->m->functions.data[0]->graph;
  uint32_t beyond = 0;
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++) {
    const kva_value *output = kva_graph_output(g, i);
    const kva_ref_tensor *expected = v->of[output->id];
    kva_text why = {0};
    if (expected && found[i] && !kva_diff_agree(v, output, expected, found[i], o->tolerance, &why)) {
      fprintf(stderr, "kvasir: output '%s' of the whole model: %s\n", output->name ? output->name : "unnamed",
              why.data);
      beyond++;
    }
    kva_text_free(&why);
  }
  return beyond;
}

static int print_report(const kva_diff_report *r, uint32_t outputs_beyond, const kva_diff_options *o) {
  printf("%u values compared, %u beyond the tolerance", r->compared, r->beyond);
  if (o->against) printf("; %u of them from %s", r->files, o->against);
  printf("\n");
  if (o->against && !r->files) {
    fprintf(stderr, "kvasir diff: no file in %s has the name of a value\n", o->against);
    return EXIT_NO;
  }
  if (outputs_beyond && !r->beyond)
    printf("only the whole model shows it: errors may add up, or kvasir reduce takes it apart\n");
  return r->beyond || outputs_beyond ? EXIT_NO : EXIT_DONE;
}

static int compare(void *user, kva_diff_values *v, kva_module *whole, const kva_run_request *request, kva_diag *diag) {
  const diff_options *o = user;
  kva_diff_report report = {0};
  uint32_t n = kva_graph_output_count(v->m->functions.data[0]->graph);
  kva_ref_tensor **outputs = calloc(n + 1, sizeof *outputs);
  int code = EXIT_DONE;
  kva_status status = outputs ? kva_diff_begin(v, whole, o->diff.target, request, diag, outputs) : KVA_NO_MEMORY;
  if (status == KVA_OK) kva_cli_warn(diag);
  if (status == KVA_OK) status = kva_diff_run(v, &o->diff, diag, &report);
  if (status == KVA_OK) code = print_report(&report, compare_outputs(v, outputs, &o->diff), &o->diff);
  for (uint32_t i = 0; outputs && i < n; i++) kva_ref_tensor_free(outputs[i]);
  free(outputs);
  return status == KVA_OK ? code : kva_cli_fail(status, diag);
}

static int run(int argc, char **argv) {
  int64_t piece = 16;
  diff_options o = {.model = KVA_COMPARED};
  const kva_option options[] = {
      KVA_COMPARED_OPTIONS(&o.model),
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &o.diff.output_dir, "write the smallest part and its inputs there"},
      {"--against", NULL, "DIR", KVA_OPTION_STRING, &o.diff.against, "values of another runtime, <value>.npy"},
      {"--piece", NULL, "N", KVA_OPTION_COUNT, &piece, "nodes of a piece (16)"},
      {"--verbose", "-v", NULL, KVA_OPTION_FLAG, &o.diff.verbose, "print every value beyond the tolerance"},
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_diff, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (n == 0) {
    fprintf(stderr, "kvasir diff: a model is missing\n");
    return EXIT_USAGE;
  }
  if (o.diff.output_dir && kva_compared_replaces("diff", &o.model, path, o.diff.output_dir)) return EXIT_USAGE;
  o.diff.target = &o.model.target;
  o.diff.tolerance = &o.model.tolerance;
  o.diff.piece = (uint32_t)piece;
  return kva_compared_run(&o.model, path, compare, &o);
}
