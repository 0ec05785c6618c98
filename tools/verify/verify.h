/* Checks every operator of the table in every dtype, on listed and on random cases: an executor or compiled code
 * against the reference, gradient rules against central differences, and compiled gradients against the reference. */
#ifndef KVA_TOOLS_VERIFY_VERIFY_H
#define KVA_TOOLS_VERIFY_VERIFY_H

#include "tools/verify/cases.h"
#include "ops/ids.h"

typedef struct kva_verify_options {
  const char *op;    /* name of one operator; NULL: all */
  int threads;       /* 0: as many as the process may run on */
  uint32_t n_random; /* random cases per operator and dtype */
  uint32_t every; /* of compiled code: the first case of each operator in each dtype, and every so many of the others;
                     0: all */
  bool no_gradients;
  kva_executor run; /* NULL: compiled code */
  void *run_user;   /* for `run`; for compiled code a const kva_target_options *, or NULL: the host */
  const char *arch; /* alternative to `run`: PTX for this GPU on the simulator */
} kva_verify_options;

/* One operator. */
typedef struct kva_verify_row {
  const kva_op_info *op;
  kva_dtype_set dtypes, missing; /* checked; supported but without a case */
  uint32_t compiled, compiled_passed, gradients, gradients_passed, backward, backward_passed;
  double error, gradient_error, backward_error; /* worst, as in kva_check */
} kva_verify_row;

typedef struct kva_verify_report {
  uint32_t n;
  kva_verify_row rows[KVA_OP_COUNT];
  /* skipped: pairs of operator and dtype without a case, rules without a gradient case, operators without code, and on
   * one simulated GPU gradients that exchange values between processes. */
  uint32_t passed, failed, skipped;
  uint32_t unsupported; /* failed cases for which the target has no code */
  uint64_t launches;    /* on the simulator */
  kva_text messages;    /* failures, and what is skipped for want of processes, in order */
} kva_verify_report;

/* KVA_INVALID: unknown operator. Failed checks are in the report, not in the status. */
KVA_MUST_USE kva_status kva_verify(const kva_verify_options *options, kva_diag *diag, kva_verify_report *out_report);
void kva_verify_free(kva_verify_report *report);

/* Visits the cases of compiled code that kva_verify would run, in its order; dtype as for kva_case_build. They live
 * until kva_verify_cases returns. */
typedef void (*kva_verify_visitor)(void *user, const kva_case *c, kva_dtype dtype);
KVA_MUST_USE kva_status kva_verify_cases(const kva_verify_options *options, kva_diag *diag, kva_verify_visitor visit,
                                         void *user);

#endif
