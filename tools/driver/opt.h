/* Passes of both levels of the IR by name, for `kvasir opt` and the golden tests. */
#ifndef KVA_TOOLS_OPT_H
#define KVA_TOOLS_OPT_H

#include "runtime/exe/options.h"
#include "tools/driver/driver.h"

/* The levels, graph first; NULL after the last one. */
const kva_pass_level *kva_pass_level_at(uint32_t i);
/* Whether some level has a pass of this name. */
bool kva_pass_exists(const char *name);

/* Prints the table, every pass and pipeline with its help, as text or as a JSON list. */
void kva_opt_list(bool json, kva_text *out);

/* The passes to run, as given by a user. */
typedef struct kva_opt_choice {
  const char *passes; /* "fold,dce": names of passes and pipelines */
  const char *precision, *caches, *target, *gemm, *math, *mesh;
} kva_opt_choice;
#define KVA_OPT_OPTIONS(c)                                                                                             \
  {"--passes", NULL, "A,B,...", KVA_OPTION_STRING, &(c)->passes, "passes and pipelines, in this order; help: list"},   \
      {"--precision", NULL, KVA_PRECISIONS, KVA_OPTION_WORD, &(c)->precision, "of products (f32)"},                    \
      KVA_CACHES_OPTION(&(c)->caches),                                                                                 \
      {"--target", NULL, "NAME", KVA_OPTION_STRING, &(c)->target, "what passes prepare for: a CPU (native) or sm_80"}, \
      KVA_MESH_OPTION(&(c)->mesh), KVA_MATH_OPTION(&(c)->math), {                                                      \
    "--gemm", NULL, KVA_GEMMS, KVA_OPTION_WORD, &(c)->gemm, "matrix products of float (generated)"                     \
  }

/* Runs the passes in order. `options` has their other options; the choice's precision and target are added to it. out:
 * the module as text that reads back; the plans, confirmed for the target, if pass plan comes last; after `lower` also
 * the kernels. *changed becomes true if a pass over graphs changed something. KVA_INVALID with a diagnostic: an unknown
 * pass, an unmet requirement, or an error of a pass. */
KVA_MUST_USE kva_status kva_opt(kva_module *m, const kva_opt_choice *choice, const kva_pass_options *options,
                                bool *changed, kva_text *out);

#endif
