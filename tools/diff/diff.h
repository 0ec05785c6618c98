/* Compiled code against the reference evaluator, value by value, on parts of a model: `kvasir diff` and `reduce`.
 *
 * A part is some nodes of a model's main function as a module of its own; what they read of others is given to it. So
 * an error shows at the node that makes it, and does not grow on its way through the model. */
#ifndef KVA_TOOLS_DIFF_H
#define KVA_TOOLS_DIFF_H

#include "runtime/exe/files.h"
#include "tools/library/library.h"

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* What is known of a model's run. Arrays are indexed by the model's value ids; tensors are owned. */
typedef struct kva_diff_values {
  kva_arena *arena;
  const kva_module *m;
  kva_ref_tensor **of;               /* NULL: not known (any more) */
  KVA_VEC(const kva_expr *) symbols; /* those that the main function's inputs and nodes have, and their extents */
  KVA_VEC(int64_t) extents;          /* -1: not known (yet) */
} kva_diff_values;
void kva_diff_values_init(kva_diff_values *v, const kva_module *m);
void kva_diff_values_free(kva_diff_values *v);
/* Takes w (NULL: out of memory) as the value of `value`, and what its shape says of symbols. */
KVA_MUST_USE kva_status kva_diff_learn(kva_diff_values *v, const kva_value *value, kva_ref_tensor *w);
/* The symbol that n binds to its operand, if n is such a node. */
void kva_diff_learn_bind(kva_diff_values *v, const kva_node *n);
void kva_diff_forget(kva_diff_values *v, const kva_value *value);
/* Values of inputs, and of states, from a session of the whole model before its first run. */
KVA_MUST_USE kva_status kva_diff_start(kva_diff_values *v, kva_session *whole, const kva_tensor *inputs);
/* Symbols that stand alone in no shape, as the session's run has found them. */
void kva_diff_learn_symbols(kva_diff_values *v, kva_session *whole);

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* Nodes by id, and values that are their results. Constants come along with the nodes that read them. */
typedef struct kva_diff_part {
  bool *keep;
  uint32_t n_outputs;
  const kva_value **outputs;
} kva_diff_part;
/* Whether a part may have n: it computes something, and neither reads nor writes state. */
bool kva_diff_is_step(const kva_node *n);

/* The part as a module with named inputs; those whose id is not one of m's values carry only the extent of a symbol. */
kva_module *kva_diff_module(const kva_diff_values *v, const kva_diff_part *part);
/* Runs a part on what is known; out: [n_outputs], by malloc. */
KVA_MUST_USE kva_status kva_diff_reference(const kva_diff_values *v, const kva_diff_part *part, kva_ref_tensor **out,
                                           kva_diag *diag);
typedef struct kva_diff_target {
  kva_target_options options;
  const char *device;
  int threads;
  const char *arguments; /* " --math int8": what the command that shows a failure needs, too */
} kva_diff_target;
/* Compiles as for `kvasir run`, and runs. */
KVA_MUST_USE kva_status kva_diff_compiled(const kva_diff_values *v, const kva_diff_part *part,
                                          const kva_diff_target *target, kva_ref_tensor **out, kva_diag *diag);
/* The tensor of an input of a part's module. */
KVA_MUST_USE kva_status kva_diff_input(const kva_diff_values *v, const kva_value *input, kva_ref_tensor **out);

/* ---- comparing --------------------------------------------------------------------------------------------------- */

typedef struct kva_diff_tolerance {
  double rtol; /* of the largest expected element; at least four units of the type */
  double atol;
} kva_diff_tolerance;
#define KVA_DIFF_TOLERANCE \
  { 1e-4, 1e-9 }
#define KVA_DIFF_TOLERANCE_OPTIONS(t)                                                                             \
  {"--rtol", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &(t)->rtol, "tolerance, of a value's largest element (1e-4)"}, { \
    "--atol", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &(t)->atol, "absolute tolerance (1e-9)"                         \
  }
/* Whether the two agree; else the worst element as text. Integers are equal, NaN and infinities in the same places.
 * value: the expected values of what its node reads excuse the rounding of differences. */
bool kva_diff_agree(const kva_diff_values *v, const kva_value *value, const kva_ref_tensor *expected,
                    const kva_ref_tensor *found, const kva_diff_tolerance *tolerance, kva_text *why);

/* ---- the whole model --------------------------------------------------------------------------------------------- */

/* Compiles `whole`, which is the model of v->m and is destroyed, reads or draws the inputs and learns them and the
 * states. outputs: NULL, or the whole model runs and these are what it gives, by malloc. */
KVA_MUST_USE kva_status kva_diff_begin(kva_diff_values *v, kva_module *whole, const kva_diff_target *target,
                                       const kva_run_request *request, kva_diag *diag, kva_ref_tensor **outputs);
/* Learns all values of the main function from the reference. */
KVA_MUST_USE kva_status kva_diff_evaluate(kva_diff_values *v, kva_diag *diag);

/* ---- kvasir diff ------------------------------------------------------------------------------------------------- */

typedef struct kva_diff_options {
  const kva_diff_target *target;
  const kva_diff_tolerance *tolerance;
  const char *against;    /* folder with values of another runtime, <name>.npy; NULL: none */
  const char *output_dir; /* for the smallest part; NULL: not written */
  uint32_t piece;         /* nodes of a piece */
  bool verbose;
} kva_diff_options;

typedef struct kva_diff_report {
  uint32_t compared, beyond; /* values */
  uint32_t files;            /* of `against`, that were read */
} kva_diff_report;
/* Goes through the main function piece by piece, on the known inputs. Prints every value beyond the tolerance as an
 * error with its place; the first one's smallest part is written. Keeps the values of one piece and those that later
 * ones read. *out_report is filled as far as it goes. */
KVA_MUST_USE kva_status kva_diff_run(kva_diff_values *v, const kva_diff_options *o, kva_diag *diag,
                                     kva_diff_report *out_report);

/* ---- kvasir reduce ----------------------------------------------------------------------------------------------- */

/* How a part fails, as a process of its own that has a limit of time. */
typedef enum kva_diff_failure {
  KVA_DIFF_AGREES,
  KVA_DIFF_REFUSED, /* does not compile, or does not run */
  KVA_DIFF_DIFFERS,
  KVA_DIFF_ENDED, /* by a signal, or after the limit */
} kva_diff_failure;
typedef struct kva_diff_check {
  const kva_diff_target *target;
  const kva_diff_tolerance *tolerance;
  int64_t seconds;
  bool only_compile; /* the model fails before it runs: no value is known */
} kva_diff_check;
kva_diff_failure kva_diff_fails(const kva_diff_values *v, const kva_diff_part *part, const kva_diff_check *check,
                                char *why, size_t size);
/* The whole main function as a part; arrays in v->arena. */
kva_diff_part kva_diff_whole(const kva_diff_values *v);
/* Takes nodes and outputs away, as long as the part still fails in the same way; the values that the part may come to
 * read are known. Returns the number of trials. */
uint32_t kva_diff_reduce(const kva_diff_values *v, const kva_diff_check *check, kva_diff_failure failure,
                         kva_diff_part *part);
/* Prints its nodes' number and operators. */
void kva_diff_describe(const kva_diff_values *v, const kva_diff_part *part);
/* Writes the part as DIR/model.kv, or as DIR/model.onnx if it has large constants, and its inputs as DIR/input<i>.npy;
 * prints the command that shows the failure. */
KVA_MUST_USE kva_status kva_diff_write(const kva_diff_values *v, const kva_diff_part *part, const kva_diff_check *check,
                                       const char *dir, kva_diag *diag);

#endif
