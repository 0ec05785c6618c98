/* Long tests run as several, each on its share of the cases; tests/CMakeLists.txt says how many. */
#ifndef KVA_TESTS_SUPPORT_PART_H
#define KVA_TESTS_SUPPORT_PART_H

#include <stdbool.h>
#include <stdint.h>

/* Whether case `index` (from 0) is in this run's share: $KVASIR_PART is PART/PARTS, PART from 1; all are in it without.
 * Every index is in exactly one part. Ends the test at a value that is not of this form. */
bool in_part(uint64_t index);

#endif
