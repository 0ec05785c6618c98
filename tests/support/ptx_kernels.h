/* PTX kernels with inputs and expected results: subjects of the mutation test (ptx_mutate.h) and of the simulator's own
 * tests. A new kernel is a row of the table. */
#ifndef KVA_TESTS_SUPPORT_PTX_KERNELS_H
#define KVA_TESTS_SUPPORT_PTX_KERNELS_H

#include "runtime/ptxsim/ptxsim.h"

typedef struct ptx_subject {
  const char *name;
  const char *kernel; /* NULL: `name` */
  const char *text;   /* NULL: tests/data/ptx/NAME.ptx */
  /* Runs the kernel; out_right: whether its results are as expected. The launch's status. */
  kva_status (*run)(void *user, const kva_ptx_kernel *kernel, const kva_ptx_options *options, kva_diag *diag,
                    kva_ptx_report *out_report, bool *out_right);
  void *user;
} ptx_subject;
extern const ptx_subject ptx_subjects[];
extern const uint32_t ptx_n_subjects;

/* The text of a subject, to be freed; NULL: it cannot be read. */
char *ptx_subject_text(const ptx_subject *subject);

#endif
