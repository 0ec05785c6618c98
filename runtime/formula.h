/* Size formulas of an artefact: postfix programs over shape symbols (runtime/abi.h). */
#ifndef KVA_RUNTIME_FORMULA_H
#define KVA_RUNTIME_FORMULA_H

#include "runtime/abi.h"
#include "runtime/base/base.h"

/* Maximum stack depth of a well-formed formula. */
enum { KVA_FORMULA_DEPTH = 32 };

/* Whether f is a well-formed formula over n_symbols symbols: known ops, symbols in range, one result, bounded depth.
 * The other functions require this. */
bool kva_formula_is_valid(const kva_formula *f, int32_t n_symbols);

/* False on overflow and on division by zero. */
bool kva_formula_eval(const kva_formula *f, const int64_t *symbols, int64_t *out_value);

/* f as infix text ("2*T + 1"), with the symbols' names. */
void kva_formula_print(const kva_formula *f, const char *const *symbols, kva_text *text);

#endif
