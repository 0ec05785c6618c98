/* Which values the integer inputs of a function may have, as it uses them as indices: labels of classes, tokens of a
 * vocabulary. */
#ifndef KVA_TOOLS_DRIVER_RANGES_H
#define KVA_TOOLS_DRIVER_RANGES_H

#include "ir/ir.h"
#include "runtime/runtime.h"

/* One for each input of f, in the arena. Bounds that are symbolic are not known. */
const kva_data_range *kva_input_ranges(const kva_module *m, const kva_function *f, kva_arena *arena);

#endif
