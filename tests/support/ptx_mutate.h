/* Mutations of PTX: one synchronising instruction deleted at a time. A kernel's checks are worth what they catch, so
 * every mutant must be caught, by a finding, a refusal or a wrong result, in some mode of the simulator. */
#ifndef KVA_TESTS_SUPPORT_PTX_MUTATE_H
#define KVA_TESTS_SUPPORT_PTX_MUTATE_H

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

#endif
