/* Kernels as text, before and after scheduling for a GPU. */
#ifndef KVA_TESTS_SUPPORT_SCHEDULE_H
#define KVA_TESTS_SUPPORT_SCHEDULE_H

#include "runtime/base/memory.h"

/* The kernel of `source`, scheduled for `arch` and checked, as text; the caller frees it. Ends the test at an error. */
kva_text scheduled_text(const char *arch, const char *source);

#endif
