/* The harness of all passes: what happens around each of them, for both levels of the IR.
 *
 * A pass is a row of its level's table (passes/passes.def, codegen/passes.def). It works on a unit: a module, or the
 * job of one kernel. kva_pass_run is the only way that a pipeline runs one: it checks what the row requires, runs the
 * function, and then verifies, prints, measures and counts as a kva_pass_control asks. */
#ifndef KVA_IR_PASS_H
#define KVA_IR_PASS_H

#include "runtime/base/base.h"

typedef enum kva_pass_flags {
  KVA_PASS_REQUIRED = 1 << 0, /* later stages depend on it: runs whatever the limit of changes */
  KVA_PASS_COUNTS = 1 << 1, /* counts single rewrites; of other passes that may be left out a run that changes something
                               counts one */
} kva_pass_flags;

/* One row. */
typedef struct kva_pass {
  const char *name;
  uint32_t flags;
  const char *needs;   /* names of properties, separated by blanks; "": none */
  const char *options; /* options of `kvasir opt` that it reads; "": none */
  const char *help;    /* one line */
  /* ir and options are the level's types. *changed is false at the call and says afterwards whether ir changed. */
  kva_status (*run)(void *ir, const void *options, bool *changed);
} kva_pass;

/* A fact about a unit that passes may require. It is looked for in the unit itself, so that a module that was read from
 * text is judged like one that the pipeline made. */
typedef struct kva_pass_property {
  const char *name;
  const char *help; /* one line: what holds, and which pass makes it so */
  bool (*holds)(const void *ir);
} kva_pass_property;

/* A level of the IR with its passes. */
typedef struct kva_pass_level {
  const char *name; /* of a unit, in messages: "module" */
  uint32_t n_passes, n_properties;
  const kva_pass *passes;
  const kva_pass_property *properties;
  kva_status (*verify)(void *ir, kva_diag *diag);
  void (*print)(void *ir, const kva_pass *after, kva_text *out);
  /* Equal before and after a pass that changed nothing. NULL: passes report changes themselves. */
  uint64_t (*hash)(const void *ir);
} kva_pass_level;

/* What passes work on; lives for one call. */
typedef struct kva_pass_unit {
  const kva_pass_level *level;
  void *ir;
  const char *name; /* of the module or kernel, for messages */
  kva_diag *diag;
} kva_pass_unit;

typedef struct kva_pass_statistics {
  const kva_pass *pass;
  int64_t runs, changing_runs;
  double seconds; /* with what it calls */
} kva_pass_statistics;

enum { KVA_MAX_PASSES = 64 }; /* rows of both levels together */

/* How passes run, and what they did: one for a compilation, shared by all its pipelines. All zero is the default. */
typedef struct kva_pass_control {
  const char *print_after; /* name of a pass, or "all"; NULL: none */
  const char *stop_after;  /* the unit is printed after this pass, and its pipeline ends with KVA_STOPPED */
  FILE *print_to;          /* NULL: stdout */
  bool verify_each;        /* after every pass; builds with KVA_DEBUG always do */
  bool by_name;            /* the order is a user's: a property that is missing is an error, else an assertion */
  bool bisect;             /* only the first max_changes changes are made; each is named on stderr */
  int64_t max_changes;
  /* Called after every pass that ran. NULL: none. */
  kva_status (*after_each)(void *user, const kva_pass *pass, const kva_pass_unit *unit);
  void *user;
  /* Results. */
  int64_t changes;         /* with bisect: counted so far */
  const kva_pass *running; /* NULL: none */
  uint32_t n_statistics;
  kva_pass_statistics statistics[KVA_MAX_PASSES];
} kva_pass_control;

/* Runs a pass of unit's level. *changed becomes true when it changed something, else it stays. control may be NULL.
 * KVA_INVALID, with the name of the pass in a diagnostic, when the unit does not verify afterwards, or when control's
 * order lacks what the pass requires. */
KVA_MUST_USE kva_status kva_pass_run(const kva_pass *pass, const kva_pass_unit *unit, const void *options,
                                     kva_pass_control *control, bool *changed);

/* For passes that count: whether one more change may be made. control may be NULL. */
bool kva_pass_may_change(const kva_pass_control *control);
/* Counts a change that was made, while changes are limited. what: the rule or operator; loc: where, or NULL. */
void kva_pass_count_change(kva_pass_control *control, const kva_loc *loc, const char *what);

/* NULL: the level has no such pass. */
const kva_pass *kva_pass_find(const kva_pass_level *level, const char *name);
/* The first property that pass needs and unit lacks; NULL: none. */
const kva_pass_property *kva_pass_missing(const kva_pass *pass, const kva_pass_unit *unit);
/* A line for every pass that ran: runs, runs that changed something, milliseconds. */
void kva_pass_print_timing(const kva_pass_control *control, FILE *out);

#endif
