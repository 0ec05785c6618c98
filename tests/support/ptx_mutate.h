/* Mutations of PTX: one synchronising instruction deleted at a time. A kernel's checks are worth what they catch, so
 * every mutant must be caught, by a finding, a refusal or a wrong result, in some mode of the simulator. Those that
 * nothing can be wrong with are listed, and argued; the list must be exact. */
#ifndef KVA_TESTS_SUPPORT_PTX_MUTATE_H
#define KVA_TESTS_SUPPORT_PTX_MUTATE_H

#include "tools/verify/simulated.h"
#include "tests/support/ptx_kernels.h"

typedef struct ptx_mutant {
  char mnemonic[80];
  uint32_t number; /* from 1: among those of this mnemonic */
  uint32_t line;
  size_t begin, end; /* in the text */
} ptx_mutant;

/* The synchronising instructions of a text, at most `most`. */
uint32_t ptx_find_mutants(const char *text, ptx_mutant *out, uint32_t most);
/* The text without the instruction, lines kept; waits at mbarriers become true. To be freed. */
char *ptx_mutate(const char *text, const ptx_mutant *mutant);

typedef struct ptx_verdict {
  bool caught;
  char how[200]; /* the first sign, or why it passed */
} ptx_verdict;
/* Runs a text of a subject in all modes. A right text is not caught. */
ptx_verdict ptx_judge(const ptx_subject *subject, const char *text);

/* ---- many kernels against a list --------------------------------------------------------------------------------- */

/* A line of the list: subject, mnemonic, number, and why nothing can be wrong without it. # begins a comment. */
typedef struct ptx_exception {
  char subject[64], mnemonic[80];
  uint32_t number;
  bool met;
} ptx_exception;

enum { PTX_MAX_EXCEPTIONS = 64 };
typedef struct ptx_mutations {
  ptx_exception exceptions[PTX_MAX_EXCEPTIONS];
  uint32_t n_exceptions;
  uint32_t subjects, mutants, caught, equivalent; /* so far */
  uint32_t failures;                              /* each printed */
} ptx_mutations;

void ptx_mutations_begin(ptx_mutations *t, const char *list_path);
/* The subject as it is must be right, every mutant of its kernel caught or listed, not both. */
void ptx_mutations_check(ptx_mutations *t, const ptx_subject *subject);
/* Prints the sums; lines of the list that no mutant met are failures. */
void ptx_mutations_end(ptx_mutations *t);

/* Kernels that Kvasir generates: a case of an operator. */
typedef struct ptx_generated {
  const char *name, *arch;
  kva_dtype dtype;
  uint32_t blocks; /* of the grid that mutants run, from the first on; 0: all */
  kva_case c;
} ptx_generated;
/* Each of n cases against a list: first its values against the reference, then the mutants of each kernel against what
 * the kernel itself computed. */
void ptx_mutations_check_generated(ptx_mutations *t, const char *list_path, const ptx_generated *kernels, uint32_t n);

#endif
